"""MobileNets: torchvision's names, shapes and sizes, and the paper's costs."""

from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any

import pytest
import torch
from torch import nn

from joslim.models import MODELS, mobilenet_v2, mobilenet_v3_large
from joslim.models.mobilenet import SqueezeExcitation

SHAPES_V2 = {
    "features.0.0.weight": (32, 3, 3, 3),
    "features.0.1.running_mean": (32,),
    "features.1.conv.0.0.weight": (32, 1, 3, 3),
    "features.1.conv.0.1.weight": (32,),
    "features.1.conv.1.weight": (16, 32, 1, 1),
    "features.1.conv.2.bias": (16,),
    "features.2.conv.0.0.weight": (96, 16, 1, 1),
    "features.2.conv.1.0.weight": (96, 1, 3, 3),
    "features.2.conv.2.weight": (24, 96, 1, 1),
    "features.2.conv.3.running_var": (24,),
    "features.17.conv.2.weight": (320, 960, 1, 1),
    "features.18.0.weight": (1280, 320, 1, 1),
    "features.18.1.num_batches_tracked": (),
    "classifier.1.weight": (1000, 1280),
    "classifier.1.bias": (1000,),
}
SHAPES_V3 = {
    "features.0.0.weight": (16, 3, 3, 3),
    "features.0.1.running_mean": (16,),
    "features.1.block.0.0.weight": (16, 1, 3, 3),
    "features.1.block.1.0.weight": (16, 16, 1, 1),
    "features.1.block.1.1.bias": (16,),
    "features.2.block.0.0.weight": (64, 16, 1, 1),
    "features.4.block.1.0.weight": (72, 1, 5, 5),
    "features.4.block.2.fc1.weight": (24, 72, 1, 1),
    "features.4.block.2.fc1.bias": (24,),
    "features.4.block.2.fc2.weight": (72, 24, 1, 1),
    "features.4.block.3.0.weight": (40, 72, 1, 1),
    "features.7.block.1.0.weight": (240, 1, 3, 3),
    "features.15.block.2.fc1.weight": (240, 960, 1, 1),
    "features.15.block.3.1.running_var": (160,),
    "features.16.0.weight": (960, 160, 1, 1),
    "features.16.1.num_batches_tracked": (),
    "classifier.0.weight": (1280, 960),
    "classifier.3.weight": (1000, 1280),
    "classifier.3.bias": (1000,),
}


@pytest.mark.parametrize(
    ("name", "parameters", "entries", "shapes"),
    [
        ("mobilenet_v2", 3504872, 314, SHAPES_V2),
        ("mobilenet_v3_large", 5483032, 312, SHAPES_V3),
    ],
)
def test_sizes_names_and_shapes_are_torchvisions(
    name: str, parameters: int, entries: int, shapes: dict[str, tuple[int, ...]]
) -> None:
    model = MODELS[name]()
    state = model.state_dict()
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert len(state) == entries
    assert {key: tuple(state[key].shape) for key in shapes} == shapes


@pytest.mark.parametrize(
    ("name", "full", "low"),
    [("mobilenet_v2", 300.77, 59.56), ("mobilenet_v3_large", 216.59, 43.40)],
)
def test_costs_are_those_of_the_paper(
    name: str,
    full: float,
    low: float,
    millions: Callable[[nn.Module], float],
    shrink: Callable[[nn.Module], nn.Module],
) -> None:
    model = MODELS[name]()
    assert round(millions(model), 2) == full
    assert round(millions(shrink(model)), 2) == low


@pytest.mark.parametrize("name", ["mobilenet_v2", "mobilenet_v3_large"])
def test_logits_of_another_number_of_classes(name: str) -> None:
    assert MODELS[name](num_classes=7)(torch.randn(2, 3, 64, 64)).shape == (2, 7)


def test_ten_blocks_add_their_input() -> None:
    assert sum(getattr(block, "residual", False) for block in mobilenet_v2().features) == 10


def test_v2_dropout_and_defaults() -> None:
    model = mobilenet_v2()
    assert model.classifier[0].p == 0.2
    assert model.slim_defaults == {"low": 0.42, "input": (3, 224, 224)}


def test_gate_scales_each_channel_by_one_number() -> None:
    gate: Any = SqueezeExcitation(8, 4)
    x = torch.rand(2, 8, 5, 5) + 1
    scale = gate(x) / x
    assert torch.allclose(scale, scale.mean((2, 3), keepdim=True).expand_as(x))
    assert (scale >= 0).all()
    assert (scale <= 1).all()
    nn.init.zeros_(gate.fc2.weight)
    nn.init.constant_(gate.fc2.bias, 3.0)  # where a hard sigmoid reaches 1
    assert torch.equal(gate(x), x)


def test_v3_norms_dropout_and_activations() -> None:
    model = mobilenet_v3_large()
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert {(norm.eps, norm.momentum) for norm in norms} == {(0.001, 0.01)}
    assert model.classifier[2].p == 0.2
    relus = [
        i for i, f in enumerate(model.features) if any(type(m) is nn.ReLU for m in f.modules())
    ]
    assert relus == [1, 2, 3, 4, 5, 6]


def test_keep_names_the_eight_squeezes() -> None:
    model = mobilenet_v3_large()
    (pattern,) = model.slim_defaults["keep"]
    kept = [name for name, _ in model.named_modules() if fnmatch(name, pattern)]
    gates = [name for name, m in model.named_modules() if isinstance(m, SqueezeExcitation)]
    assert kept == [f"{name}.fc1" for name in gates]
    assert len(kept) == 8
