"""How children learn from the full network: the loss that fits the criterion of the training.

Soft labels fit a classification, and nothing else: the softmax of a regression means nothing. The
kind of a task is found by trying the criterion at the first step, with made-up outputs:

- A criterion that does not change when a number is added to all scores of a sample is a
  cross-entropy (of classes, of class probabilities as in mixup, of tokens): children learn the
  softmax of the full network.
- A criterion that compares outputs with labels of the same shape takes the full network's outputs
  as the labels, activated such that its least value is at outputs equal to these.

A criterion that fits neither is refused, at the first step and in one line.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from joslim.distributed import is_first
from joslim.errors import UserError, unknown
from joslim.training.distillation import (
    DISTILLATIONS,
    Distillation,
    refuse_single_class,
    soft_cross_entropy,
)
from joslim.training.step import Criterion

log = logging.getLogger("joslim")

AUTO = "auto"
# The names under which models return their scores, as an item or an attribute (HF, torchvision).
LOGITS = ("logits", "out")
# The outputs of the full network as labels.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "outputs": lambda outputs: outputs,
    "sigmoid of the outputs": torch.sigmoid,
    "tanh of the outputs": torch.tanh,
    "exponential of the outputs": torch.exp,
}
WHAT_TO_TYPE = (
    "type distill=function of (student's outputs, teacher's outputs), "
    "or label_share=1 to learn from the labels alone"
)

# The loss of a child, given the criterion of this step, its outputs and those of the full network.
Learning = Callable[[Criterion, Any, Any], Tensor]


def check_distill(wanted: Any) -> str | Distillation:
    """Refuse a distillation that is neither a known name nor a function."""
    names = [AUTO, *DISTILLATIONS]
    if not callable(wanted) and wanted not in names:
        raise unknown("distill", str(wanted), names)
    return wanted


def choose_learning(
    wanted: str | Distillation, criterion: Criterion, outputs: Any, labels: Any
) -> Learning:
    """Return the loss by which children learn from the full network.

    Args:
        wanted: "auto", a name in `DISTILLATIONS`, or a function.
        criterion: Loss function of outputs and labels.
        outputs: Outputs of the full network for one batch, detached.
        labels: Labels of that batch.
    """
    if callable(wanted):
        with torch.no_grad():
            wanted(outputs, outputs)  # a function that does not take the outputs fails now
        return lambda criterion, student, teacher: wanted(student, teacher)
    trial = Trial(criterion, outputs, labels)
    if wanted == AUTO:
        description, learning = trial.learning()
        if is_first():
            log.info("distill: children learn by %s", description)
        return learning
    axis = 1 if trial.has_classes else trial.class_axis()
    if axis in (None, 1):
        refuse_single_class(trial.logits)
    if axis is None and (found := trial.comparison()):
        raise UserError(
            f"distill: {wanted} is for scores of classes, and {trial} compares outputs with labels "
            f"of their shape; leave distill out to learn by it against the {found[0]} of the full "
            "network"
        )
    loss = DISTILLATIONS[wanted]
    return lambda criterion, student, teacher: loss(
        *(logits_of(outputs).movedim(axis or 1, 1) for outputs in (student, teacher))
    )


class Trial:
    """A criterion, and the outputs and labels of one batch, with which it is tried."""

    def __init__(self, criterion: Criterion, outputs: Any, labels: Any) -> None:
        self.criterion, self.outputs, self.labels = criterion, outputs, labels
        self.logits = logits_of(outputs)
        # The same numbers in every process and after a resume. Outputs that may be probabilities
        # are replaced by probabilities, also after a shift.
        self.random = torch.Generator().manual_seed(0)
        low, self.size = (0.05, 0.45) if bool((self.logits >= 0).all()) else (-1.5, 3.0)
        self.gives_probabilities = bool(((self.logits > 0) & (self.logits <= 1)).all())
        self.some, self.others = (low + self.numbers(self.logits.shape) for _ in range(2))

    def __str__(self) -> str:
        plain = self.criterion
        while isinstance(plain, partial):
            plain = plain.func
        return f"criterion {getattr(plain, '__name__', type(plain).__name__)}"

    def numbers(self, shape: Sequence[int]) -> Tensor:
        dtype = torch.promote_types(self.logits.dtype, torch.float32)
        drawn = self.size * torch.rand(shape, generator=self.random)
        return drawn.to(self.logits.device, dtype)

    def loss(self, logits: Tensor, labels: Any = None) -> float:
        """Return the loss of other logits and labels; nan if the criterion does not take them."""
        try:
            with torch.no_grad():
                outputs = with_logits(self.outputs, logits)
                return float(self.criterion(outputs, self.labels if labels is None else labels))
        except Exception:  # the criterion is anybody's function
            return math.nan

    def learning(self) -> tuple[str, Learning]:
        """Return the loss that fits, and its description."""
        axis = self.class_axis()
        if axis is None and (found := self.comparison()):
            activation, learning = found
            return f"{self} against the {activation} of the full network", learning
        if axis is None and ((self.has_classes and self.is_blind) or self.gives_log_probabilities):
            axis = 1
        if axis is None:
            shape = tuple(getattr(self.labels, "shape", ()))
            kind = getattr(self.labels, "dtype", type(self.labels).__name__)
            raise UserError(
                f"distill: cannot tell how children learn from the full network with {self}, "
                f"outputs {tuple(self.logits.shape)}, labels {shape} {kind}; {WHAT_TO_TYPE}"
                + (', or distill="soft" for scores of classes' if self.has_classes else "")
            )
        summed = self.is_summed

        def soft(criterion: Criterion, student: Any, teacher: Any) -> Tensor:
            scores, taught = (logits_of(outputs).movedim(axis, 1) for outputs in (student, teacher))
            samples = scores.numel() // scores.shape[1] if summed else 1
            return samples * soft_cross_entropy(scores, taught)

        return f"soft labels, the softmax of the full network along axis {axis}", soft

    # Classes

    @property
    def has_classes(self) -> bool:
        """Whether labels are class numbers [n, ...] for outputs [n, classes, ...]."""
        shape = self.logits.shape
        whole = isinstance(self.labels, Tensor) and not self.labels.is_floating_point()
        classes = len(shape) > 1 and shape[1] > 1
        return whole and classes and self.labels.shape == shape[:1] + shape[2:]

    @property
    def is_blind(self) -> bool:
        """Whether the criterion is not finite, or takes its loss from elsewhere than the logits."""
        loss = self.loss(self.some)
        return not math.isfinite(loss) or near(loss, self.loss(self.others))

    @property
    def gives_log_probabilities(self) -> bool:
        """Whether the network ends in log_softmax, as for nll_loss; a softmax of it undoes it."""
        if self.logits.ndim < 2 or self.logits.shape[1] < 2:
            return False
        return bool((self.logits.float().logsumexp(dim=1).abs() < 1e-2).all())

    @property
    def is_summed(self) -> bool:
        """Whether the loss of a batch is a sum and not a mean: it doubles with the batch."""
        if not isinstance(self.labels, Tensor) or not self.labels.ndim:
            return False
        twice = (torch.cat([values, values]) for values in (self.some, self.labels))
        return near(self.loss(*twice), 2 * self.loss(self.some))

    def class_axis(self) -> int | None:
        """Return the axis along which the same number can be added without changing the loss."""
        if self.is_blind:
            return None
        for axis in sorted({1, self.logits.ndim - 1}) if self.logits.ndim > 1 else ():
            shape = [*self.logits.shape]
            classes, shape[axis] = shape[axis], 1
            shifted = self.some + self.numbers(shape)
            if classes > 1 and near(self.loss(shifted), self.loss(self.some)):
                return axis
        return None

    # Labels in the shape of the outputs

    def comparison(self) -> tuple[str, Learning] | None:
        """Return how outputs become labels, in words, and the criterion against these labels."""
        if not isinstance(self.labels, Tensor) or self.labels.numel() != self.logits.numel():
            return None
        dtype = self.labels.dtype if self.labels.is_floating_point() else None
        tail = None if self.labels.shape == self.logits.shape else self.labels.shape[1:]

        def as_labels(values: Tensor) -> Tensor:
            values = values if tail is None else values.reshape(-1, *tail)
            return values.to(dtype or values.dtype)

        def implied(criterion: Criterion, outputs: Any) -> Tensor:
            """Return the labels for which the slope of the criterion at the outputs is zero.

            The slope is linear in the label also for weighted, smoothed and scaled losses, such as
            the binary cross-entropy with pos_weight.
            """
            logits = logits_of(outputs)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            at_zero, at_one = (
                gradient(criterion, outputs, logits, as_labels(torch.full_like(logits, label)))
                for label in (0, 1)
            )
            return (at_zero / (at_zero - at_one)).nan_to_num(0, 0, 0)

        def activated(
            activation: Callable[[Tensor], Tensor], criterion: Criterion, outputs: Any
        ) -> Tensor:
            return activation(logits_of(outputs))

        def loss(
            way: Callable[[Criterion, Any], Tensor],
            criterion: Criterion,
            student: Any,
            teacher: Any,
        ) -> Tensor:
            return criterion(student, as_labels(way(criterion, teacher)))

        ways: dict[str, Callable[[Criterion, Any], Tensor]] = {
            **{name: partial(activated, activation) for name, activation in ACTIVATIONS.items()},
            "labels that it implies for the outputs": implied,
        }
        for name, way in ways.items():
            try:
                outputs = with_logits(self.outputs, self.some)
                labels = as_labels(way(self.criterion, outputs))
                if self.gives_probabilities and not bool(((labels >= 0) & (labels <= 1)).all()):
                    continue  # binary_cross_entropy takes none, and would stop a GPU for good
                slope = gradient(self.criterion, outputs, self.some, labels)
            except Exception:  # the criterion is anybody's function
                continue
            # These outputs have the least loss: not a step down the slope, nor others, have less.
            down = self.some - 0.02 * slope / slope.abs().max().clamp(min=1e-20)
            least, below, away = (self.loss(at, labels) for at in (self.some, down, self.others))
            if least <= below + 1e-5 * abs(least) and least < away and not near(least, away):
                return name, partial(loss, way)
        return None


def near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-6)


def gradient(criterion: Criterion, outputs: Any, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the gradient of the criterion at other logits than those of the outputs."""
    with torch.enable_grad():
        point = logits.detach().clone().requires_grad_()
        return torch.autograd.grad(criterion(with_logits(outputs, point), labels), point)[0]


def scores_of(outputs: Any) -> Any:
    """Return the tensor that outputs hold under a name in `LOGITS`, else the outputs."""
    name = None if isinstance(outputs, Tensor) else name_of_logits(outputs)
    return outputs if name is None else held(outputs, name)


def logits_of(outputs: Any) -> Tensor:
    """Return the outputs, or the tensor that they hold under a name in `LOGITS`."""
    if isinstance(scores := scores_of(outputs), Tensor):
        return scores
    names = f" of {', '.join(map(str, outputs))}" if isinstance(outputs, Mapping) else ""
    raise UserError(
        f"distill: the network returns a {type(outputs).__name__}{names}, without "
        f"{' or '.join(LOGITS)}; {WHAT_TO_TYPE}"
    )


def with_logits(outputs: Any, logits: Tensor) -> Any:
    """Return a copy of the outputs with other logits."""
    if isinstance(outputs, Tensor):
        return logits
    name = name_of_logits(outputs)
    assert name is not None
    if hasattr(outputs, "_replace"):
        return outputs._replace(**{name: logits})
    result = copy.copy(outputs)
    if isinstance(result, MutableMapping):
        result[name] = logits
    else:
        object.__setattr__(result, name, logits)  # the dataclass may be frozen
    return result


def name_of_logits(outputs: Any) -> str | None:
    return next((name for name in LOGITS if isinstance(held(outputs, name), Tensor)), None)


def held(outputs: Any, name: str) -> Any:
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
