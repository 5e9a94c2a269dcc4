"""Targeted search: the paper's own problem, solved with the cost as it is.

For each target cost c the paper wants the child of least loss whose cost is c (eq. arch_set). It
gets there by a detour: a Gaussian process of the cost, a scalarization, and a bisection of its
weight until the cost fits (Algorithm 2). The cost is known in closed form, so candidates can be
brought to c directly, and only the loss has to be modelled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joslim.costs import Cost
from joslim.front import non_dominated
from joslim.search.base import Searcher
from joslim.search.history import History, Scored
from joslim.search.modelled import ModelledCost, is_slow
from joslim.search.raising import raise_free
from joslim.search.rays import bring_to_cost, from_unit, to_unit
from joslim.search.start import start_size, unseen_start
from joslim.search.surrogate import Surrogate, tamed
from joslim.search.targets import cost_range, stratified_targets
from joslim.search.unseen import first_unseen
from joslim.widths import Widths

# Bisection stops at this share of epsilon: what is chosen within epsilon should not lean to one
# side of the target.
TOLERANCE = 0.25
# Candidates that are worth more work than the rest of a pool.
BEST = 16
# Candidates that are brought to the target with a slow cost itself, for one that is unseen.
CHECKED = 3


@dataclass
class Targeted(Searcher):
    """The least mean - sqrt(beta) sigma of the loss among candidates at a target cost.

    beta        how much uncertainty attracts (the paper's UCB constant)
    epsilon     how far a cost may be from its target, as a share of the full cost
    start       scored children before the surrogate is asked; None: as many as the knobs need
    pool        candidates for each target in the first round
    local       candidates in each further round, around the best so far
    rounds      further rounds
    parents     children of the front, nearest in cost, that candidates descend from
    most        children that the hyper-parameters of the surrogate are fitted to
    """

    beta: float = 0.1
    epsilon: float = 0.02
    start: int | None = None
    pool: int = 256
    local: int = 96
    rounds: int = 2
    parents: int = 8
    most: int = 500
    _theta: tuple[float, ...] | None = field(default=None, init=False, repr=False)

    def propose(self, history: History, count: int, rng: np.random.Generator) -> list[Widths]:
        scored = history.scored()
        needed = start_size(history.space) if self.start is None else self.start
        if len(scored) < max(needed, 1):
            return unseen_start(history, count, rng)
        surrogate = self._surrogate(history, scored)
        pricing = ModelledCost(history, self.most) if is_slow(history.cost) else history.cost
        chosen: list[Widths] = []
        for target in stratified_targets(history.cost, count, rng):
            search = _AtTarget(self, history, scored, surrogate, pricing, target, rng)
            chosen.append(first_unseen(search.ranked(), history, chosen))
        return chosen

    def _surrogate(self, history: History, scored: Scored) -> Surrogate:
        points = to_unit(history.space, scored.matrix)
        surrogate = Surrogate.fit(points, tamed(scored.losses), self._theta, self.most)
        self._theta = surrogate.theta
        return surrogate

    def state_dict(self) -> dict[str, Any]:
        return {"theta": None if self._theta is None else list(self._theta)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        theta = state.get("theta")
        self._theta = None if theta is None else tuple(theta)


@dataclass
class _Candidates:
    """Points of the unit cube at their cost, with the bound that is minimised."""

    points: NDArray[np.float64]  # [n, knobs]
    misses: NDArray[np.float64]  # [n], as a share of the full cost
    bounds: NDArray[np.float64]  # [n]

    def order(self, epsilon: float) -> NDArray[np.int64]:
        """The least bound first; what misses by more than epsilon comes last, the nearest first."""
        late = np.where(self.misses <= epsilon, 0.0, self.misses)
        return np.lexsort((self.bounds, late))

    def __add__(self, other: _Candidates) -> _Candidates:
        return _Candidates(
            np.concatenate([self.points, other.points]),
            np.concatenate([self.misses, other.misses]),
            np.concatenate([self.bounds, other.bounds]),
        )


@dataclass
class _AtTarget:
    """The search for one child of one cost."""

    options: Targeted
    history: History
    scored: Scored
    surrogate: Surrogate
    pricing: Cost  # of candidates: the cost itself, or a model of one that is slow
    target: float
    rng: np.random.Generator

    def __post_init__(self) -> None:
        self.full = abs(cost_range(self.history.cost)[1]) or 1.0
        self.tolerance = TOLERANCE * self.options.epsilon * self.full

    def ranked(self) -> Iterator[Widths]:
        """Children at the target, the most promising first."""
        candidates = self._at_target(self._first_pool())
        for _ in range(self.options.rounds):
            best = candidates.points[candidates.order(self.options.epsilon)[0]]
            around = np.repeat(best[None], self.options.local, axis=0)
            candidates += self._at_target(perturbed(around, 0.1, self.rng))
        best = candidates.points[candidates.order(self.options.epsilon)[:BEST]]
        candidates += self._judged(raise_free(self.pricing, best, self.rng))
        points = candidates.points[candidates.order(self.options.epsilon)]
        if self.pricing is not self.history.cost:
            points = self._checked(points[:CHECKED])
        for row in from_unit(self.history.space, points):
            yield self.history.space.at(row)

    def _checked(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same, brought to the target with the cost itself."""
        targets = np.full(len(points), self.target)
        return bring_to_cost(self.history.cost, points, targets, self.tolerance)

    def _first_pool(self) -> NDArray[np.float64]:
        """Thirds of random points, perturbed parents, and mixtures of two parents."""
        third = -(-self.options.pool // 3)
        knobs = len(self.history.space)
        parents = self._parents()
        pick = self.rng.integers(len(parents), size=(3, third))
        return np.concatenate(
            [
                self.rng.uniform(size=(third, knobs)),
                perturbed(parents[pick[0]], 0.2, self.rng),
                mixed(parents[pick[1]], parents[pick[2]], self.rng),
            ]
        )

    def _parents(self) -> NDArray[np.float64]:
        front = np.flatnonzero(non_dominated(self.scored.losses, self.scored.costs))
        away = np.abs(self.scored.costs[front] - self.target)
        nearest = front[np.argsort(away, kind="stable")[: self.options.parents]]
        return to_unit(self.history.space, self.scored.matrix[nearest])

    def _at_target(self, points: NDArray[np.float64]) -> _Candidates:
        targets = np.full(len(points), self.target)
        return self._judged(bring_to_cost(self.pricing, points, targets, self.tolerance))

    def _judged(self, points: NDArray[np.float64]) -> _Candidates:
        space = self.history.space
        counts = space.counts(from_unit(space, points))
        misses = np.abs(self.pricing.of_counts(counts) - self.target) / self.full
        # The multipliers by which the history knows a child, so that equal children are equal.
        points = to_unit(space, space.multipliers(counts))
        mean, sigma = self.surrogate.posterior(points)
        return _Candidates(points, misses, mean - np.sqrt(self.options.beta) * sigma)


def perturbed(
    points: NDArray[np.float64], size: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """[n, knobs] -> [n, knobs]: normal steps in some knobs of each, at least in one."""
    n, knobs = points.shape
    moved = rng.uniform(size=(n, knobs)) < rng.uniform(size=(n, 1))
    moved[np.arange(n), rng.integers(knobs, size=n)] = True
    return np.clip(points + moved * rng.normal(scale=size, size=(n, knobs)), 0.0, 1.0)


def mixed(
    left: NDArray[np.float64], right: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """[n, knobs] twice -> [n, knobs]: each knob between its two parents'."""
    return left + rng.uniform(size=left.shape) * (right - left)
