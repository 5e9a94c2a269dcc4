"""NSGA-II: the evolutionary search that BigNAS and others use, with pymoo's operators."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from joslim.errors import UserError
from joslim.search.base import Random, Searcher
from joslim.search.history import History, Scored, unseen
from joslim.space import Widths


@dataclass
class Evolution(Searcher):
    """Propose offspring of the best children of the history; there is no separate population.

    Attributes:
        population: Number of parents: the best children by rank, then by crowding distance.
        start: Scored children before there are parents; until then proposals are random.
        tries: Offspring for each proposal, among which an unvisited child is sought.
    """

    population: int = 40
    start: int = 4
    tries: int = 8

    def __post_init__(self) -> None:
        """Check for pymoo now: the first proposal may come after hours of training."""
        if find_spec("pymoo") is None:
            raise UserError("searcher: nsga2 needs pymoo; type pip install 'joslim[nsga2]'")

    def propose(self, history: History, count: int, rng: np.random.Generator) -> list[Widths]:
        scored = history.scored()
        if count == 0 or len(scored) < max(self.start, 2):
            return Random().propose(history, count, rng)
        offspring = self._breed(history, scored, self.tries * count, rng)
        children = [history.space.at(row) for row in offspring]
        return unseen(children, history, count)

    def _breed(
        self, history: History, scored: Scored, count: int, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """Return [count, knobs] multipliers by tournament, binary crossover (SBX) and mutation."""
        from pymoo.core.population import Population  # type: ignore
        from pymoo.core.problem import Problem  # type: ignore
        from pymoo.operators.crossover.sbx import SBX  # type: ignore
        from pymoo.operators.mutation.pm import PM  # type: ignore
        from pymoo.operators.survival.rank_and_crowding import RankAndCrowding  # type: ignore

        space = history.space
        problem = Problem(n_var=len(space), n_obj=2, xl=space.low, xu=np.ones(len(space)))
        objectives = np.stack([scored.estimates, scored.costs], axis=1)
        everyone = Population.new(X=scored.matrix, F=objectives)
        survival = RankAndCrowding()
        survivors = survival.do(problem, everyone, n_survive=self.population, random_state=rng)
        winners = tournament(survivors.get("rank"), survivors.get("crowding"), 2 * count, rng)
        pairs = winners.reshape(count, 2)
        young = SBX(n_offsprings=1).do(problem, survivors, parents=pairs, random_state=rng)
        young = PM().do(problem, young, random_state=rng)
        return np.clip(young.get("X").astype(np.float64), space.low, 1.0)


def tournament(
    ranks: NDArray[np.int64], crowding: NDArray[np.float64], count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """[n], [n] -> [count] winners of random pairs: the lower rank, then the larger distance."""
    order = np.lexsort((-crowding.astype(np.float64), ranks))
    place = np.argsort(order)
    rivals = rng.integers(len(order), size=(count, 2))
    first_wins = place[rivals[:, 0]] <= place[rivals[:, 1]]
    return np.where(first_wins, rivals[:, 0], rivals[:, 1])
