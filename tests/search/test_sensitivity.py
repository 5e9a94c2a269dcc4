"""The curve of children on which sensitive layers stay wide."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import joslim
from joslim.search.sensitivity import LEAST_RATE, MOST_RATE, on_curve, shrink_rates
from joslim.space import Widths


@pytest.fixture(scope="module")
def net() -> joslim.SlimmableNet:
    return joslim.slim(joslim.models.resnet8(10), torch.zeros(1, 3, 16, 16))


def loss_by(weights: np.ndarray, start: float = 1.0):
    """A loss that grows by its own slope with each knob that is narrower."""

    def loss_of(children: Sequence[Widths]) -> list[float]:
        return [start + float(weights @ (1 - np.array(child.multipliers))) for child in children]

    return loss_of


def test_rates_are_savings_over_losses(net: joslim.SlimmableNet) -> None:
    space, cost = net.space, joslim.cost("macs", net)
    slopes = np.array([3.0, 1.0, 2.0, 2.0, 1.0, 1.5])
    rates = shrink_rates(space, cost, loss_by(slopes))
    saved, grown = [], []
    for knob in range(len(space)):  # the plain formula, one knob after the other
        row = np.ones(len(space))
        row[knob] = (1 + space.low[knob]) / 2
        child = space.at(row)
        saved.append(cost(space.full) - cost(child))
        grown.append(slopes[knob] * (1 - child.multipliers[knob]))
    merit = np.array(saved) / np.array(grown)
    plain = merit / np.exp(np.mean(np.log(merit)))
    np.testing.assert_allclose(rates, np.clip(plain, LEAST_RATE, MOST_RATE))
    # The same knob shrinks later if it matters more.
    slopes[1] *= 2
    assert shrink_rates(space, cost, loss_by(slopes))[1] < rates[1]


def test_useless_and_costless_knobs(net: joslim.SlimmableNet) -> None:
    slopes = np.array([0.0, 1.0, 1.0, 1.0, 1.0, np.inf])
    free = joslim.cost(lambda child: 1e6 * child.counts[0] + child.counts[2] * 1e4, net)

    def loss_of(children: Sequence[Widths]) -> list[float]:
        narrow = [1 - np.array(child.multipliers) for child in children]
        return [1.0 + sum(s * n for s, n in zip(slopes, row) if n > 0) for row in narrow]

    rates = shrink_rates(net.space, free, loss_of)
    assert rates[0] == MOST_RATE  # it saves much and hurts nothing
    assert (rates[[1, 3, 4, 5]] == LEAST_RATE).all()  # these save nothing
    assert (shrink_rates(net.space, joslim.cost(lambda child: 1.0, net), loss_of) == 1).all()
    worst = shrink_rates(net.space, joslim.cost("macs", net), loss_of)
    assert worst[5] == LEAST_RATE
    lost = shrink_rates(net.space, joslim.cost("macs", net), lambda c: [float("nan")] * len(c))
    assert np.isfinite(lost).all()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(LEAST_RATE, MOST_RATE), min_size=6, max_size=6))
def test_no_knob_falls_along_the_curve(net: joslim.SlimmableNet, rates: list[float]) -> None:
    space = net.space
    counts = space.counts(on_curve(space, rates, np.linspace(0, 1, 101)))
    assert (np.diff(counts, axis=0) >= 0).all()
    assert counts[0].tolist() == list(space.smallest.counts)
    assert counts[-1].tolist() == list(space.full.counts)
    even = on_curve(space, np.ones(6), [0.25])
    np.testing.assert_allclose(even, [space.low + 0.25 * (1 - space.low)])
