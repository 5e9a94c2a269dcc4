"""The initial design: children to visit before there is anything to learn from."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.quasirandom import SobolEngine

from joslim.costs import Cost
from joslim.search.cost_targeting import (
    bring_to_cost,
    cost_range,
    from_unit,
    stratified_targets,
)
from joslim.search.history import History, unseen
from joslim.space import Widths, WidthSpace

# Distances from the targets that are near enough, as shares of the full cost.
TOLERANCE = 0.005
SLOW_TOLERANCE = 0.015
# Prices for each child if the cost is slow.
SLOW_PRICES = 4


def start_size(space: WidthSpace) -> int:
    """Return the number of scored children that a surrogate needs to be useful."""
    return max(4, min(10, len(space) + 2))


def starting_children(
    space: WidthSpace, cost: Cost, rng: np.random.Generator, count: int
) -> list[Widths]:
    """Return the full child, the smallest one, and children whose costs are spread evenly.

    Multipliers that fill their box evenly crowd in the middle of the cost range. Therefore Sobol
    points give only the direction in which a child lies, and its cost comes from a stratified set.
    """
    corners = [space.full, space.smallest][:count]
    others = count - len(corners)
    if others == 0:
        return corners
    # The margin keeps the targets away from the corners.
    targets = rng.permutation(stratified_targets(cost, others, rng, margin=0.25))
    full, directions = cost_range(cost)[1], sobol_points(len(space), others, rng)
    tolerance, prices = (SLOW_TOLERANCE, SLOW_PRICES) if cost.slow else (TOLERANCE, None)
    points = bring_to_cost(cost, directions, targets, tolerance * full, prices)
    return corners + [space.at(row) for row in from_unit(space, points)]


def sobol_points(knobs: int, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw [count, knobs] points in [0, 1) that fill the cube evenly.

    The seed comes from `rng`, so that torch's global generator stays as it is.
    """
    engine = SobolEngine(knobs, scramble=True, seed=int(rng.integers(2**31)))
    return engine.draw(count, dtype=torch.float64).numpy()


def unseen_starting_children(
    history: History, count: int, rng: np.random.Generator
) -> list[Widths]:
    """Return `count` starting children that are not in the history, as far as possible."""
    # Two more than needed, because the two corners are visited first.
    children = starting_children(history.space, history.cost, rng, count + 2)
    return unseen(children, history, count)
