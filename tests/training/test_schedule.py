"""Learning rates at their ends and in between, and the recipes of the paper."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joslim import UserError
from joslim.runs.recipes import RECIPES
from joslim.training.schedule import SCHEDULES, Schedule

decays = st.sampled_from(list(SCHEDULES))
warmups = st.floats(0, 0.95)
totals = st.integers(1, 300)


def rates(schedule: Schedule, total: int) -> list[float]:
    return [schedule(step, total) for step in range(total)]


@pytest.mark.parametrize(
    ("decay", "half", "end"),
    [("cosine", 0.5, 0.0), ("linear", 0.5, 0.0), ("constant", 1.0, 1.0)],
)
def test_ends_and_middle(decay: str, half: float, end: float) -> None:
    assert SCHEDULES[decay](0.0) == 1.0
    assert SCHEDULES[decay](0.5) == pytest.approx(half)
    assert SCHEDULES[decay](1.0) == pytest.approx(end)


def test_cosine_is_the_cosine() -> None:
    schedule = Schedule("cosine", highest=0.1)
    for step in range(10):
        assert schedule(step, 10) == pytest.approx(0.05 * (1 + math.cos(math.pi * step / 10)))


def test_warm_up_rises_in_equal_steps_and_moves_from_the_first_on() -> None:
    schedule = Schedule("linear", warmup=0.2, highest=0.5)
    found = rates(schedule, 20)
    assert found[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert found[4:] == pytest.approx([0.5 * (1 - k / 16) for k in range(16)])


@given(decays, warmups, totals)
def test_up_to_the_top_and_down_again(decay: str, warmup: float, total: int) -> None:
    found = rates(Schedule(decay, warmup, highest=0.3), total)
    rising = math.ceil(warmup * total)
    assert all(0 < rate <= 0.3 * (1 + 1e-12) for rate in found)
    assert (np.diff(found[:rising]) > 0).all()
    assert (np.diff(found[rising:]) <= 1e-12).all()
    if rising < total:
        assert found[rising] >= max(found) - 0.3 * 2 / max(1, total - rising)


@given(decays, totals)
def test_without_warm_up_the_first_rate_is_the_highest(decay: str, total: int) -> None:
    assert Schedule(decay, highest=0.7)(0, total) == pytest.approx(0.7)


@given(decays, warmups, totals, st.floats(1e-6, 10))
def test_rates_scale_with_the_highest(
    decay: str, warmup: float, total: int, highest: float
) -> None:
    one, many = Schedule(decay, warmup), Schedule(decay, warmup, highest)
    assert rates(many, total) == pytest.approx([highest * rate for rate in rates(one, total)])


@pytest.mark.parametrize("warmup", [-0.1, 1.0, 5, math.nan])
def test_a_warm_up_is_a_share(warmup: float) -> None:
    with pytest.raises(UserError, match=r"warmup: .* is outside \[0, 1\)"):
        Schedule(warmup=warmup)


def test_an_unknown_decay_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"schedule: .*'steps'.*cosine, linear, constant"):
        Schedule("steps")


# The recipes of the paper's appendix

CIFAR = {
    "epochs": 400,
    "batch": 128,
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "schedule": "cosine",
    "warmup": 0,
    "label_smoothing": 0,
}
IMAGENET = {
    "epochs": 250,
    "batch": 1024,
    "lr": 0.5,
    "momentum": 0.9,
    "weight_decay": 4e-5,
    "schedule": "linear",
    "warmup": 5 / 250,
    "label_smoothing": 0.1,
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cifar", {**CIFAR, "warmup": 0.05}),  # ours: docs/log.md
        ("paper/cifar10-resnet20", CIFAR),
        ("cifar-single", {**CIFAR, "epochs": 200}),
        ("imagenet", IMAGENET),
        ("imagenet-resnet18", {**IMAGENET, "epochs": 100, "warmup": 5 / 100}),
    ],
)
def test_recipes_are_those_of_the_paper(name: str, expected: dict[str, Any]) -> None:
    assert {key: RECIPES[name][key] for key in expected} == pytest.approx(expected)


@pytest.mark.parametrize("name", list(RECIPES))
def test_the_schedule_of_every_recipe_can_be_made(name: str) -> None:
    recipe = RECIPES[name]
    schedule = Schedule(recipe["schedule"], recipe["warmup"], recipe["lr"])
    assert max(rates(schedule, 1000)) == pytest.approx(recipe["lr"])
    assert schedule(999, 1000) < 0.01 * recipe["lr"]


def test_five_epochs_of_warm_up_on_imagenet() -> None:
    epoch = 1251
    recipe = RECIPES["imagenet"]
    schedule = Schedule(recipe["schedule"], recipe["warmup"], recipe["lr"])
    found = rates(schedule, 250 * epoch)
    assert found.index(max(found)) == pytest.approx(5 * epoch, abs=1)
