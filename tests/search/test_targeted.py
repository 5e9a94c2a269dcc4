"""Targeted search: it meets its targets, covers all costs, and finds less loss than chance does."""

import json
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

import joslim
from joslim import Cost, SlimmableNet, Widths
from joslim.search import History, searcher
from joslim.search.targeted import Targeted, mixed, perturbed
from joslim.search.targets import cost_range, stratified_targets

HistoryOf = Callable[..., History]


def targets_and_costs(
    history: History, count: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The targets are the first that a search draws, so the same seed shows them."""
    targets = stratified_targets(history.cost, count, np.random.default_rng(seed))
    children = Targeted().propose(history, count, np.random.default_rng(seed))
    return targets, np.array([history.cost(child) for child in children])


@pytest.mark.parametrize("name", ["macs", "params"])
@pytest.mark.parametrize("which", ["net", "many_knobs"])
def test_targets_are_met_within_epsilon(
    history_of: HistoryOf, name: str, which: str, request: pytest.FixtureRequest
) -> None:
    cost = joslim.cost(name, request.getfixturevalue(which))
    targets, costs = targets_and_costs(history_of(cost, 30), 40, seed=3)
    assert (np.abs(costs - targets) / cost(cost.space.full)).max() <= 0.02


def test_memory_is_met_as_nearly_as_it_can_be(history_of: HistoryOf, net: SlimmableNet) -> None:
    cost = joslim.cost("memory", net)
    targets, costs = targets_and_costs(history_of(cost, 30), 40, seed=3)
    assert (np.abs(costs - targets) / cost(cost.space.full)).max() <= 0.03


def test_a_function_is_met_though_it_is_asked_rarely(
    history_of: HistoryOf, net: SlimmableNet
) -> None:
    asked = []

    def price(widths: Widths) -> float:
        asked.append(widths)
        return float(np.square(widths.counts).sum())

    history = history_of(joslim.cost(price, net), 30)
    asked.clear()
    targets, costs = targets_and_costs(history, 10, seed=3)
    assert (np.abs(costs - targets) / price(net.space.full)).max() <= 0.02
    assert len(asked) < 10 * 40


def test_costs_are_spread_evenly(history_of: HistoryOf, macs: Cost) -> None:
    history, rng = history_of(macs, 50), np.random.default_rng(0)
    children = [child for _ in range(40) for child in Targeted().propose(history, 2, rng)]
    low, full = cost_range(macs)
    places = np.sort([(macs(child) - low) / (full - low) for child in children])
    assert np.abs(places - np.linspace(0, 1, 80)).max() < 0.08


def explored(name: str, cost: Cost, loss_of: Callable[[Widths], float], seed: int) -> History:
    history, search, rng = History(cost), searcher(name), np.random.default_rng(seed)
    for child in (cost.space.full, cost.space.smallest):
        history.visit(child, 0)
    for step in range(20):
        for child in search.propose(history, 2, rng):
            history.visit(child, step)
        history.record({i: loss_of(v.widths) for i, v in enumerate(history.visits)}, step)
    return history


def mean_least_loss(history: History) -> float:
    """The least loss for no more than a cost, averaged over the costs."""
    scored = history.scored()
    costs = np.linspace(*cost_range(history.cost), 50)
    return float(np.mean([scored.losses[scored.costs <= cost].min() for cost in costs]))


@pytest.mark.parametrize("name", ["macs", "memory"])
def test_less_loss_at_equal_cost_than_by_chance(
    net: SlimmableNet, loss_of: Callable[[Widths], float], name: str
) -> None:
    cost = joslim.cost(name, net)
    for seed in range(2):
        ours = mean_least_loss(explored("targeted", cost, loss_of, seed))
        theirs = mean_least_loss(explored("random", cost, loss_of, seed))
        assert ours < theirs - 0.03


def test_the_optimum_is_found_where_one_knob_is_all(macs: Cost) -> None:
    """Only the last knob lowers the loss: the best child of each cost has it as high as it can."""
    history = explored("targeted", macs, lambda widths: 2 - float(widths.multipliers[-1]), seed=0)
    late = [visit.widths.multipliers for visit in history.visits[-8:]]
    assert np.mean([row[-1] for row in late]) > 0.9
    assert np.mean([row[:-1].mean() for row in late]) < 0.8


def test_unseen_children_are_preferred(history_of: HistoryOf, macs: Cost) -> None:
    history = history_of(macs, 50)
    children = Targeted().propose(history, 30, np.random.default_rng(0))
    assert len(set(children)) == 30
    assert not any(child in history for child in children)


def test_a_space_of_few_children_is_used_up(one_knob: SlimmableNet) -> None:
    history, search = History(joslim.cost("macs", one_knob)), Targeted()
    rng = np.random.default_rng(0)
    for step in range(12):
        for child in search.propose(history, 2, rng):
            history.visit(child, step)
        history.record({i: 1.0 / v.cost for i, v in enumerate(history.visits)}, step)
    assert len(history) == 7, "8 channels down to 2"


def test_the_state_goes_on_as_if_nothing_had_happened(history_of: HistoryOf, macs: Cost) -> None:
    history, search = history_of(macs, 20), Targeted()
    search.propose(history, 2, np.random.default_rng(0))
    resumed = Targeted()
    resumed.load_state_dict(json.loads(json.dumps(search.state_dict())))
    bigger = history_of(macs, 25)
    one, two = (s.propose(bigger, 2, np.random.default_rng(1)) for s in (search, resumed))
    assert one == two
    assert search.state_dict() == resumed.state_dict()
    fresh = Targeted()
    fresh.load_state_dict(Targeted().state_dict())
    assert fresh.state_dict() == {"theta": None}


def test_how_many_children_it_needs_is_an_option(history_of: HistoryOf, macs: Cost) -> None:
    search = Targeted(start=30)
    search.propose(history_of(macs, 20), 2, np.random.default_rng(0))
    assert search.state_dict() == {"theta": None}
    search.propose(history_of(macs, 30), 2, np.random.default_rng(0))
    assert search.state_dict() != {"theta": None}


def test_perturbed_points_move_and_stay_in_the_cube() -> None:
    points = np.random.default_rng(0).uniform(size=(100, 5))
    moved = perturbed(points, 0.2, np.random.default_rng(1))
    assert ((moved >= 0) & (moved <= 1)).all()
    assert (moved != points).any(axis=1).mean() > 0.95
    assert 0.3 < (moved == points).mean() < 0.7, "some knobs stay"


def test_mixtures_lie_between_their_parents() -> None:
    left, right = np.random.default_rng(0).uniform(size=(2, 100, 5))
    child = mixed(left, right, np.random.default_rng(1))
    assert (child >= np.minimum(left, right)).all()
    assert (child <= np.maximum(left, right)).all()
