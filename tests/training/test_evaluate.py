"""Scores, losses and errors: right, and without a trace."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import joslim
from joslim import SlimmableNet, UserError, Widths
from joslim.training.evaluate import (
    Tally,
    errors,
    evaluating,
    first_images,
    mean_loss,
    on_device,
    score,
)
from joslim.training.metrics import as_metric, wrong


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(2, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.two = nn.Conv2d(8, 12, 3, stride=2, padding=1)
        self.last = nn.BatchNorm2d(12)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(F.relu(self.norm(self.one(x))))
        return self.head(F.relu(self.last(self.two(x))).mean(dim=(2, 3)))


def make() -> SlimmableNet:
    torch.manual_seed(0)
    net = joslim.slim(Tiny(), torch.zeros(2, 2, 6, 6), low=0.25)
    for _ in range(3):
        net(torch.randn(8, 2, 6, 6) + 1)  # statistics that are not the initial ones
    return net


def batch(seed: int = 1, count: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, 6, 6, generator=generator)
    return x, torch.randint(5, (count,), generator=generator)


def error(net: SlimmableNet, batches: Any, metric: Any = "error") -> float:
    """That of the active child."""
    ((found, _),) = errors(net, [net.active], batches, as_metric(metric))
    return found


def children(net: SlimmableNet) -> list[Widths]:
    rng = np.random.default_rng(1)
    return [net.space.full, net.space.smallest, *(net.space.random(rng) for _ in range(3))]


def test_a_score_is_the_loss_of_the_child_cut_out_on_batch_statistics() -> None:
    net, (x, y) = make(), batch()
    found = score(net, children(net), [(x, y)], F.cross_entropy)
    for child, loss in zip(children(net), found):
        alone = net._cut(child).eval()
        for module in alone.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.train()
        with torch.no_grad():
            assert loss == pytest.approx(F.cross_entropy(alone(x), y).item(), rel=1e-5)


def test_scores_leave_no_trace() -> None:
    net, data = make(), batch()
    net.drop.eval()  # an unusual mix of modes
    net.head.weight.requires_grad_(False)
    net.use(net.space.uniform(0.5))
    with net.at(net.space.smallest):
        joslim.recalibrate(net, [data])
    state = copy.deepcopy(net.state_dict())
    statistics = copy.deepcopy(net.statistics)
    modes = [module.training for module in net.modules()]
    trained = [p.requires_grad for p in net.parameters()]
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    score(net, children(net), [data], F.cross_entropy)
    with net.at(net.space.smallest):
        mean_loss(net, [data], F.cross_entropy)
        error(net, [data])
    assert [module.training for module in net.modules()] == modes
    assert [p.requires_grad for p in net.parameters()] == trained
    assert all(p.grad is None for p in net.parameters())
    assert net.active == net.space.uniform(0.5)
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert (np.random.get_state()[1] == numpy_before).all()
    for name, value in net.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert net.statistics.keys() == statistics.keys()
    for widths, own in net.statistics.items():
        for name, pair in own.items():
            assert all(torch.equal(a, b) for a, b in zip(pair, statistics[widths][name]))
    assert not any(module.__dict__.get("_slim_batch") for module in net.modules())


def test_a_failing_criterion_leaves_no_trace_either() -> None:
    net, data = make(), batch()
    modes = [module.training for module in net.modules()]
    with pytest.raises(ZeroDivisionError):
        score(net, children(net), [data], lambda outputs, labels: 1 / 0)
    assert [module.training for module in net.modules()] == modes
    assert net.active == net.space.full
    assert not any(module.__dict__.get("_slim_batch") for module in net.modules())
    assert torch.is_grad_enabled()


def test_scores_repeat_and_do_not_depend_on_their_company() -> None:
    """Dropout is off, and all children see the same images."""
    net, data = make(), batch()
    seen = []

    def criterion(outputs: Tensor, labels: Tensor) -> Tensor:
        seen.append(labels)
        assert not outputs.requires_grad
        return F.cross_entropy(outputs, labels)

    everyone = children(net)
    together = score(net, everyone, [data], criterion)
    assert all(torch.equal(labels, data[1]) for labels in seen)
    one_by_one = [score(net, [child], [data], criterion)[0] for child in reversed(everyone)]
    assert together == one_by_one[::-1]
    assert len(set(together)) == len(everyone)


def test_nobody_to_score() -> None:
    assert score(make(), [], batch(), F.cross_entropy) == []


def test_a_loss_that_is_not_finite_comes_through() -> None:
    net, data = make(), batch()

    def criterion(outputs: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(outputs, labels)
        return loss * math.nan if net.active == net.space.smallest else loss

    found = score(net, children(net), [data], criterion)
    assert math.isnan(found[1])
    assert all(math.isfinite(loss) for loss in [found[0], *found[2:]])


def test_the_mean_loss_weighs_samples_and_not_batches() -> None:
    net, (x, y) = make(), batch(count=10)
    with torch.no_grad():
        whole = F.cross_entropy(copy.deepcopy(net).eval()(x), y).item()
    parts = [(x[:7], y[:7]), (x[7:9], y[7:9]), [x[9:], y[9:]]]
    assert mean_loss(net, parts, F.cross_entropy) == pytest.approx(whole, rel=1e-5)
    unweighted = np.mean([mean_loss(net, [part], F.cross_entropy) for part in parts])
    assert unweighted != pytest.approx(whole, rel=1e-3)


def test_the_error_is_in_percent_of_the_samples() -> None:
    net, (x, _) = make(), batch(count=10)
    with torch.no_grad():
        right = copy.deepcopy(net).eval()(x).argmax(dim=1)
    labels = right.clone()
    labels[:3] = (labels[:3] + 1) % 5
    parts = [(x[:7], labels[:7]), (x[7:], labels[7:])]
    assert error(net, parts) == pytest.approx(30)
    assert error(net, [(x, right)]) == 0
    assert error(net, [(x, (right + 1) % 5)]) == 100


def test_an_error_of_ones_own() -> None:
    net, (x, y) = make(), batch(count=10)
    half = error(
        net, [(x[:6], y[:6]), (x[6:], y[6:])], lambda outputs, y: torch.full((len(y),), 0.5)
    )
    assert half == pytest.approx(50)


def test_errors_are_those_after_training() -> None:
    """With running statistics: one image alone has the same answer as among others."""
    net, (x, y) = make(), batch()
    single = [error(net, [(x[i : i + 1], y[i : i + 1])]) for i in range(8)]
    assert np.mean(single) == pytest.approx(error(net, [(x, y)]))


def test_no_batches_are_refused() -> None:
    with pytest.raises(UserError, match="batches: none given"):
        error(make(), [])


@pytest.mark.parametrize("wrong_batch", [torch.zeros(4, 2, 6, 6), [torch.zeros(4, 2, 6, 6)], {}])
def test_a_batch_without_labels_is_refused(wrong_batch: object) -> None:
    net = make()
    with pytest.raises(UserError, match=r"batches: .* \(inputs, labels\) needed"):
        score(net, [net.space.full], [wrong_batch], F.cross_entropy)


def test_wrong_samples() -> None:
    outputs = torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]])
    assert wrong(outputs, torch.tensor([1, 1, 0])).tolist() == [False, True, True]


def test_wrong_samples_by_logits() -> None:
    scores, labels = torch.eye(2), torch.tensor([0, 0])
    for outputs in ({"logits": scores}, SimpleNamespace(logits=scores), {"out": scores, "aux": 0}):
        assert wrong(outputs, labels).tolist() == [False, True]
    for outputs, given in (({"boxes": scores}, labels), (scores, [0, 0])):
        with pytest.raises(UserError, match=r"^metric: .* give front\(metric=...\)"):
            wrong(outputs, given)


def test_evaluating_restores_after_an_error() -> None:
    net = make()
    with evaluating(net):
        assert not any(module.training for module in net.modules())
        assert not torch.is_grad_enabled()
    with pytest.raises(ZeroDivisionError), evaluating(net):
        raise ZeroDivisionError
    assert net.training
    assert torch.is_grad_enabled()


def test_several_inputs_and_things_that_are_no_tensors() -> None:
    net, (x, y) = make(), batch()
    inputs, labels = on_device(net, ((x, 3), y))
    assert inputs[0] is x
    assert inputs[1] == 3
    assert labels is y


def test_first_images() -> None:
    batches = [(torch.zeros(4, 2), torch.zeros(4))] * 5
    assert len(first_images(batches, 1)) == 1
    assert len(first_images(batches, 8)) == 2
    assert len(first_images(batches, 9)) == 3
    assert len(first_images(batches, 1000)) == 5


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (
            lambda outputs, labels: torch.tensor(0.5),
            "metric: a single number given; return one for",
        ),
        (
            lambda outputs, labels: torch.full((len(labels),), 3.0),
            "metric: a mean of 3 given; each",
        ),
        (lambda outputs, labels: -torch.ones(len(labels)), "metric: a mean of -1 given; each"),
    ],
)
def test_metrics_that_give_no_error_of_each_sample(metric: Any, words: str) -> None:
    net = joslim.slim(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.zeros(1, 4))
    batches = [(torch.randn(5, 4), torch.zeros(5, dtype=torch.int64))]
    with pytest.raises(UserError, match=f"^{words}"):
        errors(net, [net.space.full], batches, as_metric(metric))


def test_mistakes_are_counted_by_the_logits() -> None:
    scores, labels = torch.eye(3), torch.tensor([0, 2, 2])
    plain, named = Tally(), Tally()
    plain.add(scores, labels)
    named.add({"logits": scores, "loss": None}, labels)
    assert vars(plain) == vars(named)
    assert plain.confusions == {(2, 1): 1}
