"""Children to begin with."""

import numpy as np
import pytest
import torch

import joslim
from joslim import Cost, SlimmableNet
from joslim.search import History, starting_children
from joslim.search.cost_targeting import cost_range
from joslim.search.initial_design import sobol_points, start_size, unseen_starting_children


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10])
def test_the_corners_come_first(macs: Cost, count: int) -> None:
    children = starting_children(macs.space, macs, np.random.default_rng(0), count)
    assert len(children) == count
    assert children[:2] == [macs.space.full, macs.space.smallest][:count]
    assert len(set(children)) == count


@pytest.mark.parametrize("name", ["macs", "params", "memory"])
def test_costs_are_spread_evenly(net: SlimmableNet, name: str) -> None:
    cost = joslim.cost(name, net)
    low, full = cost_range(cost)
    children = starting_children(cost.space, cost, np.random.default_rng(0), 12)[2:]
    places = np.sort([(cost(child) - low) / (full - low) for child in children])
    assert np.abs(places - (np.arange(10) + 0.5) / 10).max() < 0.12


def test_what_was_visited_is_left_out(macs: Cost) -> None:
    history, rng = History(macs), np.random.default_rng(0)
    for _ in range(4):
        children = unseen_starting_children(history, 2, rng)
        assert not any(child in history for child in children)
        for child in children:
            history.visit(child, 0)
    assert len(history) == 8
    assert {history.visits[0].widths, history.visits[1].widths} == {
        macs.space.full,
        macs.space.smallest,
    }


def test_sobol_points_fill_the_cube_and_leave_the_generator_alone() -> None:
    state = torch.get_rng_state()
    points = sobol_points(5, 64, np.random.default_rng(0))
    assert points.shape == (64, 5)
    assert (np.sort(points, axis=0) // (1 / 8) == np.repeat(np.arange(8), 8)[:, None]).all()
    assert torch.equal(torch.get_rng_state(), state)
    assert not (points == sobol_points(5, 64, np.random.default_rng(1))).all()


def test_how_many_are_needed_grows_with_the_knobs(
    one_knob: SlimmableNet, net: SlimmableNet, many_knobs: SlimmableNet
) -> None:
    assert [start_size(n.space) for n in (one_knob, net, many_knobs)] == [4, 8, 10]
