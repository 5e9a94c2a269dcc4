"""A small network, and how tests train it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import joslim
from joslim import Data, SlimmableNet, Slimming, Widths


class Layers(nn.Module):
    """Three linear layers with a norm, for 64 numbers."""

    def __init__(self, norm: bool = True) -> None:
        super().__init__()
        self.one = nn.Linear(64, 32)
        self.norm = nn.BatchNorm1d(32) if norm else nn.Identity()
        self.drop = nn.Dropout(0.1)
        self.two, self.three = nn.Linear(32, 24), nn.Linear(24, 16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(F.relu(self.norm(self.one(x.flatten(1)))))
        return self.head(F.relu(self.three(F.relu(self.two(x)))))


def make(seed: int = 0, norm: bool = True) -> SlimmableNet:
    torch.manual_seed(seed)
    return joslim.slim(Layers(norm), torch.zeros(2, 1, 8, 8), low=0.25)


def slimming_of(data: Data, net: nn.Module | None = None, **options: Any) -> Slimming:
    """All widths learn in every step, unless it is said otherwise."""
    defaults = {"total_steps": 20, "every": 4, "scoring": data.sweep("train", 128, 256)}
    defaults |= {"full_first": 0, "draw": 9}
    return Slimming(net or make(), **{**defaults, **options})


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def train(slimming: Slimming, data: Data, steps: int, optimizer=None) -> list[list[Widths]]:
    """Dropout depends on the step alone. Returns the widths of each step."""
    optimizer = optimizer or sgd(slimming.net)
    seen = []
    for _, (x, y) in zip(range(steps), data.batches(0, 32, start=slimming.steps)):
        torch.manual_seed(slimming.steps)
        slimming.step(x, y, optimizer, F.cross_entropy)
        seen.append(list(slimming.widths))
    return seen
