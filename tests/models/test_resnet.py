"""ResNets: the paper's costs, torchvision's names and sizes, shortcuts that follow the widths."""

from collections.abc import Callable
from fnmatch import fnmatch

import pytest
import torch
from torch import nn

import joslim
from joslim.models import MODELS, resnet8, resnet18, resnet20, resnet34, resnet50
from joslim.models.resnet import CifarResNet, PaddedBlock

# For CIFAR

# depth, width, classes, multiply-adds in millions at full width and with all knobs at 0.316
CIFAR_COSTS = [
    (20, 1, 10, 40.551, 4.055),
    (32, 1, 10, 68.863, 6.820),
    (44, 1, 10, 97.174, 9.585),
    (56, 1, 10, 125.486, 12.350),
    (20, 2, 100, 161.330, 15.948),
    (20, 3, 100, 362.319, 35.672),
    (20, 4, 100, 643.524, 63.230),
    (20, 5, 100, 1004.945, 99.229),
]


@pytest.mark.parametrize(("depth", "width", "classes", "full", "low"), CIFAR_COSTS)
def test_cifar_costs_are_those_of_the_paper(
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


def test_cifar_names_and_shapes() -> None:
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
    block = PaddedBlock(in_channels, channels, stride=2).eval()
    nn.init.zeros_(block.conv2.weight)  # what is left is the shortcut
    x = torch.rand(2, in_channels, 8, 8)
    shared = min(in_channels, channels)
    out = block(x)
    assert out.shape == (2, channels, 4, 4)
    assert torch.equal(out[:, :shared], x[:, :shared, ::2, ::2])
    assert not out[:, shared:].any()


def test_the_input_of_a_block_can_be_freed_before_its_shortcut_is_added() -> None:
    """The strided shortcut is taken first: the whole input would cost 375,780 bytes."""
    net = joslim.slim(resnet20(width=2), torch.zeros(1, 3, 32, 32), low=0.316)
    assert joslim.cost("memory", net)(net.space.uniform(0.7)) == 353_508


def test_each_stage_ties_its_inner_convs() -> None:
    names = [name for name, _ in resnet20().named_modules()]
    ties = CifarResNet.slim_defaults["tie"]
    tied = [[n for n in names if any(fnmatch(n, pattern) for pattern in tie)] for tie in ties]
    assert tied == [[f"layer{stage}.{i}.conv1" for i in range(3)] for stage in (1, 2, 3)]


# For ImageNet


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
