"""Target costs, paths through the box, and the children found on them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import joslim
from joslim import Cost, Dim, Knob, SlimmableNet, WidthSpace
from joslim.search.cost_targeting import (
    SLOW_PRICES,
    bring_by_one_knob,
    bring_by_single_knobs,
    bring_to_cost,
    cost_range,
    from_unit,
    path_point,
    raise_free,
    random_children,
    stratified_targets,
    to_unit,
    uniform_target,
)


def some_points(count: int, knobs: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).uniform(size=(count, knobs))


def test_the_cube_and_the_box_are_one(macs: Cost) -> None:
    points = some_points(50, len(macs.space))
    np.testing.assert_allclose(to_unit(macs.space, from_unit(macs.space, points)), points)
    corners = np.array([np.zeros(6), np.ones(6)])
    assert (from_unit(macs.space, corners) == [macs.space.low, np.ones(6)]).all()


def test_a_knob_that_cannot_move_stays() -> None:
    space = WidthSpace((Dim("a", 8), Dim("b", 8)), (Knob("a", (0,), 1.0), Knob("b", (1,), 0.5)))
    assert to_unit(space, np.array([[1.0, 0.75]])).tolist() == [[0.0, 0.5]]
    assert from_unit(space, np.array([[0.3, 0.5]])).tolist() == [[1.0, 0.75]]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_a_path_leads_from_corner_to_corner_through_its_point(point: list[float]) -> None:
    ways = np.linspace(0, 2, 21)
    path = path_point(np.repeat([point], 21, axis=0), ways)
    assert (path[0] == 0).all()
    np.testing.assert_allclose(path[10], point)
    np.testing.assert_allclose(path[20], 1.0)
    assert (np.diff(path, axis=0) >= -1e-12).all()


@pytest.mark.parametrize("name", ["macs", "memory"])
@pytest.mark.parametrize("which", ["net", "many_knobs"])
def test_random_children_have_all_costs(
    name: str, which: str, request: pytest.FixtureRequest
) -> None:
    cost = joslim.cost(name, request.getfixturevalue(which))
    children = random_children(cost, 400, np.random.default_rng(0))
    # Half of them evenly over the cost, half over its logarithm: their mean rank is even.
    costs, (low, full) = np.array([cost(child) for child in children]), cost_range(cost)
    ranks = (costs - low) / (full - low) / 2 + np.log(costs / low) / np.log(full / low) / 2
    parts, _ = np.histogram(ranks, bins=4, range=(0, 1))
    assert (parts > 70).all(), parts
    # They are no ray: at about half of the cost, most knobs take low and high values.
    middle = [child for child in children if 0.4 < cost(child) / cost_range(cost)[1] < 0.6]
    multipliers = np.array([child.multipliers for child in middle])
    assert np.median(np.ptp(multipliers, axis=0) / (1 - cost.space.low)) > 0.5
    assert random_children(cost, 0, np.random.default_rng(0)) == []


def test_random_children_do_not_ask_for_slow_costs(net: SlimmableNet) -> None:
    asked: list[joslim.Widths] = []

    def price(child: joslim.Widths) -> float:
        asked.append(child)
        return sum(child.counts)

    cost = joslim.cost(price, net)
    asked.clear()
    assert len(random_children(cost, 5, np.random.default_rng(0))) == 5
    assert not asked


@pytest.mark.parametrize("name", ["macs", "params"])
@pytest.mark.parametrize("which", ["net", "many_knobs"])
def test_targets_are_met(name: str, which: str, request: pytest.FixtureRequest) -> None:
    cost = joslim.cost(name, request.getfixturevalue(which))
    low, full = cost_range(cost)
    targets = np.linspace(low, full, 200)
    reached = bring_to_cost(cost, some_points(200, len(cost.space)), targets)
    misses = np.abs(cost.of(from_unit(cost.space, reached)) - targets) / full
    # What remains is one channel of one knob.
    assert np.quantile(misses, 0.9) < 0.02
    assert misses.max() < 0.05


def test_the_place_found_is_the_nearest_of_the_path(macs: Cost) -> None:
    low, full = cost_range(macs)
    points, target = some_points(20, len(macs.space)), (low + full) / 3
    reached = bring_to_cost(macs, points, np.full(20, target))
    ways = np.linspace(0, 2, 4001)
    for point, place in zip(points, reached):
        path = path_point(np.repeat(point[None], len(ways), axis=0), ways)
        nearest = np.abs(macs.of(from_unit(macs.space, path)) - target).min()
        found = abs(macs.of(from_unit(macs.space, place[None]))[0] - target)
        assert found <= nearest


def test_targets_out_of_reach_end_at_the_corners(macs: Cost) -> None:
    points = some_points(2, len(macs.space))
    reached = bring_to_cost(macs, points, np.array([0.0, 1e18]))
    children = [macs.space.at(row) for row in from_unit(macs.space, reached)]
    assert children == [macs.space.smallest, macs.space.full]


def test_a_tolerance_saves_prices(net: SlimmableNet) -> None:
    asked: list[joslim.Widths] = []

    def price(widths: joslim.Widths) -> float:
        asked.append(widths)
        return float(sum(widths.counts))

    cost = joslim.cost(price, net)
    low, full = cost_range(cost)
    points, targets = some_points(20, len(cost.space)), np.linspace(low, full, 20)
    bring_to_cost(cost, points, targets)
    exact, tolerance = len(asked), 0.05 * full
    asked.clear()
    reached = bring_to_cost(cost, points, targets, tolerance)
    assert len(asked) < exact / 3
    assert (np.abs(cost.of(from_unit(cost.space, reached)) - targets) <= tolerance).all()


def test_flat_and_falling_costs_end_too(net: SlimmableNet) -> None:
    total = sum(net.space.full.counts)
    for price in (lambda widths: 1.0, lambda widths: float(total - sum(widths.counts))):
        cost = joslim.cost(price, net)
        points = some_points(5, len(cost.space))
        reached = bring_to_cost(cost, points, np.full(5, -100.0))
        assert ((reached >= 0) & (reached <= 1)).all()


def test_few_prices_are_enough_for_a_smooth_cost(net: SlimmableNet) -> None:
    asked: list[joslim.Widths] = []

    def price(widths: joslim.Widths) -> float:
        asked.append(widths)
        return float(np.square(widths.counts).sum())

    cost = joslim.cost(price, net)
    low, full = cost_range(cost)
    points, targets = some_points(50, len(cost.space)), np.linspace(low, full, 50)
    asked.clear()
    reached = bring_to_cost(cost, points, targets, 0.01 * full, SLOW_PRICES)
    assert len(asked) < 50 * 4
    misses = np.abs(cost.of(from_unit(cost.space, reached)) - targets)
    assert (misses <= 0.02 * full).all()


def test_a_slow_point_that_is_there_is_asked_once(net: SlimmableNet) -> None:
    asked: list[joslim.Widths] = []

    def price(widths: joslim.Widths) -> float:
        asked.append(widths)
        return float(sum(widths.counts))

    cost = joslim.cost(price, net)
    point = some_points(1, len(cost.space))
    target = np.asarray(cost.of(from_unit(cost.space, point)), dtype=np.float64)
    asked.clear()
    assert (bring_to_cost(cost, point, target, 0.0, SLOW_PRICES) == point).all()
    assert len(asked) == 3, "two corners and the point"


@pytest.mark.parametrize("name", ["macs", "params", "memory"])
@pytest.mark.parametrize("which", ["net", "many_knobs"])
def test_knob_by_knob_is_nearer_than_all_at_once(
    name: str, which: str, request: pytest.FixtureRequest
) -> None:
    cost = joslim.cost(name, request.getfixturevalue(which))
    low, full = cost_range(cost)
    points = some_points(20, len(cost.space))
    for target in np.linspace(low, full, 9)[1:-1]:
        together = bring_to_cost(cost, points, np.full(20, target))
        single = bring_by_single_knobs(cost, points, target)
        misses = [
            np.abs(cost.of(from_unit(cost.space, p)) - target) / full for p in (together, single)
        ]
        assert misses[1].mean() <= misses[0].mean()
        assert ((single >= 0) & (single <= 1)).all()


def test_knob_by_knob_stops_when_it_is_near_enough(macs: Cost) -> None:
    low, full = cost_range(macs)
    points, target = some_points(20, len(macs.space)), (low + full) / 2
    single = bring_by_single_knobs(macs, points, target, 0.2 * full)
    assert (np.abs(macs.of(from_unit(macs.space, single)) - target) <= 0.2 * full).all()


def test_one_knob_brings_a_point_to_its_cost(macs: Cost) -> None:
    """Against all counts of that knob, tried out."""
    rng = np.random.default_rng(0)
    points = rng.uniform(size=(20, len(macs.space)))
    knob = rng.integers(points.shape[1], size=20)
    targets = np.asarray(macs.of(from_unit(macs.space, rng.uniform(size=points.shape))), float)
    found = bring_by_one_knob(macs, points, knob, targets)
    for row, start, which, target in zip(found, points, knob, targets):
        others = np.arange(len(start)) != which
        assert (row[others] == start[others]).all()
        every = np.tile(start, (2001, 1))
        every[:, which] = np.linspace(0, 1, 2001)
        least = np.abs(macs.of(from_unit(macs.space, every)) - target).min()
        assert abs(macs.of(from_unit(macs.space, row[None]))[0] - target) <= least


# Targets lie in their range, evenly


def test_the_range_is_that_of_the_smallest_and_the_full_child(macs: Cost) -> None:
    assert cost_range(macs) == (macs(macs.space.smallest), macs(macs.space.full))


def test_the_lesser_cost_comes_first(net: SlimmableNet) -> None:
    total = sum(net.space.full.counts)  # the full network costs nothing, which has no logarithm
    falling = joslim.cost(lambda widths: float(total - sum(widths.counts)), net)
    low, high = cost_range(falling)
    assert low < high


def test_one_target_in_each_part(macs: Cost) -> None:
    low, full = cost_range(macs)
    rng = np.random.default_rng(0)
    for count in (1, 2, 7):
        targets = stratified_targets(macs, count, rng)
        parts = (targets - low) / (full - low) * count
        assert np.floor(parts).tolist() == list(range(count))


def test_over_many_rounds_targets_are_uniform(macs: Cost) -> None:
    low, full = cost_range(macs)
    rng = np.random.default_rng(0)
    stratified = np.concatenate([stratified_targets(macs, 2, rng) for _ in range(1000)])
    uniform = np.array([uniform_target(macs, rng) for _ in range(2000)])
    for targets in (stratified, uniform):
        places = np.sort((targets - low) / (full - low))
        assert np.abs(places - np.linspace(0, 1, 2000)).max() < 0.04


def test_some_targets_are_uniform_in_the_logarithm(macs: Cost) -> None:
    low, full = cost_range(macs)
    rng = np.random.default_rng(0)
    for share in (0.0, 0.5, 1.0):
        rounds = [stratified_targets(macs, 2, rng, log_share=share) for _ in range(2000)]
        targets = np.concatenate(rounds)
        assert low <= targets.min() <= targets.max() <= full
        middle = (low * full) ** 0.5
        expected = 0.5 * share + (1 - share) * (middle - low) / (full - low)
        assert abs((targets < middle).mean() - expected) < 0.03


def test_without_a_logarithm_targets_are_uniform(net: SlimmableNet) -> None:
    total = sum(net.space.full.counts)  # the full network costs nothing, which has no logarithm
    falling = joslim.cost(lambda widths: float(total - sum(widths.counts)), net)
    low, high = cost_range(falling)
    targets = stratified_targets(falling, 1000, np.random.default_rng(0), log_share=1.0)
    assert np.abs((targets - low) / (high - low) - np.linspace(0, 1, 1000)).max() < 0.01


# Free width


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
