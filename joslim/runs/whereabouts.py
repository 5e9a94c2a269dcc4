"""Where a run is: finished, training now, or stopped; and what its user can do about it.

Read from its folder alone, without torch. Anybody may have written the files in it.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joslim.errors import UserError
from joslim.front import Front
from joslim.runs.config import steps_in
from joslim.runs.folder import CONFIG, FRONT, METRICS, OLD, RunFolder, lock
from joslim.runs.opening import facts_of_run
from joslim.untrusted import json_count, json_number, json_value

FINISHED, TRAINING, STOPPED = "finished", "training", "stopped"
MOST_STEPS = 10**9
# Enough for the last lines of a log or of metrics.jsonl.
TAIL = 65_536


@dataclass(frozen=True)
class Whereabouts:
    """state: one of the three above. total: None where the files do not say it."""

    state: str
    step: int
    total: int | None

    @property
    def place(self) -> str:
        """Step 3 of 60"""
        return f"step {self.step}" + ("" if self.total is None else f" of {self.total}")


def where_is(path: Path) -> Whereabouts:
    """A run that was asked to go on has a front and is not finished."""
    step, total = steps_done(path), known_total(path)
    # Without metrics nothing was added to the front that is there.
    done = total is None or not step or (step >= total and is_judged(path))
    if done and os.path.isfile(path / FRONT):
        return Whereabouts(FINISHED, step, total)
    return Whereabouts(TRAINING if is_in_use(path) else STOPPED, step, total)


def is_judged(path: Path) -> bool:
    """What comes after the last step is done too: the children are judged, and the last checkpoint
    is in, so that the one before it is gone.
    """
    last = last_record(path)
    # Runs of older versions have no line for it, and no times of the parts.
    return ("phase" in last or "parts" not in last) and not (path / OLD).exists()


def is_finished(path: Path) -> bool:
    return where_is(path).state == FINISHED


def is_in_use(path: Path) -> bool:
    """Whether some process trains into the folder now."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not lock(handle)
    finally:
        os.close(handle)


# What is said of a run without a front, or with an earlier one


def read_front(path: Path) -> Front:
    """The front of a run; one that has none yet says whether to wait or to resume."""
    if lacks_front(path):
        refuse_unfinished(path)
    return Front.read(path)


def lacks_front(path: Path) -> bool:
    return os.path.isfile(path / CONFIG) and not os.path.isfile(path / FRONT)


def refuse_unfinished(path: Path) -> None:
    """One line for a folder that is no run, for a run that goes on, and for one that stopped."""
    facts_of_run(path)
    where = where_is(path)
    if where.state == TRAINING:
        raise UserError(f"run: {str(path)!r} is still training ({where.place}); wait for its end")
    if where.state == STOPPED:
        front = "has no front yet" if lacks_front(path) else "has only an earlier front"
        raise UserError(f"run: {str(path)!r} {front}: it {how_to_go_on(path, where)}")


def how_to_go_on(path: Path, where: Whereabouts) -> str:
    return f"stopped at {where.place}; joslim resume {shlex.quote(str(path))} goes on"


# Steps and seconds


def total_steps(facts: Mapping[str, Any], where: str) -> int:
    """Optimizer steps of the whole training; epochs are counted as the training counts them.

    facts: what config.json holds. where: its name, for the message if they are not in it.
    """
    config = json_value(facts, "config", where)
    if not isinstance(config, dict):
        raise UserError(f"{where}.config: not a JSON object")
    if config.get("steps") is not None:
        return json_count(config["steps"], f"{where}: steps", 1, MOST_STEPS)
    epochs = json_number(json_value(config, "epochs", where), f"{where}: epochs", 1e6)
    batch = json_count(json_value(config, "batch", where), f"{where}: batch", 1, MOST_STEPS)
    sizes = json_value(json_value(facts, "data", where), "sizes", where)
    images = json_count(json_value(sizes, "train", where), f"{where}: images", 1, 10**12)
    return steps_in(epochs, images, batch)


def known_total(path: Path) -> int | None:
    try:
        return total_steps(RunFolder(path).read(CONFIG), CONFIG)
    except UserError:
        return None


def steps_done(path: Path) -> int:
    """As far as they are written down."""
    try:
        return json_count(last_record(path).get("step"), "step", 0, MOST_STEPS)
    except UserError:
        return 0


def seconds_of(path: Path) -> float | None:
    """Wall time of the run, all its parts together if it was resumed."""
    try:
        return float(json_number(last_record(path).get("seconds"), "seconds"))
    except UserError:
        return None


def last_record(path: Path) -> dict[str, Any]:
    """The last whole line of metrics.jsonl."""
    for line in reversed(tail(path / METRICS).splitlines()):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a line that is being written, or that a crash has cut
        return record if isinstance(record, dict) else {}
    return {}


def tail(file: Path) -> str:
    """The end of a file; nothing if it cannot be read. A pipe or a device would never end."""
    try:
        if not file.is_file():
            return ""
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - TAIL))
            return stream.read(TAIL).decode(errors="replace")
    except OSError:
        return ""
