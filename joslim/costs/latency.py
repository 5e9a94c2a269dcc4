"""Measured latency: the child is cut out, timed on this machine, and remembered."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from joslim.costs.base import Cost
from joslim.errors import UserError
from joslim.slimmable.net import SlimmableNet

WARM_UP = 3


class Latency(Cost):
    """Median milliseconds of a forward pass on one sample of the example input, on its device."""

    unit = "ms"

    def __init__(self, name: str, net: SlimmableNet, repeats: int = 15) -> None:
        super().__init__(name, net)
        if repeats < 1:
            raise UserError(f"repeats: {repeats} is below 1; type 15")
        self.net = net
        self.repeats = repeats
        self._known: dict[tuple[int, ...], float] = {}

    def _price(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.array([self._measured(tuple(row.tolist())) for row in counts])

    def _measured(self, counts: tuple[int, ...]) -> float:
        if counts not in self._known:
            child = self.net._cut(self.space.of_counts(counts)).eval()
            self._known[counts] = time_forward(child, self.net.example, self.repeats)
        return self._known[counts]


def time_forward(model: nn.Module, inputs: tuple[Any, ...], repeats: int) -> float:
    """Median milliseconds of `model(*inputs)` without gradients, on the model's device."""
    device = next(model.parameters()).device
    inputs = tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, inputs)
    finish: Callable[[], Any] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    times = []
    with torch.inference_mode():
        for turn in range(WARM_UP + repeats):
            finish()
            start = time.perf_counter()
            model(*inputs)
            finish()
            if turn >= WARM_UP:
                times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)
