"""The history of a search: every child (subnet) it visited, with its cost and its losses over time.

A loss that is not finite is never used: the child then counts as not scored, and neither a
surrogate nor a Pareto front sees it.

Losses go stale, because the weights keep training and every round scores on other images. Two parts
of this file deal with that: `children_to_rescore` chooses the children to score again in a round,
and `Estimates` predicts how the losses of all other children have changed since they were measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joslim.costs import Cost
from joslim.errors import UserError
from joslim.front import non_dominated
from joslim.space import Widths, WidthSpace

Array = NDArray[np.float64]

# A re-scoring budget without a limit, as in Algorithm 1, line 4.
ALL = 10**9
# Weight of the prior belief that losses change by a shift alone, as a number of observed pairs.
PSEUDO_PAIRS = 5.0


@dataclass(frozen=True)
class Visit:
    """A child, its cost, and the step of its first visit."""

    widths: Widths
    cost: float
    step: int


@dataclass(frozen=True)
class Scoring:
    """The losses of some children, measured at one step on the same images."""

    step: int
    losses: Mapping[int, float]


@dataclass(frozen=True)
class Scored:
    """The children that have a loss, as the arrays that a search learns from."""

    ids: NDArray[np.int64]
    matrix: Array  # [n, knobs] multipliers
    costs: Array  # [n]
    losses: Array  # [n], the latest of each child
    estimates: Array  # [n], the latest losses corrected for drift, see `Estimates`
    steps: NDArray[np.int64]  # [n], when the latest loss was measured

    def __len__(self) -> int:
        return len(self.ids)


class History:
    """Every child (subnet) that a search visited: its cost, its losses over time and its latest
    loss.

    The id of a child is its position in `visits`. A loss that is not finite is never used: the
    child counts as not scored.

    Attributes:
        cost: The cost that the search minimizes.
        visits: Children in the order of their first visit, with cost and step.
        scorings: All losses, in the order in which they were measured.

    Examples:
        >>> net = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 32, 32))
        >>> history = joslim.History(joslim.cost("macs", net))
        >>> child = history.visit(net.space.full, step=0)
        >>> history.record({child: 2.3}, step=0)
        >>> history.loss(child), len(history.scored())
        (2.3, 1)
    """

    def __init__(self, cost: Cost) -> None:
        self.cost = cost
        self.visits: list[Visit] = []
        self.scorings: list[Scoring] = []
        self._ids: dict[Widths, int] = {}
        self._latest: dict[int, tuple[float, int]] = {}
        self._estimates = Estimates()
        self._tried: dict[int, int] = {}

    @property
    def space(self) -> WidthSpace:
        """Search space of the children."""
        return self.cost.space

    def __len__(self) -> int:
        return len(self.visits)

    def __contains__(self, widths: Widths) -> bool:
        return widths in self._ids

    def visit(self, widths: Widths, step: int, again: bool = False) -> int:
        """Add a child, unless it is there already, and return its id.

        Args:
            widths: The child.
            step: The present step of the training.
            again: Add a further entry for a child that is there already.
        """
        if again or widths not in self._ids:
            self.visits.append(Visit(widths, self.cost(widths), step))  # a cost may raise
            new = len(self.visits) - 1
            self._ids.setdefault(widths, new)
            return new
        return self._ids[widths]

    def record(self, losses: Mapping[int, float], step: int) -> None:
        """Record losses that were measured at one step on the same images.

        A loss that is not finite deletes the latest loss of its child.

        Args:
            losses: Loss by the id of the child.
            step: The present step of the training.

        Raises:
            UserError: A child was never visited.
        """
        if not losses:
            return
        unknown = [child for child in losses if not 0 <= child < len(self.visits)]
        if unknown:
            raise UserError(f"history: child {unknown[0]} was never visited")
        self.scorings.append(Scoring(step, dict(losses)))
        self._estimates.update(
            np.array([*losses], dtype=np.int64), np.array([*losses.values()], dtype=np.float64)
        )
        for child, loss in losses.items():
            self._tried[child] = step
            if math.isfinite(loss):
                self._latest[child] = (loss, step)
            else:
                self._latest.pop(child, None)

    def loss(self, child: int) -> float | None:
        """Return the latest loss of a child, or None if it has none.

        Args:
            child: Id of the child.
        """
        return self._latest[child][0] if child in self._latest else None

    def tried(self, child: int) -> int:
        """Return the step at which a loss of the child was last measured, finite or not; -1 if
        never.

        Args:
            child: Id of the child.
        """
        return self._tried.get(child, -1)

    def scored(self) -> Scored:
        """Return the children whose latest loss and whose cost are finite, as arrays."""
        kept = [child for child in sorted(self._latest) if math.isfinite(self.visits[child].cost)]
        visits = [self.visits[child] for child in kept]
        counts = np.array([visit.widths.counts for visit in visits], dtype=np.int64)
        ids = np.array(kept, dtype=np.int64)
        return Scored(
            ids=ids,
            matrix=self.space.multipliers(counts.reshape(len(kept), len(self.space.dims))),
            costs=np.array([visit.cost for visit in visits], dtype=np.float64),
            losses=np.array([self._latest[child][0] for child in kept]),
            estimates=self._estimates[ids],
            steps=np.array([self._latest[child][1] for child in kept], dtype=np.int64),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return all visits and losses as JSON."""
        return {
            "visits": [[list(v.widths.counts), v.cost, v.step] for v in self.visits],
            "scorings": [[s.step, list(s.losses), list(s.losses.values())] for s in self.scorings],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Costs are taken from the state and not measured
        again.
        """
        children = self.space.all_of_counts([counts for counts, _, _ in state["visits"]])
        self.visits = [
            Visit(child, _checked_number(cost), _checked_number(step))
            for child, (_, cost, step) in zip(children, state["visits"])
        ]
        self._ids = {}
        for child, visit in enumerate(self.visits):
            self._ids.setdefault(visit.widths, child)
        self.scorings, self._latest, self._tried = [], {}, {}
        self._estimates = Estimates()
        for step, ids, losses in state["scorings"]:
            if not {*map(type, ids), *map(type, losses)} <= {int, float}:
                ids, losses = ([_checked_number(n) for n in part] for part in (ids, losses))
            self.record(dict(zip(ids, losses)), _checked_number(step))


def _checked_number(value: Any) -> Any:
    """Return a number unchanged, and refuse anything else while the state is loaded."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a number")
    return value


def first_unseen(
    children: Iterable[Widths], history: History, chosen: Iterable[Widths] = ()
) -> Widths:
    """Return the first child that is neither in the history nor chosen already.

    If there is none, return the first child: a small network may have fewer children than a search
    proposes.
    """
    taken = set(chosen)
    first = None
    for child in children:
        if child not in history and child not in taken:
            return child
        first = first or child
    assert first is not None, "there must be a child to choose"
    return first


def unseen(children: Sequence[Widths], history: History, count: int) -> list[Widths]:
    """Return `count` of the children, as far as possible ones that were not visited."""
    chosen: list[Widths] = []
    for _ in range(count):
        chosen.append(first_unseen(children, history, chosen))
    return chosen


def children_to_rescore(history: History, budget: int) -> list[int]:
    """Choose the children to score in this round, as at most `budget` ids.

    Children that were never scored come first. One half of the remaining budget goes to the Pareto
    front, because the next proposals build on it; the other half goes to the children whose loss is
    oldest, so that every child is scored again in time.
    """
    ids = list(range(len(history)))
    if len(ids) <= budget:
        return ids
    oldest_first = sorted(ids, key=lambda child: (history.tried(child), child))
    new = [child for child in oldest_first if history.tried(child) < 0][:budget]
    scored = history.scored()
    on_front = set(scored.ids[non_dominated(scored.estimates, scored.costs)].tolist())
    front = [child for child in oldest_first if child in on_front][: (budget - len(new)) // 2]
    chosen = dict.fromkeys([*new, *front, *oldest_first])
    return sorted(list(chosen)[:budget])


class Estimates:
    """Estimates of the present loss of every child, indexed by the ids of the children.

    Children that are scored again show how losses have changed. The change is modelled as a shift
    and a slope that are the same for all children, and is applied to those that were not scored.

    Losses are kept as logarithms while all of them are positive, because training lowers them by
    roughly a common factor. An update is therefore one linear map of an array, however many
    children there are.
    """

    def __init__(self) -> None:
        # NaN where a child has no estimate.
        self._values = np.full(64, np.nan)
        self._logarithmic = True

    def __getitem__(self, children: NDArray[np.int64]) -> Array:
        values = self._values[children]
        return np.exp(values) if self._logarithmic else values

    def update(self, children: NDArray[np.int64], losses: Array) -> None:
        """Add new losses. A child whose loss is not finite loses its estimate."""
        missing = int(children.max()) + 1 - len(self._values)
        if missing > 0:
            more = np.full(max(missing, len(self._values)), np.nan)
            self._values = np.concatenate([self._values, more])
        finite = np.isfinite(losses)
        measured, now = children[finite], losses[finite]
        positive = not (now <= 0).any()
        if self._logarithmic and not positive:
            self._values, self._logarithmic = np.exp(self._values), False
        elif positive and not self._logarithmic and not (self._values <= 0).any():
            self._values, self._logarithmic = np.log(self._values), True
        now = np.log(now) if self._logarithmic else now
        again = ~np.isnan(self._values[measured])
        if again.any():
            before = self._values[measured[again]]
            known = self._values[~np.isnan(self._values)]
            self._values = _carried_over(before, now[again], self._values, float(known.var()))
        self._values[measured] = now
        self._values[children[~finite]] = np.nan


def _carried_over(before: Array, now: Array, stale: Array, variance: float) -> Array:
    """Estimate the present values of stale losses [n] from children that were scored again.

    Fits now = shift + slope * before to the [m] pairs by least squares; with few or equal pairs the
    slope stays near 1. `variance` is that of all losses before.
    """
    pull = PSEUDO_PAIRS * variance
    covariance = ((before - before.mean()) * (now - now.mean())).sum() + pull
    spread = ((before - before.mean()) ** 2).sum() + pull
    slope = covariance / spread if spread > 0 else 1.0
    # A negative slope is noise: it would turn good children into bad ones.
    return now.mean() + max(slope, 0.0) * (stale - before.mean())
