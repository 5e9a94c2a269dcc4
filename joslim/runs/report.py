"""`joslim.report`: the page of some runs, or the picture of their fronts, as one file."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from joslim.errors import UserError
from joslim.reports.page.filling import page_of
from joslim.runs.folder import CHECKPOINTS, CONFIG, FRONT, HISTORY, MADE, METRICS
from joslim.runs.fronts import serving
from joslim.runs.story import NothingYet, Story, story_of
from joslim.runs.whereabouts import (
    FINISHED,
    TRAINING,
    Whereabouts,
    how_to_go_on,
    is_in_use,
    read_front,
)
from joslim.untrusted import shown
from joslim.whole import write_whole

log = logging.getLogger("joslim")

PAGE = "report.html"
PICTURES = (".png", ".svg")
# Seconds between two looks at a run that is being watched, and between two readings of its page.
PAUSE = 2.0
REFRESH = 5
# Seconds that a watch waits for somebody to train.
PATIENCE = 30.0


def report(runs: Any, path: str | Path | None = None, device_files: Sequence[Path] = ()) -> Path:
    """Write the page of runs (.html), or the picture of their fronts (.png, .svg).

    runs: a run or its folder, or several of them. path: for one run report.html in its folder, if
    not given. It is returned. device_files: each gives its latency to the runs of its network.
    """
    folders = folders_of(runs)
    target = target_of(folders, path)
    if target.suffix.lower() in PICTURES:
        if device_files:
            raise UserError("device_file: it goes with a page; type -o NAME.html")
        draw(folders, target)
    else:
        files = serving(folders, device_files)
        write_page(stories_of(folders, files), target)
    return target


def stories_of(folders: Sequence[Path], device_files: Mapping[Path, Any]) -> list[Story]:
    """Of several runs, those that have nothing to show yet are left out and named."""
    stories: list[Story] = []
    for at, folder in enumerate(folders):
        try:
            stories.append(story_of(folder, device_files.get(folder)))
        except NothingYet as error:
            if not stories and at == len(folders) - 1:
                raise
            log.warning("left out: %s", error)
    return stories


def report_at_end(folder: Path) -> None:
    """The page that a training leaves in its folder. A page is no reason for a training to fail."""
    try:
        report(folder)
    except Exception as error:
        log.warning("no page: %s; joslim report %s tries again", error, folder)


def watch(
    runs: Any, path: str | Path | None = None, tell: Callable[[str], None] = lambda line: None
) -> Path:
    """Write the page anew whenever a file of its runs changes, until nobody trains any of them.

    tell: called with one line whenever there is news. A training may begin a little later than the
    watch, or go on. The last page written reloads itself no more.
    """
    folders = folders_of(runs)
    target = target_of(folders, path)
    if target.suffix.lower() in PICTURES:
        raise UserError(f"watch: {str(target)!r} is a picture; only a page (.html) is kept up")
    stories: list[Story] = []
    seen: Any = None
    alone = 0.0
    try:
        while True:
            if (state := state_of(folders)) != seen:
                seen, alone = state, 0.0
                stories = told(folders)
                if stories:
                    write_page(stories, target, REFRESH)
                tell(progress(stories))
            elif any(map(is_in_use, folders)):
                alone = 0.0
            else:
                if alone == 0.0:
                    tell(f"nobody trains here now: waiting {PATIENCE:.0f} s for a training")
                alone += PAUSE
            if all_finished(stories, folders) or alone > PATIENCE:
                break
            time.sleep(PAUSE)
        stories = told(folders)  # a training that has stopped since then is not training any more
    finally:
        if stories:
            write_page(stories, target)
    if not stories:
        story_of(folders[0])  # says why there is nothing to show
    if not all_finished(stories, folders):
        tell(f"ended, nobody trains here: {progress(stories)}")
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

    fronts = [read_front(folder) for folder in folders]
    if len(folders) == 1:
        story = story_of(folders[0])
        draw_run(fronts[0], [(*visit,) for visit in story["visits"]], target)
    else:
        draw_front(dict(zip(map(str, folders), fronts)), target)


def write_page(stories: Sequence[Story], target: Path, refresh: int | None = None) -> None:
    try:
        write_whole(target, page_of(stories, refresh))
    except OSError as error:
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


def told(folders: Sequence[Path]) -> list[Story]:
    """The stories of those that have something to show already."""
    return [story for folder in folders if (story := begun(folder)) is not None]


def begun(folder: Path) -> Story | None:
    """None while there is nothing to show yet; a folder that holds something else is an error."""
    if is_about_to_begin(folder):
        return None
    try:
        return story_of(folder)
    except NothingYet:
        return None


def is_about_to_begin(folder: Path) -> bool:
    """It is not there, or holds at most what a training writes before its configuration."""
    try:
        names = {entry.name for entry in folder.iterdir()}
    except FileNotFoundError:
        return True
    except OSError:  # who opens it says what is wrong
        return False
    return CONFIG not in names and names <= {*MADE, *CHECKPOINTS}


def all_finished(stories: Sequence[Story], folders: Sequence[Path]) -> bool:
    states = [story["status"]["state"] for story in stories]
    return len(states) == len(folders) and {*states} == {FINISHED}


def progress(stories: Sequence[Story]) -> str:
    """a: step 12 of 60; b: stopped at step 30 of 60; joslim resume runs/b goes on"""
    if not stories:
        return "waiting for the first round"
    going = [story for story in stories if story["status"]["state"] != FINISHED]
    return "; ".join(map(words_of, going)) or "finished"


def words_of(story: Story) -> str:
    where = Whereabouts(**story["status"])
    path = Path(story["export"]["path"])
    words = where.place if where.state == TRAINING else how_to_go_on(path, where)
    return f"{story['name']}: {words}"
