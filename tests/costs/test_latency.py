"""Latency: a few children are measured, once, and all others are priced by a model of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import joslim
from joslim import SlimmableNet, UserError, Widths
from joslim.costs import latency
from joslim.costs.latency import Latency, spread_children, with_both_ends
from joslim.costs.measuring import Setting, Times


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
        ({"device_file": "no.json"}, "device_file: 'no.json': cannot be read: "),
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
