"""What a cost is: a pure function of the child, for one or for thousands at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joslim.errors import UserError
from joslim.slimmable.net import SlimmableNet
from joslim.widths import Widths

# Rows priced together: their table of sizes then stays in the processor's cache.
ROWS = 2048


class Cost(ABC):
    """Prices the children of one network. Lower is better."""

    unit: ClassVar[str] = ""

    def __init__(self, name: str, net: SlimmableNet) -> None:
        self.name = name
        self.space = net.space

    def __call__(self, widths: Widths) -> float:
        """The price of one child; an integer where the cost counts things."""
        if not isinstance(widths, Widths) or widths.space != self.space:
            raise UserError(f"widths: {self.name} prices children of its own network only")
        return self.of_counts(np.array([widths.counts], dtype=np.int64))[0].item()

    def of(self, multipliers: ArrayLike) -> NDArray[np.float64] | NDArray[np.int64]:
        """[n, knobs] multipliers -> [n] prices."""
        return self.of_counts(self.space.counts(multipliers))

    def of_counts(self, counts: NDArray[np.int64]) -> NDArray[np.float64] | NDArray[np.int64]:
        """[n, dims] channel counts -> [n] prices."""
        rows = range(0, max(len(counts), 1), ROWS)
        return np.concatenate([self._price(counts[start : start + ROWS]) for start in rows])

    @abstractmethod
    def _price(self, counts: NDArray[np.int64]) -> NDArray[np.float64] | NDArray[np.int64]:
        """[n, dims] channel counts -> [n] prices, for a moderate n."""
