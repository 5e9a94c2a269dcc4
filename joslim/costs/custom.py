"""A cost from a function of the user, from a child to a number."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from joslim.costs.base import Cost
from joslim.errors import UserError, reason
from joslim.files import LARGEST_NUMBER, shown
from joslim.slimmable.net import SlimmableNet
from joslim.space import Widths


class FunctionCost(Cost):
    """A cost that is named after its function: `def energy(widths)` is the cost energy."""

    def __init__(self, function: Callable[[Widths], float], net: SlimmableNet) -> None:
        # The name is a keyword of `Front.pick` and a key of files; a lambda has no such name.
        name = getattr(function, "__name__", "")
        super().__init__(name if name.isidentifier() else "function", net)
        self.function = function

    def _price(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        children = [self.space.of_counts(row.tolist()) for row in counts]
        return np.array([self._price_of(child) for child in children], dtype=np.float64)

    def _price_of(self, child: Widths) -> float:
        """Price one child; a front holds only finite numbers that are not below zero."""
        try:
            price = self.function(child)
        except Exception as error:
            raise UserError(f"cost: {self.name} of {child} fails: {reason(error)}") from error
        try:
            number = math.nan if isinstance(price, (str, bytes)) else float(price)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            number = math.nan
        if not 0 <= number <= LARGEST_NUMBER:
            needed = f"a number from 0 to {LARGEST_NUMBER:g} is needed"
            raise UserError(f"cost: {self.name} of {child} is {shown(price)}; {needed}")
        return number
