"""Costs to aim at."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from joslim.costs import Cost


def cost_range(cost: Cost) -> tuple[float, float]:
    """The costs of the smallest and of the full child (l and u in the paper), the lesser first."""
    ends = float(cost(cost.space.smallest)), float(cost(cost.space.full))
    return min(ends), max(ends)


def uniform_target(cost: Cost, rng: np.random.Generator) -> float:
    """A target c ~ Uniform(l, u): Algorithm 2, line 1."""
    return rng.uniform(*cost_range(cost))


def stratified_targets(
    cost: Cost,
    count: int,
    rng: np.random.Generator,
    margin: float = 0.0,
    log_share: float = 0.0,
) -> NDArray[np.float64]:
    """[count]: one uniform target in each of `count` equal parts of [l, u].

    The paper draws c_i ~ U(l, u) independently to estimate an expectation over c (eq.
    arch_sample). One draw in each part estimates the same expectation, with less variance: no
    round leaves a half of the costs without a child. A `margin` is the share of each part that is
    left out at both of its ends.

    Parts of equal cost leave the cheap end almost unvisited where the full child costs many times
    as much as the smallest: of the targets, `log_share` is in parts of [log l, log u] instead.
    """
    low, high = cost_range(cost)
    places = (np.arange(count) + rng.uniform(margin, 1.0 - margin, size=count)) / count
    even = low + places * (high - low)
    if log_share == 0 or low <= 0:
        return even
    return np.where(rng.random(count) < log_share, low * (high / low) ** places, even)
