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
from joslim.slimmable import batch_statistics
from joslim.training.evaluate import KEPT_BATCHES
from joslim.training.exploring import FROZEN_IMAGES

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
    def joules(widths: Widths) -> float:
        return float(sum(widths.counts))

    batches = digits.sweep("train", 128, 256)
    front = joslim.explore(make(), batches, F.cross_entropy, cost=joules, children=10)
    assert front.cost == "joules"
    assert front.span == (18, 72)
    assert front.pick(joules=72).costs["joules"] <= 72


def test_explore_needs_children(digits: Data) -> None:
    with pytest.raises(UserError, match="children: 0 "):
        joslim.explore(make(), digits.sweep("train", 128), F.cross_entropy, children=0)


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


def test_explore_is_the_search_at_the_end_of_bignas(digits: Data) -> None:
    """The same seed gives the same children: a training that makes no step searches alike."""
    batches = digits.sweep("train", 128, 256)
    options: dict[str, Any] = {"method": "bignas", "total_steps": 8, "every": 1}
    slimming = slimming_of(digits, make(), **options)
    front = joslim.explore(make(), batches, F.cross_entropy, children=16, images=256)
    assert slimming.front(F.cross_entropy, images=256) == front


def test_explore_takes_all_options_of_a_front(digits: Data) -> None:
    """`batches`, too, which was the name of the first parameter."""
    net, scoring = make(), digits.sweep("train", 64, 64)
    options: dict[str, Any] = {"searcher": "random", "children": 6}
    judged = [digits.plain("train", np.arange(200, 300))]
    other = joslim.explore(net, scoring, F.cross_entropy, **options)
    front = joslim.explore(net, scoring, F.cross_entropy, batches=judged, **options)
    assert front != other
    net.use(front[-1])
    with torch.no_grad():
        loss = F.cross_entropy(net.eval()(judged[0][0]), judged[0][1]).item()
    assert front[-1].train_loss == pytest.approx(loss)


@pytest.mark.parametrize("field", ["scoring", "batches", "val", "test"])
def test_a_dataset_is_no_sequence_of_batches(digits: Data, field: str) -> None:
    dataset = TensorDataset(*digits.plain("train", np.arange(8)))
    options: dict[str, Any] = {"scoring": digits.sweep("train", 64, 64), field: dataset}
    words = (
        rf"^{field}: TensorDataset given, .*; type {field}=DataLoader\(dataset, batch_size=64\)$"
    )
    with pytest.raises(UserError, match=words):
        joslim.explore(make(), criterion=F.cross_entropy, children=2, **options)


def test_a_search_on_frozen_weights_scores_on_many_images(digits: Data) -> None:
    """The losses are means over 1,024 images, and rank children better than one batch does."""
    slimming = slimming_of(
        digits, method="bignas", total_steps=20, every=1, scoring=digits.sweep("train", 128)
    )
    train(slimming, digits, 20)
    slimming.method.finish(slimming)
    found = slimming.history.scored().losses
    plain = [digits.plain("train", np.arange(i, i + 128)) for i in range(0, 1280, 128)]
    rows = []
    with batch_statistics(slimming.net.eval()), torch.no_grad():
        for visit in slimming.history.visits:
            with slimming.net.at(visit.widths):
                rows.append([F.cross_entropy(slimming.net(x), y).item() for x, y in plain])
    losses = np.array(rows)
    assert losses.shape == (40, 10)
    assert found == pytest.approx(losses[:, : FROZEN_IMAGES // 128].mean(axis=1), rel=1e-5)

    def noise(some: np.ndarray) -> float:
        """Deviation of the losses from those on all images, but for a constant."""
        return float(np.std(some - losses.mean(axis=1)))

    assert noise(found) < noise(losses[:, 0]) / 3


def test_frozen_losses_are_measured_again_after_a_step(digits: Data) -> None:
    slimming = slimming_of(digits, method="slim")
    train(slimming, digits, 1)
    child = [slimming.space.smallest]
    first = slimming.score(child)
    assert slimming.score(child * 2) == first * 2
    assert slimming.scoring_passes == 2, "one child on two batches"
    train(slimming, digits, 1)
    assert slimming.score(child) != first
