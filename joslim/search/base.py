"""The base class of searchers, and the simplest of them, random search."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from joslim.search.history import History, first_unseen
from joslim.space import Widths


class Searcher(ABC):
    """The base class of searches, which propose the children (subnets) to evaluate next.

    A searcher depends on nothing but its arguments and what `state_dict` returns, so that a resumed
    search continues as if it had not stopped. Options are plain attributes.

    Examples:
        >>> class Thirds(joslim.Searcher):
        ...     def propose(self, history, count, rng):
        ...         return [history.space.uniform(rng.choice([0.33, 0.67])) for _ in range(count)]
        >>> net = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 32, 32))
        >>> history = joslim.History(joslim.cost("macs", net))
        >>> len(Thirds().propose(history, 2, np.random.default_rng(0)))
        2
    """

    @abstractmethod
    def propose(self, history: History, count: int, rng: np.random.Generator) -> list[Widths]:
        """Propose children to evaluate next, preferably ones that are not in the history.

        Args:
            history: Every child that was evaluated so far.
            count: Number of children.
            rng: Source of randomness.
        """

    def counts(self) -> dict[str, int]:
        """Return numbers about the search so far, which are logged; nothing depends on them."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what the searcher remembers between calls, as JSON."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        assert not state, f"{type(self).__name__} remembers nothing"


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
