"""The slimmable step: several widths, one batch, one sum of gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from joslim.errors import RunFailed
from joslim.slimmable import SlimmableNet
from joslim.training.distillation import Distillation
from joslim.widths import Widths

Criterion = Callable[[Any, Any], Tensor]

ADVICE = (
    "the weights are those before this step (running statistics may have moved); "
    "a lower learning rate or gradient clipping may help"
)


def backward(
    model: nn.Module,
    net: SlimmableNet,
    widths: Sequence[Widths],
    inputs: tuple[Any, ...],
    labels: Any,
    criterion: Criterion,
    distill: Distillation,
    differentiate: Callable[[Tensor], Any] = Tensor.backward,
    label_share: float = 0.0,
    full_weight: float = 1.0,
    other_weight: float = 1.0,
) -> Tensor:
    """Add the gradients of all these widths; returns their losses, [n], detached.

    The first of the widths learns from the labels, the others from its outputs (in-place
    distillation: Yu and Huang 2019, Algorithm 1, lines 3 to 16), or partly from the labels too:
    `label_share` says how much of their loss that is. The gradient of the first counts
    `full_weight` times, that of each other `other_weight` times. `model` is what is called: `net`,
    or a wrapper around it; one that reduces gradients over processes does so once, with the last of
    the widths. `differentiate` makes the gradients of a loss.
    """
    losses: list[Tensor] = []
    teacher: Any = None
    for child in widths:
        with reducing(model, child is widths[-1]):
            with net.at(child):
                outputs = model(*inputs)
                if teacher is None:
                    teacher = detached(outputs)
                    loss = criterion(outputs, labels)
                else:
                    loss = learned(outputs, teacher, labels, criterion, distill, label_share)
            differentiate((other_weight if losses else full_weight) * loss)
        losses.append(loss.detach())
    return torch.stack(losses)


def learned(
    outputs: Any,
    teacher: Any,
    labels: Any,
    criterion: Criterion,
    distill: Distillation,
    label_share: float,
) -> Tensor:
    """The loss of a child. What counts for nothing is not computed."""
    if label_share == 0:
        return distill(outputs, teacher)
    if label_share == 1:
        return criterion(outputs, labels)
    taught, told = distill(outputs, teacher), criterion(outputs, labels)
    return (1 - label_share) * taught + label_share * told


def reducing(model: nn.Module, now: bool) -> AbstractContextManager[Any]:
    """Inside, gradients are only added up on each process, unless it is time to reduce them.

    A wrapper that is inside of its own `no_sync` already, to accumulate gradients, stays in it.
    """
    if now or not isinstance(model, DistributedDataParallel):
        return nullcontext()
    return model.no_sync()


def detached(outputs: Any) -> Any:
    """The outputs without their history, whatever they are packed in."""
    if isinstance(outputs, Tensor):
        return outputs.detach()
    if isinstance(outputs, dict):
        fields = {key: detached(value) for key, value in outputs.items()}
        return fields if type(outputs) is dict else type(outputs)(**fields)
    if isinstance(outputs, (tuple, list)):
        values = [detached(value) for value in outputs]
        return type(outputs)(*values) if hasattr(outputs, "_fields") else type(outputs)(values)
    return outputs


def refuse_non_finite(losses: Tensor, widths: Sequence[Widths], step: int) -> None:
    """Stop before the optimizer spreads a NaN over all weights."""
    for value, child in zip(losses.tolist(), widths):
        if not math.isfinite(value):
            raise RunFailed(f"the loss is {value} at step {step}, at widths {child}; {ADVICE}")


def clip_gradients(parameters: Iterable[nn.Parameter], most: float | None, step: int) -> None:
    """Scale the gradient down to this norm, if one is given; a norm that is not finite stops."""
    found = [parameter for parameter in parameters if parameter.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for p in found if p.grad is not None])
    if not math.isfinite(norm):
        raise RunFailed(f"the gradient is not finite at step {step}; {ADVICE}")
    if most is not None:
        nn.utils.clip_grads_with_norm_(found, most, norm)
