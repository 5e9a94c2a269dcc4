"""CIFAR ResNets: the paper's costs, and shortcuts that follow whatever widths run."""

from collections.abc import Callable
from fnmatch import fnmatch

import pytest
import torch
from torch import nn

from joslim.models import MODELS, resnet8, resnet20
from joslim.models.cifar_resnet import Block, CifarResNet

# depth, width, classes, multiply-adds in millions at full width and with all knobs at 0.316
COSTS = [
    (20, 1, 10, 40.551, 4.055),
    (32, 1, 10, 68.863, 6.820),
    (44, 1, 10, 97.174, 9.585),
    (56, 1, 10, 125.486, 12.350),
    (20, 2, 100, 161.330, 15.948),
    (20, 3, 100, 362.319, 35.672),
    (20, 4, 100, 643.524, 63.230),
    (20, 5, 100, 1004.945, 99.229),
]


@pytest.mark.parametrize(("depth", "width", "classes", "full", "low"), COSTS)
def test_costs_are_those_of_the_paper(
    depth: int,
    width: int,
    classes: int,
    full: float,
    low: float,
    millions: Callable[[nn.Module], float],
    shrink: Callable[[nn.Module], nn.Module],
) -> None:
    model = MODELS[f"resnet{depth}"](num_classes=classes, width=width)
    assert round(millions(model), 3) == full
    assert round(millions(shrink(model)), 3) == low


@pytest.mark.parametrize("depth", [8, 20, 32, 44, 56])
def test_depth_counts_the_layers_with_weights(depth: int) -> None:
    layers = MODELS[f"resnet{depth}"]().modules()
    assert sum(isinstance(layer, nn.Conv2d | nn.Linear) for layer in layers) == depth


def test_other_depths_are_refused() -> None:
    with pytest.raises(ValueError, match="depth=18"):
        CifarResNet(18)


def test_names_and_shapes() -> None:
    shapes = {
        name: tuple(value.shape) for name, value in resnet20(100, width=2).state_dict().items()
    }
    assert shapes["conv1.weight"] == (32, 3, 3, 3)
    assert shapes["bn1.running_mean"] == (32,)
    assert shapes["layer1.0.conv1.weight"] == (32, 32, 3, 3)
    assert shapes["layer2.0.conv1.weight"] == (64, 32, 3, 3)
    assert shapes["layer3.2.conv2.weight"] == (128, 128, 3, 3)
    assert shapes["layer3.2.bn2.bias"] == (128,)
    assert shapes["fc.weight"] == (100, 128)
    assert len(shapes) == 19 * 6 + 2


@pytest.mark.parametrize("size", [16, 32, 33])
def test_any_image_size_gives_logits(size: int) -> None:
    assert resnet8(num_classes=7)(torch.randn(2, 3, size, size)).shape == (2, 7)


@pytest.mark.parametrize(("in_channels", "channels"), [(4, 6), (6, 6), (6, 4)])
def test_shortcut_pads_or_crops_to_the_main_branch(in_channels: int, channels: int) -> None:
    block = Block(in_channels, channels, stride=2).eval()
    nn.init.zeros_(block.conv2.weight)  # what is left is the shortcut
    x = torch.rand(2, in_channels, 8, 8)
    shared = min(in_channels, channels)
    out = block(x)
    assert out.shape == (2, channels, 4, 4)
    assert torch.equal(out[:, :shared], x[:, :shared, ::2, ::2])
    assert not out[:, shared:].any()


def test_each_stage_ties_its_inner_convs() -> None:
    names = [name for name, _ in resnet20().named_modules()]
    ties = CifarResNet.slim_defaults["tie"]
    tied = [[n for n in names if any(fnmatch(n, pattern) for pattern in tie)] for tie in ties]
    assert tied == [[f"layer{stage}.{i}.conv1" for i in range(3)] for stage in (1, 2, 3)]
