"""A robot with three networks and one budget: train them on different data, divide the budget.

python examples/robot.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import joslim


def draw_obstacles(folder: Path, size: int = 24) -> None:
    """Draw pictures with a box, a ball or a bar on a noisy background."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:size, :size]
    for split, count in (("train", 120), ("val", 50)):
        for name in ("ball", "bar", "box"):
            (folder / split / name).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                cx, cy, r = *rng.uniform(8, 16, 2), rng.uniform(3, 7)
                across, along = np.abs(x - cx), np.abs(y - cy)
                inside = {
                    "ball": across**2 + along**2 < r**2,
                    "bar": (across < 1.5) & (along < r),
                    "box": (across < r) & (along < r),
                }[name]
                pixels = rng.normal(110, 45, (size, size, 3)) + 60 * inside[:, :, None]
                image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
                image.save(folder / split / name / f"{number}.png")


def network(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after, stride in ((3, 24, 1), (24, 32, 2), (32, 48, 1)):
        layers += [nn.Conv2d(before, after, 3, stride, 1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, classes))


def main(folder: Path) -> None:
    torch.manual_seed(0)  # for the initial weights of the networks
    draw_obstacles(folder / "pictures")
    pictures = f"folder:{folder / 'pictures'}"
    common = {"low": 0.15, "steps": 70, "every": 14, "batch": 32, "front_images": 128}
    common |= {"recipe": "digits", "threads": 1, "overwrite": True}
    joslim.train(network(10), "digits", out=folder / "signs", **common)
    joslim.train(network(10), "digits", size=12, out=folder / "meters", **common)
    joslim.train(network(3), pictures, size=12, out=folder / "obstacles", **common)

    names = ("signs", "meters", "obstacles")
    fronts = [joslim.Front.read(folder / name) for name in names]
    for budget in (0.3e6, 0.8e6, 2e6):
        # Obstacles count twice: missing one is worse than misreading a sign.
        found = joslim.allocate(fronts, macs=budget, weights=[1, 1, 2])
        shares = [f"{n} {p.costs['macs']:,}" for n, p in zip(names, found.points)]
        print(f"{budget:>11,.0f} macs: {found.error:6.1f} % in all; {', '.join(shares)}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/robot"))
