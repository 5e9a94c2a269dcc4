"""Metrics of whole splits, against their definitions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import joslim
from joslim import UserError
from joslim.training.metrics import METRICS, Mean, MeanIoU, Perplexity, as_metric


def computed(name: str, batches: list[tuple[Any, torch.Tensor]]) -> float:
    metric = METRICS[name].make()
    for outputs, labels in batches:
        metric.update(outputs, labels)
    return metric.compute()


def test_miou_counts_pixels_over_all_images() -> None:
    """Class 0: 2 of 4 pixels; class 1: 2 of 4; class 2 does not occur; 255 is not counted."""
    labels = torch.tensor([[[0, 0, 1, 1], [0, 1, 255, 255]]])
    guesses = torch.tensor([[[0, 1, 1, 1], [0, 0, 2, 0]]])
    scores = F.one_hot(guesses, 3).movedim(-1, 1).float()
    both = [(scores[..., :2], labels[..., :2]), (scores[..., 2:], labels[..., 2:])]
    # Intersection over union: class 0 has 2 of {3 labels, 3 guesses}, class 1 has 2 of {3, 3}.
    assert computed("miou", both) == pytest.approx(100 * (1 - (2 / 4 + 2 / 4) / 2))
    assert computed("miou", [({"out": scores}, labels)]) == computed("miou", both)
    with pytest.raises(UserError, match=r"^metric: all pixels are ignored"):
        computed("miou", [(scores, torch.full_like(labels, 255))])


def test_perplexity_is_that_of_all_tokens() -> None:
    scores, labels = torch.randn(3, 5, 7), torch.arange(15).reshape(3, 5) % 7
    losses = F.cross_entropy(scores.flatten(0, 1), labels.flatten())
    parts = [(scores[:2], labels[:2]), (scores[2:], labels[2:])]
    assert computed("perplexity", parts) == pytest.approx(losses.exp().item(), rel=1e-5)
    assert computed("perplexity", [(torch.zeros(1, 4, 256), labels[:1, :4])]) == pytest.approx(256)
    half = labels.clone()
    half[:, 2:] = -100
    few = F.cross_entropy(scores[:, :2].flatten(0, 1), labels[:, :2].flatten()).exp().item()
    assert computed("perplexity", [(scores, half)]) == pytest.approx(few, rel=1e-5)


def test_rmse_and_hamming() -> None:
    outputs, labels = torch.tensor([[3.0], [1.0]]), torch.tensor([0.0, 1.0])
    assert computed("rmse", [(outputs, labels)]) == pytest.approx(math.sqrt(4.5))
    yes_no = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    scores = torch.tensor([[2.0, 2.0, -1.0], [-1.0, -1.0, -1.0]])
    assert computed("hamming", [(scores, yes_no)]) == pytest.approx(100 * 2 / 6)


def test_names_functions_and_objects() -> None:
    assert as_metric("miou").make is MeanIoU
    assert as_metric("perplexity").make is Perplexity
    own = joslim.Metric(Mean, "share of misses")
    assert as_metric(own) is own
    assert isinstance(as_metric(lambda outputs, labels: labels).make(), Mean)
    for wrong, words in (("mioo", "mioo.*miou"), (3, "int given")):
        with pytest.raises(UserError, match=f"^metric: .*{words}"):
            as_metric(wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^metric.unit: 'kg'; type %"):
        joslim.Metric(Mean, "mass", "kg")
