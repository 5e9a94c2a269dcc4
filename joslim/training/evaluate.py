"""Losses and errors of children. Statistics, modes and gradients of the network do not change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from joslim.errors import UserError
from joslim.slimmable import SlimmableNet, batch_statistics
from joslim.slimmable.batchnorm import inputs_of
from joslim.space import Widths
from joslim.training.step import Criterion

# Number of batches that are kept if batches can only be iterated over.
KEPT_BATCHES = 64

# How wrong the outputs are for each sample of a batch, [n] booleans or numbers from 0 to 1.
Metric = Callable[[Any, Any], Tensor]


def wrong(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return where the most likely class is not the label: [n, classes] and [n] -> [n]."""
    if labels.ndim != 1 or labels.is_floating_point() or outputs.ndim != 2:
        shapes = f"outputs {tuple(outputs.shape)}, labels {tuple(labels.shape)} {labels.dtype}"
        raise UserError(f"metric: {shapes} are no class scores and classes; give front(metric=...)")
    return outputs.argmax(dim=1) != labels


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Put the network into eval mode without gradients; restore the modes afterwards."""
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def score(
    net: SlimmableNet, children: Sequence[Widths], batch: Any, criterion: Criterion
) -> list[float]:
    """Return the loss of each child on one batch.

    BatchNorm uses the statistics of the batch, so that no child needs its own; dropout is off.
    """
    inputs, labels = on_device(net, batch)
    losses = []
    with evaluating(net), batch_statistics(net):
        for child in children:
            with net.at(child):
                losses.append(criterion(net(*inputs), labels).float())
    return torch.stack(losses).tolist() if losses else []


def mean_loss(net: nn.Module, batches: Iterable[Any], criterion: Criterion) -> float:
    """Return the mean loss over all samples of the active child, in eval mode."""
    total, samples = 0.0, 0
    with evaluating(net):
        for batch in batches:
            inputs, labels = on_device(net, batch)
            count = len(labels)
            total += criterion(net(*inputs), labels).item() * count
            samples += count
    if not samples:
        raise UserError("batches: none given; a loss needs at least one")
    return total / samples


class Tally:
    """Counts the images of each class, and those that are taken for another class."""

    def __init__(self) -> None:
        self.images: Counter[int] = Counter()
        self.confusions: Counter[tuple[int, int]] = Counter()

    def add(self, outputs: Tensor, labels: Tensor) -> None:
        """Count a batch: [n, classes] class scores and [n] classes."""
        pairs = [*zip(labels.tolist(), outputs.argmax(dim=1).tolist())]
        self.images.update(label for label, _ in pairs)
        self.confusions.update(pair for pair in pairs if pair[0] != pair[1])


def errors(
    net: SlimmableNet,
    children: Sequence[Widths],
    batches: Iterable[Any],
    metric: Metric = wrong,
    tallies: Sequence[Tally] = (),
) -> list[tuple[float, int]]:
    """Return the error of each child in percent, and the number of samples behind it.

    All children are measured in one pass over the data. tallies: If given, one for each child.
    """
    if not children:
        return []
    totals, samples, seen = [0.0] * len(children), 0, 0
    with evaluating(net):
        for batch in batches:
            inputs, labels = on_device(net, batch)
            for place, child in enumerate(children):
                with net.at(child):
                    outputs = net(*inputs)
                faults = metric(outputs, labels)
                if tallies:
                    tallies[place].add(outputs, labels)
                totals[place] += faults.double().sum().item()
                seen = faults.numel()
            samples += seen
    if not samples:
        raise UserError("batches: none given; an error needs at least one")
    return [(100 * total / samples, samples) for total in totals]


def on_device(net: nn.Module, batch: Any) -> tuple[tuple[Any, ...], Any]:
    """Return the inputs, as a tuple, and the labels of a batch on the device of the network."""
    if not isinstance(batch, (tuple, list)) or len(batch) < 2:
        kind = type(batch).__name__
        raise UserError(f"batches: {kind} given, a tuple (inputs, labels) needed")
    device = next(net.parameters()).device
    inputs = tuple(moved(value, device) for value in inputs_of(batch))
    return inputs, moved(batch[1], device)


def moved(value: Any, device: torch.device) -> Any:
    return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value


def as_sequence(batches: Iterable[Any]) -> Sequence[Any]:
    """Return batches that can be indexed. The first batches of a mere iterable are kept."""
    if isinstance(batches, Tensor):
        raise UserError("scoring: a tensor given, a sequence of batches (inputs, labels) needed")
    indexed = hasattr(batches, "__getitem__") and hasattr(batches, "__len__")
    result: Any = batches if indexed else list(islice(batches, KEPT_BATCHES))
    if not len(result):
        raise UserError("scoring: no batches given; at least one of (inputs, labels) is needed")
    return result


def first_images(batches: Sequence[Any], images: int) -> list[Any]:
    """Return the first batches that together have at least this many images."""
    chosen, count = [], 0
    for position in range(len(batches)):
        if count >= images:
            break
        chosen.append(batches[position])
        count += len(chosen[-1][1])
    return chosen
