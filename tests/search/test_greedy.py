"""Greedy removal: from full to smallest, where the loss suffers least."""

import math
from collections.abc import Callable

import numpy as np
import pytest

import joslim
from joslim import Cost, SlimmableNet, Widths
from joslim.search import greedy_removal, keep_useful


def losses_of(loss: Callable[[Widths], float]) -> Callable[[list[Widths]], list[float]]:
    return lambda children: [loss(child) for child in children]


@pytest.mark.parametrize("which", ["one_knob", "net", "many_knobs"])
def test_it_goes_from_full_to_smallest_and_never_back(
    which: str, loss_of: Callable[[Widths], float], request: pytest.FixtureRequest
) -> None:
    net = request.getfixturevalue(which)
    cost = joslim.cost("macs", net)
    pieces = 10 if which != "many_knobs" else 2
    sequence = greedy_removal(net.space, cost, losses_of(loss_of), pieces)
    assert sequence[0] == net.space.full
    assert sequence[-1] == net.space.smallest
    counts = np.array([child.counts for child in sequence])
    assert (np.diff(counts, axis=0) <= 0).all()
    assert (np.diff(counts, axis=0) < 0).any(axis=1).all(), "every step removes something"
    assert len(sequence) <= 1 + pieces * len(net.space)


def test_each_step_is_the_one_of_least_loss(macs: Cost) -> None:
    """The last knob matters most, so it is worn down last; the first goes first."""
    matters = 10.0 ** np.arange(6)
    loss = losses_of(lambda child: -float(matters @ child.multipliers))
    sequence = greedy_removal(macs.space, macs, loss, pieces=3)
    steps = np.diff([child.multipliers for child in sequence], axis=0) != 0
    assert [int(np.flatnonzero(step)[0]) for step in steps] == sorted([*range(6)] * 3)
    assert (steps.sum(axis=1) == 1).all(), "one knob at a time"


def test_losses_are_asked_in_batches_and_no_more_than_stated(macs: Cost) -> None:
    batches = []

    def loss(children: list[Widths]) -> list[float]:
        batches.append(len(children))
        return [float(np.ptp(child.multipliers)) for child in children]

    sequence = greedy_removal(macs.space, macs, loss, pieces=4)
    assert len(batches) == len(sequence) - 1 <= 4 * 6
    assert sum(batches) <= 4 * 6**2
    assert batches[0] == 6


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_the_worst(macs: Cost, bad: float) -> None:
    def loss(child: Widths) -> float:
        return bad if child.multipliers[0] < 1 else 1.0

    sequence = greedy_removal(macs.space, macs, losses_of(loss), pieces=2)
    assert sequence[-1] == macs.space.smallest, "the end is reached all the same"
    first_cut = [child.multipliers[0] < 1 for child in sequence].index(True)
    assert (sequence[first_cut - 1].multipliers[1:] == macs.space.smallest.multipliers[1:]).all()


def test_of_equal_losses_the_cheapest_is_kept(macs: Cost) -> None:
    sequence = greedy_removal(macs.space, macs, losses_of(lambda child: 1.0), pieces=2)
    rows = np.ones((6, 6))
    rows[np.arange(6), np.arange(6)] = (1 + macs.space.low) / 2
    assert macs(sequence[1]) == macs.of(rows).min()


def test_a_piece_without_a_whole_channel_is_taken_with_the_next(one_knob: SlimmableNet) -> None:
    cost = joslim.cost("macs", one_knob)
    sequence = greedy_removal(one_knob.space, cost, losses_of(lambda child: 1.0), pieces=100)
    assert [child.counts[0] for child in sequence] == [8, 7, 6, 5, 4, 3, 2]


@pytest.mark.parametrize("name", ["macs", "params", "memory"])
def test_what_is_useful_gets_cheaper_with_every_child(net: SlimmableNet, name: str) -> None:
    cost = joslim.cost(name, net)
    loss = losses_of(lambda child: -float(child.multipliers.sum()))
    sequence = greedy_removal(net.space, cost, loss)
    kept = keep_useful(sequence, cost)
    costs = [cost(child) for child in kept]
    assert costs == sorted(set(costs), reverse=True)
    assert {cost(child) for child in sequence} == set(costs), "no cost is lost"
    assert kept[0] == net.space.full


def test_of_equal_costs_the_largest_is_kept(net: SlimmableNet) -> None:
    prices = {1.0: 5.0, 0.9: 5.0, 0.8: 6.0, 0.7: 3.0, 0.6: 3.0}
    children = {net.space.uniform(multiplier): price for multiplier, price in prices.items()}
    cost = joslim.cost(lambda widths: children[widths], net)
    kept = keep_useful(list(children), cost)
    assert kept == [net.space.uniform(1.0), net.space.uniform(0.7)]


def test_nothing_useful_in_nothing(macs: Cost) -> None:
    assert keep_useful([], macs) == []
