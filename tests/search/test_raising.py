"""Free width."""

import numpy as np
import pytest

import joslim
from joslim import SlimmableNet
from joslim.search.raising import raise_free
from joslim.search.rays import from_unit


@pytest.mark.parametrize("name", ["macs", "params", "memory"])
def test_nothing_gets_dearer_or_narrower(net: SlimmableNet, name: str) -> None:
    cost = joslim.cost(name, net)
    points = np.random.default_rng(0).uniform(size=(30, len(net.space)))
    raised = raise_free(cost, points, np.random.default_rng(1))
    before, after = (net.space.counts(from_unit(net.space, p)) for p in (points, raised))
    assert (after >= before).all()
    assert (cost.of_counts(after) <= cost.of_counts(before)).all()


def test_memory_has_free_channels_and_multiply_adds_have_none(net: SlimmableNet) -> None:
    points = np.random.default_rng(0).uniform(size=(30, len(net.space)))
    memory, macs = joslim.cost("memory", net), joslim.cost("macs", net)
    assert (raise_free(macs, points, np.random.default_rng(1)) == points).all()
    raised = raise_free(memory, points, np.random.default_rng(1))
    assert (raised > points).any(axis=1).mean() > 0.9


def test_what_costs_nothing_at_all_becomes_full(net: SlimmableNet) -> None:
    free = joslim.cost(lambda widths: 1.0, net)
    points = np.random.default_rng(0).uniform(size=(3, len(net.space)))
    assert (raise_free(free, points, np.random.default_rng(1)) == 1).all()
