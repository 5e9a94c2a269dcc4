"""Read the files of a run folder, and how far its training is, without torch.

Anybody may have written the files: a broken file is a UserError of one line. `joslim.runs.folder`
writes them.
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
from joslim.files import (
    json_count,
    json_number,
    json_object,
    json_value,
    left_over,
    read_json,
    read_json_lines,
)
from joslim.formats import FORMATS
from joslim.front import Front, Weights, step_of_front, weights_of

CONFIG = "config.json"
METRICS = "metrics.jsonl"
HISTORY = "history.jsonl"
FRONT = "front.json"
LATENCY = "latency.json"
# The phase of lines of metrics.jsonl that have validation errors instead of losses.
VALIDATION = "validation"
MOST_BYTES = 10**9
MOST_STEPS = 10**9
# Bytes that hold the last lines of a log or of metrics.jsonl.
TAIL = 65_536

FINISHED, TRAINING, STOPPED = "finished", "training", "stopped"
# The format of the files of a run. It goes up when another joslim could not read them.
FORMAT = 4


# Files


def read_object(folder: Path, name: str) -> dict[str, Any]:
    """Read a file that holds one JSON object."""
    file = folder / name
    _refuse_missing(file)
    return json_object(read_json(file, MOST_BYTES, "run"), f"run: {str(file)!r}")


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Read the objects of a JSON-lines file; a last line that a crash has cut is left out."""
    _refuse_missing(file)
    return read_json_lines(file, MOST_BYTES, "run")


def _refuse_missing(file: Path) -> None:
    """Say whether the folder or the file is missing, and why it may be."""
    folder = file.parent
    try:
        file.stat()
    except PermissionError as error:
        raise UserError(f"run: cannot read {str(file)!r}: {error.strerror}") from error
    except OSError:
        pass
    if not os.path.isdir(folder):
        raise UserError(f"run: {str(folder)!r} does not exist; joslim train --out makes one")
    if not os.path.exists(file):
        why = "not a run folder?"
        if left_over(file):
            begin = f"joslim train --out {shlex.quote(str(folder))} begins it"
            why = f"its training was killed before it began; {begin}"
        raise UserError(f"run: {str(folder)!r} has no {file.name}: {why}")


def tail(file: Path) -> str:
    """Read the end of a file; the text is empty if the file cannot be read."""
    try:
        if not file.is_file():  # a pipe or a device would never end
            return ""
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - TAIL))
            return stream.read(TAIL).decode(errors="replace")
    except OSError:
        return ""


def last_metrics(run: Path) -> dict[str, Any]:
    """Read the last complete line of metrics.jsonl; the result is empty if there is none."""
    for line in reversed(tail(run / METRICS).splitlines()):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a line that is being written, or that a crash has cut
        return record if isinstance(record, dict) else {}
    return {}


def finite_number(record: Mapping[str, Any], key: str) -> float | None:
    """Return the value of a key if it is a finite number, else None."""
    try:
        return json_number(record.get(key), key)
    except UserError:
        return None


# config.json, by which a run and an exported child are told apart


def facts_of_run(path: Path) -> dict[str, Any]:
    """Read config.json of a run; anything else that joslim writes is refused by its name."""
    name = repr(str(path))
    if kind := _kind_of_file(path):
        raise UserError(f"run: {name} {kind}; a run is a folder that joslim train makes")
    facts = read_object(path, CONFIG)
    if _is_child(facts):
        raise UserError(f"run: {name} is an exported child; joslim.load_child({name}) opens it")
    if "joslim" not in facts:  # other programs have a config.json too
        raise UserError(f"run: {name} is not a run folder: its {CONFIG} is not joslim's")
    refuse_other_format(f"run: {name}", facts.get("format"))
    return facts


class OtherFormat(UserError):
    """A run of another version of joslim."""


def refuse_other_format(what: str, found: Any) -> None:
    """Refuse files of another version of joslim. Files without a format number are older."""
    if type(found) is int and found > FORMAT:
        raise OtherFormat(f"{what} was written by a newer joslim; type pip install -U joslim")
    if found != FORMAT:
        raise OtherFormat(
            f"{what} was written by an older joslim, which this one cannot read; train anew"
        )


def facts_of_child(path: Path) -> dict[str, Any]:
    """Read config.json of an exported child; anything else that joslim writes is refused."""
    name, how = repr(str(path)), "joslim export RUN -o NAME makes one"
    if kind := _kind_of_file(path):
        raise UserError(f"child: {name} {kind}; a folder is needed: {how}")
    if not path.exists():
        raise UserError(f"child: {name} does not exist; {how}")
    if not (path / CONFIG).exists():
        raise UserError(f"child: {name} is no exported child: it has no {CONFIG}; {how}")
    facts = read_object(path, CONFIG)
    if "joslim" in facts:
        export = f"joslim export {shlex.quote(str(path))} -o NAME"
        raise UserError(
            f"child: {name} is a run; joslim.load({name}) opens it, {export} cuts one out"
        )
    if not _is_child(facts):
        raise UserError(f"child: {name} is no exported child: its {CONFIG} is not joslim's; {how}")
    return facts


def _is_child(facts: dict[str, Any]) -> bool:
    return str(facts.get("made_by")).startswith("joslim")


def _kind_of_file(path: Path) -> str:
    """Say what a file is in place of a folder; empty if the path is no file."""
    try:
        if not path.is_file():
            return ""
    except OSError as error:
        raise UserError(f"path: {str(path)!r} cannot be read: {error.strerror}") from error
    for known in FORMATS.values():
        if known.suffix and path.suffix == known.suffix:
            return f"is an exported child, which {known.opened_by} opens"
    return "is a file"


# How far the training is


@dataclass(frozen=True)
class RunStatus:
    """Whether a run has finished, is training or has stopped, and at which step.

    state: FINISHED, TRAINING or STOPPED. step: the last one that was logged or saved. total: steps
    of the whole training, or None if config.json does not say.
    """

    state: str
    step: int
    total: int | None

    @property
    def place(self) -> str:
        """`step 3 of 60`"""
        return f"step {self.step}" + ("" if self.total is None else f" of {self.total}")

    def how_to_resume(self, path: Path) -> str:
        """`stopped at step 3 of 60; joslim resume RUN goes on`"""
        return f"stopped at {self.place}; joslim resume {shlex.quote(str(path))} goes on"


def status_of(path: Path) -> RunStatus:
    """Find out how far a run is. An extended run keeps its old front.json until it ends."""
    try:
        total: int | None = total_steps(read_object(path, CONFIG), CONFIG)
    except UserError:
        total = None
    try:
        step = json_count(last_metrics(path).get("step"), "step", 0, MOST_STEPS)
    except UserError:
        step = 0
    if (saved := weights_of(path)) is not None:  # a signal saves between two lines of the log
        step = max(step, saved.step)
    if os.path.isfile(path / FRONT) and _front_is_of_last_step(path, total):
        return RunStatus(FINISHED, step, total)
    return RunStatus(TRAINING if is_in_use(path) else STOPPED, step, total)


def _front_is_of_last_step(path: Path, total: int | None) -> bool:
    """Compare the step of front.json with that of the training and of the newest checkpoint.

    The last checkpoint has the statistics of the front's children, and is written after the front.
    A front without a step is broken, which is said where the front is read.
    """
    if (step := step_of_front(path)) is None:
        return True
    return total in (None, step) and weights_of(path) in (None, Weights(step, finished=True))


def is_finished(path: Path) -> bool:
    return status_of(path).state == FINISHED


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


def lock(handle: int) -> bool:
    """Try to lock a folder; True as well on systems that have no such locks."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        pass
    return True


def read_front(path: Path) -> Front:
    """Read the front of a finished run; the error of another run says to wait or to resume it."""
    if os.path.isfile(path / CONFIG):
        refuse_unfinished(path)
    return Front.read(path)


def refuse_unfinished(path: Path) -> None:
    """Refuse a folder that is no run, a run that is still training, and one that has stopped."""
    facts_of_run(path)
    status = status_of(path)
    if status.state == TRAINING:
        raise UserError(f"run: {str(path)!r} is still training ({status.place}); wait for its end")
    if status.state == STOPPED:
        has_front = os.path.isfile(path / FRONT)
        front = "has only an earlier front" if has_front else "has no front yet"
        raise UserError(f"run: {str(path)!r} {front}: it {status.how_to_resume(path)}")


def total_steps(facts: Mapping[str, Any], where: str) -> int:
    """Count the optimizer steps of the whole training.

    facts: the content of config.json. where: its name, for the message of an error.
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


def steps_in(epochs: float, images: float, batch: float) -> int:
    """Optimizer steps of so many epochs; a last epoch that is not whole is rounded up."""
    return max(1, -int(-epochs * images // batch))
