"""A cost of the user's own: any function from a child to a number."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from joslim.costs.base import Cost
from joslim.slimmable.net import SlimmableNet
from joslim.widths import Widths


class FunctionCost(Cost):
    """Named after its function: `def energy(widths)` is the cost energy."""

    def __init__(self, function: Callable[[Widths], float], net: SlimmableNet) -> None:
        super().__init__(name_of(function), net)
        self.function = function

    def _price(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        children = [self.space.of_counts(row.tolist()) for row in counts]
        return np.array([float(self.function(child)) for child in children])


def name_of(function: Callable[[Widths], float]) -> str:
    """A name that can stand in a file and be a keyword; a lambda has none."""
    name = getattr(function, "__name__", "")
    return name if name.isidentifier() else "function"
