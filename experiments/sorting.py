"""Does putting the channels of a trained network in order help its children?

A plain network is trained at full width only, then made slimmable. Its children at uniform
multipliers are recalibrated and tested before any joint training: with channels as they came, and
sorted by each importance. Needs CIFAR-100 as its publisher ships it, below the folder JOSLIM_DATA.

    JOSLIM_DATA=... python experiments/sorting.py
    JOSLIM_DATA=... python experiments/sorting.py --model resnet18 --steps 800 --pixels 32
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import joslim
from joslim.data.cifar import read_pickle
from joslim.slimmable.channel_order import (
    IMPORTANCE,
    Importance,
    Part,
    by_unit,
    normalised,
    parts_of,
    product,
    sort_channels,
)

MULTIPLIERS = (1.0, 0.9, 0.75, 0.5, 0.0)
CLASSES = 100


class Data(NamedTuple):
    images: Tensor
    labels: Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--pixels", type=int, default=16, help="images are averaged down to this")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--weights", type=Path, help="a folder that keeps what was trained")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    train, test = (load(split, options.pixels) for split in ("train", "test"))
    errors: dict[str, list[list[float]]] = {}
    for seed in range(options.seeds):
        trained = trained_network(options, seed, train)
        for name, row in children_by_order(trained, train, test, seed).items():
            errors.setdefault(name, []).append(row)
    print_table(options, errors)


def load(split: str, pixels: int) -> Data:
    """Normalised images of CIFAR-100, averaged down to fewer pixels."""
    root = os.environ.get("JOSLIM_DATA")
    if root is None:
        raise SystemExit("JOSLIM_DATA is not set: type the folder that has cifar-100-python in it")
    content = read_pickle(Path(root) / "cifar-100-python" / split)
    images = torch.from_numpy(content["data"]).view(-1, 3, 32, 32)
    images = F.adaptive_avg_pool2d(images.float().div_(255), pixels)
    mean = torch.tensor([0.507, 0.487, 0.441]).view(3, 1, 1)
    return Data((images - mean) / 0.27, torch.tensor(content["fine_labels"]))


# --- training at full width -----------------------------------------------------------------------


def trained_network(options: argparse.Namespace, seed: int, train: Data) -> nn.Module:
    torch.manual_seed(seed)
    model = joslim.models.MODELS[options.model](num_classes=CLASSES)
    kept = None
    if options.weights is not None:
        name = f"{options.model}-{options.pixels}px-{options.steps}steps-seed{seed}.pt"
        kept = options.weights / name
    if kept is not None and kept.exists():
        model.load_state_dict(torch.load(kept))
        return model
    train_plainly(model, train, options)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), kept)
    return model


def train_plainly(model: nn.Module, train: Data, options: argparse.Namespace) -> None:
    optimizer = torch.optim.SGD(
        model.parameters(), lr=options.rate, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.rate, total_steps=options.steps, pct_start=0.2
    )
    model.train()
    for step in range(options.steps):
        picked = torch.randint(len(train.labels), (options.batch,))
        images = augmented(train.images[picked])
        loss = F.cross_entropy(model(images), train.labels[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % 200 == 0:
            print(
                f"step {step + 1} of {options.steps}: loss {float(loss.detach()):.3f}", flush=True
            )


def augmented(images: Tensor) -> Tensor:
    """Mirrored and moved by up to an eighth, a batch at a time."""
    reach = images.shape[-1] // 8
    padded = F.pad(images, (reach,) * 4)
    top, left = (int(torch.randint(2 * reach + 1, ())) for _ in range(2))
    moved = padded[..., top : top + images.shape[-2], left : left + images.shape[-1]]
    mirrored = torch.rand(len(images), 1, 1, 1) < 0.5
    return torch.where(mirrored, moved.flip(-1), moved)


# --- children before any joint training -----------------------------------------------------------


def children_by_order(
    trained: nn.Module, train: Data, test: Data, seed: int
) -> dict[str, list[float]]:
    """For each order of the channels, the errors of its children, in percent."""
    some = torch.randperm(len(train.labels), generator=torch.Generator().manual_seed(seed))[:2048]
    images = list(train.images[some].split(256))
    labels = list(train.labels[some].split(256))
    rows = {}
    for name, importance in orders(list(zip(images, labels)), seed).items():
        net = joslim.slim(copy.deepcopy(trained), train.images[:1])
        if importance is not None:
            for kept in sort_channels(net, importance):
                print(f"{name}: {kept}")
        rows[name] = [child_error(net, multiplier, images, test) for multiplier in MULTIPLIERS]
        print(f"{name}: {', '.join(f'{error:.1f}' for error in rows[name])}", flush=True)
    return rows


def orders(batches: list[tuple[Tensor, Tensor]], seed: int) -> dict[str, str | Importance | None]:
    return {
        "as trained": None,
        "at random": at_random(seed),
        **{name: name for name in IMPORTANCE},
        "gain": gains,
        "gain x readers": product(gains, IMPORTANCE["readers"]),
        "taylor": taylor(batches),
    }


def at_random(seed: int) -> Importance:
    generator = torch.Generator().manual_seed(seed)
    return lambda net: [
        torch.rand(dim.full // dim.step, generator=generator) for dim in net.space.dims
    ]


def gains(net: joslim.SlimmableNet) -> list[Tensor]:
    """The size of the weights of the norms behind a unit."""
    totals = [torch.zeros(dim.full // dim.step, dtype=torch.float64) for dim in net.space.dims]
    for name, norm in net._slim_net.norms.items():
        (layout,) = net._slim_net.plans[name].tensors["weight"]
        gain = dict(norm.named_parameters())["weight"]
        for dim in {stretch.dim for stretch in layout.stretches if stretch.dim is not None}:
            part = Part(dim, "gain", gain, 0, layout)
            totals[dim] += normalised(by_unit(part, gain.abs(), len(totals[dim])))
    return totals


def taylor(batches: list[tuple[Tensor, Tensor]]) -> Importance:
    """How the loss would change, to first order, if the readers of a unit got nothing of it.

    The square of weights x gradients, summed over all that read the unit (Molchanov et al., 2019).
    """

    def score(net: joslim.SlimmableNet) -> list[Tensor]:
        parts = [part for part in parts_of(net) if part.role == "reader"]
        scores = [torch.zeros(dim.full // dim.step, dtype=torch.float64) for dim in net.space.dims]
        net.eval()
        for images, labels in batches:
            loss = F.cross_entropy(net(images), labels)
            gradients = torch.autograd.grad(loss, [part.tensor for part in parts])
            sums = [torch.zeros_like(score) for score in scores]
            for part, gradient in zip(parts, gradients):
                sums[part.dim] += by_unit(part, part.tensor * gradient, len(sums[part.dim]))
            scores = [score + total.square() for score, total in zip(scores, sums)]
        return scores

    return score


def child_error(
    net: joslim.SlimmableNet, multiplier: float, images: list[Tensor], test: Data
) -> float:
    """In percent, after recalibration on training images; 0 stands for the smallest child."""
    space = net.space
    net.eval()
    with torch.no_grad(), net.at(space.uniform(multiplier) if multiplier else space.smallest):
        joslim.recalibrate(net, images)
        guesses = torch.cat([net(part).argmax(1) for part in test.images.split(500)])
    return float((guesses != test.labels).double().mean()) * 100


def print_table(options: argparse.Namespace, errors: dict[str, list[list[float]]]) -> None:
    table = Table(title=f"{options.model}: test error (%) at uniform widths, {options.seeds} seeds")
    table.add_column("order")
    for multiplier in MULTIPLIERS:
        table.add_column(f"{multiplier:g}" if multiplier else "smallest", justify="right")
    for name, rows in errors.items():
        table.add_row(name, *(f"{statistics.mean(column):.1f}" for column in zip(*rows)))
    Console().print(table)


if __name__ == "__main__":
    main()
