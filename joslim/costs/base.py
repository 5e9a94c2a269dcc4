"""The base class of costs, a pure function of the child, and costs from functions of the user."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joslim.errors import UserError, reason
from joslim.files import LARGEST_NUMBER, shown
from joslim.slimmable.net import SlimmableNet
from joslim.slimmable.tracing import Uncounted
from joslim.space import Widths

# Rows that are priced together, so that their table of sizes stays in the processor's cache.
ROWS = 2048
# Random children that a function of the user has to price before a training begins.
CHILDREN_TRIED = 32


class Cost(ABC):
    """The price of each child (subnet) of one network, without running it; lower is better.

    A cost is a pure function of the channel counts. Subclasses implement `_price`.

    Attributes:
        name: Name of the cost, which is also the name of its budget.
        unit: Unit of the price, for people to read.
        space: Search space of the network.

    Examples:
        >>> net = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 32, 32))
        >>> params = joslim.cost("params", net)
        >>> params(net.space.full) == sum(p.numel() for p in net.parameters())
        True
        >>> params.of(np.linspace(net.space.low, 1, 1000)).shape  # thousands at once
        (1000,)
    """

    # Whether children are priced one at a time, so that a search cannot ask for thousands.
    slow = False

    def __init__(self, name: str, net: SlimmableNet) -> None:
        self.name = name
        self.unit = ""
        self.space = net.space
        # Operations that the price leaves out; empty if the price is exact.
        self.uncounted: list[Uncounted] = []

    def __call__(self, widths: Widths) -> float:
        """Price one child. The result is an integer if the cost counts things.

        Raises:
            UserError: The child belongs to another network.
        """
        if not isinstance(widths, Widths) or widths.space != self.space:
            raise UserError(f"widths: {self.name} prices children of its own network only")
        return self.of_counts(np.array([widths.counts], dtype=np.int64))[0].item()

    def of(self, multipliers: ArrayLike) -> NDArray[np.float64] | NDArray[np.int64]:
        """Price many children at once.

        Args:
            multipliers: Matrix of shape [n, knobs].

        Returns:
            Prices of shape [n].
        """
        return self.of_counts(self.space.counts(multipliers))

    def of_counts(self, counts: NDArray[np.int64]) -> NDArray[np.float64] | NDArray[np.int64]:
        """Price many children at once, given by their channel counts.

        Args:
            counts: Matrix of shape [n, dims].

        Returns:
            Prices of shape [n].
        """
        rows = range(0, max(len(counts), 1), ROWS)
        return np.concatenate([self._price(counts[start : start + ROWS]) for start in rows])

    @abstractmethod
    def _price(self, counts: NDArray[np.int64]) -> NDArray[np.float64] | NDArray[np.int64]:
        """Price a moderate number of children: [n, dims] channel counts -> [n] prices.

        A price must not depend on the other rows, to the last bit: sum integers, or over columns
        one by one, because numpy may sum a matrix in another order than a row.
        """


class FunctionCost(Cost):
    """A cost that is named after its function: `def energy(widths)` is the cost energy."""

    slow = True

    def __init__(self, function: Callable[[Widths], float], net: SlimmableNet) -> None:
        # The name is a keyword of `Front.pick` and a key of files; a lambda has no such name.
        name = getattr(function, "__name__", "")
        super().__init__(name if name.isidentifier() else "function", net)
        self.function = function

    def try_out(self) -> None:
        """Price the full, the smallest and some random children; after a training it is too late.

        Raises:
            UserError: A price is not valid, or the full network costs nothing.
        """
        rng = np.random.default_rng(0)
        random = (self.space.random(rng) for _ in range(CHILDREN_TRIED))
        for child in (self.space.smallest, *random):
            self(child)
        if not self(self.space.full):
            has = f"{self.name} of the full network is 0"
            raise UserError(f"cost: {has}; a positive number is needed")

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
