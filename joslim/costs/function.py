"""A cost of the user's own: any function from a child to a number."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from joslim.costs.base import Cost
from joslim.slimmable.net import SlimmableNet
from joslim.widths import Widths


class FunctionCost(Cost):
    def __init__(self, function: Callable[[Widths], float], net: SlimmableNet) -> None:
        super().__init__(getattr(function, "__name__", "function"), net)
        self.function = function

    def _price(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        children = [self.space.of_counts(row.tolist()) for row in counts]
        return np.array([float(self.function(child)) for child in children])
