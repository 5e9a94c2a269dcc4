"""Children to begin with, before there is anything to learn from."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.quasirandom import SobolEngine

from joslim.costs import Cost
from joslim.search.history import History
from joslim.search.modelled import is_slow
from joslim.search.rays import bring_slow_to_cost, bring_to_cost, from_unit
from joslim.search.targets import cost_range, stratified_targets
from joslim.search.unseen import first_unseen
from joslim.widths import Widths, WidthSpace

# How near, as a share of the full cost, is near enough to fill space evenly.
NEAR = 0.005
# The same for a cost that is slow to ask, and how often it is asked for one child.
NEAR_IF_SLOW = 0.015
ASKED_AT_START = 4


def start_size(space: WidthSpace) -> int:
    """Scored children that a search needs before its surrogate is worth asking."""
    return max(4, min(10, len(space) + 2))


def starting_children(
    space: WidthSpace, cost: Cost, rng: np.random.Generator, count: int
) -> list[Widths]:
    """The full child, the smallest one, and children that fill the space with costs spread evenly.

    Multipliers that fill their box evenly crowd in the middle of the costs: so Sobol points only
    say in which direction a child lies, and its cost is one of a stratified set.
    """
    corners = [space.full, space.smallest][:count]
    filling = count - len(corners)
    if filling == 0:
        return corners
    # Not too near to the corners, which are there already.
    targets = rng.permutation(stratified_targets(cost, filling, rng, margin=0.25))
    full, directions = cost_range(cost)[1], sobol(len(space), filling, rng)
    if is_slow(cost):
        points = bring_slow_to_cost(cost, directions, targets, NEAR_IF_SLOW * full, ASKED_AT_START)
    else:
        points = bring_to_cost(cost, directions, targets, NEAR * full)
    return corners + [space.at(row) for row in from_unit(space, points)]


def unseen_start(history: History, count: int, rng: np.random.Generator) -> list[Widths]:
    """`count` starting children, those that were visited already left out where possible."""
    # Two more than wanted, since the two corners are soon visited.
    children = starting_children(history.space, history.cost, rng, count + 2)
    chosen: list[Widths] = []
    for _ in range(count):
        chosen.append(first_unseen(children, history, chosen))
    return chosen


def sobol(knobs: int, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """[count, knobs] in [0, 1): scrambled by `rng`, so torch's global generator stays as it is."""
    engine = SobolEngine(knobs, scramble=True, seed=int(rng.integers(2**31)))
    return engine.draw(count, dtype=torch.float64).numpy()
