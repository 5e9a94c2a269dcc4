"""Children of a wanted cost: draw target costs, and move points of the search space to them.

Every point of the multiplier box lies on a path from the all-low corner, through the point, to the
all-one corner. No multiplier falls along the path, so a cost that never falls with the widths takes
each reachable value between the costs of the smallest and the full child once, and can be bisected.
All points are bisected at once, because a cost prices many children in one call.

Points are given in the unit cube: 0 is the lowest multiplier of a knob, 1 is its full width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joslim.costs import Cost
from joslim.space import Widths, WidthSpace

Array = NDArray[np.float64]

# A path has length 2, so 16 halvings resolve 1/32768 of a knob: finer than any channel count.
HALVINGS = 16
# Prices for each path if the cost is slow (`Cost.slow`).
SLOW_PRICES = 6
# An interpolated position keeps this share of the bracket away from both ends, so that it shrinks.
END_MARGIN = 0.1
# Knobs that `bring_by_single_knobs` moves, one after the other.
KNOB_MOVES = 8
# How far `raise_free` tries to raise a knob, as shares of the room above it, in this order.
RAISE_SHARES = (1.0, 0.5, 0.25, 0.1)
# Share of the target costs of the search and of random children that are even in the logarithm of
# the cost, so that there are children for the smallest budgets (docs/results.md).
LOG_SHARE = 0.5
# How far `random_children` may stay from their target costs, as a share of the full cost.
RANDOM_TOLERANCE = 0.005


def cost_range(cost: Cost) -> tuple[float, float]:
    """Return the costs of the smallest and the full child (l and u in the paper), sorted."""
    ends = float(cost(cost.space.smallest)), float(cost(cost.space.full))
    return min(ends), max(ends)


def uniform_target(cost: Cost, rng: np.random.Generator) -> float:
    """Draw a target cost c ~ U(l, u) (Algorithm 2, line 1)."""
    return rng.uniform(*cost_range(cost))


def stratified_targets(
    cost: Cost, count: int, rng: np.random.Generator, margin: float = 0.0, log_share: float = 0.0
) -> Array:
    """Draw [count] target costs, one in each of `count` equal parts of the cost range.

    The paper draws c_i ~ U(l, u) independently to estimate an expectation over c (eq.
    arch_sample). One draw in each part estimates the same expectation with less variance: no round
    leaves a half of the cost range without a child.

    A share `margin` of each part is left out at both of its ends. A share `log_share` of the
    targets is drawn from equal parts of [log l, log u] instead: parts of equal cost leave the cheap
    end almost unvisited if the full child costs many times as much as the smallest one.
    """
    low, high = cost_range(cost)
    places = (np.arange(count) + rng.uniform(margin, 1.0 - margin, size=count)) / count
    even = low + places * (high - low)
    if log_share == 0 or low <= 0:
        return even
    return np.where(rng.random(count) < log_share, low * (high / low) ** places, even)


def random_children(cost: Cost, count: int, rng: np.random.Generator) -> list[Widths]:
    """Draw random children whose costs are spread like the targets of the search.

    Independent multipliers alone have costs near the middle: hardly any child is as cheap as the
    smallest or as expensive as the full one. A slow cost is not asked, so that its children have
    such costs.
    """
    points = rng.random((count, len(cost.space)))
    if not cost.slow and count:
        targets = stratified_targets(cost, count, rng, log_share=LOG_SHARE)
        tolerance = RANDOM_TOLERANCE * cost_range(cost)[1]
        points = bring_to_cost(cost, points, targets, tolerance)
    return [cost.space.at(multipliers) for multipliers in from_unit(cost.space, points)]


def to_unit(space: WidthSpace, multipliers: Array) -> Array:
    """[n, knobs] multipliers -> [n, knobs] in [0, 1]."""
    span = 1.0 - space.low
    # A knob that cannot move has no span: it stays at 0.
    return np.divide(multipliers - space.low, span, where=span > 0, out=np.zeros_like(multipliers))


def from_unit(space: WidthSpace, points: Array) -> Array:
    """[..., knobs] in [0, 1] -> [..., knobs] multipliers."""
    return np.minimum(space.low + points * (1.0 - space.low), 1.0)


def path_point(points: Array, positions: Array) -> Array:
    """[n, knobs], [n] -> [n, knobs]: the place at a position of the path through each point.

    Position 0 is the all-low corner, 1 is the point itself, 2 is the all-one corner.
    """
    at = positions[:, None]
    return np.where(at <= 1.0, at * points, points + (at - 1.0) * (1.0 - points))


def bring_to_cost(
    cost: Cost, points: Array, targets: Array, tolerance: float = 0.0, prices: int | None = None
) -> Array:
    """[n, knobs], [n] -> [n, knobs]: the place on each point's path nearest to its target cost.

    A point that is within `tolerance` of its target stays there. A target outside of the cost range
    leads to a corner. If `prices` is given, at most so many are asked for on each path, the first
    at the point itself, and positions are interpolated: this is for slow costs, such as
    measurements, which are smooth along a path apart from their noise.
    """
    brackets = _whole_paths(cost, points)
    brackets.narrow(targets, tolerance, prices or HALVINGS, interpolate=prices is not None)
    return path_point(points, brackets.nearest(targets))


def bring_by_one_knob(
    cost: Cost, points: Array, knob: NDArray[np.int64], targets: Array, tolerance: float = 0.0
) -> Array:
    """[n, knobs], [n], [n] -> [n, knobs]: move one knob of each point to meet its target cost.

    The other knobs stay. Together with a change of some knob this exchanges one width for another,
    which no path through the corners does.
    """

    def moved(rows: NDArray[np.int64], position: Array) -> Array:
        result = points[rows]
        result[np.arange(len(rows)), knob[rows]] = position
        return result

    rows, low, high = np.arange(len(points)), np.zeros(len(points)), np.ones(len(points))
    ends = (_prices(cost, moved(rows, end)) for end in (low, high))
    brackets = _Brackets(cost, moved, low, high, *ends)
    brackets.narrow(targets, tolerance)
    return moved(rows, brackets.nearest(targets))


def bring_by_single_knobs(
    cost: Cost, points: Array, target: float, tolerance: float = 0.0
) -> Array:
    """[n, knobs] -> [n, knobs]: approach the target by raising one knob after the other.

    A path moves all knobs at once. If the cost is that of the worst layer, a path jumps over levels
    that other children have. So each point starts at the last place of its path that does not
    exceed the target, and raises the knob that takes it nearest, until no knob is left. The search
    goes upwards because a place above the target can have two equally bad layers, which would have
    to be lowered at once.
    """
    start = _whole_paths(cost, points)
    start.narrow(np.full(len(points), target), tolerance=-1.0)  # which no bracket ever meets
    points, costs = path_point(points, start.low), start.low_cost
    nearest, misses = points.copy(), np.abs(costs - target)
    for _ in range(KNOB_MOVES):
        active = np.flatnonzero((misses > tolerance) & (costs < target))
        if len(active) == 0:
            break
        raised = _raise_one_knob(cost, points[active], costs[active], target)
        better = raised.misses < misses[active]
        nearest[active[better]] = raised.nearest[better]
        misses[active[better]] = raised.misses[better]
        stuck = raised.costs <= costs[active]
        points[active], costs[active] = raised.below, np.where(stuck, target, raised.costs)
    return nearest


class _Raised(NamedTuple):
    """Points after one knob of each was raised."""

    nearest: Array  # [n, knobs], as near to the target as one knob goes
    misses: Array  # [n], distances of `nearest` from the target
    below: Array  # [n, knobs], as expensive as one knob makes them below the target
    costs: Array  # [n], costs of `below`


def _raise_one_knob(cost: Cost, points: Array, costs: Array, target: float) -> _Raised:
    n, knobs = points.shape
    # One path for each pair of a point and a knob.
    starts, ends = np.repeat(points, knobs, axis=0), np.repeat(points, knobs, axis=0)
    ends[np.arange(len(ends)), np.tile(np.arange(knobs), n)] = 1.0
    brackets = _Brackets(
        cost,
        lambda rows, position: starts[rows] + position[:, None] * (ends[rows] - starts[rows]),
        np.zeros(n * knobs),
        np.ones(n * knobs),
        np.repeat(costs, knobs),
        _prices(cost, ends),
    )
    targets = np.full(n * knobs, target)
    brackets.narrow(targets, 0.0)
    # A knob that stays below the target at full width is raised to full width.
    fits = brackets.high_cost <= target
    brackets.low[fits], brackets.low_cost[fits] = brackets.high[fits], brackets.high_cost[fits]
    misses = brackets.misses(targets).reshape(n, knobs)
    first = np.arange(n) * knobs
    near = first + misses.argmin(axis=1)
    below = first + brackets.low_cost.reshape(n, knobs).argmax(axis=1)
    return _Raised(
        brackets.point(near, brackets.nearest(targets)[near]),
        misses.min(axis=1),
        brackets.point(below, brackets.low[below]),
        brackets.low_cost[below],
    )


@dataclass
class _Brackets:
    """Intervals of paths, one for each path, that are narrowed around a target cost."""

    cost: Cost
    # Rows [m] and positions [m] on their paths -> points [m, knobs].
    point: Callable[[NDArray[np.int64], Array], Array]
    low: Array  # [n] positions
    high: Array
    low_cost: Array  # [n]
    high_cost: Array

    def narrow(
        self, targets: Array, tolerance: float, prices: int = HALVINGS, interpolate: bool = False
    ) -> None:
        """Ask for at most `prices` prices on each path, and stop where one end is near enough."""
        for _ in range(prices):
            active = np.flatnonzero(self.misses(targets) > tolerance)
            if len(active) == 0:
                break
            if interpolate:
                position = self._interpolated(active, targets[active])
            else:
                position = (self.low[active] + self.high[active]) / 2
            found = self.cost.of(from_unit(self.cost.space, self.point(active, position)))
            above = found > targets[active]
            rows = active[above]
            self.high[rows], self.high_cost[rows] = position[above], found[above]
            rows = active[~above]
            self.low[rows], self.low_cost[rows] = position[~above], found[~above]

    def _interpolated(self, rows: NDArray[np.int64], targets: Array) -> Array:
        low, high, low_cost = self.low[rows], self.high[rows], self.low_cost[rows]
        rise = self.high_cost[rows] - low_cost
        share = np.divide(targets - low_cost, rise, where=rise > 0, out=np.full(len(rise), 0.5))
        share = np.clip(share, END_MARGIN, 1.0 - END_MARGIN)
        # The middle of a whole path is the point itself, which often meets its target already.
        share = np.where((low == 0.0) & (high == 2.0), 0.5, share)
        return low + share * (high - low)

    def misses(self, targets: Array) -> Array:
        """Return the distance of the nearer end from its target, on each path."""
        return np.minimum(np.abs(self.low_cost - targets), np.abs(self.high_cost - targets))

    def nearest(self, targets: Array) -> Array:
        """Return the position of the end that is nearer to its target, on each path."""
        low_is_nearer = np.abs(self.low_cost - targets) <= np.abs(self.high_cost - targets)
        return np.where(low_is_nearer, self.low, self.high)


def _whole_paths(cost: Cost, points: Array) -> _Brackets:
    n, space = len(points), cost.space
    corners = (np.full(n, float(cost(corner))) for corner in (space.smallest, space.full))
    return _Brackets(
        cost,
        lambda rows, position: path_point(points[rows], position),
        np.zeros(n),
        np.full(n, 2.0),
        *corners,
    )


def raise_free(cost: Cost, points: Array, rng: np.random.Generator) -> Array:
    """[n, knobs] -> [n, knobs]: raise the knobs that can be raised at no cost.

    The memory footprint is that of the worst layer alone, so many channels of other layers are
    free. If a cost has no such flat regions, this ends after pricing each knob once.
    """
    n, knobs = points.shape
    price = _prices(cost, points)
    # Find the knobs that can be raised by the smallest share at no cost, in one point at least. The
    # raise must add a channel: one that is lost in the rounding of the counts is always free.
    higher = np.repeat(points[:, None], knobs, axis=1)
    each = np.arange(knobs)
    higher[:, each, each] += RAISE_SHARES[-1] * (1.0 - higher[:, each, each])
    rows = from_unit(cost.space, higher.reshape(n * knobs, knobs))
    counts = cost.space.counts(rows).reshape(n, knobs, -1)
    wider = (counts != cost.space.counts(from_unit(cost.space, points))[:, None]).any(axis=2)
    prices = np.asarray(cost.of(rows), dtype=np.float64).reshape(n, knobs)
    free_knobs = np.flatnonzero((wider & (prices <= price[:, None])).any(axis=0))

    points = points.copy()
    for knob in rng.permutation(free_knobs):
        waiting = np.ones(n, dtype=bool)
        for share in RAISE_SHARES:
            higher = points.copy()
            higher[waiting, knob] += share * (1.0 - higher[waiting, knob])
            free = waiting & (_prices(cost, higher) <= price)
            points[free] = higher[free]
            waiting &= ~free
    return points


def _prices(cost: Cost, points: Array) -> Array:
    return np.asarray(cost.of(from_unit(cost.space, points)), dtype=np.float64)
