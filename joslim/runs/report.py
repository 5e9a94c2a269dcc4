"""`joslim.report`: the page of some runs, or the picture of their fronts, as one file."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from joslim.errors import UserError
from joslim.files import refuse_foreign_file, shown, write_whole, writing
from joslim.results.device_times import matching_files
from joslim.results.page.content import page_of
from joslim.results.plots import draw_front, draw_run
from joslim.results.record import NothingYet, Record, read_record
from joslim.results.run_files import (
    CONFIG,
    FINISHED,
    FRONT,
    HISTORY,
    METRICS,
    TRAINING,
    is_in_use,
    read_front,
)
from joslim.runs.folder import CHECKPOINTS, MADE
from joslim.runs.fronts import read_timed_front

log = logging.getLogger("joslim")

PAGE = "report.html"
PICTURES = (".png", ".svg")
# Text near the start of every page and picture.
MARK = b"joslim"
# Seconds between two looks at a watched run, and between two reloads of its page.
PAUSE = 2.0
REFRESH = 5
# Seconds that a watch waits for a training to begin or to go on.
PATIENCE = 30.0


def report(
    runs: Any,
    path: str | Path | None = None,
    device_files: Sequence[Path] = (),
    overwrite: bool = False,
) -> Path:
    """Write the page of runs (.html), or the picture of their Pareto fronts (.png, .svg).

    Args:
        runs: A run or its folder, or a list of them; or the `Slimming` of your own training loop,
            also while it trains.
        path: The file to write. By default report.html in the folder of the run, if there is only
            one.
        device_files: Files of `joslim latency`; each adds its latency to the runs of its network.
        overwrite: Replace the file even if joslim has not written it.

    Returns:
        The path of the file.

    Raises:
        UserError: A folder is not a run folder, a run has nothing to show yet, or the file cannot
            be written or is not joslim's.

    Examples:
        >>> joslim.report("runs/digits", "digits.html").name
        'digits.html'
    """
    if (live := _live_record(runs)) is not None:
        target = _target_of([], path, overwrite)
        if target.suffix.lower() not in PICTURES:
            _write_page([live], target)
        elif live.front is None:
            raise UserError("runs: there is no front yet; call slimming.front() first")
        else:
            draw_run(live.front, live.visits, target)
        return target
    folders = _folders_of(runs)
    target = _target_of(folders, path, overwrite)
    if target.suffix.lower() in PICTURES:
        if device_files:
            raise UserError("device_file: it goes with a page; type -o NAME.html")
        fronts = [read_front(folder) for folder in folders]
        if len(folders) == 1:  # with the search behind it
            draw_run(fronts[0], read_record(folders[0]).visits, target)
        else:
            draw_front(dict(zip(map(str, folders), fronts)), target)
        return target
    files = matching_files(folders, device_files)
    records: list[Record] = []
    for at, folder in enumerate(folders):
        file = files.get(folder)
        try:
            records.append(
                read_record(folder, read_timed_front(folder, file) if file else None, file)
            )
        except NothingYet as error:
            if not records and at == len(folders) - 1:
                raise
            log.warning("left out: %s", error)
    _write_page(records, target)
    return target


def report_at_end(folder: Path) -> None:
    """Write the page of a training that has ended; a page that fails must not fail the training."""
    try:
        report(folder)
    except Exception as error:
        log.warning("no page: %s; joslim report %s tries again", error, folder)


def watch(
    runs: Any,
    path: str | Path | None = None,
    tell: Callable[[str], None] = lambda line: None,
    overwrite: bool = False,
) -> Path:
    """Write the page again whenever a file of its runs changes, until none of them is training.

    A training may begin, or go on, a little later than the watch. The last page that is written
    does not reload itself.

    tell: called with one line whenever there is news.
    """
    folders = _folders_of(runs)
    target = _target_of(folders, path, overwrite)
    if target.suffix.lower() in PICTURES:
        raise UserError(f"watch: {str(target)!r} is a picture; only a page (.html) is kept up")
    records: list[Record] = []
    seen: Any = None
    idle = 0.0
    try:
        while True:
            if (stamps := _stamps_of(folders)) != seen:
                seen, idle = stamps, 0.0
                records = _records_so_far(folders)
                if records:
                    _write_page(records, target, REFRESH)
                tell(_progress(records))
            elif any(map(is_in_use, folders)):
                idle = 0.0
            else:
                if idle == 0.0:
                    tell(f"nobody trains here now: waiting {PATIENCE:.0f} s for a training")
                idle += PAUSE
            if _all_finished(records, folders) or idle > PATIENCE:
                break
            time.sleep(PAUSE)
        records = _records_so_far(folders)  # a training may have stopped since then
    finally:
        if records:
            _write_page(records, target)
    if not records:
        read_record(folders[0])  # says why there is nothing to show
    if not _all_finished(records, folders):
        tell(f"ended, nobody trains here: {_progress(records)}")
    return target


def _live_record(runs: Any) -> Record | None:
    """Return the record of a `Slimming`, which has no folder; None for anything else."""
    if isinstance(runs, (str, Path, Sequence)) or hasattr(runs, "path"):
        return None
    from joslim.runs.saving import record_of  # with torch, which folders do not need
    from joslim.training.slimming import Slimming

    return record_of(runs) if isinstance(runs, Slimming) else None


def _folders_of(runs: Any) -> list[Path]:
    """Return the folders of a run, a path, or several of them."""
    several = runs if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]
    if not several:
        raise UserError("runs: none given; give at least one folder of a run")
    folders: list[Path] = []
    for run in several:
        place = getattr(run, "path", run)
        if not isinstance(place, (str, Path)):
            raise UserError(f"runs: {shown(run)} is neither a run nor the folder of one")
        if os.path.realpath(place) in map(os.path.realpath, folders):
            raise UserError(f"runs: {str(place)!r} is given twice; leave one out")
        folders.append(Path(place))
    return folders


def _target_of(folders: Sequence[Path], path: str | Path | None, overwrite: bool) -> Path:
    if path is None and not folders:
        raise UserError("path: needed for a Slimming; type joslim.report(slimming, 'report.html')")
    if path is None and len(folders) > 1:
        raise UserError(f"out: needed for {len(folders)} runs; type -o report.html")
    target = folders[0] / PAGE if path is None else Path(path)
    allowed = (".html", *PICTURES)
    if target.suffix.lower() not in allowed:
        raise UserError(f"out: {str(path)!r} ends in none of {', '.join(allowed)}")
    refuse_foreign_file(target, MARK, overwrite)
    return target


def _write_page(records: Sequence[Record], target: Path, refresh: int | None = None) -> None:
    with writing(target):
        write_whole(target, page_of(records, refresh))


# The runs of a watch


def _stamps_of(folders: Sequence[Path]) -> list[tuple[int, int] | None]:
    """Time and size of every file that the page shows: they change when its content does."""
    stamps: list[tuple[int, int] | None] = []
    for file in (f / name for f in folders for name in (CONFIG, METRICS, HISTORY, FRONT)):
        stamps.append(None)
        with suppress(OSError):
            found = file.stat()
            stamps[-1] = (found.st_mtime_ns, found.st_size)
    return stamps


def _records_so_far(folders: Sequence[Path]) -> list[Record]:
    """Read the runs that have something to show; a folder of something else is an error."""
    records: list[Record] = []
    for folder in folders:
        if not _is_about_to_begin(folder):
            with suppress(NothingYet):
                records.append(read_record(folder))
    return records


def _is_about_to_begin(folder: Path) -> bool:
    """Whether the folder is missing or has no config.json yet, and nothing of anything else."""
    try:
        names = {entry.name for entry in folder.iterdir()}
    except FileNotFoundError:
        return True
    except OSError:  # `read_record` says what is wrong
        return False
    return CONFIG not in names and names <= {*MADE, *CHECKPOINTS}


def _all_finished(records: Sequence[Record], folders: Sequence[Path]) -> bool:
    return [record.status.state for record in records] == [FINISHED] * len(folders)


def _progress(records: Sequence[Record]) -> str:
    """`a: step 12 of 60; b: stopped at step 30 of 60; joslim resume runs/b goes on`"""
    if not records:
        return "waiting for the first step"
    words = []
    for record in records:
        status = record.status
        if status.state == TRAINING:
            words.append(f"{record.name}: {status.place}")
        elif status.state != FINISHED:
            words.append(f"{record.name}: {status.how_to_resume(record.path)}")
    return "; ".join(words) or "finished"
