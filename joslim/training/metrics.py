"""Metrics: how wrong a child is on all samples of a split, as one number. Lower is better.

A metric takes in batches with `update(outputs, labels)` and gives its number with `compute()`, as
those of torchmetrics do: neither a mean intersection over union nor a perplexity is a mean over
samples. A new one is such a class, and a row of `METRICS` with what its number is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from joslim.errors import UserError, unknown
from joslim.front import MetricName
from joslim.training.learning import scores_of

# How wrong the outputs are for each sample of a batch, [n] booleans or numbers from 0 to 1.
Faults = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class Metric:
    """A metric of your own, for `Slimming.front(metric=...)` and `joslim.Task`.

    Args:
        make: A function without arguments that returns an object with `update(outputs, labels)`,
            which is called with each batch, and `compute()`, which returns the number for all of
            them: the lower the better. Metrics of torchmetrics are such objects.
        label: What the number is called in tables and on the page: "test LABEL".
        unit: "%" for percentages, which are at most 100, or "" for plain numbers.

    Examples:
        >>> class Largest:
        ...     value = 0.0
        ...     def update(self, outputs, labels):
        ...         self.value = max(self.value, (outputs - labels).abs().max().item())
        ...     def compute(self):
        ...         return self.value
        >>> joslim.Metric(Largest, "largest deviation", "").name.words("test_error")
        'test largest deviation'
    """

    make: Callable[[], Any]
    label: str = "error"
    unit: str = "%"

    def __post_init__(self) -> None:
        _ = self.name  # its words are checked

    @property
    def name(self) -> MetricName:
        """What the number is called, and its unit."""
        return MetricName(self.label, self.unit)


def as_metric(metric: str | Metric | Faults) -> Metric:
    """Return a metric by its name, or of a function of outputs and labels."""
    if isinstance(metric, Metric):
        return metric
    if isinstance(metric, str):
        if metric not in METRICS:
            raise unknown("metric", metric, METRICS)
        return METRICS[metric]
    if not callable(metric):
        raise UserError(f"metric: {type(metric).__name__} given; a name, a function or a Metric")
    return Metric(partial(Mean, metric))


def wrong(outputs: Any, labels: Any) -> Tensor:
    """Return where the most likely class is not the label: [n, classes] and [n] -> [n].

    Outputs may also have the scores as `logits` or `out`, an item or an attribute.
    """
    outputs = scores_of(outputs)
    if not (isinstance(outputs, Tensor) and isinstance(labels, Tensor)):
        shapes = f"outputs {type(outputs).__name__}, labels {type(labels).__name__}"
        raise UserError(f"metric: {shapes} are no class scores and classes; give front(metric=...)")
    if labels.ndim != 1 or labels.is_floating_point() or outputs.ndim != 2:
        shapes = f"outputs {tuple(outputs.shape)}, labels {tuple(labels.shape)} {labels.dtype}"
        raise UserError(f"metric: {shapes} are no class scores and classes; give front(metric=...)")
    return outputs.argmax(dim=1) != labels


def wrong_labels(outputs: Any, labels: Tensor) -> Tensor:
    """Return the share of wrong yes-or-no labels: logits and labels [n, classes] -> [n]."""
    return ((scores_of(outputs) > 0) != (labels > 0.5)).flatten(1).double().mean(dim=1)


class Mean:
    """The mean over samples of a function of outputs and labels, in percent."""

    def __init__(self, faults: Faults = wrong) -> None:
        self.faults, self.total, self.samples = faults, 0.0, 0

    def update(self, outputs: Any, labels: Any) -> None:
        faults = self.faults(outputs, labels)
        if not faults.ndim:  # batches of different sizes would count the same
            raise UserError(
                "metric: a single number given; return one for each sample, from 0 to 1, or give a "
                "joslim.Metric"
            )
        self.total += faults.double().sum().item()
        self.samples += faults.numel()

    def compute(self) -> float:
        if not 0 <= self.total <= self.samples:
            raise UserError(
                f"metric: a mean of {self.total / self.samples:g} given; each sample needs a "
                "number from 0 to 1"
            )
        return 100 * self.total / self.samples


class MeanIoU:
    """100 % minus the mean intersection over union of the classes that occur, over all pixels.

    Scores [n, classes, height, width], labels [n, height, width].
    """

    def __init__(self, ignore_index: int = 255) -> None:
        self.ignore_index = ignore_index
        self.counts: Tensor | None = None  # [label, prediction]

    def update(self, outputs: Any, labels: Tensor) -> None:
        scores = scores_of(outputs)
        classes, counted = scores.shape[1], labels != self.ignore_index
        pairs = labels[counted] * classes + scores.argmax(dim=1)[counted]
        found = torch.bincount(pairs, minlength=classes * classes).view(classes, classes).cpu()
        self.counts = found if self.counts is None else self.counts + found

    def compute(self) -> float:
        assert self.counts is not None
        both = self.counts.diagonal().double()
        either = self.counts.sum(0) + self.counts.sum(1) - both
        if not either.any():
            raise UserError("metric: all pixels are ignored; label some")
        return 100 * (1 - (both / either)[either > 0].mean().item())


class Perplexity:
    """The exponential of the mean loss of a token: scores [n, tokens, classes], labels [n, tokens].

    A perplexity beyond 1e30 counts as 1e30, so that it stays a number.
    """

    def __init__(self, ignore_index: int = -100) -> None:
        self.ignore_index, self.total, self.tokens = ignore_index, 0.0, 0

    def update(self, outputs: Any, labels: Tensor) -> None:
        scores = scores_of(outputs).flatten(0, -2).float()
        losses = F.cross_entropy(
            scores, labels.flatten(), ignore_index=self.ignore_index, reduction="none"
        )
        self.total += losses.double().sum().item()
        self.tokens += int((labels != self.ignore_index).sum())

    def compute(self) -> float:
        mean = torch.tensor(self.total / max(1, self.tokens), dtype=torch.float64)
        return min(1e30, mean.exp().item())


class RootMeanSquare:
    """The root of the mean squared difference of outputs and labels of the same shape."""

    def __init__(self) -> None:
        self.total, self.numbers = 0.0, 0

    def update(self, outputs: Any, labels: Tensor) -> None:
        scores = scores_of(outputs)
        self.total += (scores.reshape(labels.shape) - labels).double().square().sum().item()
        self.numbers += labels.numel()

    def compute(self) -> float:
        return (self.total / max(1, self.numbers)) ** 0.5


METRICS: dict[str, Metric] = {
    "error": Metric(Mean),
    "hamming": Metric(partial(Mean, wrong_labels), "Hamming loss"),
    "miou": Metric(MeanIoU, "error (1 - mIoU)"),
    "perplexity": Metric(Perplexity, "perplexity", ""),
    "rmse": Metric(RootMeanSquare, "RMSE", ""),
}
