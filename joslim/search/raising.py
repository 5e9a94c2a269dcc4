"""Width for nothing: knobs that can be raised at no cost.

The memory footprint is that of the worst layer alone, so many channels of the other layers are
free. Where a cost has no such flat regions, this ends after pricing each knob once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from joslim.costs import Cost
from joslim.search.rays import from_unit

# How far to raise, as shares of what is left above a knob: the first that is free is taken.
SHARES = (1.0, 0.5, 0.25, 0.1)


def raise_free(
    cost: Cost, points: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """[n, knobs] in the unit cube -> [n, knobs]: no lower in any knob, and no dearer."""
    price = _prices(cost, points)
    points = points.copy()
    for knob in rng.permutation(_free_knobs(cost, points, price)):
        waiting = np.ones(len(points), dtype=bool)
        for share in SHARES:
            higher = points.copy()
            higher[waiting, knob] += share * (1.0 - higher[waiting, knob])
            free = waiting & (_prices(cost, higher) <= price)
            points[free] = higher[free]
            waiting &= ~free
    return points


def _free_knobs(
    cost: Cost, points: NDArray[np.float64], price: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The knobs that can be raised a little, in one point at least, without a rise in cost.

    A little must be a channel at least: a rise within the rounding of the counts is free always.
    """
    n, knobs = points.shape
    higher = np.repeat(points[:, None], knobs, axis=1)
    each = np.arange(knobs)
    higher[:, each, each] += SHARES[-1] * (1.0 - higher[:, each, each])
    rows = from_unit(cost.space, higher.reshape(n * knobs, knobs))
    counts = cost.space.counts(rows).reshape(n, knobs, -1)
    wider = (counts != cost.space.counts(from_unit(cost.space, points))[:, None]).any(axis=2)
    prices = np.asarray(cost.of(rows), dtype=np.float64).reshape(n, knobs)
    return np.flatnonzero((wider & (prices <= price[:, None])).any(axis=0))


def _prices(cost: Cost, points: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(cost.of(from_unit(cost.space, points)), dtype=np.float64)
