"""Your own training loop: your own network and data set, an ordinary DataLoader, and joslim.

It ends with a run folder, a child (subnet) for a budget, and that child as an ONNX file:

python examples/own_loop.py own-loop
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import joslim


class Network(nn.Module):
    """A network with a residual connection and a concatenation, without any joslim code."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 24, 3, stride=2, padding=1)
        self.conv, self.norm = nn.Conv2d(24, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24)
        self.side = nn.Conv2d(24, 16, 1)
        self.head = nn.Linear((24 + 16) * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = x + F.relu(self.norm(self.conv(x)))
        return self.head(torch.cat([x, F.relu(self.side(x))], dim=1).flatten(1))


def main(folder: str, epochs: int = 4) -> None:
    torch.manual_seed(0)
    digits = joslim.load_data("digits", channels=1)
    train, test = (
        TensorDataset(*digits.plain(split, np.arange(digits.sizes[split])))
        for split in ("train", "test")
    )
    loader = DataLoader(train, batch_size=64, shuffle=True, drop_last=True)

    net = joslim.slim(Network(), train[:2][0], low=0.25)
    steps = epochs * len(loader)
    scoring = DataLoader(train, batch_size=128)  # the training images, un-augmented
    slimming = joslim.Slimming(net, cost="macs", total_steps=steps, every=4, scoring=scoring)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        for x, y in loader:
            slimming.step(x, y, optimizer, F.cross_entropy)
            scheduler.step()

    front = slimming.front(test=DataLoader(test, batch_size=128))
    for point in front:
        print(f"{point.costs['macs']:>9,} multiply-adds {point.test_error:6.1f}%")

    # The weights, the front and the children's own BatchNorm statistics, for all commands.
    joslim.save(slimming, front, Path(folder) / "run", overwrite=True)
    run = joslim.load(Path(folder) / "run", model=Network())  # later, or elsewhere
    point = run.front.pick(macs="50K")
    run.net.use(point)  # switch at run time
    check = joslim.export(run, point, Path(folder) / "child.onnx", overwrite=True)
    page = joslim.report(run, Path(folder) / "report.html")
    print(f"{folder}/child.onnx has {point.costs['macs']:,} multiply-adds: {check}; see {page}")


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["own-loop"]))
