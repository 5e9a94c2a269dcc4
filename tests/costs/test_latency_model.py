"""The model of latency against made-up machines whose times are known."""

from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

import joslim
from joslim import SlimmableNet, UserError
from joslim.costs.latency import spread_children
from joslim.costs.latency_model import LatencyModel, held_out_error, is_depthwise
from joslim.costs.pricing import Pricer


class Mobile(nn.Module):
    """Three kinds of layers in blocks of a pointwise, a depthwise and a pointwise conv."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1)]
        for inner in (64, 96, 128):
            layers += [
                nn.Conv2d(32, inner, 1),
                nn.ReLU6(),
                nn.Conv2d(inner, inner, 3, padding=1, groups=inner),
                nn.ReLU6(),
                nn.Conv2d(inner, 32, 1),
            ]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


@pytest.fixture(scope="module")
def mobile() -> SlimmableNet:
    return joslim.slim(Mobile(), torch.zeros(1, 3, 16, 16), low=0.2)


def rounded_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def machine_ms(net: SlimmableNet, counts: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
    """Layer by layer: each kind has its own speed, and computes channels by sixteens."""
    rng, blueprint = np.random.default_rng(seed), net.blueprint
    kinds = {(layer.op, layer.kernel, is_depthwise(layer)) for layer in blueprint.layers}
    speeds = {
        kind: rng.uniform(0.1, 1.0, 3) * [1e-6, 1e-6, 1e-5] for kind in sorted(kinds, key=str)
    }
    ms = np.full(len(counts), 0.05)
    for row, units in enumerate(blueprint.units(counts).tolist()):
        for layer in blueprint.layers:
            a, b, c = speeds[layer.op, layer.kernel, is_depthwise(layer)]
            macs, entries = float(layer.macs.times), 0.0
            for layout in layer.macs.layouts:
                macs *= rounded_up(layout.size(tuple(units)), 16)
            for position in layer.maps:
                term = blueprint.maps[position]
                entries += term.times * np.prod([x.size(tuple(units)) for x in term.layouts])
            weights = layer.weights.times * np.prod(
                [x.size(tuple(units)) for x in layer.weights.layouts]
            )
            ms[row] += a * macs + b * entries + c * weights
    return ms


def counts_of(net: SlimmableNet, count: int, seed: int) -> NDArray[np.int64]:
    children = spread_children(net, count, np.random.default_rng(seed))
    return np.array([child.counts for child in children])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("which", ["net", "mobile"])
def test_a_machine_is_reproduced(which: str, seed: int, request: pytest.FixtureRequest) -> None:
    net: SlimmableNet = request.getfixturevalue(which)
    seen, unseen = counts_of(net, 64, 0), counts_of(net, 100, 1)
    ms = machine_ms(net, seen, seed)
    model = LatencyModel(net.blueprint, seen, ms)
    truth = machine_ms(net, unseen, seed)
    assert truth.max() > 1.5 * truth.min()
    assert np.abs(model(unseen) / truth - 1).max() < 0.01
    assert held_out_error(net.blueprint, seen, ms) < 0.01


def test_noise_is_averaged_out(mobile: SlimmableNet) -> None:
    seen, unseen = counts_of(mobile, 64, 0), counts_of(mobile, 100, 1)
    noise = np.random.default_rng(0).normal(1.0, 0.05, 64)
    ms = machine_ms(mobile, seen, 0) * noise
    errors = np.abs(
        LatencyModel(mobile.blueprint, seen, ms)(unseen) / machine_ms(mobile, unseen, 0) - 1
    )
    assert errors.mean() < 0.03
    assert 0.02 < held_out_error(mobile.blueprint, seen, ms) < 0.08


@given(data=st.data(), seed=st.integers(0, 20))
def test_prices_never_fall_when_a_width_grows(mobile: SlimmableNet, data: Any, seed: int) -> None:
    """Whatever was measured, be it nonsense: not even in the last digit."""
    rng = np.random.default_rng(seed)
    seen = counts_of(mobile, 12, 0)
    model = LatencyModel(mobile.blueprint, seen, rng.uniform(0.1, 10.0, len(seen)))
    units = st.floats(0.0, 1.0)
    low = np.array([data.draw(units) for _ in mobile.space.knobs])
    more = np.array([data.draw(units) for _ in mobile.space.knobs])
    span = 1.0 - mobile.space.low
    matrix = mobile.space.low + np.array([low, np.maximum(low, more)]) * span
    smaller, larger = model(mobile.space.counts(np.minimum(matrix, 1.0)))
    assert smaller <= larger


def test_one_child_and_thousands_have_equal_prices(mobile: SlimmableNet) -> None:
    seen = counts_of(mobile, 20, 0)
    model = LatencyModel(mobile.blueprint, seen, machine_ms(mobile, seen, 0))
    many = counts_of(mobile, 300, 3)
    assert model(many).tolist() == [model(row[None])[0] for row in many]
    assert model(many[:0]).shape == (0,)


def test_relative_errors_count(net: SlimmableNet) -> None:
    """Two halves of times that do not agree: no half is given up for being the faster one."""
    seen = counts_of(net, 40, 0)
    ms = machine_ms(net, seen, 0)
    ms[::2] *= 1.2
    ratios = LatencyModel(net.blueprint, seen, ms)(seen) / ms
    fast = ms < np.median(ms)
    assert abs(np.mean(ratios[fast]) - 1) < 0.05
    assert abs(np.mean(ratios[~fast]) - 1) < 0.05


@pytest.mark.parametrize("count", [2, 3, 7])
def test_few_children_will_do(net: SlimmableNet, count: int) -> None:
    seen = counts_of(net, count, 0)
    ms = machine_ms(net, seen, 0)
    prices = LatencyModel(net.blueprint, seen, ms)(seen)
    np.testing.assert_allclose(prices, ms, rtol=0.2)
    assert np.isfinite(held_out_error(net.blueprint, seen, ms))


def test_depthwise_layers_are_a_kind_of_their_own(mobile: SlimmableNet) -> None:
    kinds = [(layer.op, layer.kernel, is_depthwise(layer)) for layer in mobile.blueprint.layers]
    assert set(kinds) == {
        ("conv2d", (3, 3), False),
        ("conv2d", (1, 1), False),
        ("conv2d", (3, 3), True),
        ("linear", (), False),
    }
    assert kinds.count(("conv2d", (3, 3), True)) == 3


def test_axes_are_rounded_up(mobile: SlimmableNet) -> None:
    terms = [layer.macs for layer in mobile.blueprint.layers]
    counts = counts_of(mobile, 30, 0)
    exact, rounded = (Pricer(mobile.blueprint, terms, multiple)(counts) for multiple in (1, 16))
    assert (rounded >= exact).all()
    for term, row in zip(terms, rounded):
        for units, value in zip(mobile.blueprint.units(counts).tolist(), row):
            sizes = [rounded_up(layout.size(tuple(units)), 16) for layout in term.layouts]
            assert value == term.times * np.prod(sizes)


def test_a_fit_that_fails_is_one_line(net: SlimmableNet, monkeypatch: pytest.MonkeyPatch) -> None:
    def nnls(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr(scipy.optimize, "nnls", nnls)
    with pytest.raises(UserError, match=r"^latency: no model fits these times [^\n]*$"):
        LatencyModel(net.blueprint, counts_of(net, 4, 0), np.ones(4))
