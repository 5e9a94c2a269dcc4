"""The teachers of the children: whose outputs they learn from.

The full network of the step teaches by default (in-place distillation). A copy of it can teach
instead: the network that the training began with, or a moving average of its weights.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from joslim.errors import UserError
from joslim.slimmable import SlimmableNet, batch_statistics
from joslim.slimmable.running import Inputs, call

# The full network as it is in this step; the next larger network of this step (Scala); the full
# network as it was when the training began; a moving average of the full network (DS-Net).
TEACHERS = ("full", "next", "fixed", "ema")
# Decay of the moving average (Li and others, DS-Net, 2021).
DECAY = 0.997


class Teacher:
    """A copy of the full network whose outputs the children learn, "fixed" or "ema".

    A fixed teacher is the trained network itself, with its own BatchNorm statistics. A moving
    average normalises by the batch, as the full network does while it trains. Dropout is off.
    """

    def __init__(self, net: SlimmableNet, kind: str) -> None:
        self.net = copy.deepcopy(net).requires_grad_(False).eval()
        self.net.statistics.clear()
        self.net._switch(self.net.space.full)
        self.moves = kind == "ema"

    @torch.no_grad()
    def __call__(self, inputs: Inputs) -> Any:
        with batch_statistics(self.net) if self.moves else nullcontext():
            return call(self.net, inputs)

    @torch.no_grad()
    def follow(self, net: SlimmableNet) -> None:
        """Move the average towards the weights of the network, after an optimizer step."""
        if self.moves:
            for mine, trained in zip(self.net.parameters(), net.parameters()):
                mine.lerp_(trained, 1 - DECAY)

    def state_dict(self) -> dict[str, Tensor]:
        return {name: value.detach().cpu() for name, value in self.net.state_dict().items()}

    def load_state_dict(self, state: Any) -> None:
        try:
            self.net.load_state_dict(state)
        except (RuntimeError, TypeError, AttributeError) as error:
            raise UserError("teacher: its weights are not of this network") from error
