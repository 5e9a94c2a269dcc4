"""MobileNetV2: torchvision's names, shapes and sizes, and the paper's costs."""

from collections.abc import Callable

import torch
from torch import nn

from joslim.models import mobilenet_v2


def test_size_is_torchvisions() -> None:
    model = mobilenet_v2()
    assert sum(p.numel() for p in model.parameters()) == 3504872
    assert len(model.state_dict()) == 314


def test_names_and_shapes_are_torchvisions() -> None:
    shapes = {
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
    state = mobilenet_v2().state_dict()
    assert {key: tuple(state[key].shape) for key in shapes} == shapes


def test_costs_are_those_of_the_paper(
    millions: Callable[[nn.Module], float], shrink: Callable[[nn.Module], nn.Module]
) -> None:
    model = mobilenet_v2()
    assert round(millions(model), 2) == 300.77
    assert round(millions(shrink(model)), 2) == 59.56


def test_logits_of_another_number_of_classes() -> None:
    assert mobilenet_v2(num_classes=7)(torch.randn(2, 3, 64, 64)).shape == (2, 7)


def test_ten_blocks_add_their_input() -> None:
    assert sum(getattr(block, "residual", False) for block in mobilenet_v2().features) == 10


def test_dropout_and_defaults() -> None:
    model = mobilenet_v2()
    assert model.classifier[0].p == 0.2
    assert model.slim_defaults == {"low": 0.42, "input": (3, 224, 224)}
