"""Random search."""

import numpy as np

import joslim
from joslim import Cost, SlimmableNet
from joslim.search import History
from joslim.search.random_search import Random


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
