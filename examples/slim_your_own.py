"""Make your own network slimmable, compute costs of its children (subnets), and cut one out.

python examples/slim_your_own.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import joslim


class Squeeze(nn.Module):
    """A squeeze-and-excitation gate."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down = nn.Linear(channels, channels // 4)
        self.up = nn.Linear(channels // 4, channels)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.up(torch.relu(self.down(x.mean(dim=(2, 3)))))
        return x * torch.sigmoid(gate)[:, :, None, None]


class Block(nn.Module):
    """A depthwise-separable block with a gate and a residual connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.gate = Squeeze(channels)
        self.pointwise = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pointwise(self.gate(torch.relu(self.norm(self.depthwise(x)))))


class Network(nn.Module):
    """A small network without any joslim code."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, padding=1)
        self.blocks = nn.Sequential(Block(64), Block(64))
        self.widen = nn.Conv2d(64, 160, 3, stride=2, padding=1)
        self.head = nn.Linear(160, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.widen(self.blocks(torch.relu(self.stem(x))))
        return self.head(torch.relu(x).mean(dim=(2, 3)))


def main() -> None:
    torch.manual_seed(0)
    images = torch.randn(8, 3, 32, 32)
    net = joslim.slim(Network(), images, low=0.25).eval()

    print(f"{len(net.space)} knobs: {', '.join(knob.name for knob in net.space.knobs)}")
    for layer in net.frozen:
        print(f"frozen: {layer.layer} ({layer.why})")

    macs, memory = joslim.cost("macs", net), joslim.cost("memory", net)
    print(f"\n{'width':>8} {'multiply-adds':>14} {'memory':>10}")
    for multiplier in (0.25, 0.5, 0.75, 1.0):
        widths = net.space.uniform(multiplier)
        print(f"{multiplier:>8} {macs(widths):>14,} {memory(widths):>8,} B")

    half = net.space.uniform(0.5)
    with net.at(half):
        joslim.recalibrate(net, [images])  # the child's own BatchNorm statistics
        in_place = net(images)
    child = net.child(half)
    difference = (child(images) - in_place).abs().max().item()
    print(f"\nthe child at 0.5 is an ordinary {type(child).__name__}: {child.stem}")
    print(f"its outputs and those of the network run in place differ by {difference:.1e}")


if __name__ == "__main__":
    main()
