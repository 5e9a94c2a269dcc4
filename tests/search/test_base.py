"""What every search inherits."""

import numpy as np
import pytest

import joslim
from joslim import Cost, SlimmableNet, Widths
from joslim.search import History, Random, Searcher


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


# Random search


def test_multipliers_fill_their_box(macs: Cost) -> None:
    children = Random().propose(History(macs), 400, np.random.default_rng(0))
    matrix = np.array([child.multipliers for child in children])
    middle = (macs.space.low + 1) / 2
    assert np.abs(matrix.mean(axis=0) - middle).max() < 0.06
    correlation = np.corrcoef(matrix.T) - np.eye(len(macs.space))
    assert np.abs(correlation).max() < 0.2, "every knob on its own"


def test_unseen_children_are_preferred(one_knob: SlimmableNet) -> None:
    history, rng = History(joslim.cost("macs", one_knob)), np.random.default_rng(0)
    children = Random(tries=100).propose(history, 5, rng)
    assert len(set(children)) == 5, "of the six below full width"
    for child in children:
        history.visit(child, 0)
    assert Random(tries=100).propose(history, 1, rng)[0] not in children
