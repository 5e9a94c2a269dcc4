"""The plan of a comparison: which trainings there are, and the settings that they share.

The plan is written to compare.json before anything is trained, and it only ever grows: a later
command may add seeds, methods, costs and networks, but it may not change the settings.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from joslim.errors import UserError, unknown
from joslim.files import (
    json_count,
    json_name,
    json_rows,
    json_value,
    parse_json,
    read_text,
    shown,
)
from joslim.results.comparison import Comparison, Entry
from joslim.results.groups import refuse_repetitions
from joslim.results.record import MOST_SEED, read_record
from joslim.results.run_files import FINISHED, TRAINING, refuse_unfinished, status_of, tail
from joslim.runs.config import DEFAULTS, FIELDS, MOST_BYTES, config_of
from joslim.training.settings import COST_BLIND, ONLY_FOR, WHERE_AND_HOW, checked

FILE = "compare.json"
METHODS = ("slim", "bignas", "joslim")
SEEDS = (0, 1, 2)
MOST_TASKS = 10_000
MOST_PROCESSES = 1024
NOT_TRAINED = "not trained yet"
# Lines of joslim.cli.progress.TrainingLines.
PROGRESS = re.compile(r"(step|judging children:) [\d,]+ of ")

# The fields of a task, and the lists that their values are taken from.
LISTS = {"model": "models", "cost": "costs", "method": "methods", "seed": "seeds"}


@dataclass(frozen=True)
class Task:
    """One training of a comparison."""

    model: str
    cost: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        """Name of its run folder, with all parts, so that a plan that grows keeps its names."""
        model = re.sub(r"[^\w.-]", ".", self.model)
        return f"{model}-{self.cost}-{self.method}-seed{self.seed}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, row: Any, where: str) -> Task:
        model, cost, method = (
            json_name(json_value(row, name, where), f"{where}.{name}")
            for name in ("model", "cost", "method")
        )
        seed = json_count(json_value(row, "seed", where), f"{where}.seed", 0, MOST_SEED)
        return cls(model, cost, method, seed)


@dataclass(frozen=True)
class Plan:
    """The trainings of a comparison, and the settings that they share.

    at_once: by the name of a task, how many ran at once when it was trained, itself included.
    processes: of each training, which share its batches.
    """

    tasks: tuple[Task, ...]
    settings: dict[str, Any]
    at_once: dict[str, int] = field(default_factory=dict)
    processes: int = 1

    def __post_init__(self) -> None:
        named: dict[str, Task] = {}
        for task in self.tasks:
            config_of(self.options(task))
            if (other := named.setdefault(task.name, task)) != task:
                both = f"{other.model!r} and {task.model!r}"
                raise UserError(f"models: {both} would share the folder {task.name!r}")

    def options(self, task: Task) -> dict[str, Any]:
        """Return the settings of one training, without those that its method does not take."""
        settings = {
            key: value
            for key, value in self.settings.items()
            if task.method in ONLY_FOR.get(key, (task.method,))
        }
        return {**settings, **task.to_json()}

    def source(self, task: Task) -> Task | None:
        """Return the first task with the same weights, which need no second training.

        Methods that do not look at the cost are trained once and judged again for each other cost.
        """
        same = (replace(other, cost=task.cost) == task for other in self.tasks)
        first = next(other for other, is_same in zip(self.tasks, same) if is_same)
        return first if task.method in COST_BLIND and first != task else None

    def values(self, name: str) -> list[Any]:
        """Return all values of a field of the tasks, in their order."""
        return list(dict.fromkeys(getattr(task, name) for task in self.tasks))

    def grown(self, more: Plan) -> Plan:
        """Add the tasks of another plan; of the settings only where and how it runs may change."""
        tasks = tuple(dict.fromkeys([*self.tasks, *more.tasks]))
        changed = {key: more.settings[key] for key in WHERE_AND_HOW if key in more.settings}
        return replace(self, tasks=tasks, settings={**self.settings, **changed})

    def running(self, tasks: Iterable[Task], at_once: int) -> Plan:
        """Note that these tasks are trained so many at once."""
        most = {task.name: max(at_once, self.at_once.get(task.name, 1)) for task in tasks}
        return replace(self, at_once={**self.at_once, **most})

    def to_json(self) -> dict[str, Any]:
        tasks = [task.to_json() for task in self.tasks]
        how = {"at_once": self.at_once, "processes": self.processes}
        return {"settings": self.settings, "tasks": tasks, **how}

    @classmethod
    def read(cls, folder: Path) -> Plan:
        """Read a plan that anybody may have written: each mistake in it is a UserError."""
        file = folder / FILE
        try:
            record = parse_json(read_text(file, MOST_BYTES, "config"), FILE)
            settings = json_value(record, "settings", FILE)
            if not isinstance(settings, dict):
                raise UserError(f"{FILE}.settings: {shown(settings)} is not a JSON object")
            rows = json_rows(record, "tasks", FILE, MOST_TASKS)
            tasks = tuple(Task.of_json(row, f"{FILE}.tasks[{at}]") for at, row in enumerate(rows))
            at_once = record.get("at_once", {})
            if not isinstance(at_once, dict):
                raise UserError(f"{FILE}.at_once: {shown(at_once)} is not a JSON object")
            counts = {
                task.name: json_count(at_once[task.name], f"{FILE}.at_once", 1, MOST_TASKS)
                for task in tasks
                if task.name in at_once
            }
            processes = record.get("processes", 1)
            json_count(processes, f"{FILE}.processes", 1, MOST_PROCESSES)
            return cls(tasks, settings, counts, processes)
        except UserError as error:
            raise UserError(f"comparison {str(folder)!r}: {error}") from error


def is_comparison(folder: Path) -> bool:
    return os.path.isfile(folder / FILE)  # False as well for a name that no file can have


def run_folders(paths: Iterable[str | Path]) -> list[Path]:
    """Replace the folder of each comparison by the folders of its runs."""
    folders: list[Path] = []
    for path in map(Path, paths):
        if is_comparison(path):
            folders += [path / task.name for task in Plan.read(path).tasks]
        else:
            folders.append(path)
    return folders


# The plan of a command


def asked_plan(
    lists: Mapping[str, Sequence[Any] | None],
    settings: Mapping[str, Any],
    known: Plan | None,
    processes: int | None = None,
) -> Plan:
    """Make the plan of a command; lists and settings that it leaves out are those of `known`.

    lists: models, costs, methods and seeds; None where it is left out.
    """
    given = _checked_settings(settings)
    if known is None:
        named = config_of({"recipe": given.get("recipe")})  # a recipe may name the network
        first = {"model": [named.model], "cost": [named.cost], "method": METHODS, "seed": SEEDS}
        tasks, kept = _grid(lists, first), {}
    else:
        for key, value in given.items():
            there = known.settings.get(key, DEFAULTS[key])
            if key not in WHERE_AND_HOW and value != there:
                has = "its default" if there is None else shown(there)
                raise UserError(
                    f"{key}: {shown(value)} given, the comparison has {has}; "
                    "leave it out, or type another --out"
                )
        own = [model for model in known.values("model") if ":" in model]
        if lists["models"] is None and own:
            raise UserError(
                f"models: {own[0]!r} is not imported because a file says so; "
                f"type --models {','.join(known.values('model'))}"
            )
        left_out = all(values is None for values in lists.values())
        tasks = known.tasks if left_out else _grid(lists, {n: known.values(n) for n in LISTS})
        # The file may be a stranger's: it must not say where to download to.
        root = known.settings.get("data_root")
        dropped = () if root is None or Path(root).is_dir() else ("data_root",)
        kept = {key: value for key, value in known.settings.items() if key not in dropped}
    methods = {task.method for task in tasks}
    for key in given:
        takers = ONLY_FOR.get(key)
        if takers and not {*takers} & methods:
            raise UserError(
                f"{key}: none of the methods takes it; allowed with: {', '.join(takers)}"
            )
    there = 1 if known is None else known.processes
    if processes is not None and known is not None and processes != there:
        raise UserError(
            f"processes: {processes} given, the comparison has {there}; leave it out, or type "
            "another --out"
        )
    return Plan(tasks, {**kept, **given}, processes=processes or there)


def _grid(
    lists: Mapping[str, Sequence[Any] | None], left_out: Mapping[str, Sequence[Any]]
) -> tuple[Task, ...]:
    chosen = {
        name: left_out[name] if lists[plural] is None else _checked_list(name, lists[plural])
        for name, plural in LISTS.items()
    }
    count = math.prod(map(len, chosen.values()))
    if count > MOST_TASKS:
        raise UserError(f"seeds: {count} runs asked for, at most {MOST_TASKS} are allowed")
    return tuple(
        Task(model, cost, method, seed)
        for model in chosen["model"]
        for cost in chosen["cost"]
        # Seed by seed, so that a comparison that is stopped early has whole pairs.
        for seed in chosen["seed"]
        for method in chosen["method"]
    )


def _checked_list(name: str, values: Any) -> list[Any]:
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


def _checked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Check settings and convert them as the configuration does; those that are None are left out.

    100.0 becomes 100 where a whole number is needed.
    """
    given = {key: value for key, value in settings.items() if value is not None}
    for key in given:
        if key in LISTS:
            raise UserError(f"{key}: a comparison has several; give {LISTS[key]}")
        if key not in FIELDS:
            raise unknown("configuration", key, FIELDS, most=0)
    return {key: checked(FIELDS[key], value) for key, value in given.items()}


# Reading runs


def read(paths: Sequence[str | Path], anyway: bool = False) -> Comparison:
    """Compare runs, or whole comparisons, that are there already; nothing is trained.

    anyway: compare them even if their data, steps or other settings of the training differ.
    """
    comparison = Comparison(read_entries(paths))
    if not anyway:
        comparison.refuse_unequal_terms()
    for group in comparison.groups().values():
        refuse_repetitions((entry.method, entry.seed, entry.path) for entry in group)
    return comparison


def read_entries(paths: Iterable[str | Path]) -> list[Entry]:
    """Read finished runs, and whole comparisons, some of whose runs may not be finished."""
    entries: list[Entry] = []
    for path in map(Path, paths):
        if is_comparison(path):
            entries += entries_of_plan(path, Plan.read(path))
        else:
            refuse_unfinished(path)
            entries.append(Entry.of(read_record(path)))
    if not entries:
        raise UserError("runs: none given; type the folders of at least two runs")
    return entries


def entries_of_plan(out: Path, plan: Plan) -> list[Entry]:
    return [_entry_of_task(out, task, plan.at_once.get(task.name)) for task in plan.tasks]


def _entry_of_task(out: Path, task: Task, at_once: int | None) -> Entry:
    """Read a run of a plan; the last line of its log says why it has no front."""
    path = out / task.name
    status = status_of(path)
    if status.state == TRAINING:
        why = f"still training ({status.place})"
        return Entry(**task.to_json(), path=path, failure=why, training=True)
    if status.state != FINISHED:
        return Entry(**task.to_json(), path=path, failure=last_line(log_of(path)) or NOT_TRAINED)
    entry = Entry.of(read_record(path), at_once)
    for name, planned in task.to_json().items():
        if (there := getattr(entry, name)) != planned:
            raise UserError(f"{name}: {str(path)!r} has {there!r} where the plan has {planned!r}")
    return entry


def log_of(path: Path) -> Path:
    """The file beside a run folder that holds the output of its process."""
    return path.with_name(f"{path.name}.log")


def last_line(log: Path) -> str:
    """The last line of a log that is neither empty nor progress, without escape sequences."""
    lines = ["".join(filter(str.isprintable, line)).strip() for line in tail(log).splitlines()]
    news = [line for line in lines if line and not PROGRESS.match(line)]
    if news and {*news[-1]} == {"="}:  # the end of torchrun's account of its processes
        news = [line for line in news if line.startswith(("joslim:", "joslim, "))] or news
    return news[-1].removeprefix("joslim: ") if news else ""
