"""One curve from the smallest child to the full network, on which sensitive layers stay wide.

A trained network suffers more from narrow layers in some places than in others. Each knob is
narrowed alone, and from what that does to the loss and to the cost follows how early it shrinks
along the curve. This takes one loss for each knob, where a search takes hundreds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joslim.costs import Cost
from joslim.space import Widths, WidthSpace

Array = NDArray[np.float64]

# Rates are kept between these, so that no knob stays behind or runs ahead alone.
LEAST_RATE, MOST_RATE = 0.25, 2.0
# A growth of the loss below this share of it is noise.
NOISE = 1e-3


def shrink_rates(
    space: WidthSpace, cost: Cost, loss_of: Callable[[Sequence[Widths]], list[float]]
) -> Array:
    """Return [knobs] how fast each knob shrinks along the curve: around 1, and higher if it is
    sooner.

    The rate of a knob is the cost that it saves over the growth of the loss, both with this knob
    in the middle of its range and all others full, as a multiple of the geometric mean of all
    knobs.
    """
    rows = np.ones((len(space) + 1, len(space)))
    knobs = np.arange(len(space))
    rows[knobs, knobs] = (space.low + 1.0) / 2.0
    children = [space.at(row) for row in rows]  # the last one is full
    losses, costs = np.array(loss_of(children)), np.array([cost(child) for child in children])
    saved = np.maximum(costs[-1] - costs[:-1], 0.0)
    # A loss that is not finite counts as the worst growth.
    hurt = np.nan_to_num(losses[:-1] - losses[-1], nan=np.inf)
    hurt = np.maximum(hurt, NOISE * abs(losses[-1]))
    merit = saved / hurt
    useful = merit[merit > 0]
    if not len(useful) or not np.isfinite(useful).all():
        return np.ones(len(space))
    return np.clip(merit / np.exp(np.log(useful).mean()), LEAST_RATE, MOST_RATE)


def on_curve(space: WidthSpace, rates: ArrayLike, positions: ArrayLike) -> Array:
    """Return the multipliers of all knobs at positions of the curve, of shape [n, knobs].

    Position 0 is the smallest child, 1 is the full network. No knob falls on the way. With equal
    rates of 1, all knobs are in the same place of their range.

    Args:
        space: The search space.
        rates: One for each knob, of shape [knobs].
        positions: Of shape [n].
    """
    places = np.asarray(positions, dtype=np.float64)[:, None] ** np.asarray(rates)
    return space.low + places * (1.0 - space.low)
