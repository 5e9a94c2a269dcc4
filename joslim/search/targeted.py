"""Targeted search: the paper's problem, solved with the exact cost.

For each target cost c the paper seeks the child of least loss whose cost is c (eq. arch_set). It
fits a Gaussian process to the cost, scalarizes loss and cost, and bisects the weight of the
scalarization until the cost fits (Algorithm 2). But the cost is known in closed form: here
candidates are brought to c directly, and only the loss is modelled. A slow cost, such as a function
of the user's that measures, has a model as well, and a cache of its prices.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from joslim.costs import Cost
from joslim.front import non_dominated
from joslim.search.base import Searcher
from joslim.search.cost_targeting import (
    SLOW_PRICES,
    bring_by_one_knob,
    bring_by_single_knobs,
    bring_to_cost,
    cost_range,
    from_unit,
    raise_free,
    stratified_targets,
    to_unit,
)
from joslim.search.gp import (
    MAX_POINTS,
    Hyperparameters,
    Surrogate,
    SurrogateFailed,
    transform_losses,
)
from joslim.search.history import History, Scored, first_unseen
from joslim.search.initial_design import start_size, unseen_starting_children
from joslim.space import Widths

log = logging.getLogger("joslim")

Array = NDArray[np.float64]

# Bisection stops at this share of epsilon.
TOLERANCE = 0.25
# Number of candidates of a pool that further work is spent on.
BEST = 16
# Number of random corners of the cube that are tried for a target that nothing else has met. They
# lead to children with some knobs at full width and others at their lowest.
CORNERS = 64
# Largest number of candidates that are brought to the target with the exact cost if it is slow.
CHECKED = 8


@dataclass
class Targeted(Searcher):
    """Minimise mean - sqrt(beta) sigma of the predicted loss among candidates at a target cost.

    A search always has an answer. If the surrogate cannot be fitted, its last hyper-parameters are
    used; without a surrogate it proposes neighbours of the Pareto front, and without a front random
    children.

    Attributes:
        beta: Weight of uncertainty (the UCB constant of the paper).
        epsilon: Allowed distance of a cost from its target, as a share of the full cost.
        log_share: Share of the targets that are spread evenly over the logarithm of the cost.
        start: Scored children before the surrogate is used; by default chosen by the number of
            knobs.
        pool: Candidates for each target in the first round.
        local: Candidates in each further round, around the best so far: half of them brought to the
            target as those of the pool are, half by exchanging one knob for others.
        rounds: Number of further rounds.
        parents: Children of the Pareto front, the nearest in cost, that candidates are made from.
        most: Largest number of children that the hyper-parameters of the surrogate are fitted to.
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
    _for_loss: Hyperparameters = field(default_factory=Hyperparameters, init=False, repr=False)
    _for_cost: Hyperparameters = field(default_factory=Hyperparameters, init=False, repr=False)

    def propose(self, history: History, count: int, rng: np.random.Generator) -> list[Widths]:
        needed = start_size(history.space) if self.start is None else self.start
        if len(history.scored()) < max(needed, 1):
            return unseen_starting_children(history, count, rng)
        problem = self._problem(history)
        chosen: list[Widths] = []
        for target in stratified_targets(problem.cost, count, rng, log_share=self.log_share):
            chosen.append(problem.solve(target, rng, chosen))
        return chosen

    def at_target(self, history: History, target: float, rng: np.random.Generator) -> Widths:
        """Propose one child of this cost."""
        return self._problem(history).solve(target, rng)

    def _problem(self, history: History) -> _Problem:
        scored = history.scored()
        problem = _Problem(self, history, scored, history.cost, history.cost)
        if len(scored) == 0:
            return problem
        try:
            if history.cost.slow:
                problem.cost = CachedCost(history)
                problem.pricing = None
                problem.pricing = ModelledCost(history, self.most, self._for_cost)
            kept = most_informative(scored)
            points = to_unit(history.space, scored.matrix[kept])
            losses = transform_losses(scored.estimates[kept])
            problem.surrogate = self._for_loss.surrogate(points, losses, len(scored), self.most)
        except SurrogateFailed as error:
            log.warning("search: %s; the next best way is taken", error)
        return problem

    def state_dict(self) -> dict[str, Any]:
        return {"loss": self._for_loss.state_dict(), "cost": self._for_cost.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._for_loss.load_state_dict(state["loss"])
        self._for_cost.load_state_dict(state["cost"])


class _Candidates(NamedTuple):
    """Points of the unit cube with their distance from the target and the bound to be minimised."""

    points: Array  # [n, knobs]
    seen: NDArray[np.bool_]  # [n], whether the child was visited before
    misses: Array  # [n], distances from the target as shares of the full cost
    bounds: Array  # [n]

    def best(self, epsilon: float, count: int | None = None) -> Array:
        """Return [count, knobs] points: unseen children first, then by miss, then by bound.

        Misses within epsilon count as equal. If there is enough choice, only a part of epsilon is
        allowed: within all of it the most expensive children would win, just for being larger.
        """
        enough = self.hits(TOLERANCE * epsilon) >= BEST
        allowed = (TOLERANCE if enough else 1.0) * epsilon
        misses = np.where(self.misses <= allowed, 0.0, self.misses)
        return self.points[np.lexsort((self.bounds, misses, self.seen))[:count]]

    def best_misses(self, epsilon: float) -> Array:
        """Return the `BEST` points by bound among those that miss the target."""
        missed = np.flatnonzero(self.misses > epsilon)
        return self.points[missed[np.argsort(self.bounds[missed], kind="stable")[:BEST]]]

    def hits(self, epsilon: float) -> int:
        """Count the unseen children within epsilon of the target."""
        return int(((self.misses <= epsilon) & ~self.seen).sum())

    def joined(self, *others: _Candidates) -> _Candidates:
        return _Candidates(*map(np.concatenate, zip(self, *others)))


@dataclass
class _Problem:
    """The search at one state of the history, for any target cost."""

    options: Targeted
    history: History
    scored: Scored
    # The exact cost.
    cost: Cost
    # Prices the candidates: the exact cost, or a model of a slow one; None if that model failed.
    pricing: Cost | None
    surrogate: Surrogate | None = None

    def solve(
        self, target: float, rng: np.random.Generator, taken: Sequence[Widths] = ()
    ) -> Widths:
        if self.pricing is not None and len(self.scored):
            for surrogate in [self.surrogate, None] if self.surrogate else [None]:
                try:
                    search = _TargetSearch(self, self.pricing, surrogate, target, rng)
                    return first_unseen(search.ranked(), self.history, taken)
                except SurrogateFailed as error:
                    log.warning("search: %s; the next best way is taken", error)
        points = rng.uniform(size=(CHECKED, len(self.history.space)))
        return first_unseen(self.at_exact_cost(points, target), self.history, taken)

    def at_exact_cost(self, points: Array, target: float) -> Iterator[Widths]:
        """Bring [n, knobs] points to the target with the exact cost, and yield the children.

        Points are handled one by one, so that a slow cost is asked no more often than needed.
        Children that miss the target come last, the nearest first.
        """
        prices = SLOW_PRICES if self.history.cost.slow else None
        missed: list[Widths] = []
        for row in points:
            goal = np.array([target])
            child = self.child(bring_to_cost(self.cost, row[None], goal, self.tolerance, prices)[0])
            if self._miss(child, target) <= self.options.epsilon:
                yield child
            else:
                missed.append(child)
        if isinstance(self.cost, CachedCost):
            # Measurements are noisy: a child that was priced on the way may be nearer.
            missed += self.cost.nearest(target)
        yield from sorted(missed, key=lambda child: self._miss(child, target))

    def _miss(self, child: Widths, target: float) -> float:
        return abs(self.cost(child) - target) / self.full

    def child(self, point: Array) -> Widths:
        return self.history.space.at(from_unit(self.history.space, point))

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
class _TargetSearch:
    """The search for one child of one target cost."""

    problem: _Problem
    pricing: Cost
    # Without a surrogate all candidates are equal, and the order of the pool decides.
    surrogate: Surrogate | None
    target: float
    rng: np.random.Generator

    def ranked(self) -> Iterator[Widths]:
        """Return children at the target, the most promising first."""
        options, tolerance = self.problem.options, self.problem.tolerance
        epsilon, knobs = options.epsilon, len(self.problem.history.space)
        candidates = self._at_target(self._first_pool())
        for _ in range(options.rounds):
            best = candidates.best(epsilon, BEST)
            around = best[self.rng.integers(len(best), size=options.local)]
            moved = perturbed(around, 0.1, self.rng)
            candidates = candidates.joined(
                self._at_target(moved[::2]), self._exchanged(moved[1::2])
            )
        if candidates.hits(epsilon) < BEST:
            missed = candidates.best_misses(epsilon)
            reached = bring_by_single_knobs(self.pricing, missed, self.target, tolerance)
            candidates = candidates.joined(self._evaluated(reached))
        if candidates.hits(epsilon) == 0:
            corners = self.rng.integers(2, size=(CORNERS, knobs)).astype(np.float64)
            reached = bring_by_single_knobs(self.pricing, corners, self.target, tolerance)
            candidates = candidates.joined(self._evaluated(reached))
        raised = raise_free(self.pricing, candidates.best(epsilon, BEST), self.rng)
        points = candidates.joined(self._evaluated(raised)).best(epsilon)
        if self.pricing is not self.problem.cost:
            return self.problem.at_exact_cost(points[:CHECKED], self.target)
        return (self.problem.child(row) for row in points)

    def _first_pool(self) -> Array:
        """Draw one third perturbed parents, one third mixtures of two, one third random points."""
        options, scored = self.problem.options, self.problem.scored
        front = np.flatnonzero(non_dominated(scored.estimates, scored.costs))
        distances = np.abs(scored.costs[front] - self.target)
        nearest = front[np.argsort(distances, kind="stable")[: options.parents]]
        parents = to_unit(self.problem.history.space, scored.matrix[nearest])
        third = -(-options.pool // 3)
        left, right, moved = parents[self.rng.integers(len(parents), size=(3, third))]
        near, between = perturbed(moved, 0.2, self.rng), mixed(left, right, self.rng)
        return np.concatenate([near, between, self.rng.uniform(size=near.shape)])

    def _at_target(self, points: Array) -> _Candidates:
        targets, tolerance = np.full(len(points), self.target), self.problem.tolerance
        return self._evaluated(bring_to_cost(self.pricing, points, targets, tolerance))

    def _exchanged(self, points: Array) -> _Candidates:
        """Bring each point to the target by one random knob alone."""
        knob = self.rng.integers(points.shape[1], size=len(points))
        targets, tolerance = np.full(len(points), self.target), self.problem.tolerance
        return self._evaluated(bring_by_one_knob(self.pricing, points, knob, targets, tolerance))

    def _evaluated(self, points: Array) -> _Candidates:
        space = self.problem.history.space
        counts = space.counts(from_unit(space, points))
        misses = np.abs(self.pricing.of_counts(counts) - self.target) / self.problem.full
        # The multipliers that the history has for these counts, so that equal children are equal.
        points = to_unit(space, space.multipliers(counts))
        bounds = np.zeros(len(points))
        if self.surrogate is not None:
            mean, sigma = self.surrogate.posterior(points)
            bounds = mean - np.sqrt(self.problem.options.beta) * sigma
        seen = np.array([tuple(row) in self.problem.visited for row in counts.tolist()], dtype=bool)
        return _Candidates(points, seen, misses, bounds)


def most_informative(scored: Scored, most: int = MAX_POINTS) -> NDArray[np.int64]:
    """Return the positions of at most `most` children: the front, then the latest losses.

    The weights keep training, so a loss that was measured long ago says least.
    """
    if len(scored) <= most:
        return np.arange(len(scored))
    on_front = non_dominated(scored.estimates, scored.costs)
    # Of children that were scored together, the latest visits come first.
    order = np.lexsort((-scored.ids, -scored.steps, ~on_front))
    return np.sort(order[:most])


def perturbed(points: Array, size: float, rng: np.random.Generator) -> Array:
    """[n, knobs] -> [n, knobs]: add normal noise to some knobs of each point, at least to one."""
    n, knobs = points.shape
    moved = rng.uniform(size=(n, knobs)) < rng.uniform(size=(n, 1))
    moved[np.arange(n), rng.integers(knobs, size=n)] = True
    return np.clip(points + moved * rng.normal(scale=size, size=(n, knobs)), 0.0, 1.0)


def mixed(left: Array, right: Array, rng: np.random.Generator) -> Array:
    """[n, knobs] twice -> [n, knobs]: draw each knob between the values of its two parents."""
    return left + rng.uniform(size=left.shape) * (right - left)


class ModelledCost(Cost):
    """The mean of a Gaussian process that is fitted to the prices in the history.

    It serves to choose candidates, not to report costs. This is how the paper models FLOPs (g_FLOPs
    in Algorithm 1, line 5); here it is used only for costs that have no closed form. Of more than
    `MAX_POINTS` children the latest are used.
    """

    def __init__(self, history: History, most: int, hyperparameters: Hyperparameters) -> None:
        self.name, self.space = f"modelled {history.cost.name}", history.space
        visits = [visit for visit in history.visits if np.isfinite(visit.cost)]
        latest = visits[-MAX_POINTS:]
        points = to_unit(self.space, np.array([visit.widths.multipliers for visit in latest]))
        prices = np.array([visit.cost for visit in latest], dtype=np.float64)
        self._process = hyperparameters.surrogate(points, prices, len(visits), most)

    def _price(self, counts: NDArray[np.int64]) -> Array:
        points = to_unit(self.space, self.space.multipliers(counts))
        return self._process.posterior(points)[0]


class CachedCost(Cost):
    """The cost itself, which is asked once for each child that the history has no price of."""

    def __init__(self, history: History) -> None:
        self.name, self.space, self.cost = history.cost.name, history.space, history.cost
        self._visited = {visit.widths.counts: float(visit.cost) for visit in history.visits}
        self._asked: dict[tuple[int, ...], float] = {}

    def nearest(self, price: float) -> list[Widths]:
        """Return the priced children that are not in the history, the nearest in price first."""
        order = sorted(self._asked, key=lambda counts: abs(self._asked[counts] - price))
        return [self.space.of_counts(counts) for counts in order]

    def _price(self, counts: NDArray[np.int64]) -> Array:
        prices = []
        for row in counts:
            child = tuple(row.tolist())
            if child not in self._visited and child not in self._asked:
                self._asked[child] = float(self.cost.of_counts(row[None])[0])
            prices.append(self._visited[child] if child in self._visited else self._asked[child])
        return np.array(prices)
