"""A cost that is slow to ask (a measurement, a function of the user's), modelled by its answers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from joslim.costs import Cost
from joslim.costs.function import FunctionCost
from joslim.costs.latency import Latency
from joslim.search.history import History
from joslim.search.rays import to_unit
from joslim.search.surrogate import Surrogate


def is_slow(cost: Cost) -> bool:
    """Whether each child is priced on its own, so that thousands of them are too many."""
    return isinstance(cost, (FunctionCost, Latency))


class ModelledCost(Cost):
    """The mean of a Gaussian process of all prices in the history: for choosing, not for reports.

    This is the paper's own way (g_FLOPs in Algorithm 1, line 5), kept for costs that are not known
    in closed form.
    """

    def __init__(self, history: History, most: int = 500) -> None:
        self.name, self.space = f"modelled {history.cost.name}", history.space
        visits = [visit for visit in history.visits if np.isfinite(visit.cost)]
        matrix = np.array([visit.widths.multipliers for visit in visits])
        prices = np.array([visit.cost for visit in visits], dtype=np.float64)
        self._process = Surrogate.fit(to_unit(self.space, matrix), prices, most=most)

    def _price(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        points = to_unit(self.space, self.space.multipliers(counts))
        return self._process.posterior(points)[0]
