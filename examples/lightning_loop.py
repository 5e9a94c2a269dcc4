"""A slimmable network in a LightningModule, trained by Lightning's Trainer.

`SlimmableModule` makes the optimizer step itself (manual optimization), because a step consists of
the passes of several widths. Copy it, and change the optimizer and the criterion as you need.

pip install lightning; python examples/lightning_loop.py
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import lightning
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import joslim


class SlimmableModule(lightning.LightningModule):
    """Trains the children of a slimmable network. After the fit, `front` is the Pareto front."""

    def __init__(
        self, net: joslim.SlimmableNet, criterion: Any, scoring: Iterable[Any], **options: Any
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net, self.criterion = net, criterion
        self.scoring, self.options = scoring, options
        self.front: joslim.Front | None = None
        self.slimming: joslim.Slimming | None = None

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(joslim.parameter_groups(self.net, 5e-4), lr=0.02, momentum=0.9)

    def on_fit_start(self) -> None:
        steps = int(self.trainer.estimated_stepping_batches)
        self.slimming = joslim.Slimming(
            self.net, total_steps=steps, scoring=self.scoring, **self.options
        )
        if self._state is not None:
            self.slimming.load_state_dict(self._state)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        x, y = batch
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = self.slimming.backward(x, y, self.criterion, self.manual_backward)
        optimizer.step()
        self.slimming.advance()
        self.log("loss", loss, prog_bar=True)

    def on_fit_end(self) -> None:
        self.front = self.slimming.front()

    # A checkpoint of Lightning holds the search, too.
    _state: dict[str, Any] | None = None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["slimming"] = self.slimming.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._state = checkpoint["slimming"]


def main(epochs: int = 2, **trainer: Any) -> joslim.Front:
    digits = joslim.load_data("digits", channels=1)
    train = TensorDataset(*digits.plain("train", np.arange(digits.sizes["train"])))
    network = nn.Sequential(
        nn.Conv2d(1, 24, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(384, 10)
    )
    net = joslim.slim(network, train[:2][0], low=0.25)
    scoring = DataLoader(train, batch_size=128)
    module = SlimmableModule(net, F.cross_entropy, scoring, every=10)
    loader = DataLoader(train, batch_size=32, shuffle=True)
    lightning.Trainer(max_epochs=epochs, accelerator="cpu", **trainer).fit(module, loader)
    return module.front


if __name__ == "__main__":
    for point in main():
        print(f"{point.costs['macs']:>9,} multiply-adds, training loss {point.train_loss:.3f}")
