"""`joslim.report`: the page of some runs, or the picture of their fronts, as one file."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from joslim.errors import UserError
from joslim.front import Front
from joslim.reports.page.filling import page_of
from joslim.runs.folder import CONFIG, FRONT, HISTORY, METRICS
from joslim.runs.story import NothingYet, Story, story_of
from joslim.untrusted import shown

log = logging.getLogger("joslim")

PAGE = "report.html"
PICTURES = (".png", ".svg")
# Seconds between two looks at a run that is being watched, and between two readings of its page.
PAUSE = 2.0
REFRESH = 5


def report(runs: Any, path: str | Path | None = None) -> Path:
    """Write the page of runs (.html), or the picture of their fronts (.png, .svg).

    runs: a run or its folder, or several of them. path: for one run report.html in its folder, if
    not given. It is returned.
    """
    folders = folders_of(runs)
    target = target_of(folders, path)
    if target.suffix.lower() in PICTURES:
        draw(folders, target)
    else:
        write_page([story_of(folder) for folder in folders], target)
    return target


def report_at_end(folder: Path) -> None:
    """The page that a training leaves in its folder. A page is no reason for a training to fail."""
    try:
        report(folder)
    except Exception as error:
        log.warning("no page: %s; joslim report %s tries again", error, folder)


def watch(
    runs: Any, path: str | Path | None = None, tell: Callable[[str], None] = lambda line: None
) -> Path:
    """Write the page anew whenever a file of its runs changes, until all of them have ended.

    tell: called with one line after each writing. The last page written reloads itself no more.
    """
    folders = folders_of(runs)
    target = target_of(folders, path)
    if target.suffix.lower() in PICTURES:
        raise UserError(f"watch: {str(target)!r} is a picture; only a page (.html) is kept up")
    stories: list[Story] = []
    try:
        seen: Any = None
        while not stories or not all(story["status"]["finished"] for story in stories):
            if (state := state_of(folders)) != seen:
                seen = state
                stories = [story for folder in folders if (story := begun(folder)) is not None]
                if stories:
                    write_page(stories, target, REFRESH)
                tell(progress(stories))
            else:
                time.sleep(PAUSE)
    finally:
        if stories:
            write_page(stories, target)
    return target


def folders_of(runs: Any) -> list[Path]:
    """Of a run, a path, or several of them."""
    several = runs if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]
    if not several:
        raise UserError("runs: none given; give at least one folder of a run")
    folders = [folder_of(run) for run in several]
    places = [os.path.realpath(folder) for folder in folders]
    for at, place in enumerate(places):
        if place in places[:at]:
            raise UserError(f"runs: {str(folders[at])!r} is given twice; leave one out")
    return folders


def folder_of(run: Any) -> Path:
    place = getattr(run, "path", run)
    if not isinstance(place, (str, Path)):
        raise UserError(f"runs: {shown(run)} is neither a run nor the folder of one")
    return Path(place)


def target_of(folders: Sequence[Path], path: str | Path | None) -> Path:
    if path is None:
        if len(folders) > 1:
            raise UserError(f"out: needed for {len(folders)} runs; type -o report.html")
        return folders[0] / PAGE
    target = Path(path)
    allowed = (".html", *PICTURES)
    if target.suffix.lower() not in allowed:
        raise UserError(f"out: {str(path)!r} ends in none of {', '.join(allowed)}")
    return target


def draw(folders: Sequence[Path], target: Path) -> None:
    """One run with the search behind it; of several the fronts."""
    from joslim.reports.figures import draw_front, draw_run

    fronts = [Front.read(folder) for folder in folders]
    if len(folders) == 1:
        story = story_of(folders[0])
        draw_run(fronts[0], [(*visit,) for visit in story["visits"]], target)
    else:
        draw_front(dict(zip(map(str, folders), fronts)), target)


def write_page(stories: Sequence[Story], target: Path, refresh: int | None = None) -> None:
    """All of it or nothing. Its side name is ours alone: a training may write the same page."""
    beside = target.with_name(f"{target.name}.{os.getpid()}.new")
    try:
        beside.write_text(page_of(stories, refresh), encoding="utf-8")
        os.replace(beside, target)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise UserError(f"out: {str(target)!r} cannot be written: {error.strerror}") from error


def state_of(folders: Sequence[Path]) -> list[tuple[int, int] | None]:
    """Changes whenever a file that a page shows does."""
    files = [folder / name for folder in folders for name in (CONFIG, METRICS, HISTORY, FRONT)]
    return [stamp(file) for file in files]


def stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def begun(folder: Path) -> Story | None:
    """None while there is nothing to show yet; a folder that is no run is an error."""
    try:
        return story_of(folder)
    except NothingYet:
        return None


def progress(stories: Sequence[Story]) -> str:
    going = [story for story in stories if not story["status"]["finished"]]
    if not stories:
        return "waiting for the first round"
    if not going:
        return "finished"
    return "; ".join(
        f"{story['name']}: step {story['status']['step']} of {story['status']['total']}"
        for story in going
    )
