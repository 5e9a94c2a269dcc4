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
    falling = joslim.cost(lambda widths: -float(sum(widths.counts)), net)
    low, high = cost_range(falling)
    targets = stratified_targets(falling, 1000, np.random.default_rng(0), log_share=1.0)
    assert np.abs((targets - low) / (high - low) - np.linspace(0, 1, 1000)).max() < 0.01
