"""Distillation losses against their definitions, by values and by gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from joslim.training.distillation import (
    ALPHAS,
    DISTILLATIONS,
    RATIO_LIMIT,
    adaptive_alpha_divergence,
    kl_divergence,
    soft_cross_entropy,
)

SHAPES = [(6, 5), (3, 4, 2, 3)]


def logits(seed: int, shape: tuple[int, ...] = (6, 5), size: float = 1.0) -> Tensor:
    return size * torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


def gradient(loss, student: Tensor, teacher: Tensor) -> Tensor:
    leaf = student.clone().requires_grad_()
    return torch.autograd.grad(loss(leaf, teacher), leaf)[0]


def plain_alpha(student: Tensor, teacher: Tensor, alpha: float) -> Tensor:
    """The sum of q ((p/q)^alpha - 1) / (alpha (alpha - 1)), or KL at alpha = 1."""
    p, q = teacher.softmax(dim=1), student.softmax(dim=1)
    if alpha == 1:
        return (p * (p / q).log()).sum(dim=1)
    return (q * ((p / q) ** alpha - 1)).sum(dim=1) / (alpha * (alpha - 1))


def plain_adaptive(student: Tensor, teacher: Tensor) -> Tensor:
    return torch.maximum(*(plain_alpha(student, teacher, alpha) for alpha in (-1, 1))).mean()


@pytest.mark.parametrize("shape", SHAPES)
def test_soft_is_the_cross_entropy_against_probabilities(shape: tuple[int, ...]) -> None:
    student, teacher = logits(0, shape), logits(1, shape)
    plain = -(teacher.softmax(1) * student.softmax(1).log()).sum(1).mean()
    assert soft_cross_entropy(student, teacher).item() == pytest.approx(plain.item())


@pytest.mark.parametrize("shape", SHAPES)
def test_kl_has_the_gradients_of_soft(shape: tuple[int, ...]) -> None:
    student, teacher = logits(0, shape), logits(1, shape)
    left, right = (gradient(f, student, teacher) for f in (kl_divergence, soft_cross_entropy))
    assert torch.allclose(left, right, atol=1e-12)
    positions = student.numel() // shape[1]
    assert torch.allclose(left, (student.softmax(1) - teacher.softmax(1)) / positions)


def test_kl_is_less_by_the_entropy_of_the_teacher() -> None:
    student, teacher = logits(0), logits(1)
    entropy = -(teacher.softmax(1) * teacher.log_softmax(1)).sum(1).mean()
    difference = soft_cross_entropy(student, teacher) - kl_divergence(student, teacher)
    assert difference.item() == pytest.approx(entropy.item())
    oracle = F.kl_div(student.log_softmax(1), teacher.softmax(1), reduction="batchmean")
    assert kl_divergence(student, teacher).item() == pytest.approx(oracle.item())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["kl", "alpha"])
def test_equal_outputs_cost_nothing(name: str, shape: tuple[int, ...]) -> None:
    same = logits(0, shape)
    assert DISTILLATIONS[name](same, same).item() == pytest.approx(0, abs=1e-12)
    assert gradient(DISTILLATIONS[name], same, same).abs().max() < 1e-12


def test_the_ends_are_those_of_the_publication() -> None:
    assert ALPHAS == (-1.0, 1.0)
    assert RATIO_LIMIT == 5.0


@given(st.integers(0, 10_000), st.sampled_from(SHAPES))
def test_alpha_is_its_definition_where_nothing_is_clipped(
    seed: int, shape: tuple[int, ...]
) -> None:
    student, teacher = logits(seed, shape, 0.3), logits(seed + 1, shape, 0.3)
    assert (student.softmax(1) / teacher.softmax(1)).max() < RATIO_LIMIT
    expected = plain_adaptive(student, teacher)
    assert adaptive_alpha_divergence(student, teacher).item() == pytest.approx(expected.item())
    left = gradient(adaptive_alpha_divergence, student, teacher)
    assert torch.allclose(left, gradient(plain_adaptive, student, teacher), atol=1e-12)


def test_alpha_takes_the_larger_end_sample_by_sample() -> None:
    """The first student is too sure of a class, the second leaves one out."""
    student = torch.tensor([[1.5, 0.0, 0.0], [-3.0, 0.0, 0.0]]).double()
    teacher = torch.tensor([[0.0, 0.0, 0.0], [0.3, 0.0, 0.0]]).double()
    low, high = (plain_alpha(student, teacher, alpha) for alpha in (-1.0, 1.0))
    assert low[0] > high[0]
    assert high[1] > low[1]
    value = adaptive_alpha_divergence(student, teacher).item()
    assert value == pytest.approx(((low[0] + high[1]) / 2).item())


def test_alpha_clips_a_student_that_is_too_sure() -> None:
    """Its weight (q/p) is e^20 for the class that it prefers: 5 after clipping."""
    student = torch.tensor([[0.0, 10.0]]).double()
    teacher = torch.tensor([[10.0, 0.0]]).double()
    q, p = student.softmax(1), teacher.softmax(1)
    weight = (q / p).clamp(max=RATIO_LIMIT)
    low = (q * (weight - 1)).sum() / 2
    high = plain_alpha(student, teacher, 1.0)
    value = adaptive_alpha_divergence(student, teacher).item()
    assert value == pytest.approx(max(low.item(), high.item()))
    assert value < 10.1


@pytest.mark.parametrize("name", list(DISTILLATIONS))
def test_a_student_that_is_confidently_wrong_learns(name: str) -> None:
    """Clipping p/q at alpha = 1 would leave it without a gradient: q times 5 is nothing."""
    student = torch.tensor([[12.0, 0.0, 0.0]]).double()
    teacher = torch.tensor([[0.0, 12.0, 0.0]]).double()
    slope = gradient(DISTILLATIONS[name], student, teacher)[0]
    assert slope[0] > 0.9
    assert slope[1] < -0.9


@pytest.mark.parametrize("name", list(DISTILLATIONS))
def test_extreme_outputs_stay_finite(name: str) -> None:
    student, teacher = logits(0, size=200.0).float(), logits(1, size=200.0).float()
    assert DISTILLATIONS[name](student, teacher).isfinite()
    assert gradient(DISTILLATIONS[name], student, teacher).isfinite().all()


@pytest.mark.parametrize("name", list(DISTILLATIONS))
def test_a_step_down_the_gradient_comes_nearer(name: str) -> None:
    student, teacher = logits(2), logits(3)
    slope = gradient(DISTILLATIONS[name], student, teacher)
    before, after = (DISTILLATIONS[name](s, teacher) for s in (student, student - 0.1 * slope))
    assert after < before
