"""The plan of a comparison: which trainings there are, and the settings that they share.

It is written to compare.json before anything is trained, and only ever grows: a later command may
add seeds, methods, costs and networks, and may not change what the others were trained with.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from joslim.errors import UserError, unknown
from joslim.runs.config import (
    DEFAULTS,
    FIELDS,
    SEARCH_OPTIONS,
    SEARCHING,
    WHERE_AND_HOW,
    checked,
    config_of,
    config_text,
)
from joslim.untrusted import json_count, json_name, json_rows, json_value, shown

FILE = "compare.json"
METHODS = ("slim", "bignas", "joslim")
SEEDS = (0, 1, 2)
MOST_TASKS = 10_000
MOST_SEED = 2**31 - 1

# Each field of a task, and the list that it is taken from.
LISTS = {"model": "models", "cost": "costs", "method": "methods", "seed": "seeds"}
# Settings that only some methods can take: the others are trained without them.
ONLY_FOR = {
    **dict.fromkeys(("searcher", *SEARCH_OPTIONS), SEARCHING),
    "replay": ("joslim",),
    "widths": ("single",),
}


@dataclass(frozen=True)
class Task:
    """One training of a comparison."""

    model: str
    cost: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        """Of its run folder. All parts are always there: a plan that grows keeps its names."""
        model = re.sub(r"[^\w.-]", ".", self.model)
        return f"{model}-{self.cost}-{self.method}-seed{self.seed}"

    def to_json(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True)
class Plan:
    tasks: tuple[Task, ...]
    settings: dict[str, Any]
    # By the name of a task: how many ran at once when it was trained, itself included.
    at_once: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named: dict[str, Task] = {}
        for task in self.tasks:
            config_of(self.options(task))
            if (other := named.setdefault(task.name, task)) != task:
                both = f"{other.model!r} and {task.model!r}"
                raise UserError(f"models: {both} would share the folder {task.name!r}")

    def options(self, task: Task) -> dict[str, Any]:
        """What this training is asked to do: fields of its configuration."""
        settings = {
            key: value
            for key, value in self.settings.items()
            if task.method in ONLY_FOR.get(key, (task.method,))
        }
        return {**settings, **task.to_json()}

    def values(self, name: str) -> list[Any]:
        """All values of a field of its tasks, in their order."""
        return list(dict.fromkeys(getattr(task, name) for task in self.tasks))

    def grown(self, more: Plan) -> Plan:
        """With the tasks of another plan too; the settings stay, save where and how it runs."""
        tasks = tuple(dict.fromkeys([*self.tasks, *more.tasks]))
        changed = {key: more.settings[key] for key in WHERE_AND_HOW if key in more.settings}
        return Plan(tasks, {**self.settings, **changed}, self.at_once)

    def running(self, tasks: Iterable[Task], at_once: int) -> Plan:
        """The same plan, when these of its tasks have been trained so many at once."""
        most = {task.name: max(at_once, self.at_once.get(task.name, 1)) for task in tasks}
        return Plan(self.tasks, self.settings, {**self.at_once, **most})

    def to_json(self) -> dict[str, Any]:
        tasks = [task.to_json() for task in self.tasks]
        return {"settings": self.settings, "tasks": tasks, "at_once": self.at_once}

    @classmethod
    def read(cls, folder: Path) -> Plan:
        """A plan that anybody may have written: what is wrong in it is a UserError."""
        file = folder / FILE
        try:
            record = json.loads(config_text(file))
            settings = json_value(record, "settings", FILE)
            if not isinstance(settings, dict):
                raise UserError(f"{FILE}.settings: {shown(settings)} is not a JSON object")
            rows = json_rows(record, "tasks", FILE, MOST_TASKS)
            tasks = tuple(task_of_json(row, f"{FILE}.tasks[{at}]") for at, row in enumerate(rows))
            at_once = record.get("at_once", {})
            if not isinstance(at_once, dict):
                raise UserError(f"{FILE}.at_once: {shown(at_once)} is not a JSON object")
            counts = {
                task.name: json_count(at_once[task.name], f"{FILE}.at_once", 1, MOST_TASKS)
                for task in tasks
                if task.name in at_once
            }
            return cls(tasks, settings, counts)
        except UserError as error:
            raise UserError(f"comparison {str(folder)!r}: {error}") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"comparison {str(folder)!r}: {FILE} is broken: {error}") from error


def is_comparison(folder: Path) -> bool:
    return os.path.isfile(folder / FILE)  # also where the name is none that a file can have


def run_folders(paths: Iterable[str | Path]) -> list[Path]:
    """Folders of runs; a comparison stands for all of its runs."""
    folders: list[Path] = []
    for path in map(Path, paths):
        if is_comparison(path):
            folders += [path / task.name for task in Plan.read(path).tasks]
        else:
            folders.append(path)
    return folders


def task_of_json(row: Any, where: str) -> Task:
    texts = {
        name: json_name(json_value(row, name, where), f"{where}.{name}")
        for name in LISTS
        if name != "seed"
    }
    seed = json_count(json_value(row, "seed", where), f"{where}.seed", 0, MOST_SEED)
    return Task(**texts, seed=seed)


def asked_plan(
    lists: Mapping[str, Sequence[Any] | None], settings: Mapping[str, Any], known: Plan | None
) -> Plan:
    """What a command asks for. Lists and settings that it leaves out are those of the known plan.

    lists: models, costs, methods and seeds; None where it is left out.
    """
    given = checked_settings(settings)
    if known is None:
        return Plan(with_takers(grid(lists, first_values(given)), given), given)
    refuse_changes(given, known)
    refuse_code_of_a_file(lists["models"], known)
    left_out = all(values is None for values in lists.values())
    tasks = known.tasks if left_out else grid(lists, {n: known.values(n) for n in LISTS})
    return Plan(with_takers(tasks, given), {**trusted_settings(known), **given})


def first_values(settings: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """What a new comparison has for lists that are left out; a recipe may name the network."""
    named = config_of({"recipe": settings.get("recipe")})
    return {"model": [named.model], "cost": [named.cost], "method": METHODS, "seed": SEEDS}


def grid(
    lists: Mapping[str, Sequence[Any] | None], left_out: Mapping[str, Sequence[Any]]
) -> tuple[Task, ...]:
    chosen = {
        name: left_out[name] if lists[plural] is None else checked_list(name, lists[plural])
        for name, plural in LISTS.items()
    }
    count = math.prod(map(len, chosen.values()))
    if count > MOST_TASKS:
        raise UserError(f"seeds: {count} runs asked for, at most {MOST_TASKS} are allowed")
    return tuple(
        Task(model, cost, method, seed)
        for model in chosen["model"]
        for cost in chosen["cost"]
        # Seed by seed: a comparison that is stopped early has whole pairs.
        for seed in chosen["seed"]
        for method in chosen["method"]
    )


def with_takers(tasks: tuple[Task, ...], given: Mapping[str, Any]) -> tuple[Task, ...]:
    """The tasks, if for each setting that was typed there is one which can take it."""
    methods = {task.method for task in tasks}
    for key in given:
        takers = ONLY_FOR.get(key)
        if takers and not {*takers} & methods:
            raise UserError(
                f"{key}: none of the methods takes it; allowed with: {', '.join(takers)}"
            )
    return tasks


def checked_list(name: str, values: Any) -> list[Any]:
    plural = LISTS[name]
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise UserError(f"{plural}: {shown(values)} given; give a list of at least one")
    found: list[Any] = []
    for value in values:
        try:
            found.append(checked(FIELDS[name], value))
        except UserError as error:
            raise UserError(str(error).replace(f"{name}:", f"{plural}:", 1)) from error
        if found[-1] in found[:-1]:
            raise UserError(f"{plural}: {value} is there twice; type each only once")
    return found


def checked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """As the configuration has them: 100 for 100.0. None stands for what is not given."""
    given = {key: value for key, value in settings.items() if value is not None}
    for key in given:
        if key in LISTS:
            raise UserError(f"{key}: a comparison has several; give {LISTS[key]}")
        if key not in FIELDS:
            raise unknown("configuration", key, FIELDS, most=0)
    return {key: checked(FIELDS[key], value) for key, value in given.items()}


def trusted_settings(known: Plan) -> dict[str, Any]:
    """A file of a stranger's does not say where to download to."""
    root = known.settings.get("data_root")
    dropped = () if root is None or Path(root).is_dir() else ("data_root",)
    return {key: value for key, value in known.settings.items() if key not in dropped}


def refuse_changes(given: Mapping[str, Any], known: Plan) -> None:
    for key, value in given.items():
        there = known.settings.get(key, DEFAULTS[key])
        if key not in WHERE_AND_HOW and value != there:
            has = "its default" if there is None else shown(there)
            raise UserError(
                f"{key}: {shown(value)} given, the comparison has {has}; "
                "leave it out, or type another --out"
            )


def refuse_code_of_a_file(models: Sequence[Any] | None, known: Plan) -> None:
    own = [model for model in known.values("model") if ":" in model]
    if models is None and own:
        raise UserError(
            f"models: {own[0]!r} is not imported because a file says so; "
            f"type --models {','.join(known.values('model'))}"
        )
