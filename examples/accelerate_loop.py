"""A training loop of Hugging Face accelerate, which handles devices and mixed precision.

`Slimming.backward` replaces `accelerator.backward`: it runs the passes of all widths, each with its
own `loss.backward()`. Gradients of accumulated batches are summed.

pip install accelerate; python examples/accelerate_loop.py
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import joslim

torch.manual_seed(0)
NETWORK = nn.Sequential(
    nn.Conv2d(1, 24, 3, stride=2, padding=1, bias=False),
    nn.BatchNorm2d(24),
    nn.ReLU(),
    nn.Conv2d(24, 16, 3, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(16 * 16, 10),
)


def main(epochs: int = 4) -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    digits = joslim.load_data("digits", channels=1)
    train, test = (
        TensorDataset(*digits.plain(split, np.arange(digits.sizes[split])))
        for split in ("train", "test")
    )
    net = joslim.slim(NETWORK, train[:2][0], low=0.25)  # before prepare, which may wrap it
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    loader = DataLoader(train, batch_size=32, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    scoring, steps = DataLoader(train, batch_size=128), epochs * len(loader) // 2
    slimming = joslim.Slimming(model, total_steps=steps, every=4, scoring=scoring)
    for _ in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model), accelerator.autocast():
                slimming.backward(x, y, F.cross_entropy, accelerator.backward)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                slimming.advance()

    for point in slimming.front(test=DataLoader(test, batch_size=128)):
        accelerator.print(f"{point.costs['macs']:>9,} multiply-adds {point.test_error:6.1f}%")


if __name__ == "__main__":
    main()
