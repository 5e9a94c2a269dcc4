"""Latency: the cut-out child is timed, once."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import joslim
from joslim import SlimmableNet
from joslim.costs import latency
from joslim.costs.latency import WARM_UP, Latency, time_forward


class Slow(nn.Module):
    """Each forward pass moves the clock on by the next of these seconds."""

    def __init__(self, seconds: list[float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.seconds, self.now = seconds, 100.0
        self.calls: list[tuple[bool, Any]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.now += self.seconds[len(self.calls)]
        out = x * self.weight
        self.calls.append((out.requires_grad, x))
        return out


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The modules that are timed, instead of their times: 1, 2, 3, ... ms."""
    modules: list[nn.Module] = []

    def record(model: nn.Module, inputs: tuple[Any, ...], repeats: int) -> float:
        modules.append(model)
        return float(len(modules))

    monkeypatch.setattr(latency, "time_forward", record)
    return modules


def test_milliseconds_of_a_real_child(net: SlimmableNet) -> None:
    cost = joslim.cost("latency", net, repeats=3)
    assert cost.unit == "ms"
    assert 0 < cost(net.space.smallest) < 60_000


def test_the_median_after_a_warm_up_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    model, example = Slow([9.0] * WARM_UP + [0.001, 0.005, 0.002]), torch.ones(2)
    monkeypatch.setattr(latency, "time", SimpleNamespace(perf_counter=lambda: model.now))
    assert time_forward(model, (example,), repeats=3) == pytest.approx(2.0)
    assert len(model.calls) == WARM_UP + 3
    assert all(not gradient and x is example for gradient, x in model.calls)


def test_repeats_are_an_option(net: SlimmableNet, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        latency, "time_forward", lambda model, inputs, repeats: asked.append(repeats) or 1.0
    )
    joslim.cost("latency", net)(net.space.full)
    joslim.cost("latency", net, repeats=4)(net.space.full)
    assert asked == [15, 4]


def test_a_child_is_measured_once(net: SlimmableNet, timed: list[nn.Module]) -> None:
    cost = joslim.cost("latency", net)
    a, b = net.space.smallest, net.space.full
    assert [cost(a), cost(b), cost(a)] == [1.0, 2.0, 1.0]
    assert cost.of([a.multipliers, b.multipliers, a.multipliers]).tolist() == [1.0, 2.0, 1.0]
    assert len(timed) == 2


def test_measurements_are_kept_by_counts(net: SlimmableNet, timed: list[nn.Module]) -> None:
    cost = joslim.cost("latency", net)
    assert cost.of([[0.5] * 6, [0.505] * 6]).tolist() == [1.0, 1.0]


def test_what_is_timed_is_an_ordinary_child_in_eval_mode(
    net: SlimmableNet, timed: list[nn.Module]
) -> None:
    net.train()
    child = net.space.uniform(0.5)
    with net.at(net.space.smallest):
        joslim.cost("latency", net)(child)
    (module,) = timed
    assert not isinstance(module, SlimmableNet)
    assert not any(part.training for part in module.modules())
    assert module.conv1.out_channels == child.channels["conv1"] == 8
    assert net.training


def test_one_image_is_timed_whatever_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    net = joslim.slim(joslim.models.resnet8(), torch.zeros(4, 3, 8, 8))
    shapes: list[tuple[int, ...]] = []

    def record(model: nn.Module, inputs: tuple[Any, ...], repeats: int) -> float:
        shapes.extend(tuple(x.shape) for x in inputs)
        return 1.0

    monkeypatch.setattr(latency, "time_forward", record)
    joslim.cost("latency", net)(net.space.full)
    assert shapes == [(1, 3, 8, 8)]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu() -> None:
    net = joslim.slim(joslim.models.resnet8().cuda(), torch.zeros(1, 3, 8, 8, device="cuda"))
    cost = joslim.cost("latency", net, repeats=3)
    assert isinstance(cost, Latency)
    assert cost(net.space.full) > 0
