"""Searches on frozen weights, and the batches that children are scored on."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import joslim
from joslim import Data, UserError, Widths
from joslim.search.mobo import RandomScalarized
from joslim.search.targeted import Targeted
from joslim.training.exploring import KEPT_BATCHES, first_images

from .small import make, slimming_of, train


@pytest.mark.parametrize(
    "searcher",
    [
        "random",
        "targeted",
        "nsga2",
        Targeted(pool=30, local=10, rounds=1),
        RandomScalarized(restarts=1, raw_samples=8, iterations=5, fit_iterations=5),
    ],
    ids=["random", "targeted", "nsga2", "Targeted", "RandomScalarized"],
)
def test_explore_a_trained_network(digits: Data, searcher: Any) -> None:
    net = make()
    train(slimming_of(digits, net, method="slim"), digits, 12)
    state = copy.deepcopy(net.state_dict())
    batches = digits.sweep("train", 128, 256)
    front = joslim.explore(
        net, batches, F.cross_entropy, searcher=searcher, children=16, test=batches, images=256
    )
    assert len(front) >= 2
    assert front[0].costs["macs"] < front[-1].costs["macs"]
    assert all(point.test_error is not None for point in front)
    for name, value in net.state_dict().items():
        assert torch.equal(value, state[name]), name


def test_explore_another_cost(digits: Data) -> None:
    def energy(widths: Widths) -> float:
        return float(sum(widths.counts))

    batches = digits.sweep("train", 128, 256)
    front = joslim.explore(make(), batches, F.cross_entropy, cost=energy, children=10)
    assert front.cost == "energy"
    assert front.span == (18, 72)
    assert front.pick(energy=72).costs["energy"] <= 72


def test_explore_needs_children(digits: Data) -> None:
    with pytest.raises(UserError, match="children: 0 "):
        joslim.explore(make(), digits.sweep("train", 128), F.cross_entropy, children=0)


def test_first_images() -> None:
    batches = [(torch.zeros(4, 2), torch.zeros(4))] * 5
    assert len(first_images(batches, 1)) == 1
    assert len(first_images(batches, 8)) == 2
    assert len(first_images(batches, 9)) == 3
    assert len(first_images(batches, 1000)) == 5


def test_what_can_only_be_iterated_over_is_kept(digits: Data) -> None:
    x, y = digits.plain("train", np.arange(200))
    loader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True)
    slimming = slimming_of(digits, scoring=loader)
    assert len(slimming.scoring) == 4
    train(slimming, digits, 6)
    assert len(slimming.front(images=100)) >= 1

    def endless() -> Iterator[Any]:
        while True:
            yield x[:4], y[:4]

    assert len(slimming_of(digits, scoring=endless()).scoring) == KEPT_BATCHES


@pytest.mark.parametrize("price", [float("nan"), float("inf"), -3.0, 0.0])
def test_a_cost_of_ones_own_is_looked_at_first(digits: Data, price: float) -> None:
    def energy(widths: Widths) -> float:
        return price

    words = r"^cost: energy of (the full network|one=.*) is \S+; a (positive )?number"
    with pytest.raises(UserError, match=words):
        slimming_of(digits, cost=energy)


@pytest.mark.parametrize("price", [-3.0, 1e19, None, "cheap"])
def test_a_cost_of_ones_own_is_tried_at_children_between(digits: Data, price: Any) -> None:
    def energy(widths: Widths) -> Any:
        ends = (widths.space.smallest, widths.space.full)
        return 1.0 if widths in ends else price

    with pytest.raises(UserError, match=r"^cost: energy of one=.* is .*; a number from 0 to 1e"):
        slimming_of(digits, cost=energy)
