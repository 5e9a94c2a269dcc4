"""Random search: independent uniform multipliers, whatever their cost and loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joslim.search.base import Searcher
from joslim.search.history import History, first_unseen
from joslim.space import Widths


@dataclass
class Random(Searcher):
    """Draw a uniform multiplier for each knob, as BigNAS does in training.

    Attributes:
        tries: Draws for each proposal, among which an unvisited child is sought.
    """

    tries: int = 20

    def propose(self, history: History, count: int, rng: np.random.Generator) -> list[Widths]:
        chosen: list[Widths] = []
        for _ in range(count):
            draws = (history.space.random(rng) for _ in range(self.tries))
            chosen.append(first_unseen(draws, history, chosen))
        return chosen
