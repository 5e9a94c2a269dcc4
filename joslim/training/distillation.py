"""Distillation losses, by which a child learns from the outputs of the full network.

Each takes (student, teacher), both logits [n, classes, ...], and returns a number. A new one is a
function and a line in `DISTILLATIONS`. Tasks beyond classification take a function of their own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from joslim.errors import UserError

Distillation = Callable[[Tensor, Tensor], Tensor]

# Adaptive alpha-divergence (Wang et al., AlphaNet, 2021): the two values of alpha, and the limit at
# which powers of density ratios are clipped, so that no single class dominates the gradient.
ALPHAS = (-1.0, 1.0)
RATIO_LIMIT = 5.0


def refuse_single_class(outputs: Tensor) -> None:
    """Refuse outputs of one class: its softmax is always 1, so that nothing would be learned."""
    if outputs.ndim < 2 or outputs.shape[1] < 2:
        raise UserError(
            f"distill: outputs {tuple(outputs.shape)} are no scores of two or more classes; "
            "give distill a function of (student's outputs, teacher's outputs)"
        )


def soft_cross_entropy(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the cross-entropy against the probabilities of the teacher."""
    refuse_single_class(student)
    return F.cross_entropy(student, teacher.softmax(dim=1))


def kl_divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the KL divergence: the gradients of the cross-entropy, and 0 for equal outputs."""
    return _alpha_divergence(*_log_probabilities(teacher, student), alpha=1.0).mean()


def adaptive_alpha_divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean over samples of the larger of two alpha-divergences.

    A negative alpha punishes overestimating the teacher's uncertainty, a positive one
    underestimating it; taking the larger of the two punishes both.
    """
    target, predicted = _log_probabilities(teacher, student)
    low, high = (_alpha_divergence(target, predicted, alpha) for alpha in ALPHAS)
    return torch.maximum(low, high).mean()


def _log_probabilities(teacher: Tensor, student: Tensor) -> tuple[Tensor, Tensor]:
    refuse_single_class(student)
    return teacher.log_softmax(dim=1), student.log_softmax(dim=1)


def _alpha_divergence(target: Tensor, predicted: Tensor, alpha: float) -> Tensor:
    """Compute D_alpha(teacher || student) of log-probabilities, [n, classes, ...] -> [n, ...].

    The gradient is that of the divergence with its importance weights (p/q)^alpha clipped. For
    alpha = 1, the KL divergence, nothing is clipped: a weight times q is a probability there, and
    a student that is confidently wrong would get no gradient.
    """
    if alpha == 1.0:
        return (target.exp() * (target - predicted)).sum(dim=1)
    student = predicted.exp()
    weight = (alpha * (target - predicted)).exp().clamp(max=RATIO_LIMIT).detach()
    value = (student * (weight - 1)).sum(dim=1) / (alpha * (alpha - 1))
    slope = -(weight * student.detach() * predicted).sum(dim=1) / alpha
    return value.detach() + slope - slope.detach()


DISTILLATIONS: dict[str, Distillation] = {
    "soft": soft_cross_entropy,
    "kl": kl_divergence,
    "alpha": adaptive_alpha_divergence,
}
