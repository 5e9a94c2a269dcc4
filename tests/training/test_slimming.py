"""Slimming in anybody's loop: rounds, state, the front, and what it never touches."""

from __future__ import annotations

import copy
import importlib.util
import io
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import joslim
from joslim import METHODS, Data, Slimming, UserError, Widths
from joslim.search.mobo import Scalarized
from joslim.search.nsga2 import Evolution
from joslim.search.targeted import Targeted
from joslim.training.evaluate import errors
from joslim.training.slimming import default_every

from .small import Layers, make, sgd, slimming_of, train

HOUSE = Path(__file__).parents[2]


# The step


def test_a_step_is_backward_optimizer_and_advance(digits: Data) -> None:
    whole, parts = (slimming_of(digits) for _ in range(2))
    train(whole, digits, 6)
    optimizer = sgd(parts.net)
    for _, (x, y) in zip(range(6), digits.batches(0, 32)):
        torch.manual_seed(parts.steps)
        optimizer.zero_grad()
        loss = parts.backward(x, y, F.cross_entropy)
        assert loss == parts.losses[0]
        optimizer.step()
        parts.advance()
    assert parts.state_dict() == whole.state_dict()
    for left, right in zip(parts.net.parameters(), whole.net.parameters()):
        assert torch.equal(left, right)


@pytest.mark.parametrize(
    ("options", "weight"),
    [
        ({"draw": None}, 3),
        ({"draw": None, "preset": "paper"}, 1),
        ({"full_weight": 0.5}, 0.5),
        ({"draw": 1}, 3),
        ({"draw": 2, "samples": 5}, 3),
    ],
)
def test_the_weights_are_those_of_the_formula_by_hand(
    digits: Data, options: dict[str, Any], weight: float
) -> None:
    options = {"samples": 2, **options}
    slimming = slimming_of(digits, make(norm=False), method="bignas", **options)
    slimming.net.eval()  # no dropout
    alone, (x, y) = copy.deepcopy(slimming.net), next(digits.batches(0, 32))
    slimming.step(x, y, sgd(slimming.net), F.cross_entropy)
    optimizer = sgd(alone)
    logits = alone(x)
    total = weight * F.cross_entropy(logits, y)
    others = slimming.widths[1:]
    assert len(others) == min(slimming.sandwich.draw, slimming.samples + 1)
    for child in others:
        with alone.at(child):
            taught = F.cross_entropy(alone(x), logits.detach().softmax(dim=1))
            total = total + (options["samples"] + 1) / len(others) * taught
    total.backward()
    optimizer.step()
    for left, right in zip(slimming.net.parameters(), alone.parameters()):
        assert torch.allclose(left, right, atol=1e-6)


def test_gradients_accumulate_over_parts_of_a_batch(digits: Data) -> None:
    """Without norms, two halves of weight one half each are the whole."""
    x, y = next(digits.batches(0, 32))
    whole, parts = (slimming_of(digits, make(norm=False).eval()) for _ in range(2))
    whole.backward(x, y, F.cross_entropy)
    halves = [(x[:16], y[:16]), (x[16:], y[16:])]
    widths = []
    for a, b in halves:
        parts.backward(a, b, F.cross_entropy)
        widths.append(list(parts.widths))
    assert widths[0] == widths[1] == whole.widths
    for left, right in zip(parts.net.parameters(), whole.net.parameters()):
        assert torch.allclose(left.grad / 2, right.grad, atol=1e-6)
    parts.advance()
    assert parts.steps == 1
    assert parts.passes == 2 * whole.passes == 8


# Forgetting to advance


def test_a_loop_without_advance_is_noticed_once(digits: Data) -> None:
    slimming = slimming_of(digits)
    optimizer = sgd(slimming.net)
    (x, y), heard = next(digits.batches(0, 32)), []
    for _ in range(4):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            slimming.backward(x, y, F.cross_entropy)
        heard.append([str(warning.message) for warning in caught])
        optimizer.step()
    assert [len(messages) for messages in heard] == [0, 1, 0, 0]
    assert "type slimming.advance() after optimizer.step()" in heard[1][0]


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_no_false_alarm_where_gradients_accumulate(digits: Data, optimizer: Any) -> None:
    """Nor for a state that is loaded, a front in between, or a step that is left out."""
    slimming = slimming_of(digits, total_steps=6, every=2)
    descent = optimizer(slimming.net.parameters(), lr=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step, (x, y) in zip(range(3), digits.batches(0, 32)):
            for part in range(4):
                slimming.backward(x[part::4], y[part::4], F.cross_entropy)
            if step == 1:
                descent.zero_grad()
                continue
            descent.step()
            slimming.advance()
            slimming.front(images=100)
        slimming.backward(x, y, F.cross_entropy)
        slimming.net.load_state_dict(copy.deepcopy(slimming.net.state_dict()))
        slimming.load_state_dict(slimming.state_dict())
        slimming.step(x, y, descent, F.cross_entropy)


@pytest.mark.parametrize("method", ["slim", "bignas"])
def test_parts_of_a_batch_have_the_same_widths(digits: Data, method: str) -> None:
    slimming = slimming_of(digits, method=method)
    x, y = next(digits.batches(0, 32))
    seen = []
    for _ in range(2):
        for _ in range(3):
            slimming.backward(x, y, F.cross_entropy)
            seen.append(tuple(slimming.widths))
        slimming.advance()
    assert len(set(seen[:3])) == len(set(seen[3:])) == 1
    assert seen[0] != seen[3]


@pytest.mark.parametrize("method", ["joslim", "slim", "bignas", "autoslim"])
def test_the_full_network_learns_alone_at_first(digits: Data, method: str) -> None:
    slimming = slimming_of(digits, method=method, full_first=0.5)
    trained = train(slimming, digits, 20)
    full = slimming.space.full
    assert all(widths == [full] for widths in trained[:10])
    assert all(len(widths) > 1 for widths in trained[10:])
    assert slimming.children == 3 * slimming.samples
    assert all(visit.step >= 10 for visit in slimming.history.visits)


def test_children_that_have_learned_go_on_in_a_longer_training(digits: Data) -> None:
    short = slimming_of(digits, full_first=0.5)
    train(short, digits, 20)
    longer = slimming_of(digits, full_first=0.5, total_steps=60)
    longer.load_state_dict(short.state_dict())
    assert longer.steps < longer.alone_until
    assert all(len(widths) > 1 for widths in train(longer, digits, 5))


@pytest.mark.parametrize("method", ["joslim", "slim", "bignas", "autoslim"])
def test_a_network_that_learned_alone_to_the_end_has_a_front_too(digits: Data, method: str) -> None:
    slimming = slimming_of(digits, method=method, full_first=1.0)
    assert all(widths == [slimming.space.full] for widths in train(slimming, digits, 20))
    front = slimming.front(images=128)
    assert front[-1].costs["macs"] <= front.span[1]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_random_children_take_the_place_of_the_search_s(digits: Data, share: float) -> None:
    slimming = slimming_of(digits, random_share=share, draw=3)
    ends = {slimming.space.full, slimming.space.smallest}
    trained, random = [], []
    for widths in (train(slimming, digits, 1)[0] for _ in range(40)):
        others = [child for child in widths if child not in ends]
        trained += others
        random += [child for child in others if child not in slimming.history]
    assert len(random) / len(trained) == pytest.approx(share, abs=0.15)
    assert len({*random}) >= 0.9 * len(random), "drawn anew at each step"
    assert len(slimming.history) > 10, "the search goes on"


@pytest.mark.parametrize("method", ["joslim", "slim", "bignas", "autoslim"])
def test_some_of_the_widths_are_drawn_at_each_step(digits: Data, method: str) -> None:
    slimming = slimming_of(digits, method=method, draw=1)
    trained = train(slimming, digits, 20)
    full, smallest = slimming.space.full, slimming.space.smallest
    assert all(widths[0] == full and len(widths) <= 2 for widths in trained)
    others = [child for widths in trained for child in widths[1:]]
    assert smallest in others
    assert len({*others} - {smallest}) > 3, "of the method's own widths too"
    assert slimming.passes == sum(map(len, trained))
    assert len(slimming.front(images=128)) > 1


@pytest.mark.parametrize("given", [{"label_share": 1.0}, {"teacher": "fixed"}])
def test_the_full_network_is_drawn_like_its_children(digits: Data, given: dict[str, Any]) -> None:
    slimming = slimming_of(digits, draw=1, draw_full=True, **given)
    trained, losses = [], []
    for _ in range(60):
        trained += train(slimming, digits, 1)
        losses.append(slimming.full_loss)
    assert all(len(widths) == 1 for widths in trained)
    drawn = [widths == [slimming.space.full] for widths in trained]
    assert 0.05 < sum(drawn) / len(drawn) < 0.3  # half of one in three
    assert [loss is not None for loss in losses] == drawn


def test_gradients_with_a_full_network_that_is_drawn(digits: Data) -> None:
    """The only child of a step counts for all three; it learns from the labels."""
    slimming = slimming_of(digits, draw=1, draw_full=True, label_share=1.0, full_weight=2.0)
    x, y = next(digits.batches(0, 32))
    slimming.net.drop.p = 0.0
    weights = {slimming.space.full: 6.0}
    for _ in range(12):
        before = copy.deepcopy(slimming.net)
        slimming.net.zero_grad()
        slimming.backward(x, y, F.cross_entropy)
        (child,) = slimming.widths
        with before.at(child):
            loss = F.cross_entropy(before(x), y)
            before.zero_grad()
            (weights.get(child, 3.0) * loss).backward()
        for mine, theirs in zip(slimming.net.parameters(), before.parameters()):
            if theirs.grad is not None:
                torch.testing.assert_close(mine.grad, theirs.grad)
        slimming.advance()


def test_the_full_network_first_and_then_one_other_beside_it(digits: Data) -> None:
    trained = train(slimming_of(digits, full_first=0.3, draw=1, random_share=0), digits, 20)
    assert [len(widths) for widths in trained] == [1] * 6 + [2] * 14


def test_all_children_in_every_step_by_default(digits: Data) -> None:
    slimming = slimming_of(digits, full_first=None, draw=None, random_share=0)
    assert all(len(widths) == 4 for widths in train(slimming, digits, 20))


def test_more_widths_than_there_are_cannot_be_drawn(digits: Data) -> None:
    all_of_them, many = slimming_of(digits, draw=3), slimming_of(digits)
    assert train(all_of_them, digits, 6) == train(many, digits, 6)


def test_clipping(digits: Data) -> None:
    slimming = slimming_of(digits)
    x, y = next(digits.batches(0, 32))
    slimming.step(x, y, torch.optim.SGD(slimming.net.parameters(), lr=0.1), F.cross_entropy, 1e-3)
    norms = [p.grad.norm() for p in slimming.net.parameters()]
    assert torch.stack(norms).norm().item() == pytest.approx(1e-3, rel=1e-3)


def test_a_scaler_as_in_mixed_precision(digits: Data) -> None:
    slimming = slimming_of(digits)
    optimizer, scaler = sgd(slimming.net), torch.amp.GradScaler("cpu", init_scale=256.0)
    before = copy.deepcopy(dict(slimming.net.named_parameters()))
    for _, (x, y) in zip(range(3), digits.batches(0, 32)):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            slimming.backward(x, y, F.cross_entropy, lambda loss: scaler.scale(loss).backward())
        scaler.step(optimizer)
        scaler.update()
        slimming.advance()
    assert slimming.losses.isfinite().all()
    for name, parameter in slimming.net.named_parameters():
        assert parameter.isfinite().all()
        assert not torch.equal(parameter, before[name]), name


def test_statistics_of_children_are_gone_after_a_step(digits: Data) -> None:
    slimming = slimming_of(digits)
    train(slimming, digits, 4)
    slimming.front(images=128)
    assert slimming.net.statistics
    train(slimming, digits, 1)
    assert not slimming.net.statistics


def test_choosing_widths_touches_no_global_generator(digits: Data) -> None:
    for options in ({}, {"method": "slim"}, {"method": "bignas"}, {"searcher": Evolution()}):
        slimming = slimming_of(digits, every=1, **options)
        slimming.criterion = F.cross_entropy
        torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()
        for _ in range(4):
            slimming._choose()
            slimming.advance()
        slimming.front(images=128)
        assert torch.equal(torch.get_rng_state(), torch_before)
        assert (np.random.get_state()[1] == numpy_before[1]).all()
        assert np.random.get_state()[2] == numpy_before[2]


def test_seeds_differ_and_repeat(digits: Data) -> None:
    runs = [train(slimming_of(digits, seed=seed), digits, 8) for seed in (0, 0, 1)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


# Scoring


class Recorded(Sequence[Any]):
    """Batches that remember who was asked for."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self.batches, self.asked = [batches[at] for at in range(len(batches))], []

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, position: int) -> Any:
        self.asked.append(position)
        return self.batches[position]


def test_children_are_scored_on_scoring_batches_and_nothing_else(digits: Data) -> None:
    """Public code scores the history on the test set."""
    scoring = Recorded(digits.sweep("train", 100, 300))
    slimming = slimming_of(digits, scoring=scoring, total_steps=12, distill="soft")
    judged: list[Tensor] = []

    def criterion(outputs: Tensor, labels: Tensor) -> Tensor:
        if not outputs.requires_grad:
            judged.append(labels)
        return F.cross_entropy(outputs, labels)

    optimizer = sgd(slimming.net)
    for _, (x, y) in zip(range(12), digits.batches(0, 32)):
        slimming.step(x, y, optimizer, criterion)
    assert scoring.asked == [0, 1, 2], "one batch a round, the next one in the next"
    known = {id(labels) for _, labels in scoring.batches}
    assert len(judged) == slimming.scoring_passes > 0
    assert {id(labels) for labels in judged} <= known
    val, test = (Recorded(digits.sweep(split, 100)) for split in ("val", "test"))
    slimming.front(images=200, val=val, test=test)
    assert {id(labels) for labels in judged} <= known, "nor is the front's loss of other images"
    assert scoring.asked[3:] == [0, 1]
    # The test set is read once for all children (and a list is asked once past its end).
    assert len(test.asked) == len(test) + 1
    assert len(val.asked) == len(val) + 1


def test_the_choice_does_not_depend_on_the_test_set(digits: Data) -> None:
    fronts = []
    x, y = digits.sweep("test", 360)[0]
    for labels in (y, (y + 1) % 10):
        slimming = slimming_of(digits)
        train(slimming, digits, 16)
        fronts.append(slimming.front(images=200, test=[(x, labels)]))
    assert [p.widths for p in fronts[0]] == [p.widths for p in fronts[1]]
    assert [p.test_error for p in fronts[0]] != [p.test_error for p in fronts[1]]


def test_scoring_in_training_moves_no_statistics_and_keeps_modes(digits: Data) -> None:
    slimming = slimming_of(digits)
    slimming.criterion = F.cross_entropy
    state = copy.deepcopy(slimming.net.state_dict())
    slimming._choose()
    assert slimming.history.scorings
    for name, value in slimming.net.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert all(module.training for module in slimming.net.modules())


@pytest.mark.parametrize(
    ("steps", "samples", "every"),
    [
        (1, 2, 10),
        (500, 2, 10),
        (5000, 2, 10),
        (5500, 2, 11),
        (-(-250 * 1281167 // 1024), 2, 625),  # MobileNets on ImageNet
        (-(-100 * 1281167 // 1024), 2, 250),  # ResNet18
        (400 * 50000 // 128, 2, 312),  # CIFAR: the paper has 313
    ],
)
def test_a_thousand_children_by_default(steps: int, samples: int, every: int) -> None:
    assert default_every(steps, samples) == every
    visited = -(-steps // every) * samples
    assert visited >= min(1000, steps / 10 * samples)
    assert visited <= max(1010, 2 * samples)


# The front


@pytest.mark.parametrize("method", list(METHODS))
def test_a_front_twice_and_a_front_later(digits: Data, method: str) -> None:
    slimming = slimming_of(digits, method=method)
    train(slimming, digits, 8)
    modes = [module.training for module in slimming.net.modules()]
    first = slimming.front(images=128, val=digits.sweep("val", 512))
    assert slimming.front(images=128, val=digits.sweep("val", 512)) == first
    assert [module.training for module in slimming.net.modules()] == modes
    train(slimming, digits, 8)
    later = slimming.front(images=128, val=digits.sweep("val", 512))
    assert slimming.steps == 16
    assert [p.train_loss for p in later] != [p.train_loss for p in first]


def test_a_front_without_a_criterion(digits: Data) -> None:
    slimming = slimming_of(digits)
    with pytest.raises(UserError, match=r"criterion: none given yet; type slimming\.front"):
        slimming.front()


# State


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def through_torch(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


VARIANTS = {method: {"method": method} for method in METHODS}
VARIANTS["mixed"] = {"method": "joslim", "random_share": 0.6, "label_share": 0.5}
VARIANTS["drawn"] = {"method": "joslim", "draw": 1}
VARIANTS["drawn with the full"] = {"method": "slim", "draw": 1, "draw_full": True}
VARIANTS["full first"] = {"method": "joslim", "full_first": 0.4, "full_weight": 3.0}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("copied", [through_json, through_torch])
def test_a_restored_training_goes_on_as_if_nothing_had_happened(
    digits: Data, copied: Callable[[Any], Any], variant: str
) -> None:
    """Saved at step 7 of 20, in the middle of a round of 4."""
    options: dict[str, Any] = VARIANTS[variant]
    whole = slimming_of(digits, **options)
    expected = train(whole, digits, 20)
    first = slimming_of(digits, **options)
    optimizer = sgd(first.net)
    seen = train(first, digits, 7, optimizer)
    state = copied(first.state_dict())
    weights = through_torch(first.net.state_dict())
    optimizer_state = through_torch(optimizer.state_dict())
    train(first, digits, 2, optimizer)  # what happens after saving is of no account

    second = slimming_of(digits, make(seed=5), **options, seed=77)
    second.net.load_state_dict(weights)
    second.load_state_dict(state)
    assert second.steps == 7
    assert second.widths == seen[-1]
    optimizer = sgd(second.net)
    optimizer.load_state_dict(optimizer_state)
    seen += train(second, digits, 13, optimizer)
    assert seen == expected
    assert second.state_dict() == whole.state_dict()
    for left, right in zip(second.net.parameters(), whole.net.parameters()):
        assert torch.equal(left, right)
    judged = {"images": 128, "test": digits.sweep("test", 512)}
    assert second.front(**judged) == whole.front(**judged)


def test_a_state_of_another_child_is_refused(digits: Data) -> None:
    net = make()
    half, full = (net.space.uniform(share) for share in (0.5, 1.0))
    state = slimming_of(digits, net, method="single", widths=half).state_dict()
    with pytest.raises(UserError, match="alone: the state is of "):
        slimming_of(digits, net, method="single", widths=full).load_state_dict(state)


def test_a_state_of_another_training_is_refused(digits: Data) -> None:
    state = slimming_of(digits).state_dict()
    with pytest.raises(UserError, match="method: the state is of 'joslim', this is 'slim'"):
        slimming_of(digits, method="slim").load_state_dict(state)
    with pytest.raises(UserError, match="cost: the state is of 'macs', this is 'memory'"):
        slimming_of(digits, cost="memory").load_state_dict(state)


def test_an_alias_is_the_same_training(digits: Data) -> None:
    state = slimming_of(digits, method="ofa").state_dict()
    same = slimming_of(digits, method="bignas", seed=1)
    same.load_state_dict(state)
    assert same.state_dict() == state


@pytest.mark.parametrize("changed", [{"every": 5}, {"samples": 3}])
def test_a_state_of_other_rounds_is_refused(digits: Data, changed: dict[str, int]) -> None:
    state = slimming_of(digits).state_dict()
    with pytest.raises(UserError):
        slimming_of(digits, **changed).load_state_dict(state)


def test_a_state_of_another_search_is_refused(digits: Data) -> None:
    state = slimming_of(digits, searcher="random").state_dict()
    with pytest.raises(UserError):
        slimming_of(digits, searcher="targeted").load_state_dict(state)


# Other networks and tasks


def test_a_network_without_norms(digits: Data) -> None:
    net = make(norm=False)
    slimming = slimming_of(digits, net)
    train(slimming, digits, 8)
    front = slimming.front(images=128, test=digits.sweep("test", 512))
    assert len(front) >= 1
    for point in front:
        net.use(point)
        assert errors(net, [net.active], digits.sweep("test", 512)) == [(point.test_error, 360)]


def test_regression_with_a_loss_and_a_metric_of_ones_own() -> None:
    class Curve(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(2, 24), nn.Linear(24, 16)
            self.head = nn.Linear(16, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.two(torch.tanh(self.one(x)))))

    x = torch.randn(256, 2)
    y = (x[:, :1] - 2 * x[:, 1:]).tanh()
    net = joslim.slim(Curve(), x[:2], low=0.25)
    batches = [(x[at : at + 64], y[at : at + 64]) for at in range(0, 256, 64)]

    def near(student: Tensor, teacher: Tensor) -> Tensor:
        """With its full weight, students that cannot follow would pull the shared bias away."""
        return 0.3 * F.mse_loss(student, teacher)

    slimming = Slimming(net, total_steps=80, every=10, scoring=batches, distill=near)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    first = last = 0.0
    for step in range(80):
        last = slimming.step(*batches[step % 4], optimizer, F.mse_loss).item()
        first = first or last
    assert last < first / 10

    def far(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).abs().flatten() > 0.5

    front = slimming.front(test=batches, metric=far)
    assert len(front) >= 2
    for point in front:
        with net.at(point.widths), torch.no_grad():
            share = ((net(x) - y).abs() > 0.5).double().mean().item()
        assert point.test_error == pytest.approx(100 * share)


def test_outputs_packed_in_a_dict(digits: Data) -> None:
    class Packed(Layers):
        def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
            return {"logits": super().forward(x)}

    net = joslim.slim(Packed(), torch.zeros(2, 1, 8, 8), low=0.25)
    slimming = slimming_of(digits, net)
    x, y = next(digits.batches(0, 32))
    slimming.step(x, y, sgd(net), lambda out, y: F.cross_entropy(out["logits"], y))
    front = slimming.front(
        images=128,
        test=digits.sweep("test", 512),
        metric=lambda out, y: out["logits"].argmax(dim=1) != y,
    )
    assert front.error == "test_error"


@dataclass
class Record:
    logits: Tensor
    loss: Tensor | None = None


class Answer(dict[str, Tensor]):
    """A dictionary with its items as attributes, as networks of transformers return it."""

    def __getattr__(self, name: str) -> Tensor:
        if name not in self:
            raise AttributeError(name)
        return self[name]


class Keywords(Layers):
    """Takes an image by its name and, perhaps, its labels, with which it computes the loss."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, *, pixel_values: Tensor, labels: Tensor | None = None) -> Any:  # type: ignore[override]
        logits = super().forward(pixel_values)
        loss = {} if labels is None else {"loss": F.cross_entropy(logits, labels)}
        return self.answer(logits=logits, **loss)


@pytest.mark.parametrize("answer", [Record, Answer])
def test_batches_that_are_dictionaries_train_the_same_network(
    digits: Data, answer: Callable[..., Any]
) -> None:
    def named(batches: Any) -> list[dict[str, Tensor]]:
        return [{"pixel_values": x, "labels": y} for x, y in batches]

    def loss(outputs: Any, labels: Tensor) -> Tensor:
        return outputs.loss

    plain = slimming_of(digits)
    torch.manual_seed(0)
    net = joslim.slim(Keywords(answer), {"pixel_values": torch.zeros(2, 1, 8, 8)}, low=0.25)
    by_name = slimming_of(
        digits,
        net,
        scoring=named(plain.scoring),
        distill="soft",
    )
    train(plain, digits, 6)
    optimizer = sgd(net)
    for _, (x, y) in zip(range(6), digits.batches(0, 32)):
        torch.manual_seed(by_name.steps)
        by_name.step({"pixel_values": x, "labels": y}, y, optimizer, loss)
    for (name, mine), theirs in zip(net.state_dict().items(), plain.net.state_dict().values()):
        assert torch.equal(mine, theirs), name
    val = digits.sweep("test", 512)
    front, expected = by_name.front(images=256, val=named(val)), plain.front(images=256, val=val)
    assert [vars(point) for point in front] == [vars(point) for point in expected]
    again = joslim.explore(net, named(plain.scoring), loss, children=4, val=named(val))
    assert again.error == "val_error"


def test_a_wrapped_network(digits: Data) -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Tensor) -> Tensor:
            return self.module(x)

    plain, wrapped = slimming_of(digits), slimming_of(digits, Wrapper(make()))
    assert train(plain, digits, 4) == train(wrapped, digits, 4)
    assert wrapped.front(images=128) == plain.front(images=128)


# Bad arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples: 0 "),
        ({"samples": 1.5}, "samples: 1.5 "),
        ({"samples": True}, "samples: True "),
        ({"draw": 0}, "draw: 0 "),
        ({"draw": 1.5}, "draw: 1.5 "),
        ({"every": 0}, "every: 0 "),
        ({"every": -3}, "every: -3 "),
        ({"total_steps": 0}, "total_steps: 0 "),
        ({"total_steps": 10.0}, "total_steps: 10.0 "),
        ({"rescore": 0}, "rescore: 0 "),
        ({"random_share": 1.5}, "random_share: 1.5 "),
        ({"full_first": -0.5}, "full_first: -0.5 "),
        ({"full_weight": 0}, "full_weight: 0 "),
        ({"label_share": "all"}, "label_share: 'all' "),
        ({"method": "joslym"}, "method: .*'joslym'.*joslim"),
        ({"preset": "best"}, "preset: .*'best'.*default, paper"),
        ({"searcher": "grid"}, "searcher: .*'grid'.*targeted"),
        ({"distill": "hard"}, "distill: .*'hard'.*auto, soft, kl, alpha"),
        ({"distill": ["soft"]}, "distill: .*auto, soft, kl, alpha"),
        ({"distill": None}, "distill: .*'None'.*auto, soft, kl, alpha"),
        ({"cost": "flops"}, "cost: .*'flops'.*macs"),
        ({"scoring": []}, "scoring: no batches"),
        ({"scoring": iter([])}, "scoring: no batches"),
        ({"scoring": torch.zeros(4, 1, 8, 8)}, "scoring: Tensor given"),
        ({"scoring": {"x": torch.zeros(4, 1, 8, 8)}}, "scoring: dict given, a sequence of batches"),
        ({"net": nn.Linear(3, 3)}, r"net: Linear is not slimmable; type joslim\.slim"),
        ({"net": "resnet20"}, "net: str is not slimmable"),
    ],
)
def test_bad_arguments(digits: Data, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        slimming_of(digits, options.pop("net", None), **options)
    assert "\n" not in str(caught.value)


def test_widths_of_another_network(digits: Data) -> None:
    other = joslim.slim(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), torch.zeros(2, 4))
    slimming = slimming_of(digits, method="single", widths=other.space.smallest)
    x, y = next(digits.batches(0, 32))
    with pytest.raises(UserError, match="widths: they belong to another network"):
        slimming.backward(x, y, F.cross_entropy)


def test_widths_that_would_be_ignored_are_refused(digits: Data) -> None:
    net = make()
    with pytest.raises(UserError, match="widths"):
        slimming_of(digits, net, method="joslim", widths=net.space.smallest)


def test_a_pair_of_tensors_is_no_sequence_of_batches(digits: Data) -> None:
    x, y = digits.plain("train", np.arange(32))
    slimming = slimming_of(digits, scoring=(x, y))
    with pytest.raises(UserError, match=r"batches: Tensor given, a tuple \(inputs, labels\)"):
        slimming.backward(x, y, F.cross_entropy)


# Somebody else's loop


def run_example(name: str, folder: Path) -> str:
    result = subprocess.run(
        [sys.executable, str(HOUSE / "examples" / name)],
        cwd=folder,
        env={"PATH": "", "PYTHONPATH": ":".join([str(HOUSE), *sys.path]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("name", ["own_loop.py", "accelerate_loop.py"])
def test_examples_are_short_and_print_a_front(name: str, tmp_path: Path) -> None:
    if name == "accelerate_loop.py" and importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    assert len((HOUSE / "examples" / name).read_text().splitlines()) < 80
    rows = [line.split() for line in run_example(name, tmp_path).splitlines() if "%" in line]
    assert len(rows) >= 4
    costs = [int(row[0].replace(",", "")) for row in rows]
    errors = [float(row[-1].rstrip("%")) for row in rows]
    assert costs == sorted(costs)
    assert min(errors) < 30, "chance is 90"
    assert errors[-1] < errors[0]
    if name == "own_loop.py":
        assert (tmp_path / "own-loop" / "child.onnx").stat().st_size > 1000
        assert (tmp_path / "own-loop" / "run" / "front.json").is_file()


@pytest.mark.parametrize("name", ["lightning", "transformers"])
def test_examples_of_other_loops(name: str, tmp_path: Path) -> None:
    script = {"lightning": "lightning_loop.py", "transformers": "transformers_trainer.py"}[name]
    if importlib.util.find_spec(name) is None or importlib.util.find_spec("accelerate") is None:
        pytest.skip(f"{name} is not installed")
    path = HOUSE / "examples" / script
    assert len(path.read_text().splitlines()) < 100
    code = f"""
import runpy, sys
sys.path.append({str(HOUSE / "benchmarks")!r})
from zoo_families import declare_operators
declare_operators()
runpy.run_path({str(path)!r}, run_name="__main__")
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if "multiply-adds" in line]
    costs, losses = zip(*((int(r[0].replace(",", "")), float(r[-1])) for r in rows))
    assert list(costs) == sorted(costs)
    assert losses[-1] < losses[0]


def test_options_of_the_search(digits: Data) -> None:
    slimming = slimming_of(digits, search_options={"beta": 0.5, "epsilon": 0.1})
    assert isinstance(slimming.searcher, Targeted)
    assert (slimming.searcher.beta, slimming.searcher.epsilon) == (0.5, 0.1)
    paper = slimming_of(digits, preset="paper", search_options={"bisections": 3})
    assert isinstance(paper.searcher, Scalarized)
    assert (paper.searcher.bisections, paper.searcher.optimistic) == (3, False)
    other = {"optimistic": True, "ard": False, "rho": 0.05, "start": 30}
    paper = slimming_of(digits, preset="paper", search_options=other)
    assert {name: getattr(paper.searcher, name) for name in other} == other
    with pytest.raises(UserError, match="rho: -1 given; allowed: a number, at least 0"):
        slimming_of(digits, preset="paper", search_options={"rho": -1})
    with pytest.raises(UserError, match="beta: method slim does not search; leave it out"):
        slimming_of(digits, method="slim", search_options={"beta": 0.5})
    with pytest.raises(UserError, match="beta: searcher random has none"):
        slimming_of(digits, searcher="random", search_options={"beta": 0.5})
    with pytest.raises(UserError, match="search_options: they go with the name"):
        slimming_of(digits, searcher=Targeted(), search_options={"beta": 0.5})


@pytest.mark.parametrize("price", [float("nan"), float("inf"), -3.0, 0.0])
def test_a_cost_of_ones_own_is_looked_at_first(digits: Data, price: float) -> None:
    def joules(widths: Widths) -> float:
        return price

    words = r"^cost: joules of (the full network|one=.*) is \S+; a (positive )?number"
    with pytest.raises(UserError, match=words):
        slimming_of(digits, cost=joules)


@pytest.mark.parametrize("price", [-3.0, 1e19, None, "cheap"])
def test_a_cost_of_ones_own_is_tried_at_children_between(digits: Data, price: Any) -> None:
    def joules(widths: Widths) -> Any:
        ends = (widths.space.smallest, widths.space.full)
        return 1.0 if widths in ends else price

    with pytest.raises(UserError, match=r"^cost: joules of one=.* is .*; a number from 0 to 1e"):
        slimming_of(digits, cost=joules)
