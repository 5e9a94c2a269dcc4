"""The networks of the paper, a U-Net and a small decoder of text, as plain `nn.Module`s.

They do not import joslim.

`MODELS` is the table by name. To add a network, say RegNet:

1. Write `regnet.py` in this folder: an ordinary `nn.Module` with torchvision's names, so that its
   weights load, and a function `regnet_y_400mf(num_classes=1000)` that returns it. End `__init__`
   with `init_weights(self)` of `resnet.py`. In `forward`, read sizes from tensors (`x.shape[1]`),
   because a literal size freezes its layer when `joslim.slim` makes the network slimmable.
2. Give the class an attribute `slim_defaults`: `"input"` (channels, height, width) and `"low"` are
   needed; `"keep"` and `"tie"` are defaults for the options of `joslim.slim`.
3. Import the function below, and add it to `MODELS` and `__all__`. `--model regnet_y_400mf` works
   then, and so do `joslim profile` and all tests that go through the table.
4. Add `tests/models/test_regnet.py`, which compares the number of parameters and the multiply-adds
   with published ones.

A network outside of this package needs none of this: type `--model package.module:function`.

Examples:
    >>> net = joslim.models.resnet20(num_classes=100)
    >>> sum(parameter.numel() for parameter in net.parameters())
    275572
    >>> "mobilenet_v2" in joslim.models.MODELS
    True
"""

from collections.abc import Callable

from torch import nn

from .llama import tiny_llama
from .mobilenet import mobilenet_v2, mobilenet_v3_large
from .resnet import (
    resnet8,
    resnet18,
    resnet20,
    resnet20_2x,
    resnet20_3x,
    resnet20_4x,
    resnet20_5x,
    resnet32,
    resnet34,
    resnet44,
    resnet50,
    resnet56,
)
from .unet import unet

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
    "unet": unet,
    "tiny_llama": tiny_llama,
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
    "tiny_llama",
    "unet",
]
