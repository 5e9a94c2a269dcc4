"""Judging: from the history to the front, and what it leaves alone."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import joslim
from joslim import METHODS, Data, RunFailed, SlimmableNet, Widths
from joslim.training.evaluate import errors, mean_loss

from .small import make, sgd, slimming_of, train


def test_the_loss_of_a_front_child_is_that_of_the_child_alone(digits: Data) -> None:
    slimming = slimming_of(digits)
    train(slimming, digits, 12)
    front = slimming.front(images=256, test=digits.sweep("test", 512))
    batches = list(digits.sweep("train", 128, 256))
    for point in front:
        child = slimming.net._cut(point.widths).train()
        joslim.recalibrate(child, batches)
        loss = mean_loss(child, batches, F.cross_entropy)
        assert point.train_loss == pytest.approx(loss, rel=1e-4)
        ((again, _),) = errors(slimming.net, [point.widths], digits.sweep("test", 512))
        assert point.test_error == pytest.approx(again)
        for name in ("macs", "params", "memory"):
            assert point.costs[name] == joslim.cost(name, slimming.net)(point.widths)


def test_a_front_does_not_move_the_network(digits: Data) -> None:
    slimming = slimming_of(digits)
    train(slimming, digits, 8)
    state = copy.deepcopy(slimming.net.state_dict())
    slimming.front(images=128, test=digits.sweep("test", 512))
    for name, value in slimming.net.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert slimming.net.active == slimming.space.full


def test_an_iterator_of_test_batches_serves_all_children(digits: Data) -> None:
    slimming = slimming_of(digits)
    train(slimming, digits, 8)
    expected = slimming.front(images=128, test=digits.sweep("test", 100))
    assert slimming.front(images=128, test=iter(digits.sweep("test", 100))) == expected


def failing_at(net: SlimmableNet, bad: Callable[[Widths], bool]) -> Callable[..., Tensor]:
    """A criterion that has no number for some children, when they are scored."""

    def criterion(outputs: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(outputs, labels)
        return loss * math.nan if not outputs.requires_grad and bad(net.active) else loss

    return criterion


def test_a_child_without_a_finite_loss_is_never_in_the_front(digits: Data) -> None:
    """Public code gives it loss 0: it dominates everybody."""
    net = make()
    slimming = slimming_of(digits, net)
    criterion = failing_at(net, lambda widths: widths == net.space.smallest)
    optimizer = sgd(net)
    for _, (x, y) in zip(range(8), digits.batches(0, 32)):
        slimming.step(x, y, optimizer, criterion)
    assert net.space.smallest in slimming.history
    assert net.space.smallest not in {
        slimming.history.visits[child].widths for child in slimming.history.scored().ids
    }
    front = slimming.front(images=128)
    assert net.space.smallest not in {point.widths for point in front}
    assert len(front) >= 1
    assert all(math.isfinite(point.train_loss) for point in front)


@pytest.mark.parametrize("method", list(METHODS))
def test_no_finite_loss_at_all_is_a_failed_run(digits: Data, method: str) -> None:
    net = make()
    slimming = slimming_of(digits, net, method=method)
    with pytest.raises(RunFailed, match="children has a finite loss: no front") as caught:
        slimming.front(failing_at(net, lambda widths: True), images=128)
    assert "\n" not in str(caught.value)


def test_many_children_are_sifted_first(digits: Data) -> None:
    """More than the finalists: one pass each on one batch, then only the best on many images."""
    net = make()
    slimming = slimming_of(
        digits, net, total_steps=100, every=1, method="bignas", searcher="random"
    )
    calls: list[Widths] = []

    def criterion(outputs: Tensor, labels: Tensor) -> Tensor:
        calls.append(net.active)
        return F.cross_entropy(outputs, labels)

    front = slimming.front(criterion, images=128)
    everyone = len(slimming.history)
    assert everyone > 150
    assert slimming.scoring_passes == 2 * everyone
    judged = calls[2 * everyone :]
    assert 64 <= len(judged) < 150
    assert {point.widths for point in front} <= set(judged)


def test_progress(digits: Data) -> None:
    slimming = slimming_of(digits, method="slim")
    seen: list[tuple[int, int]] = []
    val, test = digits.sweep("val", 32), digits.sweep("test", 128)
    slimming.front(
        F.cross_entropy,
        images=128,
        val=val,
        test=test,
        progress=lambda *now: seen.append(now),
    )
    assert [done for done, _ in seen] == list(range(len(seen))), "batches of errors count too"
    assert {total for _, total in seen} == {len(seen) - 1}
    assert len(seen) > 1 + len(val) + len(test)
