"""The trainings of a comparison, as their run folders have them. Nothing is trained here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joslim.comparing.plan import MOST_SEED, Plan, Task, is_comparison
from joslim.errors import UserError
from joslim.front import Front
from joslim.runs.terms import in_words, terms_of
from joslim.runs.whereabouts import (
    FINISHED,
    TRAINING,
    refuse_unfinished,
    seconds_of,
    tail,
    where_is,
)
from joslim.untrusted import json_count, json_name, json_value

NOT_TRAINED = "not trained yet"


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
    # There is no front because some process trains it now.
    training: bool = False
    seconds: float | None = None
    at_once: int | None = None
    # What must be the same in one table.
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
    return entries


def entries_of_plan(out: Path, plan: Plan) -> list[Entry]:
    return [entry_of_task(out, task, plan.at_once.get(task.name)) for task in plan.tasks]


def entry_of_task(out: Path, task: Task, at_once: int | None) -> Entry:
    """A run of a plan: one without a front says why, in the words of its log."""
    path = out / task.name
    where = where_is(path)
    if where.state == TRAINING:
        why = f"still training ({where.place})"
        return Entry(**task.to_json(), path=path, failure=why, training=True)
    if where.state != FINISHED:
        return Entry(**task.to_json(), path=path, failure=last_line(log_of(path)) or NOT_TRAINED)
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
        terms=terms_of(path, facts, front.space, where),
    )


def log_of(path: Path) -> Path:
    """What the process of a run prints goes to a file beside its folder."""
    return path.with_name(f"{path.name}.log")


def last_line(log: Path) -> str:
    """What a process said last. It is shown, so escape sequences have no place in it."""
    lines = ["".join(filter(str.isprintable, line)).strip() for line in tail(log).splitlines()]
    return next((line.removeprefix("joslim: ") for line in reversed(lines) if line), "")


# What can stand in one table


def refuse_same_run_twice(entries: Sequence[Entry]) -> None:
    """In a table each method has one front for each seed."""
    seen: dict[tuple[Any, ...], Entry] = {}
    for entry in entries:
        key = (entry.model, entry.cost, entry.method, entry.seed)
        if (other := seen.setdefault(key, entry)) is entry:
            continue
        if other.path.resolve() == entry.path.resolve():
            raise UserError(f"runs: {str(entry.path)!r} is given twice; leave one out")
        raise UserError(
            f"seed: {str(other.path)!r} and {str(entry.path)!r} are both {entry.method} "
            f"with seed {entry.seed}; leave one out"
        )


def differences(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """The terms that are not the same for all of them, with the values that there are."""
    found = {}
    for name in dict.fromkeys(name for entry in entries for name in entry.terms):
        values = list(dict.fromkeys(entry.terms.get(name) for entry in entries if entry.terms))
        if len(values) > 1:
            found[name] = [in_words(value) for value in values]
    return found
