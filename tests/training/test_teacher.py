"""Teachers of the children, against gradients and averages computed by hand."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import joslim
from joslim import Data, UserError
from joslim.slimmable import batch_statistics
from joslim.training.teacher import DECAY, TEACHERS
from tests.training.small import make, sgd, slimming_of, train


@pytest.fixture(scope="module")
def data() -> Data:
    return joslim.load_data("digits", channels=1)


def batches(data: Data) -> Iterator[tuple[Tensor, Tensor]]:
    return iter(data.batches(0, 32))


def soft(student: Tensor, teacher: Tensor) -> Tensor:
    return F.cross_entropy(student, teacher.softmax(1))


@pytest.mark.parametrize("teacher", TEACHERS)
def test_losses_are_those_of_the_teacher(teacher: str, data: Data) -> None:
    net = make(norm=False)
    net.drop.p = 0.0
    slimming = slimming_of(data, net, teacher=teacher)
    begin = copy.deepcopy(net)
    optimizer = sgd(net)
    found = batches(data)
    slimming.step(*next(found), optimizer, F.cross_entropy)
    x, y = next(found)
    average = copy.deepcopy(begin)
    for mine, now in zip(average.parameters(), net.parameters()):
        mine.data = DECAY * mine.data + (1 - DECAY) * now.data
    before = copy.deepcopy(net)
    slimming.step(x, y, optimizer, F.cross_entropy)
    outputs = []
    for child in slimming.widths:
        with torch.no_grad(), before.at(child):
            outputs.append(before(x))
    with torch.no_grad():
        taught = {
            "full": [outputs[0]] * 3,
            "next": outputs[:-1],
            "fixed": [begin(x)] * 3,
            "ema": [average(x)] * 3,
        }[teacher]
    expected = [F.cross_entropy(outputs[0], y), *map(soft, outputs[1:], taught)]
    torch.testing.assert_close(slimming.losses, torch.stack(expected))
    if teacher == "next":
        costs = [slimming.cost(child) for child in slimming.widths]
        assert costs == sorted(costs, reverse=True)


def test_norms_of_a_copy(data: Data) -> None:
    """A fixed teacher is the trained network itself; an average normalises by the batch."""
    x, _ = next(batches(data))
    for kind, context in (("fixed", None), ("ema", batch_statistics)):
        net = make()
        train(slimming_of(data, net), data, 3)  # the statistics are those of a trained network
        slimming = slimming_of(data, net, teacher=kind)
        before = copy.deepcopy(net).eval()
        train(slimming, data, 1)
        with torch.no_grad():
            if context is None:
                expected = before(x)
            else:
                for mine, now in zip(before.parameters(), net.parameters()):
                    mine.lerp_(now, 1 - DECAY)
                with context(before):
                    expected = before(x)
        assert slimming.teacher is not None
        torch.testing.assert_close(slimming.teacher((x,)), expected)


def test_the_full_network_can_learn_from_the_teacher_too(data: Data) -> None:
    net = make(norm=False)
    net.drop.p = 0.0
    slimming = slimming_of(data, net, teacher="fixed", full_distill=0.25)
    train(slimming, data, 1)
    begin, x, y = make(norm=False).eval(), *next(batches(data))
    with torch.no_grad():
        outputs = begin(x)
        expected = 0.75 * F.cross_entropy(outputs, y) + 0.25 * soft(outputs, outputs)
    torch.testing.assert_close(slimming.losses[0], expected)


@pytest.mark.parametrize("teacher", ["next", "fixed", "ema"])
def test_a_resume_is_exact(teacher: str, data: Data) -> None:
    whole = slimming_of(data, teacher=teacher)
    train(whole, data, 8)
    first = slimming_of(data, teacher=teacher)
    optimizer = sgd(first.net)
    train(first, data, 4, optimizer)
    state = copy.deepcopy(first.state_dict())
    second = slimming_of(data, copy.deepcopy(first.net), teacher=teacher)
    moved = sgd(second.net)
    moved.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    second.load_state_dict(state)
    train(second, data, 4, moved)
    for name, tensor in whole.net.state_dict().items():
        assert torch.equal(tensor, second.net.state_dict()[name]), name


def test_the_teacher_is_not_trained(data: Data) -> None:
    net = make()
    slimming = slimming_of(data, net, teacher="fixed")
    before = {name: value.clone() for name, value in net.state_dict().items()}
    train(slimming, data, 3)
    assert slimming.teacher is not None
    for name, value in slimming.teacher.state_dict().items():
        assert torch.equal(value, before[name])


def test_what_is_refused(data: Data) -> None:
    with pytest.raises(UserError, match="teacher: unknown name 'old'; allowed: full, next"):
        slimming_of(data, teacher="old")
    with pytest.raises(UserError, match=r"full_distill: 0.5 given, .* type --teacher fixed or"):
        slimming_of(data, full_distill=0.5)
    slimming = slimming_of(data, teacher="fixed")
    state = slimming.state_dict()
    state["teacher"].popitem()
    with pytest.raises(UserError, match="teacher: its weights are not of this network"):
        slimming.load_state_dict(state)
    with pytest.raises(UserError, match="teacher: the state is of 'fixed', this is 'full'"):
        slimming_of(data).load_state_dict(state)
