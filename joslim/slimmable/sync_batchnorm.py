"""Synchronised BatchNorm: statistics over the images of all processes.

It helps if a process has few images. It is active only inside `norms_together`, because processes
score and recalibrate children independently of each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.nn.functional import all_reduce

from joslim.distributed import world

_together = False


@contextmanager
def norms_together(wanted: bool = True) -> Iterator[None]:
    """Synchronise the BatchNorm layers of slimmable networks inside a `with` block."""
    global _together
    before, _together = _together, wanted and world() > 1
    try:
        yield
    finally:
        _together = before


def forward_of(base: Any) -> Any:
    """Return the forward of a BatchNorm class, synchronised inside `norms_together`."""

    def forward(self: Any, x: Tensor) -> Tensor:
        if not (_together and self.training):
            return base.forward(self, x)
        self._check_input_dim(x)
        return normalised(self, x)

    return forward


def normalised(norm: Any, x: Tensor) -> Tensor:
    """Normalise by the mean over processes, which have equal numbers of images."""
    axes = [axis for axis in range(x.ndim) if axis != 1]
    mean = averaged(x.float().mean(axes))
    centred = x.float() - along_channels(mean, x)
    var = averaged(centred.square().mean(axes))
    track(norm, mean, var, x.numel() // x.shape[1] * world())
    y = centred * along_channels((var + norm.eps).rsqrt(), x)
    if norm.weight is not None:
        y = y * along_channels(norm.weight, x) + along_channels(norm.bias, x)
    return y.to(x.dtype)


def averaged(values: Tensor) -> Tensor:
    """Average over the processes; gradients flow back to all of them."""
    return all_reduce(values) / world()


def along_channels(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape(1, -1, *[1] * (x.ndim - 2))


@torch.no_grad()
def track(norm: Any, mean: Tensor, var: Tensor, count: int) -> None:
    """Update the running statistics as torch does, with the unbiased variance."""
    if not norm.track_running_stats or norm.running_mean is None:
        return
    norm.num_batches_tracked += 1
    share = norm.momentum if norm.momentum is not None else 1 / int(norm.num_batches_tracked)
    norm.running_mean.lerp_(mean, share)
    norm.running_var.lerp_(var * (count / max(count - 1, 1)), share)
