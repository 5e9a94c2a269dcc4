"""The slimmable step: the gradients of several widths on one batch, added up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from joslim.errors import RunFailed
from joslim.slimmable import SlimmableNet
from joslim.slimmable.running import Inputs, call
from joslim.space import Widths
from joslim.training.distillation import Distillation

Criterion = Callable[[Any, Any], Tensor]

ADVICE = (
    "the weights are those before this step (running statistics may have moved); "
    "a lower learning rate or gradient clipping may help"
)


def backward(
    model: nn.Module,
    net: SlimmableNet,
    widths: Sequence[Widths],
    inputs: Inputs,
    labels: Any,
    criterion: Criterion,
    distill: Distillation,
    differentiate: Callable[[Tensor], Any] = Tensor.backward,
    label_share: float = 0.0,
    full_weight: float = 1.0,
    other_weight: float = 1.0,
    teacher: Callable[[Inputs], Any] | None = None,
    in_turn: bool = False,
    full_distill: float = 0.0,
) -> Tensor:
    """Add the gradients of all widths and return their losses, [n], detached.

    The first width learns from the labels, the others from its outputs (in-place distillation: Yu
    and Huang 2019, Algorithm 1, lines 3 to 16), or from those of `teacher`, or each from the one
    before it (`in_turn`). A share `label_share` of their loss is computed with the labels, and a
    share `full_distill` of the loss of the first with the teacher. The gradient of the first is
    multiplied by `full_weight`, that of each other by `other_weight`. `model` is called:
    it is `net`, or a wrapper around it. A wrapper that reduces gradients over processes does so
    once, with the last width. `differentiate` computes the gradients of a loss.
    """
    reducer = model if isinstance(model, DistributedDataParallel) else None
    losses: list[Tensor] = []
    taught: Any = teacher(inputs) if teacher and (full_distill or len(widths) > 1) else None
    for child in widths:
        # A wrapper that is in its own `no_sync` already, to accumulate gradients, stays in it.
        reducing = reducer.no_sync() if reducer and child is not widths[-1] else nullcontext()
        with reducing, net.at(child):
            outputs = call(model, inputs)
            # A term with weight 0 is not computed.
            share = label_share if losses else 1 - full_distill
            if share > 0:
                loss = labelled = criterion(outputs, labels)
            if share < 1:
                loss = distill(outputs, taught)
            if 0 < share < 1:
                loss = (1 - share) * loss + share * labelled
            if teacher is None and (in_turn or not losses):
                taught = detached(outputs)
            # Inside net.at: activation checkpointing runs parts of forward again.
            differentiate((other_weight if losses else full_weight) * loss)
        losses.append(loss.detach())
    return torch.stack(losses)


def detached(outputs: Any) -> Any:
    """Return the outputs detached from the graph, in the same containers."""
    if isinstance(outputs, Tensor):
        return outputs.detach()
    if isinstance(outputs, dict):
        items = {key: detached(value) for key, value in outputs.items()}
        return items if type(outputs) is dict else type(outputs)(**items)
    if isinstance(outputs, (tuple, list)):
        values = [detached(value) for value in outputs]
        return type(outputs)(*values) if hasattr(outputs, "_fields") else type(outputs)(values)
    if is_dataclass(outputs) and not isinstance(outputs, type):
        parts = {part.name: getattr(outputs, part.name) for part in fields(outputs)}
        return replace(outputs, **detached(parts))
    return outputs


def refuse_non_finite(losses: Tensor, widths: Sequence[Widths], step: int) -> None:
    """Raise RunFailed before the optimizer spreads a NaN over all weights."""
    for value, child in zip(losses.tolist(), widths):
        if not math.isfinite(value):
            raise RunFailed(f"the loss is {value} at step {step}, at widths {child}; {ADVICE}")


def clip_gradients(parameters: Iterable[nn.Parameter], most: float | None, step: int) -> None:
    """Scale the gradient down to the norm `most`, if given; raise RunFailed if it is not finite."""
    found = [parameter for parameter in parameters if parameter.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for p in found if p.grad is not None])
    if not math.isfinite(norm):
        raise RunFailed(f"the gradient is not finite at step {step}; {ADVICE}")
    if most is not None:
        nn.utils.clip_grads_with_norm_(found, most, norm)
