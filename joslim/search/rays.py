"""Children of a wanted cost: walks from the smallest child to the full one.

Every point of the multiplier box lies on one path from the all-low corner, through the point, to
the all-one corner. No multiplier falls along it, so a cost that never falls with the widths takes
every reachable value between the smallest and the full child's once, and can be bisected. All
points are bisected at once, since a cost prices many children at a time.

Points are given in the unit cube: 0 is the low of a knob, 1 is its full width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joslim.costs import Cost
from joslim.widths import WidthSpace

# The path is 2 long, so 16 halvings tell 1/32768 of a knob apart: finer than any channel count.
HALVINGS = 16
# Prices of a path whose cost is slow to ask.
ASKED = 6
# An interpolated place keeps away from both ends of its bracket by this share, so that it shrinks.
KEPT_AWAY = 0.1
# A tolerance that nothing meets: brackets are narrowed as far as they go.
TO_THE_END = -1.0
# Turns of `bring_by_single_knobs`, each of which moves one knob.
TURNS = 8


def to_unit(space: WidthSpace, multipliers: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n, knobs] multipliers -> [n, knobs] in [0, 1]."""
    span = 1.0 - space.low
    # A knob that cannot move has no span: it stays at 0.
    return np.divide(multipliers - space.low, span, where=span > 0, out=np.zeros_like(multipliers))


def from_unit(space: WidthSpace, points: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n, knobs] in [0, 1] -> [n, knobs] multipliers."""
    return np.minimum(space.low + points * (1.0 - space.low), 1.0)


def along(points: NDArray[np.float64], way: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n, knobs], [n] -> [n, knobs]: 0 is the all-low corner, 1 the point, 2 the all-one corner."""
    way = way[:, None]
    return np.where(way <= 1.0, way * points, points + (way - 1.0) * (1.0 - points))


def bring_to_cost(
    cost: Cost,
    points: NDArray[np.float64],
    targets: NDArray[np.float64],
    tolerance: float = 0.0,
) -> NDArray[np.float64]:
    """[n, knobs], [n] -> [n, knobs]: the place of each point's path nearest in cost to its target.

    A point that is within `tolerance` of its target is left there. A target outside of what can be
    reached ends at a corner.
    """
    below, above = _from_corner_to_corner(cost, points).narrowed(targets, tolerance)
    return along(points, _nearer(below, above, targets))


def bring_slow_to_cost(
    cost: Cost,
    points: NDArray[np.float64],
    targets: NDArray[np.float64],
    tolerance: float,
    most: int = ASKED,
) -> NDArray[np.float64]:
    """The same as `bring_to_cost` with at most `most` prices for each point, the point's first.

    A cost that is measured is smooth along a path, but for its noise: places are interpolated.
    """
    paths = _from_corner_to_corner(cost, points)
    below, above = paths.narrowed(targets, tolerance, most, _interpolated)
    return along(points, _nearer(below, above, targets))


def bring_by_one_knob(
    cost: Cost,
    points: NDArray[np.float64],
    knob: NDArray[np.int64],
    targets: NDArray[np.float64],
    tolerance: float = 0.0,
) -> NDArray[np.float64]:
    """[n, knobs], [n], [n] -> [n, knobs]: each point with this one knob where it fits its target.

    The other knobs stay: an exchange of one for another, which no path through a corner makes.
    """
    rows = np.arange(len(points))

    def at(some: NDArray[np.int64], way: NDArray[np.float64]) -> NDArray[np.float64]:
        moved = points[some]
        moved[np.arange(len(some)), knob[some]] = way
        return moved

    ends = [np.zeros(len(points)), np.ones(len(points))]
    prices = [np.asarray(cost.of(from_unit(cost.space, at(rows, end))), float) for end in ends]
    paths = _Paths(at, cost, *(_Ends(end, price) for end, price in zip(ends, prices)))
    below, above = paths.narrowed(targets, tolerance)
    return at(rows, _nearer(below, above, targets))


def bring_by_single_knobs(
    cost: Cost, points: NDArray[np.float64], target: float, tolerance: float = 0.0
) -> NDArray[np.float64]:
    """[n, knobs] -> [n, knobs]: the nearest to the target that is met by raising knob after knob.

    A path moves all knobs at once. Where a cost is that of the worst layer, paths jump over levels
    that other children have. So from the last place of its path that is not too dear, each point
    raises the one knob that takes it nearest, until none is left. What is not too dear has no
    worst layer in the way: from above, two equally bad ones would have to be lowered at once.
    """
    points, costs = _last_below(cost, points, target)
    nearest, misses = points.copy(), np.abs(costs - target)
    for _ in range(TURNS):
        going = np.flatnonzero((misses > tolerance) & (costs < target))
        if len(going) == 0:
            break
        raised = _raised_by_one_knob(cost, points[going], costs[going], target)
        better = raised.misses < misses[going]
        nearest[going[better]], misses[going[better]] = raised.near[better], raised.misses[better]
        stuck = raised.costs <= costs[going]
        points[going], costs[going] = raised.below, np.where(stuck, target, raised.costs)
    return nearest


def _last_below(
    cost: Cost, points: NDArray[np.float64], target: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The last place of each path that is no dearer than the target, and its cost."""
    targets = np.full(len(points), target)
    below, _ = _from_corner_to_corner(cost, points).narrowed(targets, TO_THE_END)
    return along(points, below.way), below.costs


@dataclass(frozen=True)
class _Raised:
    """Points after one knob each was raised."""

    near: NDArray[np.float64]  # [n, knobs], as near to the target as one knob goes
    misses: NDArray[np.float64]  # [n], of these
    below: NDArray[np.float64]  # [n, knobs], as dear as one knob makes them, but not too dear
    costs: NDArray[np.float64]  # [n], of these


def _raised_by_one_knob(
    cost: Cost, points: NDArray[np.float64], costs: NDArray[np.float64], target: float
) -> _Raised:
    n, knobs = points.shape
    # A path for each point and each knob.
    knob = np.tile(np.arange(knobs), n)
    starts, ends = np.repeat(points, knobs, axis=0), np.repeat(points, knobs, axis=0)
    ends[np.arange(len(ends)), knob] = 1.0
    paths = _Paths(
        lambda rows, way: starts[rows] + way[:, None] * (ends[rows] - starts[rows]),
        cost,
        _Ends(np.zeros(n * knobs), np.repeat(costs, knobs)),
        _Ends(np.ones(n * knobs), np.asarray(cost.of(from_unit(cost.space, ends)), np.float64)),
    )
    targets = np.full(n * knobs, target)
    low, high = paths.narrowed(targets, 0.0)
    # A knob that can be raised to the end without being too dear is raised to the end.
    whole = high.costs <= target
    low.put(np.flatnonzero(whole), high.way[whole], high.costs[whole])
    first = np.arange(n) * knobs
    misses = np.minimum(np.abs(low.costs - target), np.abs(high.costs - target)).reshape(n, knobs)
    near = first + misses.argmin(axis=1)
    below = first + low.costs.reshape(n, knobs).argmax(axis=1)
    way = _nearer(low, high, targets)
    return _Raised(
        paths.at(near, way[near]),
        misses.min(axis=1),
        paths.at(below, low.way[below]),
        low.costs[below],
    )


@dataclass(frozen=True)
class _Ends:
    """One end of the bracket of each path: how far along it lies, and what it costs."""

    way: NDArray[np.float64]
    costs: NDArray[np.float64]

    def of(self, rows: NDArray[np.int64]) -> _Ends:
        return _Ends(self.way[rows], self.costs[rows])

    def put(
        self,
        rows: NDArray[np.int64],
        way: NDArray[np.float64],
        costs: NDArray[np.float64] | NDArray[np.int64],
    ) -> None:
        self.way[rows], self.costs[rows] = way, costs


Place = Callable[[_Ends, _Ends, NDArray[np.float64]], NDArray[np.float64]]


def _halfway(below: _Ends, above: _Ends, targets: NDArray[np.float64]) -> NDArray[np.float64]:
    return (below.way + above.way) / 2


def _interpolated(below: _Ends, above: _Ends, targets: NDArray[np.float64]) -> NDArray[np.float64]:
    rise = above.costs - below.costs
    share = np.divide(targets - below.costs, rise, where=rise > 0, out=np.full(len(rise), 0.5))
    share = np.clip(share, KEPT_AWAY, 1.0 - KEPT_AWAY)
    # Of the whole path the middle is taken, which is the point itself: it is often there already.
    share = np.where((below.way == 0.0) & (above.way == 2.0), 0.5, share)
    return below.way + share * (above.way - below.way)


@dataclass(frozen=True)
class _Paths:
    """Paths along which no multiplier falls, and both ends of what is left of each."""

    at: Callable[[NDArray[np.int64], NDArray[np.float64]], NDArray[np.float64]]
    cost: Cost
    below: _Ends
    above: _Ends

    def narrowed(
        self,
        targets: NDArray[np.float64],
        tolerance: float,
        most: int = HALVINGS,
        place: Place = _halfway,
    ) -> tuple[_Ends, _Ends]:
        """Both ends after at most `most` prices of each path, fewer if one is near enough."""
        below, above = self.below, self.above
        for _ in range(most):
            misses = np.minimum(np.abs(below.costs - targets), np.abs(above.costs - targets))
            active = np.flatnonzero(misses > tolerance)
            if len(active) == 0:
                break
            way = place(below.of(active), above.of(active), targets[active])
            prices = self.cost.of(from_unit(self.cost.space, self.at(active, way)))
            too_dear = prices > targets[active]
            above.put(active[too_dear], way[too_dear], prices[too_dear])
            below.put(active[~too_dear], way[~too_dear], prices[~too_dear])
        return below, above


def _from_corner_to_corner(cost: Cost, points: NDArray[np.float64]) -> _Paths:
    below, above = (_corner(cost, corner, len(points)) for corner in (0.0, 2.0))
    return _Paths(lambda rows, way: along(points[rows], way), cost, below, above)


def _corner(cost: Cost, way: float, count: int) -> _Ends:
    price = cost(cost.space.full if way else cost.space.smallest)
    return _Ends(np.full(count, way), np.full(count, float(price)))


def _nearer(below: _Ends, above: _Ends, targets: NDArray[np.float64]) -> NDArray[np.float64]:
    nearer = np.abs(below.costs - targets) <= np.abs(above.costs - targets)
    return np.where(nearer, below.way, above.way)
