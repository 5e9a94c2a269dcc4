"""Latency: a few children are measured, once, and all others are priced by a model of them."""

from collections.abc import Sequence
from pathlib import Path
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
from joslim import SlimmableNet, UserError, Widths
from joslim.costs import latency
from joslim.costs.counted import Pricer
from joslim.costs.latency import (
    Latency,
    LatencyModel,
    held_out_error,
    is_depthwise,
    spread_children,
    with_both_ends,
)
from joslim.costs.timing import Setting, Times


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The measurements that were asked for, on a machine that takes 1 ms for 100 channels."""
    calls: list[dict[str, Any]] = []

    def measure(
        net: SlimmableNet, children: Sequence[Widths], setting: Setting, repeats: int, watch: Any
    ) -> Times:
        calls.append({"children": list(children), "setting": setting, "repeats": repeats})
        ms = np.array([sum(child.counts) / 100 for child in children])
        return Times(ms, np.zeros(len(ms)))

    monkeypatch.setattr(latency, "measure", measure)
    return calls


def matrix_of(net: SlimmableNet, rows: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(net.space.low, 1.0, (rows, len(net.space)))


def test_milliseconds_of_a_real_network(net: SlimmableNet) -> None:
    cost = joslim.cost("latency", net, children=6, repeats=1)
    assert cost.unit == "ms"
    prices = cost.of(matrix_of(net, 100))
    assert ((prices > 0) & (prices < 60_000)).all()
    assert cost(net.space.smallest) <= cost(net.space.full)


def test_it_is_measured_once_and_late(net: SlimmableNet, measured: list[dict[str, Any]]) -> None:
    cost = joslim.cost("latency", net)
    assert measured == []
    first = cost(net.space.full)
    assert len(measured) == 1
    assert cost.of(matrix_of(net, 50)).shape == (50,)
    assert cost(net.space.full) == first
    assert len(measured) == 1


def test_what_is_measured(net: SlimmableNet, measured: list[dict[str, Any]]) -> None:
    joslim.cost("latency", net)(net.space.full)
    options = {"threads": 1, "batch": 3, "precision": "bf16", "backend": "compiled"}
    joslim.cost("latency", net, children=7, repeats=2, **options)(net.space.full)
    one, two = measured
    assert (len(one["children"]), one["repeats"], one["setting"]) == (64, 5, Setting())
    assert (len(two["children"]), two["repeats"], two["setting"]) == (7, 2, Setting(**options))
    for call in measured:
        assert call["children"][:2] == [net.space.smallest, net.space.full]
        assert len(set(call["children"])) == len(call["children"])


def test_every_cost_chooses_the_same_children(
    net: SlimmableNet, measured: list[dict[str, Any]]
) -> None:
    """So that what is measured twice can be compared."""
    for _ in range(2):
        joslim.cost("latency", net)(net.space.full)
    assert measured[0] == measured[1]


def test_prices_of_a_file_are_those_of_the_measurement(
    net: SlimmableNet, measured: list[dict[str, Any]], tmp_path: Path
) -> None:
    cost = joslim.cost("latency", net)
    assert isinstance(cost, Latency)
    cost.device_file.write(tmp_path / "device.json")
    elsewhere = joslim.cost("latency", net, device_file=tmp_path / "device.json")
    matrix = matrix_of(net, 3000)
    assert elsewhere.of(matrix).tolist() == cost.of(matrix).tolist()
    assert len(measured) == 1


def test_a_file_of_another_network_is_refused(
    net: SlimmableNet, measured: list[dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / "device.json"
    cost = joslim.cost("latency", net)
    assert isinstance(cost, Latency)
    cost.device_file.write(path)
    other = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 8, 8), low=0.5)
    with pytest.raises(UserError, match=r"^device_file: '[^\n]*' is of another network: [^\n]*$"):
        joslim.cost("latency", other, device_file=path)


def test_prices_never_fall_along_a_path(net: SlimmableNet, measured: list[dict[str, Any]]) -> None:
    steps = np.linspace(net.space.low, 1.0, 200)
    assert (np.diff(joslim.cost("latency", net).of(steps)) >= 0).all()


# Which children are measured


@pytest.mark.parametrize("count", [10, 64])
def test_they_lie_evenly_along_the_multiply_adds(net: SlimmableNet, count: int) -> None:
    children = spread_children(net, count, np.random.default_rng(0))
    cost = joslim.cost("macs", net)
    low, high = cost(net.space.smallest), cost(net.space.full)
    shares = np.array([(cost(child) - low) / (high - low) for child in children])
    assert len(set(children)) == count
    even = np.linspace(shares.min(), shares.max(), count)
    assert np.abs(np.sort(shares) - even).max() < 0.03
    assert shares.min() < 0.05
    assert shares.max() > 0.95


def test_some_can_be_left_out(net: SlimmableNet) -> None:
    known = with_both_ends(net, 30, np.random.default_rng(0))
    others = spread_children(net, 30, np.random.default_rng(0), without=known)
    assert len(others) == 30
    assert not set(known) & set(others)


def test_a_network_with_few_children(measured: list[dict[str, Any]]) -> None:
    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 2, 3)
    net = joslim.slim(torch.nn.Sequential(*layers), torch.zeros(1, 3, 8, 8), low=0.5)
    cost = joslim.cost("latency", net)
    prices = [cost(net.space.of_counts([count])) for count in (2, 3, 4)]
    assert prices == sorted(prices)
    assert sorted(child.counts for child in measured[0]["children"]) == [(2,), (3,), (4,)]


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeats": 0}, "repeats: 0 is not a whole number from 1 to 10000"),
        ({"children": 1}, "children: 1 is not a whole number from 2 to 10000"),
        ({"children": "many"}, "children: 'many' is not a whole number"),
        ({"threads": 0}, "threads: 0 is not a whole number from 1 to 1024"),
        ({"precision": "int8"}, "precision: unknown name 'int8'"),
        ({"speed": 3}, "cost: latency does not take these options: {'speed': 3}"),
        ({"device_file": "no.json"}, "device_file: cannot read 'no.json': "),
        (
            {"device_file": "no.json", "threads": 1},
            "device_file: it is measured already; give no other options",
        ),
    ],
)
def test_options_that_make_no_sense(
    options: dict[str, Any], message: str, net: SlimmableNet
) -> None:
    with pytest.raises(UserError) as caught:
        joslim.cost("latency", net, **options)
    assert str(caught.value).startswith(message)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu() -> None:
    net = joslim.slim(joslim.models.resnet8().cuda(), torch.zeros(1, 3, 8, 8, device="cuda"))
    cost = joslim.cost("latency", net, children=4, repeats=2)
    assert cost(net.space.full) > 0


# The model


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
