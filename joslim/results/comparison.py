"""A comparison of methods: the runs, and what they say about the methods."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from joslim.errors import UserError, unknown
from joslim.files import write_whole, writing
from joslim.front import ERRORS, IN_PERCENT, Front
from joslim.results.groups import (
    Spread,
    curve,
    differences,
    overhead,
    paired_test,
    shared_measure,
    terms_of,
)
from joslim.results.plots import draw_panels
from joslim.results.record import Record

# The method that others are tested against, and whose wall time is the measure.
BASELINE = "slim"
SHARES = (0.25, 0.5, 1.0)
TABLE, PICTURE = "table.json", "compare.png"


@dataclass(frozen=True)
class Entry:
    """One run of a comparison: its front, or the reason why it has none.

    training: there is no front because some process trains the run now. at_once: how many runs
    were trained at the same time. terms: the settings that must agree in one table.
    """

    model: str
    cost: str
    method: str
    seed: int
    path: Path
    front: Front | None = None
    failure: str | None = None
    training: bool = False
    seconds: float | None = None
    at_once: int | None = None
    terms: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Record, at_once: int | None = None) -> Entry:
        """The entry of a finished run."""
        assert record.front is not None
        return cls(
            model=record.model,
            cost=record.front.cost,
            method=record.method,
            seed=record.seed,
            path=record.path,
            front=record.front,
            seconds=record.seconds,
            at_once=at_once,
            terms=terms_of(record),
        )

    def to_json(self) -> dict[str, Any]:
        names = ("model", "cost", "method", "seed", "failure", "seconds", "at_once")
        return {**{name: getattr(self, name) for name in names}, "path": str(self.path)}


@dataclass(frozen=True)
class Comparison:
    """Runs of several methods, and what they say about the methods.

    Attributes:
        entries: One record for each run: its settings, and its front or the reason why it has none.

    Examples:
        >>> from joslim.comparing import read
        >>> comparison = read(["runs/digits"])
        >>> [(row["method"], row["seeds"]) for row in comparison.table()]
        [('joslim', [0])]
    """

    entries: Sequence[Entry]

    @property
    def failures(self) -> list[Entry]:
        """Runs that have no front."""
        return [entry for entry in self.entries if entry.front is None]

    def groups(self) -> dict[tuple[str, str], list[Entry]]:
        """Return the runs by network and cost, because errors at other costs or of other networks
        do not compare.
        """
        groups: dict[tuple[str, str], list[Entry]] = {}
        for entry in self.entries:
            groups.setdefault((entry.model, entry.cost), []).append(entry)
        return groups

    def fronts(self, model: str | None = None, cost: str | None = None) -> dict[str, list[Front]]:
        """Return the fronts of all seeds by method.

        Args:
            model: Name of the network; needed if there are several.
            cost: Name of the cost; needed if there are several.

        Raises:
            UserError: More or less than one network and cost match.
        """
        found = {
            key: group
            for key, group in self.groups().items()
            if model in (None, key[0]) and cost in (None, key[1])
        }
        if len(found) != 1:
            known = ", ".join(f"{model} {cost}" for model, cost in self.groups())
            raise UserError(f"model: {len(found)} tables are meant; choose one of: {known}")
        (group,) = found.values()
        return _fronts_by_method(group)

    def refuse_unequal_terms(self) -> None:
        """Refuse runs of one network and cost whose data, steps or other settings differ.

        Raises:
            UserError: The first setting that differs.
        """
        for (model, cost), group in self.groups().items():
            for name, values in differences([entry.terms for entry in group]).items():
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
        """Compute a row for each network, cost and method: means over the seeds, in percent and
        seconds.

        Args:
            against: The method that the others are tested against, seed by seed; by default "slim"
                if it is there, else the first one.
            shares: Costs at which the error is given, as shares of the cost of the full network.
            sizes: Costs at which the error is given.

        Raises:
            UserError: No run is of the method `against`.
        """
        known = _methods_of(self.entries)
        if against is not None and against not in known:
            raise unknown("against", against, known)
        rows = []
        for (model, cost), group in self.groups().items():
            methods = _methods_of(group)
            reference = against or (BASELINE if BASELINE in methods else methods[0])
            for method in methods:
                figures = _row_of(group, method, reference, shares, sizes)
                rows.append({"model": model, "cost": cost, "method": method, **figures})
        return rows

    def to_json(self, **options: Any) -> dict[str, Any]:
        """Return what table.json holds: the table, the runs, and the settings that differ."""
        return {
            "table": self.table(**options),
            "runs": [entry.to_json() for entry in self.entries],
            "differences": {
                f"{model} {cost}": found
                for (model, cost), group in self.groups().items()
                if (found := differences([entry.terms for entry in group]))
            },
        }

    def write(self, folder: str | Path, **options: Any) -> None:
        """Write the table as JSON, and the picture if some run has a front.

        Raises:
            UserError: The folder cannot be written.
        """
        target = Path(folder)
        content = json.dumps(self.to_json(**options), indent=2, allow_nan=False)
        with writing(folder):
            target.mkdir(parents=True, exist_ok=True)
            write_whole(target / TABLE, content + "\n")
        if len(self.failures) < len(self.entries):
            self.draw(target / PICTURE)

    def draw(self, path: str | Path) -> None:
        """Draw the mean curve of each method with a band, in one panel for each network and cost.

        Raises:
            UserError: No run has a front.
        """
        panels = {
            f"{model}, {cost}": fronts
            for (model, cost), group in self.groups().items()
            if (fronts := _fronts_by_method(group))
        }
        if not panels:
            raise UserError("runs: none of them has a front, there is nothing to draw")
        draw_panels(panels, path)


def _methods_of(group: Sequence[Entry]) -> list[str]:
    return list(dict.fromkeys(entry.method for entry in group))


def _fronts_by_method(group: Sequence[Entry]) -> dict[str, list[Front]]:
    fronts: dict[str, list[Front]] = {}
    for entry in group:
        if entry.front is not None:
            fronts.setdefault(entry.method, []).append(entry.front)
    return fronts


def _row_of(
    group: Sequence[Entry],
    method: str,
    reference: str,
    shares: Sequence[float],
    sizes: Sequence[float],
) -> dict[str, Any]:
    """The figures of one method. The error is one that all fronts of the table know."""
    known = [entry.front for entry in group if entry.front is not None]
    measure = shared_measure(known)
    metric = known[0].metric if known else IN_PERCENT

    fronts = {
        name: {e.seed: e.front for e in group if e.method == name and e.front is not None}
        for name in (method, reference)
    }
    seconds, baseline = (
        {e.seed: e.seconds for e in group if e.method == name and e.seconds is not None}
        for name in (method, BASELINE)
    )

    def areas(name: str, error: str) -> dict[int, float]:
        """Return the areas of a method by seed; fronts of one child have none."""
        has_curves = any(len(front) > 1 for front in fronts[name].values())
        found = {seed: front.area(error) for seed, front in fronts[name].items() if has_curves}
        return {seed: area for seed, area in found.items() if area is not None}

    mine, by_error = fronts[method], measure in ERRORS
    own, theirs = (areas(name, measure) if by_error else {} for name in (method, reference))
    volumes = [front.hypervolume(measure) for front in mine.values()] if by_error else []
    places = [*((share, 0.0) for share in shares), *((None, size) for size in sizes)]
    return {
        "seeds": sorted(mine),
        "missing": sorted({e.seed for e in group if e.method == method} - mine.keys()),
        "measure": measure,
        "metric": asdict(metric),
        **Spread.of(own.values()).named("area"),
        **Spread.of(areas(method, "train_loss").values()).named("loss_area"),
        "against": None if method == reference else paired_test(own, theirs, reference),
        "errors": [_error_at([*mine.values()], measure, *place) for place in places],
        **Spread.of(v for v in volumes if v is not None).named("hypervolume"),
        **Spread.of(seconds.values()).named("seconds"),
        "overhead": None if method == BASELINE else overhead(seconds, baseline),
    }


def _error_at(
    fronts: Sequence[Front], measure: str, share: float | None, size: float
) -> dict[str, Any]:
    """The mean error of the children that `pick` would choose; None if some seed has none."""
    budgets = [size if share is None else share * front.span[1] for front in fronts]
    picked = [float(curve(front, most, measure=measure)) for front, most in zip(fronts, budgets)]
    known = [] if any(map(math.isnan, picked)) else picked
    budget = Spread.of(budgets).mean
    return {"share": share, "budget": budget, **Spread.of(known).named("error")}
