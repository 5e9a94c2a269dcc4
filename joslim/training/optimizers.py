"""Optimizers by name: a row of a table each, and the parameters that weight decay acts on.

Importing this file does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    # Of one group, or of several groups with options of their own.
    Parameters = Iterable[nn.Parameter] | list[dict[str, Any]]


@dataclass(frozen=True)
class OptimizerKind:
    """How an optimizer is made of parameters, and of lr, momentum and weight_decay by name.

    A fused one can leave out a step that is not finite without asking the device.

    keeps: Names of the tensors that it keeps for each parameter: its "step" is a number, all others
    have the shape of the parameter.
    defaults: Settings in place of those of a recipe, which are for SGD.
    """

    make: Callable[..., Optimizer]
    keeps: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)


def _sgd(parameters: Parameters, momentum: float, **options: Any) -> Optimizer:
    from torch.optim import SGD

    return SGD(parameters, momentum=momentum, nesterov=momentum > 0, **options)


def _adamw(parameters: Parameters, momentum: float, **options: Any) -> Optimizer:
    from torch.optim import AdamW

    return AdamW(parameters, betas=(momentum, 0.999), **options)


OPTIMIZERS = {
    "sgd": OptimizerKind(_sgd, ("momentum_buffer",)),
    "adamw": OptimizerKind(
        _adamw,
        ("step", "exp_avg", "exp_avg_sq"),
        {"lr": 0.002, "momentum": 0.9, "weight_decay": 0.05},
    ),
}


def parameter_groups(net: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Divide the parameters for an optimizer: with weight decay, and without.

    Norms, biases and depthwise convolutions have no weight decay, as in the training of
    universally slimmable networks (US-Nets), whose recipe the paper follows.

    Args:
        net: The network, slimmable or not.
        weight_decay: Weight decay of all other parameters.

    Returns:
        Two parameter groups, as all optimizers of torch take them.

    Examples:
        >>> net = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 8, 8))
        >>> optimizer = torch.optim.SGD(joslim.parameter_groups(net, 5e-4), lr=0.1)
        >>> [group["weight_decay"] for group in optimizer.param_groups]
        [0.0005, 0.0]
    """
    from torch import nn
    from torch.nn.modules.conv import _ConvNd

    spared = {
        id(parameter)
        for module in net.modules()
        for parameter in module._parameters.values()
        if parameter is not None
        and (
            parameter.ndim <= 1
            or isinstance(module, (nn.LayerNorm, nn.RMSNorm))
            or (isinstance(module, _ConvNd) and module.groups > 1 and parameter.shape[1] == 1)
        )
    }
    decayed = [parameter for parameter in net.parameters() if id(parameter) not in spared]
    others = [parameter for parameter in net.parameters() if id(parameter) in spared]
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]


# The parameters that weight decay acts on.
DECAYS: dict[str, Callable[[nn.Module, float], Parameters]] = {
    "all": lambda net, weight_decay: net.parameters(),
    "weights": parameter_groups,
}
