"""AutoSlim's greedy search: remove channels from the full child where the loss grows least."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from joslim.costs import Cost
from joslim.search.cost_targeting import from_unit
from joslim.space import Widths, WidthSpace


def greedy_removal(
    space: WidthSpace,
    cost: Cost,
    loss_of: Callable[[list[Widths]], list[float]],
    pieces: int = 10,
) -> list[Widths]:
    """Return a sequence of children from the full one to the smallest, by removing channels.

    The range of each knob is cut into `pieces` equal parts. Each step removes one part of the knob
    whose removal gives the least loss, and among equal losses the least cost. A loss that is not
    finite counts as the worst. No count of a child exceeds that of the child before it.

    There are at most pieces * knobs steps with one call of `loss_of` each. Together they need
    between pieces * knobs * (knobs + 1) / 2 losses (if one knob is reduced after the other) and
    pieces * knobs^2 (if all knobs are reduced in turns).
    """
    parts = np.full(len(space), pieces)
    sequence = [space.full]
    while sequence[-1] != space.smallest:
        options = removals(space, parts, pieces, sequence[-1])
        children = [space.at(row) for row in from_unit(space, options / pieces)]
        losses = [loss if math.isfinite(loss) else math.inf for loss in loss_of(children)]
        costs = [cost(child) for child in children]
        best = min(range(len(children)), key=lambda option: (losses[option], costs[option]))
        parts = options[best]
        sequence.append(children[best])
    return sequence


def removals(
    space: WidthSpace, parts: NDArray[np.int64], pieces: int, current: Widths
) -> NDArray[np.int64]:
    """[knobs] parts left -> [n, knobs] parts left after each removal that changes the child.

    If one part of a small knob holds no whole channel, several parts are removed at once.
    """
    options = []
    for knob in np.flatnonzero(parts):
        option = parts.copy()
        while option[knob] > 0:
            option[knob] -= 1
            if space.at(from_unit(space, option / pieces)) != current:
                options.append(option)
                break
    return np.array(options)


def keep_useful(sequence: list[Widths], cost: Cost) -> list[Widths]:
    """Return the children whose cost is below that of all children before them.

    Of neighbours with equal cost (memory has flat regions) the first is kept, which is the largest.
    """
    kept: list[Widths] = []
    lowest = math.inf
    for child in sequence:
        if (price := cost(child)) < lowest:
            kept.append(child)
            lowest = price
    return kept
