"""The trainings of a comparison, as their run folders have them. Nothing is trained here."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joslim.comparing.plan import MOST_SEED, Plan, Task, is_comparison
from joslim.errors import UserError
from joslim.front import Front, front_file
from joslim.runs.config import steps_in
from joslim.untrusted import json_count, json_name, json_number, json_value

NOT_TRAINED = "not trained yet"
STILL_TRAINING = "still training"
# Enough for the last lines of a log or of metrics.jsonl.
TAIL = 65_536


@dataclass(frozen=True)
class Entry:
    """One training: its front, or why there is none."""

    model: str
    cost: str
    method: str
    seed: int
    path: Path
    front: Front | None = None
    failure: str | None = None
    seconds: float | None = None
    at_once: int | None = None
    # What must be the same in one table: the data, the steps, the batch, the lowest width.
    terms: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        names = ("model", "cost", "method", "seed", "failure", "seconds", "at_once")
        return {**{name: getattr(self, name) for name in names}, "path": str(self.path)}


def read_entries(paths: Iterable[str | Path]) -> list[Entry]:
    """Of finished runs, and of whole comparisons: those may have runs that are not finished."""
    entries: list[Entry] = []
    for path in map(Path, paths):
        if is_comparison(path):
            entries += entries_of_plan(path, Plan.read(path))
        else:
            entries.append(entry_of_run(path))
    if not entries:
        raise UserError("runs: none given; type the folders of at least two runs")
    refuse_same_run_twice(entries)
    return entries


def entries_of_plan(out: Path, plan: Plan) -> list[Entry]:
    return [entry_of_task(out, task, plan.at_once.get(task.name)) for task in plan.tasks]


def entry_of_task(out: Path, task: Task, at_once: int | None) -> Entry:
    """A run of a plan: one without a front says why, in the words of its log."""
    path = out / task.name
    if not is_finished(path):
        why = STILL_TRAINING if is_in_use(path) else last_line(log_of(path)) or NOT_TRAINED
        return Entry(**task.to_json(), path=path, failure=why)
    entry = entry_of_run(path, at_once)
    for name, planned in task.to_json().items():
        if (there := getattr(entry, name)) != planned:
            raise UserError(f"{name}: {str(path)!r} has {there!r} where the plan has {planned!r}")
    return entry


def entry_of_run(path: Path, at_once: int | None = None) -> Entry:
    """A finished run, read from its folder."""
    from joslim.runs.folder import CONFIG, RunFolder

    refuse_unfinished(path)
    front = Front.read(path)
    facts = RunFolder(path).read(CONFIG)
    config = json_value(facts, "config", CONFIG)
    where = f"{CONFIG} of {str(path)!r}"
    return Entry(
        model=json_name(json_value(config, "model", where), f"{where}: model"),
        cost=front.cost,
        method=json_name(json_value(config, "method", where), f"{where}: method"),
        seed=json_count(json_value(config, "seed", where), f"{where}: seed", 0, MOST_SEED),
        path=path,
        front=front,
        seconds=seconds_of(path),
        at_once=at_once,
        terms=terms_of(facts, where),
    )


def terms_of(facts: dict[str, Any], where: str) -> dict[str, Any]:
    config = json_value(facts, "config", where)
    data = json_value(json_value(facts, "data", where), "identity", where)
    return {
        "data": json_name(data, f"{where}: data"),
        "steps": steps_of(facts, where),
        "batch": config.get("batch"),
        "low": config.get("low"),
    }


def steps_of(facts: dict[str, Any], where: str) -> int:
    """Optimizer steps of the whole training; epochs are counted as the training counts them."""
    config = json_value(facts, "config", where)
    if config.get("steps") is not None:
        return json_count(config["steps"], f"{where}: steps", 1, 10**9)
    epochs = json_number(json_value(config, "epochs", where), f"{where}: epochs", 1e6)
    batch = json_count(json_value(config, "batch", where), f"{where}: batch", 1, 10**9)
    sizes = json_value(json_value(facts, "data", where), "sizes", where)
    images = json_count(json_value(sizes, "train", where), f"{where}: images", 1, 10**12)
    return steps_in(epochs, images, batch)


# Where a run is


def refuse_unfinished(path: Path) -> None:
    """One line for a folder that is no run, for a run that goes on, and for one that stopped."""
    if is_finished(path):
        return
    if is_in_use(path):
        raise UserError(f"run: {str(path)!r} is still training; wait for its end")
    front_file(path)
    done, total = progress_of(path)
    raise UserError(
        f"run: {str(path)!r} stopped at step {done} of {total}, its front is an earlier one; "
        "joslim resume RUN goes on"
    )


def is_in_use(path: Path) -> bool:
    """Whether some process trains into the folder now."""
    from joslim.runs.folder import lock

    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not lock(handle)
    finally:
        os.close(handle)


def is_finished(path: Path) -> bool:
    """It has a front, and no steps have been added since."""
    if not (path / "front.json").is_file():
        return False
    done, total = progress_of(path)
    return done >= total or not done


def progress_of(path: Path) -> tuple[int, int]:
    """Steps done and steps in all; 0 where they are not known yet."""
    from joslim.runs.folder import CONFIG, RunFolder

    try:
        total = steps_of(RunFolder(path).read(CONFIG), CONFIG)
        step = json_count(last_record(path).get("step", 0), "step", 0, 10**9)
    except UserError:
        return 0, 0
    return step, total


def seconds_of(path: Path) -> float | None:
    """Wall time of the run, all its parts together if it was resumed."""
    try:
        return float(json_number(last_record(path).get("seconds"), "seconds"))
    except UserError:
        return None


def last_record(path: Path) -> dict[str, Any]:
    """The last whole line of metrics.jsonl."""
    for line in reversed(tail(path / "metrics.jsonl").splitlines()):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a line that is being written, or that a crash has cut
        return record if isinstance(record, dict) else {}
    return {}


def log_of(path: Path) -> Path:
    """What the process of a run prints goes to a file beside its folder."""
    return path.with_name(f"{path.name}.log")


def last_line(log: Path) -> str:
    """What a process said last. It is shown, so escape sequences have no place in it."""
    lines = ["".join(filter(str.isprintable, line)).strip() for line in tail(log).splitlines()]
    return next((line.removeprefix("joslim: ") for line in reversed(lines) if line), "")


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


# What can stand in one table


def refuse_same_run_twice(entries: Sequence[Entry]) -> None:
    seen: dict[tuple[Any, ...], Entry] = {}
    for entry in entries:
        # Runs on other terms, such as other data, are no repetition: those are refused elsewhere.
        key = (entry.model, entry.cost, entry.method, entry.seed, tuple(entry.terms.items()))
        if (other := seen.setdefault(key, entry)) is not entry:
            raise UserError(
                f"seed: {str(other.path)!r} and {str(entry.path)!r} are both {entry.method} "
                f"with seed {entry.seed}; leave one out"
            )


def differences(entries: Sequence[Entry]) -> dict[str, list[Any]]:
    """The terms that are not the same for all of them, with the values that there are."""
    found = {}
    for name in dict.fromkeys(name for entry in entries for name in entry.terms):
        values = list(dict.fromkeys(entry.terms[name] for entry in entries if entry.terms))
        if len(values) > 1:
            found[name] = values
    return found
