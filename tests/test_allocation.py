"""Allocation: the combination that brute force finds, its curve, and what is refused."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joslim import allocation
from joslim.allocation import Allocation, allocate, curve
from joslim.errors import UserError
from joslim.front import Front, Point
from joslim.space import Dim, Knob, WidthSpace

SPACE = WidthSpace((Dim("stem", 16),), (Knob("stem", (0,), 0.25),))
HOUSE = Path(__file__).parents[1]

Row = tuple[float, float, float]  # macs, memory, error


def made(rows: Sequence[Row], val: bool = True, **more: float) -> Front:
    points = [
        Point(
            SPACE.full,
            {"macs": macs, "params": 1, "memory": memory, **more},
            error / 10,
            error if val else None,
            error + 1,
        )
        for macs, memory, error in rows
    ]
    return Front(points, "macs", (1, 10))


# Few values, so that ties and equal costs are frequent; and floats, whose sums are rounded.
NUMBERS = st.integers(0, 5).map(float) | st.sampled_from([0.1, 0.2, 0.3, 0.7, 2.55])
ROWS = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=5)
WEIGHTS = st.sampled_from([0.0, 0.5, 1.0, 3.0])
NETWORKS = st.lists(st.tuples(ROWS.map(made), WEIGHTS), min_size=1, max_size=4)
BUDGETS = st.fixed_dictionaries(
    {}, optional={"macs": st.floats(0.1, 20), "memory": st.floats(0.1, 20) | st.just(0.3)}
).filter(bool)


def best_by_hand(
    fronts: Sequence[Front], weights: Sequence[float], memory_as: str, budgets: dict[str, float]
) -> float | None:
    """Brute force over all combinations; budgets are kept but for the rounding of sums."""
    combine = {"macs": math.fsum, "memory": max if memory_as == "max" else math.fsum}
    errors = [
        sum(w * p.val_error for w, p in zip(weights, points))  # type: ignore[operator]
        for points in itertools.product(*fronts)
        if all(
            combine[name](p.costs[name] for p in points) <= most * (1 + 1e-12)
            for name, most in budgets.items()
        )
    ]
    return min(errors, default=None)


@settings(max_examples=300)
@given(NETWORKS, st.sampled_from(["sum", "max"]), BUDGETS)
def test_it_is_what_brute_force_finds(
    networks: list[tuple[Front, float]], memory_as: str, budgets: dict[str, float]
) -> None:
    fronts, weights = [f for f, _ in networks], [w for _, w in networks]
    expected = best_by_hand(fronts, weights, memory_as, budgets)
    options: dict[str, Any] = {"weights": weights, "memory_as": memory_as}
    if expected is None:
        with pytest.raises(UserError, match="no combination of"):
            allocate(fronts, **options, **budgets)
        return
    found = allocate(fronts, **options, **budgets)
    assert found.error == pytest.approx(expected, abs=1e-9)
    assert all(found.costs[name] <= most * (1 + 1e-9) for name, most in budgets.items())
    assert all(point in front for point, front in zip(found.points, fronts))


@settings(max_examples=100)
@given(NETWORKS, BUDGETS, st.integers(1, 3))
def test_a_search_that_is_too_narrow_proves_it_all_the_same(
    networks: list[tuple[Front, float]], budgets: dict[str, float], width: int
) -> None:
    fronts, weights = [f for f, _ in networks], [w for _, w in networks]
    expected = best_by_hand(fronts, weights, "sum", budgets)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allocation, "FIRST_WIDTH", width)
        patch.setattr(allocation, "LAST_WIDTH", width * 4)
        if expected is not None:
            found = allocate(fronts, weights=weights, **budgets)
            assert found.error == pytest.approx(expected, abs=1e-5)


@settings(max_examples=100)
@given(NETWORKS, st.sampled_from(["sum", "max"]), st.sampled_from(["macs", "memory"]))
def test_the_curve_has_the_best_of_every_budget(
    networks: list[tuple[Front, float]], memory_as: str, cost: str
) -> None:
    fronts, weights = [f for f, _ in networks], [w for _, w in networks]
    steps = curve(fronts, cost, weights, memory_as)
    errors = [step.error for step in steps]
    assert errors == sorted(set(errors), reverse=True)
    for step in steps:
        if most := step.costs[cost]:
            expected = best_by_hand(fronts, weights, memory_as, {cost: most})
            assert step.error == pytest.approx(expected, abs=1e-8)
    assert errors[-1] == pytest.approx(best_by_hand(fronts, weights, "sum", {}), abs=1e-8)


@settings(max_examples=60)
@given(NETWORKS, st.floats(0.1, 30))
def test_a_function_of_ones_own_is_tried(
    networks: list[tuple[Front, float]], budget: float
) -> None:
    fronts, weights = [f for f, _ in networks], [w for _, w in networks]

    def joules(points: list[Point]) -> float:
        return sum(point.costs["macs"] for point in points)

    expected = best_by_hand(fronts, weights, "sum", {"macs": budget})
    if expected is None:
        with pytest.raises(UserError, match="the least that the function gives is"):
            allocate(fronts, weights=weights, cost=joules, budget=budget)
    else:
        found = allocate(fronts, weights=weights, cost=joules, budget=budget)
        assert found.error == pytest.approx(expected, abs=1e-9)
        assert found.costs == {"cost": joules(list(found.points))}


SMALL, LARGE = made([(1, 1, 9), (4, 2, 5)]), made([(2, 8, 8), (6, 9, 1)])


def test_a_function_beside_other_budgets() -> None:
    found = allocate([SMALL, LARGE], cost=lambda points: 1, budget=1, macs=6)
    assert found.error == 13
    with pytest.raises(UserError, match="fits macs 5, memory 9B together"):
        allocate([SMALL, made([(5, 1, 9), (1, 9, 5)])], macs=5, memory=9)


def test_the_parts_of_an_answer() -> None:
    found = allocate([SMALL, LARGE], macs=7, memory=9, memory_as="max", weights=[1, 2])
    assert found == Allocation((SMALL[0], LARGE[1]), (1, 2), "val_error", {"macs": 7, "memory": 9})
    assert (found.error, found.test_error) == (9 + 2 * 1, 10 + 2 * 2)


def test_without_validation_the_training_loss_counts() -> None:
    found = allocate([SMALL, made([(1, 1, 30)], val=False)], macs=9)
    assert found.measure == "train_loss"
    assert found.error == pytest.approx(0.5 + 3)
    unknown = Front([Point(SPACE.full, {"macs": 1, "params": 1, "memory": 1}, 1.0)], "macs", (1, 1))
    assert allocate([unknown], macs=9).test_error is None


def test_budgets_as_they_are_typed() -> None:
    assert allocate([SMALL, LARGE], macs="0.007K") == allocate([SMALL, LARGE], macs=7)


def test_the_same_network_twice() -> None:
    found = allocate([LARGE, LARGE], macs=8)
    assert sorted(point.costs["macs"] for point in found.points) == [2, 6]


def test_runs_in_place_of_fronts() -> None:
    run = SimpleNamespace(front=LARGE)
    assert allocate([run, LARGE], macs=8) == allocate([LARGE, LARGE], macs=8)
    with pytest.raises(UserError, match="fronts: 'runs/a' is neither a front nor a run"):
        allocate(["runs/a"], macs=8)


def test_sums_that_equal_the_budget_but_for_rounding() -> None:
    tenths = made([(0.1, 1, 3), (0.2, 1, 2)])
    assert 0.1 + 0.2 > 0.3
    assert allocate([tenths, tenths], macs=0.3).error == 5


def test_of_equal_errors_the_cheapest() -> None:
    same = made([(1, 1, 3), (2, 1, 3), (3, 1, 3)])
    assert allocate([same] * 3, macs=9).costs == {"macs": 3}
    assert allocate([made([(1, 5, 3), (3, 1, 1)])] * 20, weights=[0] * 20, macs=60, memory=100)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "budget: none given; give at least one, such as macs=20e6"),
        (
            {"macs": 2},
            "macs: no combination of 2 networks fits 2, their cheapest children together",
        ),
        (
            {"macs": 2.5},
            "macs: no combination of 2 networks fits 2.5, their cheapest children toge",
        ),
        (
            {"memory": 7, "memory_as": "max"},
            "memory: no combination of 2 networks fits 7B, their cheapest children: the largest of "
            "them costs 8B; type 8B or more",
        ),
        ({"macs": -1}, "macs: -1 is not a positive finite number"),
        ({"macs": "20KiB"}, "macs: '20KiB' is in bytes, macs are counted; type 20K"),
        (
            {"latency_ms": 3},
            "network 1 of 2: latency_ms: not measured for this front; type joslim latency RUN",
        ),
        ({"flops": 3}, "network 1 of 2: budget: unknown name 'flops'; allowed: macs"),
        ({"macs": 9, "memory_as": "mean"}, "memory_as: unknown name 'mean'; allowed: sum, max"),
        ({"macs": 9, "weights": [1]}, "weights: 1 given for 2 networks; give one for each"),
        ({"macs": 9, "weights": [1, -2]}, "weights[1]: -2 is below zero; type 0 or more"),
        ({"macs": 9, "weights": [1, math.nan]}, "weights[1]: nan is not a finite number"),
        ({"budget": 9}, "budget: it belongs to cost"),
        ({"cost": len}, "budget: it belongs to cost"),
        ({"cost": "macs", "budget": 9}, "cost: 'macs' is not a function"),
        ({"cost": len, "budget": 0}, "budget: 0 is not a positive finite number"),
        (
            {"cost": len, "budget": 1},
            "budget: no combination of 2 networks fits 1, the least that ",
        ),
        ({"cost": lambda _: "x", "budget": 1}, "cost: it gave 'x', which is not a number"),
        ({"cost": lambda _: math.nan, "budget": 1}, "cost: it gave nan"),
    ],
)
def test_what_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        allocate([SMALL, LARGE], **options)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


def test_more_that_is_refused() -> None:
    with pytest.raises(UserError, match="fronts: none given"):
        allocate([], macs=3)
    with pytest.raises(UserError, match="network 2 of 2: latency_ms: not measured"):
        allocate([made([(1, 1, 1)], latency_ms=3), SMALL], latency_ms=3)
    with pytest.raises(UserError, match="cost: 1048576 combinations are too many"):
        allocate([SMALL] * 20, cost=len, budget=30)
