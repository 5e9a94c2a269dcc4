"""Children of a wanted cost: walks from the smallest child to the full one.

Every point of the multiplier box lies on one path from the all-low corner, through the point, to
the all-one corner. No multiplier falls along it, so a cost that never falls with the widths takes
every reachable value between the smallest and the full child's once, and can be bisected. All
points are bisected at once, since a cost prices many children at a time.

Points are given in the unit cube: 0 is the low of a knob, 1 is its full width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joslim.costs import Cost
from joslim.widths import WidthSpace

# The path is 2 long, so 16 halvings tell 1/32768 of a knob apart: finer than any channel count.
HALVINGS = 16


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
    below, above = (_corner(cost, corner, len(points)) for corner in (0.0, 2.0))
    for _ in range(HALVINGS):
        misses = np.minimum(np.abs(below.costs - targets), np.abs(above.costs - targets))
        active = np.flatnonzero(misses > tolerance)
        if len(active) == 0:
            break
        way = (below.way[active] + above.way[active]) / 2
        prices = cost.of(from_unit(cost.space, along(points[active], way)))
        too_dear = prices > targets[active]
        above.put(active[too_dear], way[too_dear], prices[too_dear])
        below.put(active[~too_dear], way[~too_dear], prices[~too_dear])
    nearer = np.abs(below.costs - targets) <= np.abs(above.costs - targets)
    return along(points, np.where(nearer, below.way, above.way))


@dataclass(frozen=True)
class _Ends:
    """One end of the bracket of each path: how far along it lies, and what it costs."""

    way: NDArray[np.float64]
    costs: NDArray[np.float64]

    def put(
        self,
        rows: NDArray[np.int64],
        way: NDArray[np.float64],
        costs: NDArray[np.float64] | NDArray[np.int64],
    ) -> None:
        self.way[rows], self.costs[rows] = way, costs


def _corner(cost: Cost, way: float, count: int) -> _Ends:
    price = cost(cost.space.full if way else cost.space.smallest)
    return _Ends(np.full(count, way), np.full(count, float(price)))
