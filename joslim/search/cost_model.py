"""Slow costs, such as a function of the user's: a model of their prices, and a cache of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from joslim.costs import Cost
from joslim.costs.custom import FunctionCost
from joslim.search.cost_targeting import to_unit
from joslim.search.gp import MAX_POINTS, Hyperparameters
from joslim.search.history import History
from joslim.space import Widths


def is_slow(cost: Cost) -> bool:
    """Tell whether a cost prices one child at a time, so that a search cannot ask for thousands."""
    return isinstance(cost, FunctionCost)


class ModelledCost(Cost):
    """The mean of a Gaussian process that is fitted to the prices in the history.

    It serves to choose candidates, not to report costs. This is how the paper models FLOPs (g_FLOPs
    in Algorithm 1, line 5); here it is used only for costs that have no closed form. Of more than
    `MAX_POINTS` children the latest are used.
    """

    def __init__(
        self, history: History, most: int = 500, hyperparameters: Hyperparameters | None = None
    ) -> None:
        self.name, self.space = f"modelled {history.cost.name}", history.space
        visits = [visit for visit in history.visits if np.isfinite(visit.cost)]
        latest = visits[-MAX_POINTS:]
        points = to_unit(self.space, np.array([visit.widths.multipliers for visit in latest]))
        prices = np.array([visit.cost for visit in latest], dtype=np.float64)
        hyperparameters = hyperparameters or Hyperparameters()
        self._process = hyperparameters.surrogate(points, prices, len(visits), most)

    def _price(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        points = to_unit(self.space, self.space.multipliers(counts))
        return self._process.posterior(points)[0]


class CachedCost(Cost):
    """The cost itself, which is asked once for each child that the history has no price of."""

    def __init__(self, history: History) -> None:
        self.name, self.space, self.cost = history.cost.name, history.space, history.cost
        self._visited = {visit.widths.counts: float(visit.cost) for visit in history.visits}
        self._asked: dict[tuple[int, ...], float] = {}

    def nearest(self, price: float) -> list[Widths]:
        """Return the priced children that are not in the history, the nearest in price first."""
        order = sorted(self._asked, key=lambda counts: abs(self._asked[counts] - price))
        return [self.space.of_counts(counts) for counts in order]

    def _price(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        prices = []
        for row in counts:
            child = tuple(row.tolist())
            if child not in self._visited and child not in self._asked:
                self._asked[child] = float(self.cost.of_counts(row[None])[0])
            prices.append(self._visited[child] if child in self._visited else self._asked[child])
        return np.array(prices)
