"""Every child that the search visited: its cost, its losses over time, its latest loss.

A loss that is not finite is never kept: the child counts as not scored, and what is not scored can
enter neither a surrogate nor a front.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joslim.costs import Cost
from joslim.errors import UserError
from joslim.search.drift import carried_over
from joslim.widths import Widths, WidthSpace


@dataclass(frozen=True)
class Visit:
    """A child that was visited, and the step at which it was visited first."""

    widths: Widths
    cost: float
    step: int


@dataclass(frozen=True)
class Scoring:
    """The losses of some children, taken at one step on the same images."""

    step: int
    losses: Mapping[int, float]


@dataclass(frozen=True)
class Scored:
    """The children that have a loss: what a search learns from."""

    ids: NDArray[np.int64]
    matrix: NDArray[np.float64]  # [n, knobs] multipliers
    costs: NDArray[np.float64]  # [n]
    losses: NDArray[np.float64]  # [n], the latest of each
    estimates: NDArray[np.float64]  # [n], the same brought up to date: see `drift`
    steps: NDArray[np.int64]  # [n], when the latest was taken

    def __len__(self) -> int:
        return len(self.ids)


class History:
    """All visits in order; the id of a child is its position."""

    def __init__(self, cost: Cost) -> None:
        self.cost = cost
        self.visits: list[Visit] = []
        self.scorings: list[Scoring] = []
        self._ids: dict[Widths, int] = {}
        self._latest: dict[int, tuple[float, int]] = {}
        self._estimates: dict[int, float] = {}
        self._tried: dict[int, int] = {}

    @property
    def space(self) -> WidthSpace:
        return self.cost.space

    def __len__(self) -> int:
        return len(self.visits)

    def __contains__(self, widths: Widths) -> bool:
        return widths in self._ids

    def visit(self, widths: Widths, step: int) -> int:
        """Its id: a new one, or the one that it has from an earlier visit."""
        if widths not in self._ids:
            self._ids[widths] = len(self.visits)
            self.visits.append(Visit(widths, self.cost(widths), step))
        return self._ids[widths]

    def record(self, losses: Mapping[int, float], step: int) -> None:
        """The losses of these children at this step. One that is not finite unscores its child."""
        if not losses:
            return
        strangers = [child for child in losses if not 0 <= child < len(self.visits)]
        if strangers:
            raise UserError(f"history: child {strangers[0]} was never visited")
        self.scorings.append(Scoring(step, dict(losses)))
        finite = {child: loss for child, loss in losses.items() if math.isfinite(loss)}
        self._carry_over(finite)
        for child in losses:
            self._tried[child] = step
            if child in finite:
                self._latest[child] = (finite[child], step)
                self._estimates[child] = finite[child]
            else:
                self._latest.pop(child, None)
                self._estimates.pop(child, None)

    def _carry_over(self, losses: Mapping[int, float]) -> None:
        """The estimates of all other children follow those that were scored again."""
        again = [child for child in losses if child in self._estimates]
        others = [child for child in self._estimates if child not in losses]
        before = np.array([self._estimates[child] for child in again])
        now = np.array([losses[child] for child in again])
        stale = np.array([self._estimates[child] for child in others])
        self._estimates.update(zip(others, carried_over(before, now, stale).tolist()))

    def loss(self, child: int) -> float | None:
        return self._latest[child][0] if child in self._latest else None

    def tried(self, child: int) -> int:
        """The step at which a loss was last taken of it, finite or not; -1 if never."""
        return self._tried.get(child, -1)

    def scored(self) -> Scored:
        """The children whose latest loss and whose cost are finite."""
        kept = [child for child in sorted(self._latest) if math.isfinite(self.visits[child].cost)]
        visits = [self.visits[child] for child in kept]
        rows = [visit.widths.multipliers for visit in visits]
        return Scored(
            ids=np.array(kept, dtype=np.int64),
            matrix=np.array(rows).reshape(len(kept), len(self.space)),
            costs=np.array([visit.cost for visit in visits], dtype=np.float64),
            losses=np.array([self._latest[child][0] for child in kept]),
            estimates=np.array([self._estimates[child] for child in kept]),
            steps=np.array([self._latest[child][1] for child in kept], dtype=np.int64),
        )

    def state_dict(self) -> dict[str, Any]:
        """All visits and losses, as JSON."""
        return {
            "visits": [[list(v.widths.counts), v.cost, v.step] for v in self.visits],
            "scorings": [[s.step, list(s.losses), list(s.losses.values())] for s in self.scorings],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned. Costs are taken from it, not measured again."""
        self.visits = [
            Visit(self.space.of_counts(counts), number(cost), number(step))
            for counts, cost, step in state["visits"]
        ]
        self._ids = {visit.widths: child for child, visit in enumerate(self.visits)}
        self.scorings, self._latest, self._estimates, self._tried = [], {}, {}, {}
        for step, ids, losses in state["scorings"]:
            self.record(dict(zip(map(number, ids), map(number, losses))), number(step))


def number(value: Any) -> Any:
    """A number as it is; what is none is found here, and not in the next round."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a number")
    return value
