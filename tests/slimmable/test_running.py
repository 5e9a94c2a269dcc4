"""Answers agree if they differ by rounding only, whatever kind of numbers they are."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from torch import nn

import joslim
from joslim import UserError
from joslim.slimmable.running import agree, no_side_effects, outputs_of, tensors_in
from joslim.slimmable.slim import check_children

REALS = torch.tensor([1.0, 200.0, -3.0])
WHOLE = torch.arange(20_000)


def changed(tensor, place, value):
    result = tensor.clone()
    result.view(-1)[place] = value
    return result


SAME = {
    "equal": (REALS, REALS),
    "rounding": (REALS, REALS + 0.01),
    "complex rounding": (REALS + 1j, REALS + 1.001j),
    "infinite alike": (changed(REALS, 0, -math.inf), changed(REALS, 0, -math.inf) + 0.01),
    "no number alike": (changed(REALS, 0, math.nan), changed(REALS, 0, math.nan)),
    "whole": (WHOLE, WHOLE),
    "one in many that rounding tipped over": (WHOLE, changed(WHOLE, 3, 0)),
    "empty": (torch.zeros(0), torch.zeros(0)),
}
OTHER = {
    "real": (REALS, REALS + 0.03),
    "other where one is infinite": (changed(REALS, 1, -math.inf), REALS),
    "other beside an infinite one": (
        changed(REALS, 1, -math.inf),
        changed(changed(REALS, 1, -math.inf), 0, 2.0),
    ),
    "other sign": (changed(REALS, 1, -math.inf), changed(REALS, 1, math.inf)),
    "complex": (REALS + 1j, REALS + 2j),
    "whole": (WHOLE[:10], changed(WHOLE[:10], 3, 0)),
    "boolean": (WHOLE[:10] > 3, WHOLE[:10] > 4),
    "shape": (REALS, REALS[:2]),
    "kind": (REALS, REALS.double()),
}


@pytest.mark.parametrize("case", SAME)
def test_the_same(case):
    one, other = SAME[case]
    assert agree(one, other)
    assert agree(other, one)


@pytest.mark.parametrize("case", OTHER)
def test_not_the_same(case):
    one, other = OTHER[case]
    assert not agree(one, other)
    assert not agree(other, one)


class Deciding(nn.Module):
    """Returns what `decide` makes of the scores."""

    def __init__(self, decide=lambda scores: scores):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 1), nn.Linear(8, 5)
        self.decide = decide

    def scores(self, x):
        return self.fc(self.conv(x).relu().mean((2, 3)))

    def forward(self, x):
        return self.decide(self.scores(x))


def assigned(scores):
    labels = torch.zeros(len(scores), dtype=torch.long)
    labels[:] = scores.argmax(1)
    return labels


DECISIONS = {
    "argmax": lambda scores: scores.argmax(1),
    "top": lambda scores: scores.topk(2).indices[:, 1],
    "threshold": lambda scores: (scores > 0).long().sum(1),
    "assigned": assigned,
}


@pytest.mark.parametrize("decide", DECISIONS.values(), ids=DECISIONS)
def test_scores_are_known_behind_whole_numbers(decide):
    model, x = Deciding(decide), torch.randn(2, 3, 4, 4)
    answer, *behind = outputs_of(model, (x,))
    assert torch.equal(answer, decide(model.scores(x)))
    assert any(torch.equal(real, model.scores(x)) for real in behind)


# --- the check of children ------------------------------------------------------------------------

ASKED: list[int] = []


def moved_on(scores):
    """The answer depends on how often it was asked for."""
    ASKED.append(1)
    return scores + len(ASKED)


FORGETFUL = {
    "argmax": lambda scores: moved_on(scores * 1e-6).argmax(1),
    "whole": lambda scores: moved_on(scores).long(),
    "complex": lambda scores: moved_on(scores) + 1j,
    "beside -inf": lambda scores: torch.cat([moved_on(scores), scores - math.inf]),
}


@pytest.mark.parametrize("decide", FORGETFUL.values(), ids=FORGETFUL)
def test_children_that_differ_are_found_out_whatever_they_return(decide):
    with pytest.raises(UserError, match="differs from the same child"):
        joslim.slim(Deciding(decide), torch.randn(1, 3, 4, 4))


class ForgetfulInTraining(Deciding):
    def forward(self, x):
        scores = self.scores(x)
        return scores * self.fc.__dict__.get("gain", 1) if self.training else scores


def test_children_that_differ_in_training_are_found_out():
    net = joslim.slim(ForgetfulInTraining(), torch.randn(1, 3, 4, 4))
    cut = net._cut

    def spoiled(widths):
        child = cut(widths)
        child.fc.gain = 2
        return child

    net.__dict__["_cut"] = spoiled
    check_children(net, [False])
    with pytest.raises(UserError, match="differs from the same child"):
        check_children(net, [False, True])


class LeftToChance(Deciding):
    """Depth by chance, as three generators have it, and one that nobody can put back."""

    def forward(self, x):
        chance = random.random() + np.random.rand() + torch.rand(())
        return self.scores(x) * (chance + next(UNKNOWN) if self.training else 1)


UNKNOWN = iter(np.random.default_rng(0).random, None)


def test_chance_is_no_difference():
    states = random.getstate(), np.random.get_state()[1].copy()
    net = joslim.slim(LeftToChance(), torch.randn(1, 3, 4, 4))
    assert len(net.space)
    assert random.getstate() == states[0]
    assert np.array_equal(np.random.get_state()[1], states[1])


def test_runs_without_side_effects_draw_the_same_numbers():
    drawn = []
    for _ in range(2):
        with no_side_effects(nn.Identity(), training=True):
            drawn.append((random.random(), np.random.rand(), float(torch.rand(()))))
    assert drawn[0] == drawn[1]


def test_tensors_are_found_in_outputs_of_any_class():
    class Output:
        def __init__(self):
            self.logits, self.rest = torch.zeros(1), {"aux": [torch.ones(2)]}

    assert [len(t) for t in tensors_in({"a": (Output(), torch.zeros(3)), "b": None})] == [1, 2, 3]


def test_no_side_effects_puts_everything_back():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5))
    model[1].eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.get_rng_state()
    with no_side_effects(model, training=True):
        assert model[1].training
        assert not model[0].training
        assert not torch.is_grad_enabled()
        model[0].running_mean.add_(1)
        model(torch.randn(3, 4))
    assert model[0].training
    assert not model[1].training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
