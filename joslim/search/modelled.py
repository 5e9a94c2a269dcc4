"""A cost that is slow to ask, such as a function of the user's, modelled by its answers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from joslim.costs import Cost
from joslim.costs.function import FunctionCost
from joslim.search.history import History
from joslim.search.rays import to_unit
from joslim.search.surrogate import MOST_POINTS, Refits
from joslim.widths import Widths


def is_slow(cost: Cost) -> bool:
    """Whether each child is priced on its own, so that thousands of them are too many."""
    return isinstance(cost, FunctionCost)


class ModelledCost(Cost):
    """The mean of a Gaussian process of the prices in the history: for choosing, not for reports.

    This is the paper's own way (g_FLOPs in Algorithm 1, line 5), kept for costs that are not known
    in closed form. Of more than `MOST_POINTS` children the latest are taken.
    """

    def __init__(self, history: History, most: int = 500, refits: Refits | None = None) -> None:
        self.name, self.space = f"modelled {history.cost.name}", history.space
        visits = [visit for visit in history.visits if np.isfinite(visit.cost)]
        latest = visits[-MOST_POINTS:]
        matrix = np.array([visit.widths.multipliers for visit in latest])
        prices = np.array([visit.cost for visit in latest], dtype=np.float64)
        points = to_unit(self.space, matrix)
        self._process = (refits or Refits()).surrogate(points, prices, len(visits), most)

    def _price(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        points = to_unit(self.space, self.space.multipliers(counts))
        return self._process.posterior(points)[0]


class AskedOnce(Cost):
    """The cost itself, but no child is asked for twice, nor one that the history has a price of."""

    def __init__(self, history: History) -> None:
        self.name, self.space, self.cost = history.cost.name, history.space, history.cost
        self._visited = {visit.widths.counts: float(visit.cost) for visit in history.visits}
        self._asked: dict[tuple[int, ...], float] = {}

    def nearest(self, price: float) -> list[Widths]:
        """The children that were asked for and are not in the history, the nearest first."""
        order = sorted(self._asked, key=lambda counts: abs(self._asked[counts] - price))
        return [self.space.of_counts(counts) for counts in order]

    def _price(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.array([self._price_of_one(row) for row in counts])

    def _price_of_one(self, row: NDArray[np.int64]) -> float:
        counts = tuple(row.tolist())
        if counts in self._visited:
            return self._visited[counts]
        if counts not in self._asked:
            self._asked[counts] = float(self.cost.of_counts(row[None])[0])
        return self._asked[counts]
