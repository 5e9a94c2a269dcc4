"""A comparison: the runs, and what they say about the methods."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joslim.comparing.entries import Entry, differences, read_entries, refuse_same_run_twice
from joslim.errors import UserError, unknown
from joslim.front import ERRORS, Front
from joslim.reports.bands import curve, draw_panels
from joslim.reports.figures import shared_measure

SHARES = (0.25, 0.5, 1.0)
TABLE, PICTURE = "table.json", "compare.png"
# The baseline: what other methods are tested against, and whose wall time is the measure.
BASELINE = "slim"
LEAST_PAIRS = 3


@dataclass(frozen=True)
class Comparison:
    """Runs of several methods. Those without a front say why in `failure`."""

    entries: Sequence[Entry]

    @property
    def failures(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.front is None]

    def groups(self) -> dict[tuple[str, str], list[Entry]]:
        """By model and cost: errors at other costs, or of other networks, do not compare."""
        groups: dict[tuple[str, str], list[Entry]] = {}
        for entry in self.entries:
            groups.setdefault((entry.model, entry.cost), []).append(entry)
        return groups

    def fronts(self, model: str | None = None, cost: str | None = None) -> dict[str, list[Front]]:
        """By method, the fronts of its seeds. Model and cost are needed if there are several."""
        found = {
            key: group
            for key, group in self.groups().items()
            if model in (None, key[0]) and cost in (None, key[1])
        }
        if len(found) != 1:
            known = ", ".join(f"{model} {cost}" for model, cost in self.groups())
            raise UserError(f"model: {len(found)} tables are meant; choose one of: {known}")
        (group,) = found.values()
        return fronts_by_method(group)

    def refuse_unequal_terms(self) -> None:
        for (model, cost), group in self.groups().items():
            for name, values in differences(group).items():
                given = ", ".join(values)
                raise UserError(
                    f"{name}: the runs of {model} by {cost} have different ones ({given}), which "
                    "do not compare; leave some out, or type --anyway"
                )

    def table(
        self,
        against: str | None = None,
        shares: Sequence[float] = SHARES,
        sizes: Sequence[float] = (),
    ) -> list[dict[str, Any]]:
        """A row for each model, cost and method: means over the seeds, in percent and seconds.

        against: the method that the others are tested against, seed by seed; slim if it is there,
        else the first. shares, sizes: costs at which the error is given, as shares of the full
        network's and as they are.
        """
        known = methods_of(self.entries)
        if against is not None and against not in known:
            raise unknown("against", against, known)
        rows = []
        for (model, cost), group in self.groups().items():
            reference = against or default_reference(group)
            for method in methods_of(group):
                figures = row_of(group, method, reference, shares, sizes)
                rows.append({"model": model, "cost": cost, "method": method, **figures})
        return rows

    def to_json(self, **options: Any) -> dict[str, Any]:
        """What table.json holds."""
        return {
            "table": self.table(**options),
            "runs": [entry.to_json() for entry in self.entries],
            "differences": {
                f"{model} {cost}": found
                for (model, cost), group in self.groups().items()
                if (found := differences(group))
            },
        }

    def write(self, folder: str | Path, **options: Any) -> None:
        """The table as JSON, and the picture if there is a front to draw."""
        from joslim.runs.folder import RunFolder

        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            RunFolder(folder).write(TABLE, self.to_json(**options))
        except OSError as error:
            raise UserError(f"out: cannot write into {str(folder)!r}: {error.strerror}") from error
        if len(self.failures) < len(self.entries):
            self.draw(Path(folder) / PICTURE)

    def draw(self, path: str | Path) -> None:
        """Mean curves with bands: a panel for each model and cost that has a front."""
        panels = {
            f"{model}, {cost}": fronts
            for (model, cost), group in self.groups().items()
            if (fronts := fronts_by_method(group))
        }
        if not panels:
            raise UserError("runs: none of them has a front, there is nothing to draw")
        draw_panels(panels, path)


def read(paths: Sequence[str | Path], anyway: bool = False) -> Comparison:
    """Runs that are there already, or whole comparisons; nothing is trained.

    anyway: also if their data, steps or other settings of the training differ.
    """
    comparison = Comparison(read_entries(paths))
    if not anyway:
        comparison.refuse_unequal_terms()
    refuse_same_run_twice(comparison.entries)
    return comparison


def methods_of(group: Sequence[Entry]) -> list[str]:
    return list(dict.fromkeys(entry.method for entry in group))


def fronts_by_method(group: Sequence[Entry]) -> dict[str, list[Front]]:
    fronts: dict[str, list[Front]] = {}
    for entry in group:
        if entry.front is not None:
            fronts.setdefault(entry.method, []).append(entry.front)
    return fronts


def default_reference(group: Sequence[Entry]) -> str:
    methods = methods_of(group)
    return BASELINE if BASELINE in methods else methods[0]


# The figures of one method


def row_of(
    group: Sequence[Entry],
    method: str,
    reference: str,
    shares: Sequence[float],
    sizes: Sequence[float],
) -> dict[str, Any]:
    measure = measure_of(group)
    mine = {entry.seed: entry.front for entry in group if entry.method == method}
    fronts = {seed: front for seed, front in mine.items() if front is not None}
    areas, others = (areas_by_seed(group, name, measure) for name in (method, reference))
    seconds, baseline = (
        values_by_seed(group, name, lambda entry: entry.seconds) for name in (method, BASELINE)
    )
    volumes = values_by_seed(group, method, lambda entry: volume_of(entry.front, measure))
    places = [*((share, 0.0) for share in shares), *((None, size) for size in sizes)]
    return {
        "seeds": sorted(fronts),
        "missing": sorted(mine.keys() - fronts.keys()),
        "measure": measure,
        **mean_and_deviation("area", areas.values()),
        "against": paired(areas, others, reference) if method != reference else None,
        "errors": [error_at([*fronts.values()], measure, *place) for place in places],
        **mean_and_deviation("hypervolume", volumes.values()),
        **mean_and_deviation("seconds", seconds.values()),
        "overhead": overhead(seconds, baseline) if method != BASELINE else None,
    }


def measure_of(group: Sequence[Entry]) -> str:
    """The error that all fronts of the table know."""
    return shared_measure([entry.front for entry in group if entry.front is not None])


def values_by_seed(
    group: Sequence[Entry], method: str, value: Callable[[Entry], float | None]
) -> dict[int, float]:
    """Of the runs that have it."""
    found = {entry.seed: value(entry) for entry in group if entry.method == method}
    return {seed: number for seed, number in found.items() if number is not None}


def areas_by_seed(group: Sequence[Entry], method: str, measure: str) -> dict[int, float]:
    """Nothing for methods whose fronts are single children: these make no curve."""
    fronts = {entry.seed: entry.front for entry in group if entry.method == method and entry.front}
    if measure not in ERRORS or all(len(front) == 1 for front in fronts.values()):
        return {}
    areas = {seed: front.area(measure) for seed, front in fronts.items()}
    return {seed: area for seed, area in areas.items() if area is not None}


def volume_of(front: Front | None, measure: str) -> float | None:
    return front.hypervolume(measure) if front is not None and measure in ERRORS else None


def mean_and_deviation(name: str, values: Any) -> dict[str, float | None]:
    """None where there is nothing to take it from; a deviation takes two."""
    found = list(values)
    return {
        name: statistics.fmean(found) if found else None,
        f"{name}_deviation": statistics.stdev(found) if len(found) > 1 else None,
    }


def paired(
    mine: dict[int, float], theirs: dict[int, float], reference: str
) -> dict[str, Any] | None:
    """The mean difference over the seeds that both have, and whether it may be chance.

    Student's test of pairs. Two pairs say nothing about chance, and so there is no p-value; nor is
    there one if all differences are the same.
    """
    seeds = sorted(mine.keys() & theirs.keys())
    if not seeds:
        return None
    gains = [mine[seed] - theirs[seed] for seed in seeds]
    tested = len(seeds) >= LEAST_PAIRS and len({round(gain, 9) for gain in gains}) > 1
    return {
        "method": reference,
        "pairs": len(seeds),
        "difference": statistics.fmean(gains),
        "p_value": p_value([mine[s] for s in seeds], [theirs[s] for s in seeds])
        if tested
        else None,
    }


def p_value(mine: Sequence[float], theirs: Sequence[float]) -> float:
    from scipy.stats import ttest_rel  # type: ignore[import-untyped]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return float(ttest_rel(mine, theirs).pvalue)


def error_at(
    fronts: Sequence[Front], measure: str, share: float | None, size: float
) -> dict[str, Any]:
    """The mean error of the children that `pick` would choose; None if some seed has none."""
    budgets = [size if share is None else share * front.span[1] for front in fronts]
    picked = [float(curve(front, most, measure=measure)) for front, most in zip(fronts, budgets)]
    return {
        "share": share,
        "budget": statistics.fmean(budgets) if budgets else None,
        **mean_and_deviation("error", [] if any(map(math.isnan, picked)) else picked),
    }


def overhead(seconds: dict[int, float], baseline: dict[int, float]) -> float | None:
    """By which share more time was needed than by the baseline, for the seeds that both have."""
    seeds = seconds.keys() & baseline.keys()
    total = sum(baseline[seed] for seed in seeds)
    return sum(seconds[seed] for seed in seeds) / total - 1 if total else None
