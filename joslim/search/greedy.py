"""AutoSlim's greedy removal: from the full child down, always where the loss suffers least."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from joslim.costs import Cost
from joslim.search.rays import from_unit
from joslim.widths import Widths, WidthSpace

LossOf = Callable[[list[Widths]], list[float]]


def greedy_removal(
    space: WidthSpace, cost: Cost, loss_of: LossOf, pieces: int = 10
) -> list[Widths]:
    """The children from the full one to the smallest, each with no count above the one before.

    The range of each knob is cut into `pieces` equal parts. Each step removes one part of one
    knob: of all knobs that have parts left, the one whose removal leaves the least loss; of equal
    losses the one that leaves the least cost. A loss that is not finite counts as the worst.

    There are at most pieces * knobs steps, with one call of `loss_of` each. Together they ask for
    at most pieces * knobs^2 losses (all knobs worn down in turns), and for
    pieces * knobs * (knobs + 1) / 2 if one knob is worn down after the other.
    """
    parts = np.full(len(space), pieces)
    sequence = [space.full]
    while sequence[-1] != space.smallest:
        options = removals(space, parts, pieces, sequence[-1])
        children = [space.at(row) for row in from_unit(space, options / pieces)]
        best = _least_loss(loss_of(children), [cost(child) for child in children])
        parts = options[best]
        sequence.append(children[best])
    return sequence


def removals(
    space: WidthSpace, parts: NDArray[np.int64], pieces: int, current: Widths
) -> NDArray[np.int64]:
    """[knobs] parts left -> [n, knobs]: the parts left after each removal that changes the child.

    A part of a small knob may hold no whole channel: then several go at once.
    """
    options = []
    for knob in np.flatnonzero(parts):
        option = parts.copy()
        while option[knob] > 0:
            option[knob] -= 1
            if space.at(from_unit(space, option[None] / pieces)[0]) != current:
                options.append(option)
                break
    return np.array(options)


def _least_loss(losses: list[float], costs: list[float]) -> int:
    worst_last = [loss if math.isfinite(loss) else math.inf for loss in losses]
    return min(range(len(losses)), key=lambda option: (worst_last[option], costs[option]))


def keep_useful(sequence: list[Widths], cost: Cost) -> list[Widths]:
    """The children of the sequence whose cost is below that of all before them.

    Where neighbours cost the same (a flat region of memory) the first is kept: it is the largest,
    and nothing is saved by the others.
    """
    kept: list[Widths] = []
    lowest = math.inf
    for child in sequence:
        if (price := cost(child)) < lowest:
            kept.append(child)
            lowest = price
    return kept
