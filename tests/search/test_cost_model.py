"""Slow costs are modelled by the prices that are known."""

import numpy as np

import joslim
from joslim import Cost, SlimmableNet
from joslim.search import History, starting_children
from joslim.search.cost_model import CachedCost, ModelledCost, is_slow


def visited(cost: Cost, count: int) -> History:
    history = History(cost)
    for child in starting_children(cost.space, cost, np.random.default_rng(0), count):
        history.visit(child, 0)
    return history


def test_which_costs_are_slow(net: SlimmableNet) -> None:
    assert not any(is_slow(joslim.cost(name, net)) for name in joslim.COSTS)
    assert is_slow(joslim.cost(lambda widths: 1.0, net))


def test_a_model_is_near_the_cost(macs: Cost) -> None:
    model = ModelledCost(visited(macs, 40))
    rng = np.random.default_rng(1)
    children = [macs.space.random(rng) for _ in range(100)]
    full = macs(macs.space.full)
    misses = [abs(model(child) - macs(child)) / full for child in children]
    assert np.mean(misses) < 0.02
    matrix = np.array([child.multipliers for child in children])
    np.testing.assert_allclose(model.of(matrix), [model(child) for child in children])


def test_children_need_no_loss_but_a_finite_cost(net: SlimmableNet) -> None:
    cost = joslim.cost(lambda widths: float(sum(widths.counts)), net)
    history = visited(cost, 10)
    visit = history.visits[3]
    history.visits[3] = type(visit)(visit.widths, float("nan"), 0)
    assert np.isfinite(ModelledCost(history)(net.space.full))


def test_no_child_is_asked_for_twice(net: SlimmableNet) -> None:
    asked = []

    def price(widths: joslim.Widths) -> float:
        asked.append(widths)
        return float(sum(widths.counts))

    history = visited(joslim.cost(price, net), 10)
    once, child = CachedCost(history), net.space.uniform(0.77)
    asked.clear()
    assert [once(v.widths) for v in history.visits] == [v.cost for v in history.visits]
    assert asked == []
    assert once(child) == once(child) == sum(child.counts)
    assert asked == [child]
