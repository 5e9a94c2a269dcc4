"""ImageNet ResNets: torchvision's names, shapes and sizes, and the paper's costs."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from joslim.models import MODELS, resnet18, resnet34, resnet50


@pytest.mark.parametrize(
    ("name", "parameters", "entries"),
    [("resnet18", 11689512, 122), ("resnet34", 21797672, 218), ("resnet50", 25557032, 320)],
)
def test_sizes_are_torchvisions(name: str, parameters: int, entries: int) -> None:
    model = MODELS[name]()
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert len(model.state_dict()) == entries


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        (
            "resnet18",
            {
                "conv1.weight": (64, 3, 7, 7),
                "bn1.num_batches_tracked": (),
                "layer1.0.conv1.weight": (64, 64, 3, 3),
                "layer1.1.bn2.running_var": (64,),
                "layer2.0.conv1.weight": (128, 64, 3, 3),
                "layer2.0.downsample.0.weight": (128, 64, 1, 1),
                "layer2.0.downsample.1.running_mean": (128,),
                "layer4.1.conv2.weight": (512, 512, 3, 3),
                "fc.weight": (1000, 512),
                "fc.bias": (1000,),
            },
        ),
        (
            "resnet34",
            {
                "layer1.2.conv2.weight": (64, 64, 3, 3),
                "layer2.3.conv1.weight": (128, 128, 3, 3),
                "layer3.5.bn1.weight": (256,),
                "layer4.2.conv2.weight": (512, 512, 3, 3),
                "fc.weight": (1000, 512),
            },
        ),
        (
            "resnet50",
            {
                "layer1.0.conv1.weight": (64, 64, 1, 1),
                "layer1.0.conv3.weight": (256, 64, 1, 1),
                "layer1.0.downsample.0.weight": (256, 64, 1, 1),
                "layer2.0.conv2.weight": (128, 128, 3, 3),
                "layer3.5.bn3.bias": (1024,),
                "layer4.0.downsample.0.weight": (2048, 1024, 1, 1),
                "layer4.2.conv1.weight": (512, 2048, 1, 1),
                "fc.weight": (1000, 2048),
            },
        ),
    ],
)
def test_names_and_shapes_are_torchvisions(name: str, shapes: dict[str, tuple[int, ...]]) -> None:
    state = MODELS[name]().state_dict()
    assert {key: tuple(state[key].shape) for key in shapes} == shapes
    assert "layer1.1.downsample.0.weight" not in state


def test_basic_blocks_of_the_first_stage_need_no_conv_in_the_shortcut() -> None:
    assert "layer1.0.downsample.0.weight" not in resnet34().state_dict()


def test_bottlenecks_stride_in_the_3x3_conv() -> None:
    block = resnet50().layer2[0]
    assert (block.conv1.stride, block.conv2.stride) == ((1, 1), (2, 2))


@pytest.mark.parametrize(
    ("name", "full", "low"), [("resnet18", 1814.07, 338.87), ("resnet50", 4089.18, None)]
)
def test_costs_are_the_published_ones(
    name: str,
    full: float,
    low: float | None,
    millions: Callable[[nn.Module], float],
    shrink: Callable[[nn.Module], nn.Module],
) -> None:
    model = MODELS[name]()
    assert round(millions(model), 2) == full
    assert low is None or round(millions(shrink(model)), 2) == low


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_logits_of_another_number_of_classes(name: str) -> None:
    assert MODELS[name](num_classes=7)(torch.randn(2, 3, 64, 64)).shape == (2, 7)


def test_defaults() -> None:
    assert resnet18().slim_defaults == {"low": 0.42, "input": (3, 224, 224)}
