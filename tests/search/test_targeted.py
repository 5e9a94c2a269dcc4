"""Targeted search: it meets its targets, covers all costs, and finds less loss than chance does."""

import itertools
import json
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import joslim
from joslim import Cost, SlimmableNet, Widths
from joslim.search import History, searcher, starting_children
from joslim.search import gp as surrogate_module
from joslim.search import targeted as module
from joslim.search.cost_targeting import cost_range, stratified_targets
from joslim.search.gp import Hyperparameters, Surrogate, SurrogateFailed
from joslim.search.targeted import (
    CachedCost,
    ModelledCost,
    Targeted,
    mixed,
    most_informative,
    perturbed,
)

HistoryOf = Callable[..., History]


def quick(**options: Any) -> Targeted:
    """Two rounds, not twenty: more of them seek less loss, at costs that are met before."""
    return Targeted(rounds=2, **options)


def targets_and_costs(
    history: History, count: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The targets are the first that a search draws, so the same seed shows them."""
    targets = stratified_targets(history.cost, count, np.random.default_rng(seed))
    children = quick().propose(history, count, np.random.default_rng(seed))
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
    assert (np.abs(costs - targets) / cost(cost.space.full)).max() <= 0.02


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
    assert len(set(asked)) < 10 * 6


def test_costs_are_spread_evenly(history_of: HistoryOf, macs: Cost) -> None:
    history, rng = history_of(macs, 50), np.random.default_rng(0)
    children = [child for _ in range(40) for child in quick().propose(history, 2, rng)]
    low, full = cost_range(macs)
    places = np.sort([(macs(child) - low) / (full - low) for child in children])
    assert np.abs(places - np.linspace(0, 1, 80)).max() < 0.1


def test_costs_do_not_lean_to_the_dear_side(history_of: HistoryOf, macs: Cost) -> None:
    targets, costs = targets_and_costs(history_of(macs, 50), 40, seed=0)
    assert np.mean(costs - targets) / macs(macs.space.full) < 0.005


def explored(name: str, cost: Cost, loss_of: Callable[[Widths], float], seed: int) -> History:
    # A quarter of the rounds finds what there is to find here.
    search = Targeted(rounds=5) if name == "targeted" else searcher(name)
    history, rng = History(cost), np.random.default_rng(seed)
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
    low = macs.space.smallest.multipliers
    possible = np.tile(low, (100, 1))
    possible[:, -1] = np.linspace(low[-1], 1.0, 100)
    reach = np.asarray(macs.of(possible))
    late = history.visits[-8:]
    highest = [possible[reach <= visit.cost][-1, -1] for visit in late]
    mine = [visit.widths.multipliers[-1] for visit in late]
    assert np.mean(np.divide(mine, highest)) > 0.9
    assert np.mean([visit.widths.multipliers[:-1].mean() for visit in late]) < 0.8


def test_unseen_children_are_preferred(history_of: HistoryOf, macs: Cost) -> None:
    history = history_of(macs, 50)
    children = quick().propose(history, 30, np.random.default_rng(0))
    assert len(set(children)) == 30
    assert not any(child in history for child in children)


def test_a_space_of_few_children_is_used_up(one_knob: SlimmableNet) -> None:
    history, search = History(joslim.cost("macs", one_knob)), quick()
    rng = np.random.default_rng(0)
    for step in range(12):
        for child in search.propose(history, 2, rng):
            history.visit(child, step)
        history.record({i: 1.0 / v.cost for i, v in enumerate(history.visits)}, step)
    assert len(history) == 7, "8 channels down to 2"


def test_the_state_goes_on_as_if_nothing_had_happened(history_of: HistoryOf, macs: Cost) -> None:
    history, search = history_of(macs, 20), quick()
    search.propose(history, 2, np.random.default_rng(0))
    resumed = quick()
    resumed.load_state_dict(json.loads(json.dumps(search.state_dict())))
    bigger = history_of(macs, 25)
    one, two = (s.propose(bigger, 2, np.random.default_rng(1)) for s in (search, resumed))
    assert one == two
    assert search.state_dict() == resumed.state_dict()
    fresh = quick()
    fresh.load_state_dict(quick().state_dict())
    assert fresh.state_dict() == quick().state_dict()


def test_how_many_children_it_needs_is_an_option(history_of: HistoryOf, macs: Cost) -> None:
    search = quick(start=30)
    search.propose(history_of(macs, 20), 2, np.random.default_rng(0))
    assert search.state_dict() == quick().state_dict()
    search.propose(history_of(macs, 30), 2, np.random.default_rng(0))
    assert search.state_dict() != quick().state_dict()


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


# Every cost that can be had


def all_counts(net: SlimmableNet) -> NDArray[np.int64]:
    grid = itertools.product(*(np.linspace(low, 1, 50) for low in net.space.low))
    return np.unique(net.space.counts(np.array(list(grid))), axis=0)


@pytest.mark.parametrize("name", ["memory", "macs", "params"])
@pytest.mark.parametrize("counts", [(8, 6, 10), (4, 12, 5)])
def test_a_miss_is_small_or_the_least_that_is_possible(name: str, counts: tuple[int, ...]) -> None:
    """Against all children of a network of three knobs."""
    sizes = [3, *counts, 4]
    pairs = enumerate(itertools.pairwise(sizes))
    convs = [nn.Conv2d(a, b, 3, stride=1 + i % 2) for i, (a, b) in pairs]
    net = joslim.slim(nn.Sequential(*convs), torch.zeros(1, 3, 32, 32))
    cost, rng = joslim.cost(name, net), np.random.default_rng(0)
    full, everyone = cost(net.space.full), all_counts(net)
    history = History(cost)
    for child in starting_children(net.space, cost, rng, 5):
        history.visit(child, 0)
    history.record({i: 1.0 / visit.cost for i, visit in enumerate(history.visits)}, 0)
    unseen = [row for row in everyone if net.space.of_counts(row.tolist()) not in history]
    levels = cost.of_counts(np.array(unseen))
    search = quick()
    for target in rng.uniform(*cost_range(cost), size=40):
        miss = abs(cost(search.at_target(history, target, rng)) - target)
        assert miss <= max(0.02 * full, np.abs(levels - target).min())


def test_one_target_at_a_time(history_of: HistoryOf, macs: Cost) -> None:
    child = Targeted().at_target(history_of(macs, 30), 0.5 * macs(macs.space.full), rng=numbers())
    assert abs(macs(child) / macs(macs.space.full) - 0.5) <= 0.02


def test_a_target_without_any_history_is_met_too(macs: Cost) -> None:
    child = Targeted().at_target(History(macs), 0.5 * macs(macs.space.full), numbers())
    assert abs(macs(child) / macs(macs.space.full) - 0.5) <= 0.02


def numbers(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# Slow costs


class Noisy:
    """A cost as a stopwatch gives it: the same child is never asked twice by chance."""

    def __init__(self) -> None:
        self.asked: list[Widths] = []

    def __call__(self, widths: Widths) -> float:
        self.asked.append(widths)
        noise = np.random.default_rng(list(widths.counts)).normal(scale=0.01)
        return float((1 + noise) * (50 + sum(widths.counts)))


@pytest.mark.parametrize("which", ["net", "many_knobs"])
def test_a_slow_cost_is_asked_tens_of_times_at_most(
    which: str, loss_of: Callable[[Widths], float], request: pytest.FixtureRequest
) -> None:
    price = Noisy()
    cost = joslim.cost(price, request.getfixturevalue(which))
    history, search, rng = History(cost), quick(), numbers()
    for child in starting_children(cost.space, cost, rng, 10):
        history.visit(child, 0)
    assert len(set(price.asked)) <= 34
    history.record({i: loss_of(visit.widths) for i, visit in enumerate(history.visits)}, 0)
    for step in range(5):
        price.asked.clear()
        targets = stratified_targets(cost, 2, np.random.default_rng(step))
        children = search.propose(history, 2, np.random.default_rng(step))
        assert len(set(price.asked)) <= 30
        for child, target in zip(children, targets):
            assert abs(price(child) - target) <= 0.02 * price(cost.space.full)
            history.visit(child, step)
        history.record({i: loss_of(v.widths) for i, v in enumerate(history.visits)}, step)


# A surrogate that fails


def fail(*arguments: object, **options: object) -> None:
    raise SurrogateFailed("no")


def warnings_of(
    history: History, caplog: pytest.LogCaptureFixture, search: Targeted | None = None
) -> list[str]:
    """What is said while four children are found, twice the same ones."""
    found = []
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="joslim"):
            again = quick()
            again.load_state_dict((search or quick()).state_dict())
            found.append(again.propose(history, 4, numbers()))
    assert found[0] == found[1]
    assert len(set(found[0])) == 4
    assert not any(child in history for child in found[0])
    targets = stratified_targets(history.cost, 4, numbers())
    costs = np.array([history.cost(child) for child in found[0]])
    assert (np.abs(costs - targets) / history.cost(history.space.full)).max() <= 0.02
    return [record.getMessage() for record in caplog.records]


def test_without_a_fit_the_last_one_serves(
    history_of: HistoryOf,
    macs: Cost,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    search = quick()
    search.propose(history_of(macs, 20), 2, numbers())
    before = search.state_dict()["loss"]["theta"]
    monkeypatch.setattr(surrogate_module, "_maximise", fail)
    (line,) = warnings_of(history_of(macs, 40), caplog, search)
    assert line == "surrogate: the fit to 40 children failed (no); the last good ones are used"
    search.propose(history_of(macs, 40), 2, numbers())
    assert search.state_dict()["loss"] == {"theta": before, "size": 40}


def test_without_a_surrogate_neighbours_of_the_front_serve(
    history_of: HistoryOf,
    macs: Cost,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Surrogate, "conditioned", fail)
    (line,) = warnings_of(history_of(macs, 40), caplog)
    assert line == "search: no; the next best way is taken"


def test_without_predictions_neighbours_of_the_front_serve(
    history_of: HistoryOf,
    macs: Cost,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Surrogate, "posterior", fail)
    assert set(warnings_of(history_of(macs, 40), caplog)) == {
        "search: no; the next best way is taken"
    }


def test_neighbours_of_the_front_are_better_than_chance(
    history_of: HistoryOf,
    macs: Cost,
    loss_of: Callable[[Widths], float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = history_of(macs, 100)
    monkeypatch.setattr(Surrogate, "conditioned", fail)
    ours = quick().propose(history, 40, numbers())
    by_chance = starting_children(macs.space, macs, numbers(), 42)[2:]
    means = [np.mean([loss_of(child) for child in children]) for children in (ours, by_chance)]
    assert means[0] < means[1]


def test_if_all_fails_children_are_random(
    history_of: HistoryOf,
    macs: Cost,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module._TargetSearch, "ranked", fail)
    assert set(warnings_of(history_of(macs, 40), caplog)) == {
        "search: no; the next best way is taken"
    }


def test_a_slow_cost_without_a_model_is_asked_rarely(
    history_of: HistoryOf,
    net: SlimmableNet,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = []

    def price(widths: Widths) -> float:
        asked.append(widths)
        return float(sum(widths.counts))

    history = history_of(joslim.cost(price, net), 20)
    monkeypatch.setattr(Surrogate, "conditioned", fail)
    asked.clear()
    assert len(quick().propose(history, 2, numbers())) == 2
    assert len(asked) < 30
    assert len(caplog.records) == 1


NASTY = {
    "equal": lambda i: 1.0,
    "outlier": lambda i: 1e6 if i == 5 else 1.0 + i / 20,
    "huge": lambda i: (-1.0) ** i * 1e308,
    "tiny": lambda i: 5e-324 * (i + 1),
    "steps": lambda i: float(i % 2),
}


@pytest.mark.parametrize("nasty", NASTY)
@pytest.mark.parametrize("size", [2, 20])
def test_nasty_losses(history_of: HistoryOf, macs: Cost, nasty: str, size: int) -> None:
    history = history_of(macs, size)
    history.record({i: NASTY[nasty](i) for i in range(size)}, 1)
    first, again = (quick(start=1).propose(history, 2, numbers()) for _ in range(2))
    assert first == again
    targets = stratified_targets(macs, 2, numbers())
    costs = np.array([macs(child) for child in first])
    assert (np.abs(costs - targets) <= 0.02 * macs(macs.space.full)).all()


def test_children_that_are_nearly_the_same(many_knobs: SlimmableNet) -> None:
    """Points that differ in one channel of one knob, and losses that contradict each other."""
    cost = joslim.cost("macs", many_knobs)
    history, rng = History(cost), numbers()
    for knob in range(20):
        row = np.full(25, 0.8)
        row[knob] += 0.01 * rng.uniform()
        history.visit(cost.space.at(row), 0)
    history.record({i: float(rng.uniform()) for i in range(len(history))}, 0)
    assert len(quick(start=1).propose(history, 2, rng)) == 2


def test_thousands_of_children_are_no_trouble(history_of: HistoryOf, macs: Cost) -> None:
    history = history_of(macs, 2500)
    assert len(quick(most=100).propose(history, 2, numbers())) == 2


def test_of_thousands_the_front_and_the_latest_losses_are_known(
    history_of: HistoryOf, macs: Cost
) -> None:
    history = history_of(macs, 200)
    history.record(dict.fromkeys(range(50, 80), 5.0), 7)
    scored = history.scored()
    kept = most_informative(scored, 60)
    front = joslim.front.non_dominated(scored.losses, scored.costs)
    assert len(kept) == 60
    assert set(np.flatnonzero(front)) <= set(kept)
    assert set(range(50, 80)) <= set(kept)
    others = set(kept) - set(np.flatnonzero(front)) - set(range(50, 80))
    assert min(others) > 140, "of equally old losses those of the latest visits"
    assert (most_informative(scored, 200) == np.arange(200)).all()


# Fits now and then


def test_hyper_parameters_are_fitted_when_the_history_has_grown(
    history_of: HistoryOf, macs: Cost, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = []
    true_fit = surrogate_module._fitted
    monkeypatch.setattr(
        surrogate_module, "_fitted", lambda x, *rest: fits.append(len(x)) or true_fit(x, *rest)
    )
    search = quick()
    for size in (20, 21, 60, 61, 65, 66, 70, 73):
        search.propose(history_of(macs, size), 1, numbers())
    assert fits == [20, 21, 60, 66, 73]


def test_a_search_that_is_resumed_between_two_fits_goes_on(
    history_of: HistoryOf, macs: Cost
) -> None:
    search, resumed = quick(), quick()
    search.propose(history_of(macs, 60), 1, numbers())
    resumed.load_state_dict(json.loads(json.dumps(search.state_dict())))
    for size in (62, 64, 66, 68):
        history = history_of(macs, size)
        one, two = (s.propose(history, 2, numbers(size)) for s in (search, resumed))
        assert one == two
    assert search.state_dict() == resumed.state_dict()


# Slow costs are modelled by the prices that are known


def visited(cost: Cost, count: int) -> History:
    history = History(cost)
    for child in starting_children(cost.space, cost, np.random.default_rng(0), count):
        history.visit(child, 0)
    return history


def test_which_costs_are_slow(net: SlimmableNet) -> None:
    assert not any(joslim.cost(name, net).slow for name in joslim.COSTS)
    assert joslim.cost(lambda widths: 1.0, net).slow


def test_a_model_is_near_the_cost(macs: Cost) -> None:
    model = ModelledCost(visited(macs, 40), 500, Hyperparameters())
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
    assert np.isfinite(ModelledCost(history, 500, Hyperparameters())(net.space.full))


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


def test_targets_are_met_by_children_of_every_kind_of_knob() -> None:
    """A step of the size or of the depth changes the cost by more than the tolerance."""
    net = joslim.slim(
        joslim.models.resnet20(), torch.zeros(1, 3, 32, 32), resolutions=(16, 24, 32), depth=True
    )
    cost, rng = joslim.cost("macs", net), np.random.default_rng(0)
    history = History(cost)
    children = [*starting_children(net.space, cost, rng, 10)]
    children += [net.space.random(rng) for _ in range(20)]
    ids = [history.visit(child, 0) for child in dict.fromkeys(children)]
    losses = {i: float(2 - history.visits[i].widths.multipliers.mean()) for i in ids}
    history.record(losses, 0)
    full = cost(net.space.full)
    found = []
    for target in stratified_targets(cost, 20, rng):
        found.append(quick().at_target(history, target, rng))
        assert abs(cost(found[-1]) - target) <= 0.02 * full
    assert {child.pixels for child in found} == {16, 24, 32}
