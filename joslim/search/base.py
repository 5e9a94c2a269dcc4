"""What a search is: it looks at the history and names the children to visit next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from joslim.search.history import History
from joslim.widths import Widths


class Searcher(ABC):
    """Chooses widths. Its options are plain attributes; it depends on nothing but its arguments
    and what `state_dict` returns, so that a resumed search goes on as if nothing had happened.
    """

    @abstractmethod
    def propose(self, history: History, count: int, rng: np.random.Generator) -> list[Widths]:
        """`count` children to visit next, preferably ones that were not visited yet."""

    def state_dict(self) -> dict[str, Any]:
        """What it remembers between calls, as JSON."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        assert not state, f"{type(self).__name__} remembers nothing"
