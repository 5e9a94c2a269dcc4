"""BatchNorm statistics of children: recalibration, and scoring by batch statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from joslim.errors import UserError
from joslim.slimmable.net import SlimmableNet
from joslim.slimmable.running import Inputs, as_inputs, call, refuse_meta, tensors_in

Pair = tuple[Tensor, Tensor]


def recalibrate(net: nn.Module, batches: Iterable[Any]) -> None:
    """Compute the BatchNorm statistics of the active child (subnet), or of an ordinary module.

    The statistics of the full network do not fit its children. Each norm gets the average of its
    batch means and of its unbiased batch variances, weighted by the number of samples. During the
    computation the network normalises by batch statistics, as in training, and dropout is off.
    Modes and the statistics of other children do not change, and nothing changes at all if a batch
    fails.

    Args:
        net: A slimmable network, a child that was cut out, or any other module. In a module that
            holds slimmable networks, the active child of each and all other norms are set.
        batches: Input tensors, or tuples or lists whose first item is the input. An input is itself
            a tuple if the network takes several, and a dictionary if it takes keyword arguments.

    Raises:
        UserError: There is no batch, or a batch does not begin with a tensor.

    Examples:
        >>> net = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 32, 32))
        >>> with net.at(net.space.smallest):
        ...     joslim.recalibrate(net, [torch.randn(16, 3, 32, 32)])
        >>> net.space.smallest in net.statistics
        True
    """
    rest = statistics_of(net, batches)
    for name, part in net.named_modules():
        if isinstance(part, SlimmableNet):
            start = f"{name}." if name else ""
            own = {n.removeprefix(start): rest.pop(n) for n in [*rest] if n.startswith(start)}
            if not own:  # this part has not run
                continue
            if part.active == part.space.full:
                part.statistics.pop(part.active, None)
                set_running_statistics(part, own)
            else:
                part.statistics[part.active] = own
            part._switch(part.active)
    set_running_statistics(net, rest)


def set_running_statistics(net: nn.Module, averages: dict[str, Pair]) -> None:
    for name, (mean, var) in averages.items():
        norm: Any = net.get_submodule(name)
        norm._buffers["running_mean"].copy_(mean)
        norm._buffers["running_var"].copy_(var)


def statistics_of(net: nn.Module, batches: Iterable[Any]) -> dict[str, Pair]:
    """Compute the statistics that `recalibrate` sets, by the names of the norms."""
    if isinstance(batches, (Tensor, Mapping)):
        kind = type(batches).__name__
        raise UserError(f"batches: {kind} given, a sequence of batches needed; type [batch]")
    refuse_meta(net)
    norms: dict[str, Any] = {n: m for n, m in net.named_modules() if has_statistics(m)}
    averages: dict[str, Pair] = {}
    samples = 0
    with torch.inference_mode(False), torch.no_grad(), collecting(net, norms.values()) as ran:
        for batch in batches:
            inputs = inputs_of(batch)
            count = len(tensors_in(inputs)[0])
            samples += count
            for norm in norms.values():
                norm.reset_running_stats()
            ran.update(dict.fromkeys(ran, 0))
            call(net, inputs)
            for name, norm in norms.items():
                if norm in ran:
                    now = (norm.running_mean, norm.running_var)
                    pairs, share = zip(averages.get(name, now), now), count / samples
                    mean, var = (torch.lerp(old, new, share) for old, new in pairs)
                    averages[name] = (mean, var)
    if not samples:
        raise UserError("batches: none given; recalibration needs at least one")
    return averages


def has_statistics(module: nn.Module) -> bool:
    return isinstance(module, _NormBase) and module._buffers.get("running_mean") is not None


def inputs_of(batch: Any) -> Inputs:
    """Return the inputs of a network in a batch: the batch itself, or its first item."""
    first = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    inputs = as_inputs(first)
    if not tensors_in(inputs) or not len(tensors_in(inputs)[0]):
        kind = type(batch).__name__
        raise UserError(f"batches: {kind} given, a tensor or a tuple that begins with one needed")
    return inputs


@contextmanager
def collecting(net: nn.Module, norms: Iterable[Any]) -> Iterator[dict[nn.Module, int]]:
    """Let each forward pass leave its batch statistics in the norms, and restore all afterwards.

    Yields the norms that have run so far, with the number of their calls.
    """
    modes = [(module, module.training) for module in net.modules()]
    saved = [(norm, norm.momentum, norm.__dict__.get("_slim_own")) for norm in norms]
    buffers = [
        (b, b.clone()) for norm, *_ in saved for b in norm._buffers.values() if b is not None
    ]
    ran: dict[nn.Module, int] = {}

    def average_over_calls(norm: Any, _: Any) -> None:
        """A reused module is called several times. Without momentum it would ask its device."""
        ran[norm] = ran.get(norm, 0) + 1
        norm.momentum = 1 / ran[norm] if isinstance(norm, _BatchNorm) else 1.0

    hooks = [norm.register_forward_pre_hook(average_over_calls) for norm, *_ in saved]
    net.eval()
    for norm, *_ in saved:
        norm.training = True
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
    """Normalise by the statistics of the present batch inside a `with` block.

    The stored statistics do not change. This is how children (subnets) are scored during a search.
    Dropout is off only if the network is in eval mode.

    Args:
        net: The slimmable network.

    Examples:
        >>> net = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 32, 32)).eval()
        >>> with joslim.batch_statistics(net), net.at(net.space.smallest):
        ...     net(torch.randn(16, 3, 32, 32)).shape
        torch.Size([16, 10])
    """
    norms = net._slim_net.norms.values()
    for norm in norms:
        norm.__dict__["_slim_batch"] = True
    try:
        yield
    finally:
        for norm in norms:
            norm.__dict__["_slim_batch"] = False
