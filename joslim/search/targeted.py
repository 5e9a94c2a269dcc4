"""Targeted search: the paper's own problem, solved with the cost as it is.

For each target cost c the paper wants the child of least loss whose cost is c (eq. arch_set). It
gets there by a detour: a Gaussian process of the cost, a scalarization, and a bisection of its
weight until the cost fits (Algorithm 2). The cost is known in closed form, so candidates can be
brought to c directly, and only the loss has to be modelled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joslim.costs import Cost
from joslim.front import non_dominated
from joslim.search.base import Searcher
from joslim.search.history import History, Scored
from joslim.search.modelled import AskedOnce, ModelledCost, is_slow
from joslim.search.raising import raise_free
from joslim.search.rays import (
    bring_by_one_knob,
    bring_by_single_knobs,
    bring_slow_to_cost,
    bring_to_cost,
    from_unit,
    to_unit,
)
from joslim.search.start import start_size, unseen_start
from joslim.search.surrogate import MOST_POINTS, Refits, Surrogate, SurrogateFailed, tamed
from joslim.search.targets import cost_range, stratified_targets
from joslim.search.unseen import first_unseen
from joslim.widths import Widths

log = logging.getLogger("joslim")

# Bisection stops at this share of epsilon.
TOLERANCE = 0.25
# Candidates that are worth more work than the rest of a pool.
BEST = 16
# Corners of the cube that lead to children with some knobs at full width and others at their low,
# for targets that nothing else has met.
CORNERS = 64
# Candidates that are brought to the target with the cost itself if it is slow, at most.
CHECKED = 8


@dataclass
class Targeted(Searcher):
    """The least mean - sqrt(beta) sigma of the loss among candidates at a target cost.

    beta        how much uncertainty attracts (the paper's UCB constant)
    epsilon     how far a cost may be from its target, as a share of the full cost
    log_share   how many of the targets are spread evenly over the logarithm of the cost
    start       scored children before the surrogate is asked; None: as many as the knobs need
    pool        candidates for each target in the first round
    local       candidates in each further round, around the best so far: half of them brought to
                the target as those of the pool are, half by exchanging one knob for others
    rounds      further rounds
    parents     children of the front, nearest in cost, that candidates descend from
    most        children that the hyper-parameters of the surrogate are fitted to

    It always has an answer. Where the surrogate cannot be fitted its last hyper-parameters serve;
    where it cannot be had at all, neighbours of the front; without a front, random children.
    """

    beta: float = 0.1
    epsilon: float = 0.02
    log_share: float = 0.0
    start: int | None = None
    pool: int = 256
    local: int = 96
    rounds: int = 20
    parents: int = 8
    most: int = 500
    _loss_refits: Refits = field(default_factory=Refits, init=False, repr=False)
    _cost_refits: Refits = field(default_factory=Refits, init=False, repr=False)

    def propose(self, history: History, count: int, rng: np.random.Generator) -> list[Widths]:
        if not self._knows_enough(history):
            return unseen_start(history, count, rng)
        problem = self._problem(history)
        chosen: list[Widths] = []
        for target in stratified_targets(problem.cost, count, rng, log_share=self.log_share):
            chosen.append(problem.solve(target, rng, chosen))
        return chosen

    def at_target(self, history: History, target: float, rng: np.random.Generator) -> Widths:
        """One child of this cost."""
        return self._problem(history).solve(target, rng)

    def _knows_enough(self, history: History) -> bool:
        needed = start_size(history.space) if self.start is None else self.start
        return len(history.scored()) >= max(needed, 1)

    def _problem(self, history: History) -> _Problem:
        scored = history.scored()
        problem = _Problem(self, history, scored, history.cost, history.cost)
        if len(scored) == 0:
            return problem
        try:
            if is_slow(history.cost):
                problem.cost = AskedOnce(history)
                problem.pricing = None
                problem.pricing = ModelledCost(history, self.most, self._cost_refits)
            problem.surrogate = self._surrogate(history, scored)
        except SurrogateFailed as error:
            log.warning("search: %s; the next best way is taken", error)
        return problem

    def _surrogate(self, history: History, scored: Scored) -> Surrogate:
        kept = worth_knowing(scored)
        points = to_unit(history.space, scored.matrix[kept])
        values = tamed(scored.estimates[kept])
        return self._loss_refits.surrogate(points, values, len(scored), self.most)

    def state_dict(self) -> dict[str, Any]:
        return {"loss": self._loss_refits.state_dict(), "cost": self._cost_refits.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loss_refits.load_state_dict(state.get("loss", {}))
        self._cost_refits.load_state_dict(state.get("cost", {}))


@dataclass
class _Candidates:
    """Points of the unit cube at their cost, with the bound that is minimised."""

    points: NDArray[np.float64]  # [n, knobs]
    seen: NDArray[np.bool_]  # [n], whether the child was visited before
    misses: NDArray[np.float64]  # [n], as a share of the full cost
    bounds: NDArray[np.float64]  # [n]

    def order(self, epsilon: float) -> NDArray[np.int64]:
        """The least bound first; what misses by more than epsilon comes last, the nearest first.

        Before all comes what was not seen yet. Within epsilon the dearest would win, for being
        dearer: where there is enough choice, a part of epsilon has to do.
        """
        enough = self.hits(TOLERANCE * epsilon) >= BEST
        late = np.where(self.misses <= (TOLERANCE if enough else 1.0) * epsilon, 0.0, self.misses)
        return np.lexsort((self.bounds, late, self.seen))

    def hits(self, epsilon: float) -> int:
        return int(((self.misses <= epsilon) & ~self.seen).sum())

    def __add__(self, other: _Candidates) -> _Candidates:
        return _Candidates(
            np.concatenate([self.points, other.points]),
            np.concatenate([self.seen, other.seen]),
            np.concatenate([self.misses, other.misses]),
            np.concatenate([self.bounds, other.bounds]),
        )


Judge = Callable[[NDArray[np.float64]], tuple[NDArray[np.float64], NDArray[np.float64]]]


def nothing_known(
    points: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A judge to whom all are equal: then the first of a pool are the best, the front's kin."""
    return np.zeros(len(points)), np.zeros(len(points))


@dataclass
class _Problem:
    """What all targets of a round have in common."""

    options: Targeted
    history: History
    scored: Scored
    cost: Cost
    # Of candidates: the cost itself, or a model of one that is slow; None if there is no model.
    pricing: Cost | None
    surrogate: Surrogate | None = None

    def solve(
        self, target: float, rng: np.random.Generator, taken: Sequence[Widths] = ()
    ) -> Widths:
        for judge in self._judges():
            assert self.pricing is not None
            try:
                search = _AtTarget(self, self.pricing, judge, target, rng)
                return first_unseen(search.ranked(), self.history, taken)
            except SurrogateFailed as error:
                log.warning("search: %s; the next best way is taken", error)
        return first_unseen(self._random(target, rng), self.history, taken)

    def _judges(self) -> list[Judge]:
        """The best first."""
        if self.pricing is None or len(self.scored) == 0:
            return []
        return (
            [nothing_known] if self.surrogate is None else [self.surrogate.posterior, nothing_known]
        )

    def _random(self, target: float, rng: np.random.Generator) -> Iterator[Widths]:
        return self.exact(rng.uniform(size=(CHECKED, len(self.history.space))), target)

    def exact(self, points: NDArray[np.float64], target: float) -> Iterator[Widths]:
        """[n, knobs] -> children: brought to the target with the cost itself.

        One by one, so that a slow cost is not asked for more of them than need be; those that miss
        come last, the nearest first.
        """
        missed: list[Widths] = []
        for row in points:
            child = self._exact(row[None], target)
            if self._miss(child, target) <= self.options.epsilon:
                yield child
            else:
                missed.append(child)
        if isinstance(self.cost, AskedOnce):
            # A measurement has noise: something that was asked for on the way may be nearer.
            missed += self.cost.nearest(target)
        yield from sorted(missed, key=lambda child: self._miss(child, target))

    def _exact(self, point: NDArray[np.float64], target: float) -> Widths:
        bring = bring_slow_to_cost if is_slow(self.history.cost) else bring_to_cost
        (child,) = self.children(bring(self.cost, point, np.array([target]), self.tolerance))
        return child

    def _miss(self, child: Widths, target: float) -> float:
        return abs(self.cost(child) - target) / self.full

    def children(self, points: NDArray[np.float64]) -> list[Widths]:
        space = self.history.space
        return [space.at(row) for row in from_unit(space, points)]

    @cached_property
    def visited(self) -> set[tuple[int, ...]]:
        return {visit.widths.counts for visit in self.history.visits}

    @cached_property
    def full(self) -> float:
        return abs(cost_range(self.cost)[1]) or 1.0

    @property
    def tolerance(self) -> float:
        return TOLERANCE * self.options.epsilon * self.full


@dataclass
class _AtTarget:
    """The search for one child of one cost."""

    problem: _Problem
    pricing: Cost
    judge: Judge
    target: float
    rng: np.random.Generator

    def __post_init__(self) -> None:
        self.options, self.history = self.problem.options, self.problem.history

    def ranked(self) -> Iterator[Widths]:
        """Children at the target, the most promising first."""
        candidates = self._at_target(self._first_pool())
        for _ in range(self.options.rounds):
            best = candidates.points[candidates.order(self.options.epsilon)[:BEST]]
            around = best[self.rng.integers(len(best), size=self.options.local)]
            moved = perturbed(around, 0.1, self.rng)
            candidates += self._at_target(moved[::2]) + self._exchanged(moved[1::2])
        if candidates.hits(self.options.epsilon) < BEST:
            candidates += self._repaired(self._best_that_missed(candidates))
        if candidates.hits(self.options.epsilon) == 0:
            corners = self.rng.integers(2, size=(CORNERS, len(self.history.space)))
            candidates += self._repaired(corners.astype(np.float64))
        best = candidates.points[candidates.order(self.options.epsilon)[:BEST]]
        candidates += self._judged(raise_free(self.pricing, best, self.rng))
        points = candidates.points[candidates.order(self.options.epsilon)]
        if self.pricing is not self.problem.cost:
            return self.problem.exact(points[:CHECKED], self.target)
        return (child for row in points for child in self.problem.children(row[None]))

    def _best_that_missed(self, candidates: _Candidates) -> NDArray[np.float64]:
        missed = np.flatnonzero(candidates.misses > self.options.epsilon)
        best = missed[np.argsort(candidates.bounds[missed], kind="stable")[:BEST]]
        return candidates.points[best]

    def _repaired(self, points: NDArray[np.float64]) -> _Candidates:
        tolerance = self.problem.tolerance
        return self._judged(bring_by_single_knobs(self.pricing, points, self.target, tolerance))

    def _first_pool(self) -> NDArray[np.float64]:
        """Thirds of perturbed parents, mixtures of two parents, and random points."""
        third = -(-self.options.pool // 3)
        knobs = len(self.history.space)
        parents = self._parents()
        left, right, moved = parents[self.rng.integers(len(parents), size=(3, third))]
        return np.concatenate(
            [
                perturbed(moved, 0.2, self.rng),
                mixed(left, right, self.rng),
                self.rng.uniform(size=(third, knobs)),
            ]
        )

    def _parents(self) -> NDArray[np.float64]:
        scored = self.problem.scored
        front = np.flatnonzero(non_dominated(scored.estimates, scored.costs))
        away = np.abs(scored.costs[front] - self.target)
        nearest = front[np.argsort(away, kind="stable")[: self.options.parents]]
        return to_unit(self.history.space, scored.matrix[nearest])

    def _at_target(self, points: NDArray[np.float64]) -> _Candidates:
        targets = np.full(len(points), self.target)
        return self._judged(bring_to_cost(self.pricing, points, targets, self.problem.tolerance))

    def _exchanged(self, points: NDArray[np.float64]) -> _Candidates:
        """At the target by one knob alone, any of them."""
        knob = self.rng.integers(points.shape[1], size=len(points))
        targets, tolerance = np.full(len(points), self.target), self.problem.tolerance
        return self._judged(bring_by_one_knob(self.pricing, points, knob, targets, tolerance))

    def _judged(self, points: NDArray[np.float64]) -> _Candidates:
        space = self.history.space
        counts = space.counts(from_unit(space, points))
        misses = np.abs(self.pricing.of_counts(counts) - self.target) / self.problem.full
        # The multipliers by which the history knows a child, so that equal children are equal.
        points = to_unit(space, space.multipliers(counts))
        mean, sigma = self.judge(points)
        seen = np.array([tuple(row) in self.problem.visited for row in counts.tolist()], dtype=bool)
        return _Candidates(points, seen, misses, mean - np.sqrt(self.options.beta) * sigma)


def worth_knowing(scored: Scored, most: int = MOST_POINTS) -> NDArray[np.int64]:
    """Positions of at most `most` children: the front, then those whose loss was taken last.

    The weights move on, so a loss that was taken long ago says least.
    """
    if len(scored) <= most:
        return np.arange(len(scored))
    on_front = non_dominated(scored.estimates, scored.costs)
    # Of those scored together the latest visited come first.
    order = np.lexsort((-scored.ids, -scored.steps, ~on_front))
    return np.sort(order[:most])


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
