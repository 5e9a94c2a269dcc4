"""Two oracles that know nothing of the library: torch's own counter, and layers cut by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


@pytest.fixture
def millions() -> Callable[[nn.Module], float]:
    """Multiply-adds of one image, in millions; torch counts two operations for each."""

    def count(model: Any) -> float:
        shape = model.slim_defaults["input"]
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model.eval()(torch.zeros(1, *shape))
        return counter.get_total_flops() / 2e6

    return count


@pytest.fixture
def shrink() -> Callable[[nn.Module], nn.Module]:
    """Cut every layer to `int(low x full)` channels, but for image, classes and squeezed gates."""

    def cut(model: Any) -> nn.Module:
        low = model.slim_defaults["low"]
        layers = dict(model.named_modules())
        head = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)][-1]
        for name, layer in layers.items():
            if isinstance(layer, nn.Conv2d):
                if not name.endswith("fc1"):
                    layer.out_channels = int(low * layer.out_channels)
                if layer.in_channels != 3 and not name.endswith("fc2"):
                    layer.in_channels = int(low * layer.in_channels)
                layer.groups = 1 if layer.groups == 1 else layer.in_channels
                inputs = layer.in_channels // layer.groups
                layer.weight.data = layer.weight.data[: layer.out_channels, :inputs]
                if layer.bias is not None:
                    layer.bias.data = layer.bias.data[: layer.out_channels]
            elif isinstance(layer, nn.Linear):
                outputs = layer.out_features if name == head else int(low * layer.out_features)
                layer.weight.data = layer.weight.data[:outputs, : int(low * layer.in_features)]
                layer.bias.data = layer.bias.data[:outputs]
            elif isinstance(layer, nn.BatchNorm2d):
                channels = int(low * layer.num_features)
                for vector in (layer.weight, layer.bias, layer.running_mean, layer.running_var):
                    assert vector is not None
                    vector.data = vector.data[:channels]
        return model

    return cut
