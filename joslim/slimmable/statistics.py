"""BatchNorm statistics of one child: the full network's do not fit it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from joslim.errors import UserError
from joslim.slimmable.net import SlimmableNet
from joslim.slimmable.tracing import tensors_in

Pair = tuple[Tensor, Tensor]


def recalibrate(net: nn.Module, batches: Iterable[Any]) -> None:
    """Set the BatchNorm statistics of the active child, or of an ordinary module, from batches.

    batches: tensors, or tuples or lists whose first item is the input (itself a tuple if the
    network has several inputs). Each norm gets the average of its batch means and of its unbiased
    batch variances, in which a batch counts by its number of samples. Meanwhile the network
    normalises by batch statistics, as in training, and dropout is off. Nothing else changes: not
    the modes, not the statistics of other children; and nothing at all if a batch fails.
    """
    slimmable = next((m for m in net.modules() if isinstance(m, SlimmableNet)), None)
    averages = statistics_of(net, batches)
    if slimmable is None or slimmable.active == slimmable.space.full:
        if slimmable is not None and slimmable.active in slimmable.statistics:
            del slimmable.statistics[slimmable.active]
            slimmable._switch(slimmable.active)
        for name, (mean, var) in averages.items():
            norm: Any = (slimmable or net).get_submodule(name)
            norm._buffers["running_mean"].copy_(mean)
            norm._buffers["running_var"].copy_(var)
    else:
        slimmable.statistics[slimmable.active] = averages
        slimmable._switch(slimmable.active)


def statistics_of(net: nn.Module, batches: Iterable[Any]) -> dict[str, Pair]:
    """What `recalibrate` sets, by the names of the norms; nothing is changed."""
    if isinstance(batches, Tensor):
        raise UserError("batches: a tensor given, a sequence of batches needed; type [tensor]")
    owner = next((m for m in net.modules() if isinstance(m, SlimmableNet)), net)
    norms: dict[str, Any] = {n: m for n, m in owner.named_modules() if has_statistics(m)}
    averages: dict[str, Pair] = {}
    samples = 0
    with torch.inference_mode(False), torch.no_grad(), collecting(net, norms.values()) as ran:
        for batch in batches:
            inputs = inputs_of(batch)
            count = len(tensors_in(inputs)[0])
            samples += count
            for norm in norms.values():
                norm.reset_running_stats()
            net(*inputs)
            for name, norm in norms.items():
                if norm in ran:
                    now = (norm.running_mean, norm.running_var)
                    averages[name] = blended(averages.get(name, now), now, count / samples)
    if not samples:
        raise UserError("batches: none given; recalibration needs at least one")
    return averages


def has_statistics(module: nn.Module) -> bool:
    return isinstance(module, _NormBase) and module._buffers.get("running_mean") is not None


def inputs_of(batch: Any) -> tuple[Any, ...]:
    first = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    inputs = first if isinstance(first, tuple) else (first,)
    if not tensors_in(inputs) or not len(tensors_in(inputs)[0]):
        kind = type(batch).__name__
        raise UserError(f"batches: {kind} given, a tensor or a tuple that begins with one needed")
    return inputs


def blended(old: Pair, new: Pair, share: float) -> Pair:
    return torch.lerp(old[0], new[0], share), torch.lerp(old[1], new[1], share)


@contextmanager
def collecting(net: nn.Module, norms: Iterable[Any]) -> Iterator[set[nn.Module]]:
    """Inside, a forward pass leaves in each norm the average of its batch statistics.

    Yields the norms that have run so far.
    """
    modes = [(module, module.training) for module in net.modules()]
    saved = [(norm, norm.momentum, norm.__dict__.get("_slim_own")) for norm in norms]
    buffers = [
        (b, b.clone()) for norm, *_ in saved for b in norm._buffers.values() if b is not None
    ]
    ran: set[nn.Module] = set()
    hooks = [norm.register_forward_pre_hook(lambda norm, _: ran.add(norm)) for norm, *_ in saved]
    net.eval()
    for norm, *_ in saved:
        norm.training = True
        # Without momentum a BatchNorm averages over its calls: there are several if it is reused.
        norm.momentum = None if isinstance(norm, _BatchNorm) else 1.0
        if not norm.__dict__.get("_slim_all_full", True):
            norm.__dict__["_slim_collecting"] = True
            own = (torch.zeros_like(norm.running_mean), torch.ones_like(norm.running_var))
            norm.__dict__["_slim_own"] = own
        elif "_slim_own" in norm.__dict__:
            norm.__dict__["_slim_own"] = None
    try:
        yield ran
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes:
            module.training = mode
        for norm, momentum, own in saved:
            norm.momentum = momentum
            if "_slim_own" in norm.__dict__:
                norm.__dict__.update(_slim_own=own, _slim_collecting=False)
        for buffer, value in buffers:
            buffer.copy_(value)


@contextmanager
def batch_statistics(net: SlimmableNet) -> Iterator[None]:
    """Inside, norms use the statistics of the batch at hand and move none: for scoring children.

    Put the network in eval mode to have dropout off as well.
    """
    norms = net._slim_net.norms.values()
    for norm in norms:
        norm.__dict__["_slim_batch"] = True
    try:
        yield
    finally:
        for norm in norms:
            norm.__dict__["_slim_batch"] = False
