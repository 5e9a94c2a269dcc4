"""Tasks: what a network learns, and how it is judged. A task is a row of `TASKS`.

A row has the loss, the metric, and the shape of the outputs that go with the labels. How children
learn from the full network follows from the loss (`learning.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from joslim.errors import UserError, unknown
from joslim.training.distillation import Distillation
from joslim.training.learning import check_distill, scores_of
from joslim.training.metrics import METRICS, Faults, MeanIoU, Metric, Perplexity, as_metric
from joslim.training.step import Criterion


@dataclass(frozen=True)
class Task:
    """A task of your own, for `joslim.train(task=...)`: a loss, a metric, and a distillation.

    Args:
        criterion: Loss function of outputs and labels.
        metric: How wrong a child is: a name ("error", "hamming", "miou", "perplexity", "rmse"), a
            function of outputs and labels that returns a number from 0 to 1 for each sample, or a
            `joslim.Metric`.
        distill: How children learn from the full network, as for `joslim.Slimming`.

    Raises:
        UserError: The metric or the distillation is unknown.

    Examples:
        >>> task = joslim.Task(nn.functional.l1_loss, metric="rmse")
        >>> task.metric.label
        'RMSE'
    """

    criterion: Criterion
    metric: str | Metric | Faults = "error"
    distill: str | Distillation = "auto"

    def __post_init__(self) -> None:
        if not callable(self.criterion):
            kind = type(self.criterion).__name__
            raise UserError(f"criterion: {kind} given; a function of outputs and labels is needed")
        object.__setattr__(self, "metric", as_metric(self.metric))
        check_distill(self.distill)


@dataclass(frozen=True)
class LossOptions:
    """Options of the losses that are settings of a run."""

    label_smoothing: float = 0.0
    weights: Tensor | None = None  # of the classes
    ignore_index: int = -100


@dataclass(frozen=True)
class TaskKind:
    """A row of `TASKS`.

    outputs: The shape of the outputs for one sample, given the number of classes and the shape of
    the inputs without the batch; `shape` is the same in words.
    ignore_index: The label that neither the loss nor the metric counts, if there is such a label.
    has_classes: Whether scores are those of classes, for which soft labels, weights and smoothing
    are made.
    """

    make: Callable[[LossOptions], Task]
    outputs: Callable[[int, Sequence[int]], tuple[int, ...]]
    shape: str
    ignore_index: int | None = None
    has_classes: bool = True


def _classification(options: LossOptions) -> Task:
    return Task(_cross_entropy(options))


def _multi_label(options: LossOptions) -> Task:
    loss = nn.BCEWithLogitsLoss(pos_weight=options.weights)
    return Task(_OfScores(loss), METRICS["hamming"])


def _regression(options: LossOptions) -> Task:
    return Task(_OfScores(nn.MSELoss(), in_shape_of_labels=True), METRICS["rmse"])


def _segmentation(options: LossOptions) -> Task:
    metric = replace(METRICS["miou"], make=partial(MeanIoU, options.ignore_index))
    return Task(_OfScores(_cross_entropy(options)), metric)


def _language(options: LossOptions) -> Task:
    metric = replace(METRICS["perplexity"], make=partial(Perplexity, options.ignore_index))
    return Task(_OfScores(_cross_entropy(options), classes_last=True), metric)


def _cross_entropy(options: LossOptions) -> nn.Module:
    return nn.CrossEntropyLoss(
        options.weights,
        ignore_index=options.ignore_index,
        label_smoothing=options.label_smoothing,
    )


class _OfScores(nn.Module):
    """A loss of the scores, with the axes that it takes."""

    def __init__(
        self, loss: nn.Module, classes_last: bool = False, in_shape_of_labels: bool = False
    ) -> None:
        super().__init__()
        self.loss, self.classes_last, self.in_shape = loss, classes_last, in_shape_of_labels

    def forward(self, outputs: Any, labels: Tensor) -> Tensor:
        scores = scores_of(outputs)
        if self.classes_last:
            scores = scores.movedim(-1, 1)
        if self.in_shape:
            scores = scores.reshape(labels.shape)
        return self.loss(scores, labels)


TASKS: dict[str, TaskKind] = {
    "classification": TaskKind(_classification, lambda c, _: (c,), "(n, classes)"),
    "multi-label": TaskKind(_multi_label, lambda c, _: (c,), "(n, labels)", has_classes=False),
    "regression": TaskKind(_regression, lambda c, _: (c,), "(n, numbers)", has_classes=False),
    "segmentation": TaskKind(
        _segmentation, lambda c, x: (c, *x[1:]), "(n, classes, height, width)", ignore_index=255
    ),
    "language": TaskKind(
        _language, lambda c, x: (*x, c), "(n, tokens, vocabulary)", ignore_index=-100
    ),
}
"""The table of tasks: name -> loss, metric and shape of the outputs.

Examples:
    >>> joslim.TASKS["language"].shape
    '(n, tokens, vocabulary)'
"""


def task_kind(name: str) -> TaskKind:
    """Find a task by its name."""
    if name not in TASKS:
        raise UserError(
            f"{unknown('task', name, TASKS, most=len(TASKS))}; or your own in Python: "
            "joslim.train(task=joslim.Task(...))"
        )
    return TASKS[name]


def check_outputs(outputs: Any, name: str, classes: int, shape: Sequence[int]) -> None:
    """Refuse outputs, of one sample, that do not fit the task and the data; say both shapes."""
    kind = task_kind(name)
    scores = scores_of(outputs)
    wanted = (1, *kind.outputs(classes, shape))
    if not isinstance(scores, Tensor) or tuple(scores.shape) != wanted:
        found = tuple(scores.shape) if isinstance(scores, Tensor) else type(outputs).__name__
        sizes = ", ".join(map(str, wanted[1:]))
        raise UserError(
            f"model: its output is {found}, the data need (n, {sizes}) for task {name}: "
            f"{kind.shape}"
        )


def class_weights(text: str, classes: int, counts: Callable[[], Sequence[int]]) -> Tensor:
    """Read 1,2,0.5 as the weights of the classes; `balanced` gives each class the same total.

    counts: Returns how often each class occurs in the training data.
    """
    if text == "balanced":
        found = torch.tensor([*counts()], dtype=torch.float32)
        there = found > 0  # a class that does not occur has no loss to weight
        return torch.where(there, found.sum() / (there.sum() * found.clamp(min=1)), 1.0)
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError:
        weights = []
    if len(weights) != classes or not all(0 <= w < float("inf") for w in weights):
        raise UserError(
            f"class_weights: {text!r}; type balanced, or {classes} numbers from 0 on: 1,2,..."
        )
    return torch.tensor(weights)
