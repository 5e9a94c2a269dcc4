"""One typed record of a run, read from its folder without torch and without the network.

The run may be finished or still training. A broken file is a UserError; missing parts are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from joslim.errors import UserError
from joslim.files import json_count, json_name, json_number, json_rows, json_value, shown
from joslim.front import Front, MetricName, cost_key, non_dominated
from joslim.results.run_files import (
    CONFIG,
    FINISHED,
    HISTORY,
    METRICS,
    TRAINING,
    VALIDATION,
    RunStatus,
    facts_of_run,
    finite_number,
    last_metrics,
    read_lines,
    status_of,
)
from joslim.space import CHANNELS, WidthSpace

MOST_STEPS = 10**12
MOST_VISITS = 10**6
MOST_SEED = 2**31 - 1
# Numbers of points that show how a front grew, how a loss fell, and how fast the steps were.
MOMENTS = 12
CURVE_POINTS = 150
PACE_POINTS = 40

Line = Mapping[str, Any]  # of metrics.jsonl or history.jsonl
Scoring = tuple[int, dict[int, float]]  # a step, and the losses of children by their id
Visit = tuple[int, float, float, bool]  # step, cost, training loss, whether it is on the front


class NothingYet(UserError):
    """A run whose first step has not been logged yet."""


@dataclass(frozen=True)
class Record:
    """Everything that a run folder tells about its run; most parts are read when they are needed.

    facts: the content of config.json, which has the settings (config) and what is known of the
    data. front: the Pareto front, or None until the children have been judged. device_file: the
    device file that the latencies of the front come from, if one was given. logs: the lines of
    history.jsonl of a training that has no folder.
    """

    path: Path
    name: str
    facts: dict[str, Any]
    config: dict[str, Any]
    status: RunStatus
    front: Front | None = None
    device_file: str | Path | None = None
    logs: Mapping[str, list[dict[str, Any]]] | None = None

    @property
    def where(self) -> str:
        """Name of config.json for error messages."""
        return f"{CONFIG} of {str(self.path)!r}"

    @property
    def model(self) -> str:
        return self._named("model")

    @property
    def method(self) -> str:
        return self._named("method")

    @property
    def seed(self) -> int:
        seed = json_value(self.config, "seed", self.where)
        return json_count(seed, f"{self.where}: seed", 0, MOST_SEED)

    @property
    def data(self) -> str:
        """The data as they were typed: a name, or folder:PATH."""
        return self._named("data")

    @property
    def data_identity(self) -> str:
        """What the data hold, wherever their folder is."""
        data = json_value(self.facts, "data", self.where)
        return json_name(json_value(data, "identity", self.where), f"{self.where}: data")

    def _named(self, key: str) -> str:
        """Return a setting that is printed: an escape sequence has no place in it."""
        return json_name(json_value(self.config, key, self.where), f"{self.where}: {key}")

    @property
    def space(self) -> WidthSpace:
        if self.front is not None:
            return self.front.space
        if self.history is None:
            raise UserError(f"run: {str(self.path)!r} has neither a front nor a history")
        return self.history.space

    @property
    def low(self) -> float | str | None:
        """Lowest width multiplier of the network; a range if its knobs have several."""
        knobs = zip(self.space.knobs, self.space.kinds)
        lows = sorted({knob.low for knob, kind in knobs if kind == CHANNELS})
        if len(lows) > 1:
            return f"{lows[0]:g} to {lows[-1]:g}"
        return lows[0] if lows else None

    @property
    def alone_until(self) -> int:
        """The step up to which the full network trains alone; 0 if it is not known."""
        share = finite_number(self.config, "full_first")
        if self.config.get("method") == "single" or share is None or not 0 <= share <= 1:
            return 0
        return round(share * (self.status.total or 0))

    @property
    def metric(self) -> MetricName:
        """What the errors of the run are called."""
        if self.front is not None:
            return self.front.metric
        return MetricName.of_json(self.facts.get("metric"))

    @property
    def seconds(self) -> float | None:
        """Wall time, all parts together if the run was resumed."""
        if self.logs is not None:
            return None
        return finite_number(last_metrics(self.path), "seconds")

    @cached_property
    def history(self) -> VisitedChildren | None:
        """The children that the search visited, or None if there are none.

        With the latencies of a device file there are none either: the search used other latencies.
        """
        if self.device_file is not None and self.front is not None and self.front.cost == "latency":
            return None
        lines = self._lines_of(HISTORY)
        return VisitedChildren.of_lines(lines) if lines else None

    @cached_property
    def provisional_front(self) -> list[int]:
        """Ids of the visited children that no other one beats by the losses known so far."""
        return self.history.front(self.history.losses) if self.history else []

    @property
    def visits(self) -> list[Visit]:
        """All scored children, the oldest first."""
        if (history := self.history) is None:
            return []
        if self.front is not None:
            on_front = {point.widths.counts for point in self.front}
        else:
            on_front = {history.counts[child] for child in self.provisional_front}
        return [
            (history.steps[i], history.costs[i], short(loss), history.counts[i] in on_front)
            for i, loss in sorted(history.losses.items())
            if math.isfinite(history.costs[i]) and math.isfinite(loss)
        ]

    @property
    def curves(self) -> dict[str, list[float | None]]:
        """Losses over the steps by the role of the child; see `curves_of`."""
        return curves_of(self._metrics)

    @property
    def validation(self) -> Validation | None:
        """Validation errors over the steps, if they were measured (--val-every)."""
        return validation_of(self._metrics)

    @property
    def targets(self) -> Targets | None:
        """How the target costs of the search were met, if it bisects (searcher mobo-ts2)."""
        return targets_of(self._metrics[-1]) if self._metrics else None

    @property
    def times(self) -> Times | None:
        return times_of(self._metrics, finite_number(self.config, "every"))

    @cached_property
    def _metrics(self) -> list[dict[str, Any]]:
        return self._lines_of(METRICS)

    def _lines_of(self, name: str) -> list[dict[str, Any]]:
        if self.logs is not None:
            return self.logs.get(name, [])
        file = self.path / name
        return read_lines(file) if file.exists() else []


def read_record(
    path: str | Path, front: Front | None = None, device_file: str | Path | None = None
) -> Record:
    """Read the record of a run; `NothingYet` is raised before its first step has been logged.

    front: a front in place of that in the folder, such as one with the latencies of `device_file`.
    """
    folder = Path(path)
    facts = facts_of_run(folder)
    config = json_value(facts, "config", CONFIG)
    if not isinstance(config, dict):
        raise UserError(f"{CONFIG}.config: {shown(config)} is not a JSON object")
    status = status_of(folder)
    if front is None and status.state == FINISHED:
        front = Front.read(folder)
    name = folder.resolve().name or str(path)
    return showable(Record(folder, name, facts, config, status, front, device_file))


def showable(record: Record) -> Record:
    """Refuse a run of which no step was logged yet."""
    nothing = not record.provisional_front and "full" not in record.curves
    if record.front is None and nothing:
        status = record.status
        waiting = f"is still training ({status.place}); wait"
        state = waiting if status.state == TRAINING else status.how_to_resume(record.path)
        raise NothingYet(
            f"run: {str(record.path)!r} has nothing to show yet, no step was logged: it {state}"
        )
    return record


# history.jsonl


@dataclass(frozen=True)
class VisitedChildren:
    """The content of history.jsonl: every child that the search visited, and all its losses.

    costs: NaN, which is on no front, where a cost is not known. steps: at which each child was
    visited. scorings: losses in the order in which they were measured.
    """

    key: str
    space: WidthSpace
    counts: list[tuple[int, ...]]
    costs: list[float]
    steps: list[int]
    scorings: list[Scoring] = field(repr=False)

    def __len__(self) -> int:
        return len(self.counts)

    @classmethod
    def of_lines(cls, lines: Sequence[dict[str, Any]]) -> VisitedChildren:
        header, *rest = lines
        space = WidthSpace.of_json(json_value(header, "space", HISTORY))
        visits = [line for line in rest if "id" in line]
        costs = [finite_number(line, "cost") for line in visits]
        return cls(
            cost_key(json_name(json_value(header, "cost", HISTORY), f"{HISTORY}.cost")),
            space,
            [_counts_of(line, space) for line in visits],
            [math.nan if cost is None else cost for cost in costs],
            [_step_of(line) for line in visits],
            [_scoring_of(line, len(visits)) for line in rest if "ids" in line],
        )

    @cached_property
    def moments(self) -> list[Scoring]:
        """Some scorings, evenly spread up to the last one, each with all losses known by then.

        A finished training scores all children once more on the same images. Losses that it then
        measures on other images, to judge the front, are left out.
        """
        scorings = self.scorings
        everyone = [at for at, (_, losses) in enumerate(scorings) if len(losses) == len(self)]
        if everyone and scorings[everyone[-1]][0] == scorings[-1][0]:
            scorings = scorings[: everyone[-1] + 1]
        # A search at the end is one moment of many, unless there is nothing but such a search.
        last_of_step = {step: at for at, (step, _) in enumerate(scorings)}
        places = [*last_of_step.values()] if len(last_of_step) > 2 else [*range(len(scorings))]
        chosen = {*_evenly(places, MOMENTS)}
        moments: list[Scoring] = []
        latest: dict[int, float] = {}
        for at, (step, losses) in enumerate(scorings):
            latest.update(losses)
            if at in chosen:
                moments.append((step, dict(latest)))
        return moments

    @property
    def losses(self) -> dict[int, float]:
        """The latest loss of each scored child."""
        return self.moments[-1][1] if self.moments else {}

    def front(self, losses: Mapping[int, float]) -> list[int]:
        """Return the children that no other one beats by these losses, sorted by cost."""
        costs = [self.costs[child] for child in losses]
        mask = non_dominated([*losses.values()], costs)
        kept = [child for child, stays in zip(losses, mask) if stays]
        return sorted(kept, key=lambda child: self.costs[child])


def _counts_of(line: Line, space: WidthSpace) -> tuple[int, ...]:
    counts = json_rows(line, "widths", HISTORY, len(space.dims), len(space.dims))
    return tuple(json_count(n, f"{HISTORY}.widths", 1, d.full) for n, d in zip(counts, space.dims))


def _scoring_of(line: Line, visits: int) -> Scoring:
    ids = json_rows(line, "ids", HISTORY, MOST_VISITS)
    losses = json_rows(line, "losses", HISTORY, len(ids), len(ids))
    found = {json_count(i, f"{HISTORY}.ids", 0, visits - 1): x for i, x in zip(ids, losses)}
    # JSON has no NaN: null stands for it.
    known = {i: math.nan if x is None else json_number(x, HISTORY) for i, x in found.items()}
    return _step_of(line), known


def _step_of(line: Line) -> int:
    return json_count(json_value(line, "step", HISTORY), f"{HISTORY}.step", 0, MOST_STEPS)


def _evenly(places: Sequence[int], most: int) -> list[int]:
    """Choose at most so many places, evenly, with the first and the last."""
    if len(places) <= most:
        return [*places]
    last = len(places) - 1
    return [places[round(at * last / (most - 1))] for at in range(most)]


# metrics.jsonl


@dataclass(frozen=True)
class Times:
    """Wall time of a run, as far as metrics.jsonl tells.

    step_seconds: wall time up to the last step, without the judging of the front. parts: seconds
    of training, search, scoring and judging. pace: [step, seconds since the start] at some steps,
    whole rounds apart.
    """

    seconds: float | None
    step: float | None
    step_seconds: float | None
    parts: dict[str, float]
    pace: list[list[float]]


@dataclass(frozen=True)
class Targets:
    """Target costs of a search: how many it had, missed, and how many bisections they took."""

    targets: int
    missed: int
    bisections: int

    @property
    def words(self) -> str:
        """`3.1 bisections for a target on average, 2 of 60 targets missed`"""
        mean = self.bisections / self.targets
        missed = f"{self.missed:,} of {self.targets:,} targets missed"
        return f"{mean:.1f} bisections for a target on average, {missed}"


def targets_of(line: Line) -> Targets | None:
    """Read the counts in a line of metrics.jsonl; None if the search has none."""
    if line.get("targets") is None:
        return None
    names = [item.name for item in fields(Targets)]
    counts = {n: json_count(line.get(n), f"{METRICS}.{n}", 0, MOST_STEPS) for n in names}
    return Targets(**counts) if counts["targets"] else None


def _lines_of_steps(metrics: Sequence[Line]) -> list[Line]:
    """Leave out the last line of a finished run, which tells what judging the front took."""
    return [line for line in metrics if "phase" not in line]


def curves_of(metrics: Sequence[Line]) -> dict[str, list[float | None]]:
    """Compute the losses over the steps of the full, the sampled and the smallest children.

    Each value is the mean of some lines; roles without any loss are left out.
    """
    steps = _lines_of_steps(metrics)
    size = max(1, math.ceil(len(steps) / CURVE_POINTS))
    chunks = [steps[at : at + size] for at in range(0, len(steps), size)]
    curves: dict[str, list[float | None]] = {
        "step": [finite_number(chunk[-1], "step") for chunk in chunks],
        "full": [_mean(finite_number(line, "loss") for line in chunk) for chunk in chunks],
        "sampled": [_mean(x for line in chunk for x in _sampled(line)) for chunk in chunks],
        "smallest": [_mean(finite_number(x, "smallest_loss") for x in chunk) for chunk in chunks],
    }
    return {name: values for name, values in curves.items() if any(x is not None for x in values)}


@dataclass(frozen=True)
class Validation:
    """Validation errors over the steps: of the full network, and of the smallest.

    best: The step with the least mean of both, and the last of equal ones; the front is that of its
    weights. smallest: empty if a single child was trained.
    """

    steps: list[int]
    full: list[float]
    smallest: list[float]
    best: int


def validation_of(metrics: Sequence[Line]) -> Validation | None:
    found: dict[int, list[float]] = {}
    for line in metrics:
        if line.get("phase") == VALIDATION:
            errors = json_rows(line, "val_errors", METRICS, 2, 1)
            found[_step_of(line)] = [json_number(error, METRICS) for error in errors]
    if not found or len({len(errors) for errors in found.values()}) > 1:
        return None
    best = min(found, key=lambda step: (sum(found[step]), -step))
    full, *smallest = map(list, zip(*found.values()))
    return Validation([*found], full, smallest[0] if smallest else [], best)


def _sampled(line: Line) -> list[float | None]:
    """Return the losses without those of the full network and the smallest."""
    losses = line.get("losses")
    others = [*losses] if isinstance(losses, list) else []
    for known in (line.get("loss"), line.get("smallest_loss")):
        if known in others:
            others.remove(known)
    return [finite_number({"loss": loss}, "loss") for loss in others]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return short(sum(known) / len(known)) if known else None


def times_of(metrics: Sequence[Line], every: float | None) -> Times | None:
    """Collect the times of a run; None before its first line. every: steps of a round."""
    steps = _lines_of_steps(metrics)
    if not steps:
        return None
    last = metrics[-1]
    return Times(
        seconds=finite_number(last, "seconds"),
        step=finite_number(steps[-1], "step"),
        step_seconds=finite_number(steps[-1], "seconds"),
        parts=_parts(steps[-1], last),
        pace=_pace(steps, max(1.0, every or 1.0)),
    )


def _parts(step: Line, last: Line) -> dict[str, float]:
    """Split the wall time: the parts that were logged, and the rest of the steps and the judging.

    step: the line of the last step. last: that of the front, if the run has come so far.
    """

    def logged(line: Line) -> dict[str, float]:
        parts = line.get("parts")
        numbers = parts if isinstance(parts, dict) else {}
        return {name: x for name in numbers if (x := finite_number(numbers, name)) is not None}

    parts, within_steps = logged(last), sum(logged(step).values())
    if not parts:
        return {}
    at_step, at_end = (finite_number(line, "seconds") or 0.0 for line in (step, last))
    judging = at_end - at_step - (sum(parts.values()) - within_steps)
    found = {"training": at_step - within_steps, **parts, "judging": judging}
    return {name: seconds for name, seconds in found.items() if seconds > 0}


def _pace(steps: Sequence[Line], every: float) -> list[list[float]]:
    """Return [step, seconds] at places that are whole rounds apart: each round has one search."""
    last = finite_number(steps[-1], "step") or 0.0
    gap = every * max(1, math.ceil(last / every / PACE_POINTS))
    places: list[list[float]] = []
    for line in steps:
        step, seconds = finite_number(line, "step"), finite_number(line, "seconds")
        if step is None or seconds is None:
            continue
        if not places or step >= places[-1][0] + gap:
            places.append([step, seconds])
    return places


def short(value: float) -> float:
    """Round to the digits that a picture shows."""
    return float(f"{value:.5g}")
