"""Optimizers by name: a row of a table each. Importing this file does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@dataclass(frozen=True)
class OptimizerKind:
    """How an optimizer is made of parameters, rate, momentum and weight decay.

    keeps: Names of the tensors that it keeps for each parameter: its "step" is a number, all others
    have the shape of the parameter.
    defaults: Settings in place of those of a recipe, which are for SGD.
    """

    make: Callable[[Iterable[nn.Parameter], float, float, float], Optimizer]
    keeps: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)


def _sgd(
    parameters: Iterable[nn.Parameter], lr: float, momentum: float, weight_decay: float
) -> Optimizer:
    from torch.optim import SGD

    return SGD(
        parameters, lr=lr, momentum=momentum, nesterov=momentum > 0, weight_decay=weight_decay
    )


def _adamw(
    parameters: Iterable[nn.Parameter], lr: float, momentum: float, weight_decay: float
) -> Optimizer:
    from torch.optim import AdamW

    return AdamW(parameters, lr=lr, betas=(momentum, 0.999), weight_decay=weight_decay)


OPTIMIZERS = {
    "sgd": OptimizerKind(_sgd, ("momentum_buffer",)),
    "adamw": OptimizerKind(
        _adamw,
        ("step", "exp_avg", "exp_avg_sq"),
        {"lr": 0.002, "momentum": 0.9, "weight_decay": 0.05},
    ),
}
