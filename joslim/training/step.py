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
    full: Widths | None = None,
) -> Tensor:
    """Add the gradients of all widths and return their losses, [n], detached.

    `full`, by default the first width, learns from the labels, the others from its outputs
    (in-place distillation: Yu and Huang 2019, Algorithm 1, lines 3 to 16), or from those of
    `teacher`, or each from the one before it (`in_turn`). A share `label_share` of their loss is
    computed with the labels, and a share `full_distill` of the loss of `full` with the teacher. The
    gradient of `full` is multiplied by `full_weight`, that of each other by `other_weight`. `full`
    may be absent from `widths` if it does not teach. `model` is called:
    it is `net`, or a wrapper around it. A wrapper that reduces gradients over processes does so
    once, with the last width. `differentiate` computes the gradients of a loss.
    """
    reducer = model if isinstance(model, DistributedDataParallel) else None
    losses: list[Tensor] = []
    full = widths[0] if full is None else full
    taught: Any = teacher(inputs) if teacher and (full_distill or [*widths] != [full]) else None
    for child in widths:
        # A wrapper that is in its own `no_sync` already, to accumulate gradients, stays in it.
        reducing = reducer.no_sync() if reducer and child is not widths[-1] else nullcontext()
        with reducing, net.at(child):
            outputs = call(model, inputs)
            # A term with weight 0 is not computed.
            share = 1 - full_distill if child == full else label_share
            if share > 0:
                loss = labelled = criterion(outputs, labels)
            if share < 1:
                loss = distill(outputs, taught)
            if 0 < share < 1:
                loss = (1 - share) * loss + share * labelled
            if teacher is None and (in_turn or not losses):
                taught = detached(outputs)
            # Inside net.at: activation checkpointing runs parts of forward again.
            differentiate((full_weight if child == full else other_weight) * loss)
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


def clip_gradients(parameters: Iterable[nn.Parameter], most: float | None) -> Tensor:
    """Scale the gradient down to the norm `most`, if given; return its norm before that."""
    found = [parameter for parameter in parameters if parameter.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for p in found if p.grad is not None])
    if most is not None:
        nn.utils.clip_grads_with_norm_(found, most, norm)
    return norm


class FiniteCheck:
    """Finds losses and gradients that are not finite, without waiting for a GPU.

    On a CPU, `add` raises RunFailed at once. On other devices the losses stay there until `read`
    copies those of many steps at once. Up to then the flag that `add` returns, true from the first
    step on that is not finite, makes `step_unless` change nothing: whenever the failure is found,
    the weights are those before it.
    """

    def __init__(self) -> None:
        # The losses of each of the widths at the last step that was read.
        self.losses: dict[Widths, float] = {}
        # Of each step since then: its number, its widths, and their losses and the norm, [n + 1].
        self.unread: list[tuple[int, Sequence[Widths], Tensor]] = []
        self.failed: Tensor | None = None

    def add(
        self, step: int, widths: Sequence[Widths], losses: Tensor, norm: Tensor
    ) -> Tensor | None:
        """Note the losses and the norm of the gradient of a step.

        Returns a boolean on the device: whether the optimizer must not change the weights. Returns
        None if the step is already known to be finite.
        """
        values = torch.cat([losses, norm.to(losses.device).reshape(1)])
        self.unread.append((step, widths, values))
        if reads_for_free(values.device):
            self.read()
            return None
        failed = ~values.isfinite().all()
        self.failed = failed if self.failed is None else self.failed | failed
        return self.failed

    def read(self) -> None:
        """Copy all that is unread to the host; raise RunFailed for the first that is not finite."""
        unread, self.unread, self.failed = self.unread, [], None
        if not unread:
            return
        found = iter(torch.cat([values for *_, values in unread]).tolist())
        for step, widths, _ in unread:
            self.losses = dict(zip(widths, found))
            for child, value in self.losses.items():
                if not math.isfinite(value):
                    raise RunFailed(
                        f"the loss is {value} at step {step}, at widths {child}; {ADVICE}"
                    )
            if not math.isfinite(next(found)):
                raise RunFailed(f"the gradient is not finite at step {step}; {ADVICE}")


def reads_for_free(device: torch.device) -> bool:
    """Whether the host can read tensors of the device without waiting for queued work."""
    return device.type == "cpu"


@torch.no_grad()
def step_unless(failed: Tensor | None, optimizer: torch.optim.Optimizer) -> None:
    """Make a step of the optimizer that changes nothing if the flag on its device is true.

    Nothing is copied to the host. Fused optimizers take such a flag; for others, and at the first
    step, whose new state fused ones would leave undefined, all tensors are kept and restored.
    """
    if failed is None:
        optimizer.step()
    elif optimizer.state and getattr(optimizer, "_step_supports_amp_scaling", False):
        fused: Any = optimizer
        fused.grad_scale, fused.found_inf = None, failed.float()
        optimizer.step()
        del fused.grad_scale, fused.found_inf
    else:
        before = {tensor: tensor.clone() for tensor in tensors_of(optimizer, failed.device)}
        optimizer.step()
        for tensor in tensors_of(optimizer, failed.device):
            old = before[tensor] if tensor in before else torch.zeros_like(tensor)
            torch.where(failed, old, tensor, out=tensor)


def tensors_of(optimizer: torch.optim.Optimizer, device: torch.device) -> list[Tensor]:
    """Return the parameters of an optimizer and its state on the device.

    A number of steps that it keeps on the host goes on counting.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = [value for kept in optimizer.state.values() for value in kept.values()]
    found = [value for value in (*parameters, *state) if isinstance(value, Tensor)]
    return [tensor for tensor in found if tensor.device == device]
