"""Random search: every knob on its own, with no regard to cost or loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joslim.search.base import Searcher
from joslim.search.history import History
from joslim.search.unseen import first_unseen
from joslim.widths import Widths


@dataclass
class Random(Searcher):
    """Uniform multipliers for each knob, as BigNAS trains. `tries`: draws for an unseen child."""

    tries: int = 20

    def propose(self, history: History, count: int, rng: np.random.Generator) -> list[Widths]:
        chosen: list[Widths] = []
        for _ in range(count):
            draws = (history.space.random(rng) for _ in range(self.tries))
            chosen.append(first_unseen(draws, history, chosen))
        return chosen
