"""Losses and errors of children. Statistics, modes and gradients of the network do not change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.data import Dataset

from joslim.errors import UserError
from joslim.slimmable import SlimmableNet, batch_statistics
from joslim.slimmable.batchnorm import inputs_of
from joslim.slimmable.running import Inputs, call
from joslim.space import Widths
from joslim.training.learning import scores_of
from joslim.training.metrics import METRICS, Mean, Metric
from joslim.training.step import Criterion

# Number of batches that are kept if batches can only be iterated over.
KEPT_BATCHES = 64


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
    net: SlimmableNet, children: Sequence[Widths], batches: Sequence[Any], criterion: Criterion
) -> list[float]:
    """Return the mean loss of each child over all samples of the batches.

    BatchNorm uses the statistics of each batch, so that no child needs its own; dropout is off.
    """
    if not children:
        return []
    totals, samples = torch.zeros(len(children), dtype=torch.float64), 0
    with evaluating(net), batch_statistics(net):
        for batch in batches:
            inputs, labels = on_device(net, batch)
            losses = []
            for child in children:
                with net.at(child):
                    losses.append(criterion(call(net, inputs), labels).float())
            totals += torch.stack(losses).cpu().double() * len(labels)
            samples += len(labels)
    return (totals / samples).tolist()


def mean_loss(net: nn.Module, batches: Iterable[Any], criterion: Criterion) -> float:
    """Return the mean loss over all samples of the active child, in eval mode."""
    total, samples = 0.0, 0
    with evaluating(net):
        for batch in batches:
            inputs, labels = on_device(net, batch)
            count = len(labels)
            total += criterion(call(net, inputs), labels).item() * count
            samples += count
    if not samples:
        raise UserError("batches: none given; a loss needs at least one")
    return total / samples


class Tally:
    """Counts the images of each class, and those that are taken for another class."""

    def __init__(self) -> None:
        self.images: Counter[int] = Counter()
        self.confusions: Counter[tuple[int, int]] = Counter()

    def add(self, outputs: Any, labels: Tensor) -> None:
        """Count a batch: [n, classes] class scores, maybe inside the outputs, and [n] classes."""
        pairs = [*zip(labels.tolist(), scores_of(outputs).argmax(dim=1).tolist())]
        self.images.update(label for label, _ in pairs)
        self.confusions.update(pair for pair in pairs if pair[0] != pair[1])


def errors(
    net: SlimmableNet,
    children: Sequence[Widths],
    batches: Iterable[Any],
    metric: Metric = METRICS["error"],
    tallies: Sequence[Tally] = (),
) -> list[tuple[float, int | None]]:
    """Return the error of each child, and the number of samples behind it if it is their mean.

    All children are measured in one pass over the data. tallies: If given, one for each child.
    """
    if not children:
        return []
    found, empty = [metric.make() for _ in children], True
    with evaluating(net):
        for batch in batches:
            inputs, labels = on_device(net, batch)
            for place, child in enumerate(children):
                with net.at(child):
                    outputs = call(net, inputs)
                found[place].update(outputs, labels)
                if tallies:
                    tallies[place].add(outputs, labels)
            empty = False
    if empty:
        raise UserError("batches: none given; an error needs at least one")
    return [(float(one.compute()), one.samples if isinstance(one, Mean) else None) for one in found]


def on_device(net: nn.Module, batch: Any) -> tuple[Inputs, Any]:
    """Return the inputs and the labels of a batch on the device of the network."""
    device = next(net.parameters()).device
    labels, inputs = labels_of(batch), inputs_of(batch)
    return tree_map(lambda value: moved(value, device), (inputs, labels))


def labels_of(batch: Any) -> Any:
    """Return the labels of a batch: its second item, or the item "labels" of a dictionary."""
    if isinstance(batch, Mapping) and "labels" in batch:
        return batch["labels"]
    if isinstance(batch, (tuple, list)) and len(batch) >= 2:
        return batch[1]
    kind = type(batch).__name__
    needed = "a tuple (inputs, labels) needed, or a dictionary with the key 'labels'"
    raise UserError(f"batches: {kind} given, {needed}")


def moved(value: Any, device: torch.device) -> Any:
    return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value


def as_sequence(batches: Iterable[Any]) -> Sequence[Any]:
    """Return batches that can be indexed. The first batches of a mere iterable are kept."""
    refuse_dataset("scoring", batches)
    if isinstance(batches, (Tensor, Mapping)):
        kind = type(batches).__name__
        raise UserError(f"scoring: {kind} given, a sequence of batches (inputs, labels) needed")
    indexed = hasattr(batches, "__getitem__") and hasattr(batches, "__len__")
    result: Any = batches if indexed else list(islice(batches, KEPT_BATCHES))
    if not len(result):
        raise UserError("scoring: no batches given; at least one of (inputs, labels) is needed")
    return result


def refuse_dataset(field: str, batches: Any) -> None:
    """Refuse a Dataset, whose items are samples and not batches."""
    if isinstance(batches, Dataset):
        kind = type(batches).__name__
        raise UserError(
            f"{field}: {kind} given, a Dataset of samples; batches (inputs, labels) are needed; "
            f"type {field}=DataLoader(dataset, batch_size=64)"
        )


def first_images(batches: Sequence[Any], images: int) -> list[Any]:
    """Return the first batches that together have at least this many images."""
    chosen, count = [], 0
    for position in range(len(batches)):
        if count >= images:
            break
        chosen.append(batches[position])
        count += len(labels_of(chosen[-1]))
    return chosen
