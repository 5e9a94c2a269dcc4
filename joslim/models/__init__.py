"""The paper's networks, as plain `nn.Module`s. A new one is a file here and a row in `MODELS`."""

from collections.abc import Callable

from torch import nn

from .cifar_resnet import (
    resnet8,
    resnet20,
    resnet20_2x,
    resnet20_3x,
    resnet20_4x,
    resnet20_5x,
    resnet32,
    resnet44,
    resnet56,
)
from .mobilenet_v2 import mobilenet_v2
from .mobilenet_v3 import mobilenet_v3_large
from .resnet import resnet18, resnet34, resnet50

MODELS: dict[str, Callable[..., nn.Module]] = {
    "resnet8": resnet8,
    "resnet20": resnet20,
    "resnet20_2x": resnet20_2x,
    "resnet20_3x": resnet20_3x,
    "resnet20_4x": resnet20_4x,
    "resnet20_5x": resnet20_5x,
    "resnet32": resnet32,
    "resnet44": resnet44,
    "resnet56": resnet56,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "mobilenet_v3_large": mobilenet_v3_large,
}

__all__ = [
    "MODELS",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "resnet8",
    "resnet18",
    "resnet20",
    "resnet20_2x",
    "resnet20_3x",
    "resnet20_4x",
    "resnet20_5x",
    "resnet32",
    "resnet34",
    "resnet44",
    "resnet50",
    "resnet56",
]
