"""What every search inherits."""

import numpy as np
import pytest

from joslim import Widths
from joslim.search import History, Searcher


class Same(Searcher):
    def propose(self, history: History, count: int, rng: np.random.Generator) -> list[Widths]:
        return [history.space.full] * count


def test_a_search_must_propose() -> None:
    with pytest.raises(TypeError, match="propose"):
        Searcher()  # type: ignore[abstract]


def test_a_search_without_memory_has_an_empty_state() -> None:
    search = Same()
    assert search.state_dict() == {}
    search.load_state_dict({})


def test_a_search_without_memory_takes_no_state_of_another() -> None:
    with pytest.raises(AssertionError, match="Same remembers nothing"):
        Same().load_state_dict({"theta": [1.0]})
