"""Targets lie in their range, evenly."""

import numpy as np

import joslim
from joslim import Cost, SlimmableNet
from joslim.search.targets import cost_range, stratified_targets, uniform_target


def test_the_range_is_that_of_the_smallest_and_the_full_child(macs: Cost) -> None:
    assert cost_range(macs) == (macs(macs.space.smallest), macs(macs.space.full))


def test_the_lesser_cost_comes_first(net: SlimmableNet) -> None:
    falling = joslim.cost(lambda widths: -float(sum(widths.counts)), net)
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
