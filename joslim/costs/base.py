"""The base class of costs: a pure function of the child, for one or for thousands at once."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joslim.errors import UserError
from joslim.slimmable.net import SlimmableNet
from joslim.slimmable.tracing import Uncounted
from joslim.space import Widths

# Rows that are priced together, so that their table of sizes stays in the processor's cache.
ROWS = 2048


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
        """Price a moderate number of children: [n, dims] channel counts -> [n] prices."""
