"""The front: what is kept, what fits, its two figures, and files that anybody may have written."""

import copy
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joslim import front as module
from joslim.errors import UserError
from joslim.front import (
    Front,
    MetricName,
    Point,
    bought,
    check_cost_name,
    exceeded,
    margins,
    non_dominated,
)
from joslim.space import Dim, Knob, WidthSpace

SPACE = WidthSpace(
    (Dim("stem", 16, layers=("stem.conv",)), Dim("groups", 12, step=3), Dim("even", 10, divisor=4)),
    (Knob("stem", (0,), 0.25), Knob("inner", (1, 2), 0.5)),
)
SPAN = (100.0, 1000.0)

# Few values, so that ties are frequent.
SMALL = st.integers(0, 6).map(lambda n: n / 4)
PAIRS = st.lists(st.tuples(SMALL, SMALL), max_size=12)
ODD = st.sampled_from([math.nan, math.inf, -math.inf])


def point(
    macs: float,
    loss: float,
    test: float | None = None,
    val: float | None = None,
    multiplier: float = 0.5,
    **more: float,
) -> Point:
    costs = {"macs": macs, "params": 10, "memory": 4000, **more}
    return Point(SPACE.uniform(multiplier), costs, loss, val, test)


@st.composite
def points(draw: st.DrawFn) -> list[Point]:
    rows = st.tuples(st.integers(50, 1200), st.floats(0, 4), st.floats(0, 100), st.floats(0.01, 1))
    return [
        point(macs, loss, test, multiplier=share)
        for macs, loss, test, share in draw(st.lists(rows, min_size=1, max_size=10))
    ]


@pytest.fixture
def front() -> Front:
    return Front(
        [
            point(900, 1.0, 20.0, 21.0, multiplier=1.0, latency_ms=9.0),
            point(200, 3.0, 60.0, 61.0, multiplier=0.3, latency_ms=2.0),
            point(500, 2.0, 40.0, 41.0, latency_ms=5.5),
        ],
        "macs",
        SPAN,
    )


# Non-dominated


@given(PAIRS)
def test_non_dominated_is_what_brute_force_finds(pairs: list[tuple[float, float]]) -> None:
    expected = [
        not any(
            (a <= loss and b <= cost and (a < loss or b < cost))
            or ((a, b) == (loss, cost) and other < position)
            for other, (a, b) in enumerate(pairs)
        )
        for position, (loss, cost) in enumerate(pairs)
    ]
    assert non_dominated([a for a, _ in pairs], [b for _, b in pairs]).tolist() == expected


def test_non_dominated_is_what_botorch_finds() -> None:
    pareto = pytest.importorskip("botorch.utils.multi_objective.pareto")
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 60, 400):
        for digits in (1, 2, 12):
            values = np.round(rng.uniform(size=(size, 2)), digits)
            theirs = pareto.is_non_dominated(-torch.tensor(values), deduplicate=True)
            assert non_dominated(*values.T).tolist() == theirs.tolist()


@given(PAIRS, st.lists(st.tuples(ODD | SMALL, ODD), max_size=4), st.randoms())
def test_what_is_not_finite_never_stays_and_beats_nobody(
    pairs: list[tuple[float, float]], odd: list[tuple[float, float]], order: Any
) -> None:
    mixed = [(pair, True) for pair in pairs] + [(pair, False) for pair in odd]
    mixed += [((b, a), False) for a, b in odd]
    order.shuffle(mixed)
    mask = non_dominated([a for (a, _), _ in mixed], [b for (_, b), _ in mixed])
    kept = [pair for (pair, _), stays in zip(mixed, mask) if stays]
    alone = [pair for pair, finite in mixed if finite]
    mask = non_dominated([a for a, _ in alone], [b for _, b in alone])
    assert kept == [pair for pair, stays in zip(alone, mask) if stays]


def test_shapes_of_non_dominated() -> None:
    assert non_dominated([], []).shape == (0,)
    assert non_dominated([1], [1]).tolist() == [True]
    with pytest.raises(UserError, match="losses: shape"):
        non_dominated([1, 2], [1])
    with pytest.raises(UserError, match="losses: shape"):
        non_dominated([[1]], [[1]])


# Building


@given(points())
def test_of_keeps_what_no_other_point_beats(found: list[Point]) -> None:
    front = Front.of(found, "macs", SPAN)
    costs = [p.costs["macs"] for p in front]
    losses = [p.train_loss for p in front]
    assert costs == sorted(set(costs))
    assert losses == sorted(set(losses), reverse=True)
    for p in found:
        assert any(
            k.train_loss <= p.train_loss and k.costs["macs"] <= p.costs["macs"] for k in front
        )


def test_of_leaves_out_what_is_not_finite_or_not_scored() -> None:
    unscored = point(100, None)  # type: ignore[arg-type]
    bad = [point(100, math.nan), point(math.nan, 0.1), point(50, math.inf), unscored]
    assert list(Front.of([*bad, point(300, 1.0)], "macs", SPAN)) == [point(300, 1.0)]
    with pytest.raises(UserError, match="children: none of 4 has a finite loss and cost"):
        Front.of(bad, "macs", SPAN)


def test_ties_and_duplicates() -> None:
    wide, narrow = point(300, 1.0, multiplier=1.0), point(300, 1.0, multiplier=0.5)
    front = Front.of([point(300, 2.0), wide, narrow, wide, point(400, 1.0)], "macs", SPAN)
    assert list(front) == [wide]


def test_it_is_a_sorted_sequence(front: Front) -> None:
    assert [p.costs["macs"] for p in front] == [200, 500, 900]
    assert len(front) == 3
    assert front[-1].train_loss == 1.0
    assert front[1:] == (front[1], front[2])
    assert front[0] in front
    assert front.costs == ("macs", "params", "memory", "latency_ms")
    assert front.space == SPACE
    assert repr(front) == "Front(3 children, macs 200 to 900)"
    assert front != "front"


@pytest.mark.parametrize("cost", ["latency", "latency_ms", "memory", "joules"])
def test_other_costs(cost: str) -> None:
    key = "latency_ms" if cost == "latency" else cost
    found = [point(1, 1.0, **{key: 5}), point(2, 2.0, **{key: 3.5}), point(3, 3.0, **{key: 9})]
    front = Front.of(found, cost, SPAN)
    assert [p.costs[key] for p in front] == [3.5, 5]
    assert front.key == front.costs[0] == key
    assert Front.of_json(json.loads(json.dumps(front.to_json()))) == front


def test_numbers_of_numpy_become_plain() -> None:
    costs = {"macs": np.int64(3), "params": np.float32(0.5), "memory": 1}
    child = Point(SPACE.full, costs, np.float64(0.5), np.float32(12.5), None)
    front = Front([child], "macs", (np.int64(1), np.float64(9)))  # type: ignore[arg-type]
    assert type(front[0].costs["macs"]) is int
    assert Front.of_json(json.loads(json.dumps(front.to_json()))) == front


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("<lambda>", "not a name"),
        ("my cost", "not a name"),
        ("", "not a name"),
        ("class", "not a name"),
        ("test_error", "is taken"),
        ("channels", "is taken"),
        ("latency", "is taken"),
    ],
)
def test_names_that_no_cost_may_have(name: str, words: str) -> None:
    with pytest.raises(UserError, match=f"cost: .*{words}"):
        check_cost_name(name)
    with pytest.raises(UserError, match=f"cost: .*{words}"):
        Front([point(1, 1.0, **{name: 3})], "macs", SPAN)


def test_names_that_a_cost_may_have() -> None:
    for name in ("joules", "self", "cost", "macs", "Größe"):
        check_cost_name(name)
    own = Front([point(1, 1.0, **{"self": 3})], "self", SPAN)
    assert own.pick(**{"self": 3}) == own[0]


OTHER = WidthSpace(SPACE.dims, (SPACE.knobs[0], Knob("inner", (1, 2), 0.6)))


@pytest.mark.parametrize(
    ("found", "field"),
    [
        ([], "children: 0 given"),
        ([point(1, math.nan)], "children[0].train_loss: nan"),
        ([point(math.inf, 1.0)], "children[0].macs: inf"),
        ([point(1, 1.0), point(-1, 1.0)], "children[1].macs: -1 is below zero"),
        ([point(1, 1.0, 101.0)], "children[0].test_error: 101.0 is outside"),
        ([point(1, 1.0, val=-0.5)], "children[0].val_error: -0.5 is outside"),
        ([point(1, 1.0, test=math.nan)], "children[0].test_error: nan"),
        ([point(True, 1.0)], "children[0].macs: True"),
        ([point(1, 1.0), point(1, 1.0, latency_ms=3)], "children[1]: 'latency_ms' is not known"),
        ([point(1, 1.0, latency_ms=3), point(1, 1.0)], "children[1].latency_ms: missing"),
        ([Point(SPACE.full, {"macs": 1}, 1.0)], "children[0].memory: missing"),
        ([point(1, 1.0), Point(OTHER.full, {}, 1.0)], "children[1].widths: a child of another"),
    ],
)
def test_points_that_make_no_front(found: list[Point], field: str) -> None:
    with pytest.raises(UserError) as caught:
        Front(found, "macs", SPAN)
    assert str(caught.value).startswith(field)
    assert "\n" not in str(caught.value)


def test_a_cost_that_the_points_do_not_have() -> None:
    with pytest.raises(UserError, match=r"children\[0\].joules: missing"):
        Front([point(1, 1.0)], "joules", SPAN)
    with pytest.raises(UserError, match="costs: 'latency_ms' is missing"):
        Front.of([point(1, 1.0)], "latency", SPAN)


@pytest.mark.parametrize("span", [(1, 0), (-1, 1), (math.nan, 1), (1, math.inf), ("1", 2)])
def test_spans_that_are_none(span: Any) -> None:
    with pytest.raises(UserError, match=r"^span\[[01]\]: "):
        Front([point(1, 1.0)], "macs", span)


# Picking


def picked_by_hand(found: list[Point], budgets: dict[str, float]) -> float | None:
    losses = [
        p.train_loss for p in found if not any(p.costs[n] > most for n, most in budgets.items())
    ]
    return min(losses, default=None)


@given(points(), st.integers(40, 1300), st.sampled_from([None, 5, 10, 20]))
def test_pick_is_what_brute_force_finds(found: list[Point], most: int, params: int | None) -> None:
    front = Front(found, "macs", SPAN)
    budgets = {"macs": most} | ({} if params is None else {"params": params})
    expected = picked_by_hand(found, budgets)
    if expected is None:
        with pytest.raises(UserError, match="no child of"):
            front.pick(**budgets)
    else:
        child = front.pick(**budgets)
        assert child.train_loss == expected
        assert all(child.costs[name] <= value for name, value in budgets.items())


ERROR_LISTS = st.lists(st.floats(0, 100), min_size=1, max_size=8)


@given(ERROR_LISTS, st.integers(10, 100_000) | st.none(), st.randoms())
def test_pick_by_validation_error_is_the_rule_in_words(
    errors: list[float], images: int | None, random: Any
) -> None:
    """Of the children within one standard error of the least, the one with the least loss."""
    costs = sorted(random.sample(range(100, 1000), len(errors)))
    found = [
        point(macs, 10.0 - at, val=error) for at, (macs, error) in enumerate(zip(costs, errors))
    ]
    front = Front(found, "macs", SPAN, images)
    assert front.by == "val_error"
    for count in range(1, len(found) + 1):
        least = min(errors[:count])
        share = 0.0 if images is None else (least * images / 100 + 1) / (images + 2)
        noise = 0.0 if images is None else 100 * math.sqrt(share * (1 - share) / images)
        alike = [p for p in found[:count] if p.val_error <= least + noise]
        assert front.pick(macs=costs[count - 1]) is min(alike, key=lambda p: p.train_loss)
        assert front.pick(by="train_loss", macs=costs[count - 1]) is found[count - 1]


def test_a_dearer_child_that_is_worse_on_validation_data_is_not_picked() -> None:
    found = [point(21, 0.5, 6.1, 4.9), point(47, 0.4, 8.1, 8.3), point(90, 0.3, 4.0, 4.0)]
    front = Front(found, "macs", SPAN, val_images=143)
    assert front.ranks() == [1, 2, 0]
    assert front.ranks("train_loss") == [2, 1, 0]
    assert front.pick(macs=50) is front[0]
    assert front.next_better(macs=50) is front[2]
    assert front.pick(macs=50, by="train_loss") is front[1]
    # With fewer images the difference is noise.
    assert Front(found, "macs", SPAN, val_images=20).pick(macs=50).costs["macs"] == 47


def test_a_criterion_that_does_not_exist(front: Front) -> None:
    with pytest.raises(UserError, match="by: unknown name 'test_error'; allowed: val_error, train"):
        front.pick(by="test_error", macs=500)
    with pytest.raises(UserError, match="by: unknown name 'nonsense'; allowed: "):
        front.pick(by="nonsense")  # the missing budget comes second
    blind = Front([point(300, 1.0)], "macs", SPAN)
    assert blind.by == "train_loss"
    with pytest.raises(UserError, match="by: the children have no val_error; type train_loss"):
        blind.pick(by="val_error", macs=500)


def test_a_budget_equal_to_the_cost_fits(front: Front) -> None:
    for child in front:
        assert front.pick(macs=child.costs["macs"]) is child
        assert front.pick(latency_ms=child.costs["latency_ms"]) is child
    assert front.pick(macs=899) is front[1]
    assert front.pick(macs=1e9, latency_ms=5.4) is front[0]
    assert front.pick(macs=np.float64(500)) is front[1]
    assert front.pick(memory=4000) is front[2]


@given(points(), st.integers(40, 1300), st.sampled_from([5, 10, 20]))
def test_the_next_better_child_is_the_nearest_to_fitting(
    found: list[Point], most: int, params: int
) -> None:
    front, budgets = Front(found, "macs", SPAN), {"macs": most, "params": params}
    try:
        picked = front.pick(**budgets)
    except UserError:
        with pytest.raises(UserError, match="no child of"):
            front.next_better(**budgets)
        return
    better = [p for p in found if p.train_loss < picked.train_loss]
    child = front.next_better(**budgets)
    assert (child is None) == (not better)
    assert min(margins(picked, budgets).values()) >= 0
    if child is not None:
        # All have the same parameters, so the cheapest is the nearest.
        assert child.costs["macs"] == min(p.costs["macs"] for p in better)
        assert exceeded(child, budgets) == {"macs": child.costs["macs"] - most}


def test_budgets_as_they_are_typed(front: Front) -> None:
    assert front.pick(macs="0.5K") is front.pick(macs=500) is front[1]
    assert front.pick(memory="4KB") is front.pick(memory="3.90625KiB") is front[2]
    assert front.pick(latency_ms="2 ms") is front.pick(latency_ms=2)
    assert front.next_better(macs="0.5K") is front.next_better(macs=500) is front[2]


@given(st.floats(1e-3, 1e15), st.sampled_from(["macs", "params", "memory", "latency_ms"]))
def test_what_is_suggested_fits(cheapest: float, cost: str) -> None:
    costs = {"macs": 1, "params": 1, "memory": 1, "latency_ms": 1, cost: cheapest}
    front = Front([Point(SPACE.full, costs, 1.0)], "macs", SPAN)
    with pytest.raises(UserError) as caught:
        front.pick(**{cost: cheapest / 2})
    suggested = str(caught.value).partition("; type ")[2].removesuffix(" or more")
    assert front.pick(**{cost: suggested}) is front[0]


def test_of_equal_losses_the_cheapest() -> None:
    front = Front([point(300, 1.0), point(200, 1.0)], "macs", SPAN)
    assert front.pick(macs=1000).costs["macs"] == 200


@pytest.mark.parametrize(
    ("budgets", "words"),
    [
        ({}, "budget: none given; give at least one of: macs, params, memory, latency_ms"),
        ({"flops": 3}, "budget: unknown name 'flops'; allowed: macs, params, memory, latency_ms"),
        ({"latency": 3}, "budget: unknown name 'latency'; allowed: "),
        ({"macs": 0}, "macs: 0 is not a positive finite number"),
        ({"macs": -5}, "macs: -5 is not a positive finite number"),
        ({"macs": math.nan}, "macs: nan is not a positive finite number"),
        ({"macs": math.inf}, "macs: inf is not a positive finite number"),
        ({"macs": 10**400}, "macs: 1000"),
        ({"macs": "20X"}, "macs: '20X' is not a size; type 2000000, 2e6 or 2M"),
        ({"macs": "20KB"}, "macs: '20KB' is in bytes, macs are counted; type 20K"),
        ({"macs": "-20K"}, "macs: '-20K' is not positive; type"),
        ({"macs": None}, "macs: None is not a positive finite number"),
        ({"macs": True}, "macs: True is not a positive finite number"),
        ({"macs": 199.5}, "macs: no child of 3 fits 199.5, the cheapest costs 200; type 200 or"),
        (
            {"macs": 900, "latency_ms": 1},
            "latency_ms: no child of 3 fits 1ms, the cheapest costs 2ms; type 2ms or more",
        ),
        ({"macs": "0.1K"}, "macs: no child of 3 fits 100, the cheapest costs 200; type 200 or"),
    ],
)
def test_budgets_that_are_refused(front: Front, budgets: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        front.pick(**budgets)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


def test_budgets_that_fit_alone_but_not_together() -> None:
    found = [point(100, 2.0, latency_ms=8.5), point(400, 1.0, latency_ms=2.0)]
    with pytest.raises(UserError) as caught:
        Front(found, "macs", SPAN).pick(macs=300, latency_ms=3)
    assert str(caught.value) == (
        "budget: no child of 2 fits macs 300, latency_ms 3ms together; "
        "the nearest fits macs 400, latency_ms 2ms"
    )


def test_a_latency_that_nobody_measured() -> None:
    words = r"^latency_ms: not measured .* type joslim latency RUN -o device.json, then --device"
    with pytest.raises(UserError, match=words):
        Front([point(1, 1.0)], "macs", SPAN).pick(latency_ms=3)


# Figures


@given(points(), st.integers(2, 60))
def test_area_is_the_mean_error_of_what_is_picked(found: list[Point], count: int) -> None:
    front = Front(found, "macs", SPAN)
    errors = []
    for most in np.linspace(*SPAN, count):
        try:
            errors.append(front.pick(macs=most).test_error)
        except UserError:
            errors.append(100.0)
    assert front.area(points=count) == pytest.approx(np.mean(errors))


def test_area_by_hand(front: Front) -> None:
    # At 100, 200, ..., 1000: nothing fits, then three, four and two times the same child.
    assert front.area(points=10) == pytest.approx((100 + 3 * 60 + 4 * 40 + 2 * 20) / 10)
    assert front.area("val_error", points=10) == pytest.approx(
        (100 + 3 * 61 + 4 * 41 + 2 * 21) / 10
    )


def test_area_looks_at_the_training_loss_and_not_at_the_error() -> None:
    front = Front([point(100, 2.0, 10.0), point(550, 1.0, 90.0)], "macs", SPAN)
    assert front.area(points=2) == pytest.approx((10 + 90) / 2)


@given(points(), st.integers(2, 60))
def test_area_by_training_loss_is_the_mean_loss_of_what_is_picked(
    found: list[Point], count: int
) -> None:
    """The objective of the paper: the least loss that a budget buys, over even budgets."""
    front = Front(found, "macs", SPAN)
    costs = np.linspace(*SPAN, count)
    fitting = [[p.train_loss for p in front if p.costs["macs"] <= most] for most in costs]
    expected = np.mean([min(losses or [front[0].train_loss]) for losses in fitting])
    assert front.area("train_loss", count) == pytest.approx(expected)


def test_figures_of_errors_that_are_missing(front: Front) -> None:
    partly = Front([*front, point(950, 0.5, None, 9.0, latency_ms=9)], "macs", SPAN)
    assert partly.area() is None
    assert partly.hypervolume() is None
    assert partly.error == "val_error"
    assert partly.area("val_error") is not None
    assert front.error == "test_error"
    assert Front([point(1, 1.0)], "macs", SPAN).error is None


def test_figures_that_do_not_exist(front: Front) -> None:
    with pytest.raises(UserError, match="error: unknown name 'train_loss'; allowed: test_error"):
        front.hypervolume("train_loss")
    with pytest.raises(UserError, match="error: unknown name 'error'; allowed: train_loss, test"):
        front.area("error")
    for count in (0, 1, -3, 2.5, 10**9):
        with pytest.raises(UserError, match=r"^points: "):
            front.area(points=count)  # type: ignore[arg-type]


def test_hypervolume_is_what_botorch_finds() -> None:
    boxes = pytest.importorskip("botorch.utils.multi_objective.hypervolume")
    oracle = boxes.Hypervolume(ref_point=-torch.ones(2, dtype=torch.float64))
    rng = np.random.default_rng(1)
    for size in (1, 2, 5, 30):
        rows = rng.uniform([50, 0, 0], [1200, 4, 100], size=(size, 3)).round(1)
        front = Front([point(*row) for row in rows], "macs", SPAN)
        better = [(-c / 1000, -e / 100) for c, _, e in rows if c < 1000]
        values = torch.tensor(better, dtype=torch.float64).reshape(-1, 2)
        mask = non_dominated(*-values.numpy().T)
        expected = oracle.compute(values[torch.from_numpy(mask)]) if len(values) else 0.0
        assert front.hypervolume() == pytest.approx(expected)


def test_hypervolume_by_hand(front: Front) -> None:
    assert front.hypervolume() == pytest.approx(0.8 * 0.4 + 0.5 * 0.2 + 0.1 * 0.2)
    assert Front([point(2000, 1.0, 5.0)], "macs", SPAN).hypervolume() == 0


# There and back


@given(points())
def test_json_gives_the_same_front_again(found: list[Point]) -> None:
    front = Front(found, "macs", SPAN)
    again = Front.of_json(json.loads(json.dumps(front.to_json(), allow_nan=False)))
    assert again == front
    assert again.to_json() == front.to_json()
    assert again.space.dims[0].layers == ("stem.conv",)


def test_the_format(front: Front) -> None:
    record = front.to_json()
    assert list(record) == ["cost", "span", "val_images", "metric", "space", "children"]
    assert record["cost"] == "macs"
    assert record["span"] == [100.0, 1000.0]
    assert record["children"][1] == {
        "widths": [0.5, 0.5],
        "channels": {"stem": 8, "groups": 6, "even": 4},
        "macs": 500,
        "params": 10,
        "memory": 4000,
        "latency_ms": 5.5,
        "train_loss": 2.0,
        "val_error": 41.0,
        "test_error": 40.0,
    }


@pytest.fixture
def run(front: Front, tmp_path: Path) -> Path:
    (tmp_path / "front.json").write_text(json.dumps(front.to_json()))
    return tmp_path


def test_read(front: Front, run: Path) -> None:
    assert Front.read(run) == front
    assert Front.read(str(run)) == front


def test_reading_needs_no_torch(run: Path) -> None:
    code = f"""
import sys
from joslim.front import Front
front = Front.read({str(run)!r})
front.pick(macs=600), front.area(), front.hypervolume()
sys.exit("torch" in sys.modules or "matplotlib" in sys.modules)
"""
    house = Path(__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=house, check=False).returncode == 0


# Files that anybody may have written

Change = Callable[[dict[str, Any]], Any]
NESTED: Any = []
for _ in range(200):
    NESTED = [NESTED]


def put(*path: Any, value: Any) -> Change:
    """Sets the value at this path; a key that is missing is made."""

    def change(record: dict[str, Any]) -> None:
        place: Any = record
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


def without(*path: Any) -> Change:
    def change(record: dict[str, Any]) -> None:
        place: Any = record
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    return change


FIELDS = [
    ("cost",),
    ("span",),
    ("val_images",),
    ("space",),
    ("children",),
    ("space", "dims"),
    ("space", "knobs"),
    ("space", "dims", 0, "name"),
    ("space", "dims", 1, "full"),
    ("space", "dims", 1, "step"),
    ("space", "dims", 1, "divisor"),
    ("space", "dims", 1, "layers"),
    ("space", "knobs", 1, "name"),
    ("space", "knobs", 1, "dims"),
    ("space", "knobs", 1, "low"),
    ("children", 1, "widths"),
    ("children", 1, "channels"),
    ("children", 1, "channels", "even"),
    ("children", 1, "macs"),
    ("children", 1, "params"),
    ("children", 1, "memory"),
    ("children", 1, "latency_ms"),
    ("children", 1, "train_loss"),
    ("children", 1, "val_error"),
    ("children", 1, "test_error"),
]
VALUES = [
    math.nan,
    math.inf,
    -1,
    -0.5,
    1e300,
    10**400,
    10**5000,
    True,
    {},
    [],
    [[]],
    {"a": {"b": 1}},
    NESTED,
    [0] * 10**5,
    "x" * 10**5,
    "two\nlines",
    "\x1b[31m",
    "\ud800",
]
# A loss may be negative.
ALLOWED = [("train_loss", -1), ("train_loss", -0.5), ("layers", [])]


def refusal(record: Any) -> str:
    with pytest.raises(UserError) as caught:
        Front.of_json(record)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 300
    assert message.isprintable()
    return message


@pytest.mark.parametrize("path", FIELDS, ids=lambda path: ".".join(map(str, path)))
def test_every_field_is_checked(front: Front, path: tuple[Any, ...]) -> None:
    name = next(key for key in reversed(path) if isinstance(key, str))
    for value in VALUES:
        if any(name == field and value == allowed for field, allowed in ALLOWED):
            continue
        record = copy.deepcopy(front.to_json())
        put(*path, value=value)(record)
        message = refusal(record)
        # Another cost is one that the children do not have; another name is one that they miss.
        assert name in message or path[-1] in ("cost", "name"), (value, message)
    record = copy.deepcopy(front.to_json())
    without(*path)(record)
    assert f"{name}: missing" in refusal(record)


@pytest.mark.parametrize("value", [None, 3, "front", [], [[]], True, NESTED])
def test_what_is_no_object(front: Front, value: Any) -> None:
    assert refusal(value).startswith("front: ")
    for path in (("space",), ("space", "dims", 0), ("space", "knobs", 0), ("children", 0)):
        record = copy.deepcopy(front.to_json())
        put(*path, value=value)(record)
        assert "is not a JSON object" in refusal(record)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("cost", value="joules"), "children[0].joules: missing"),
        (put("cost", value=None), "cost: None is not a name"),
        (put("span", value=[1]), "front.span: 1 entries"),
        (put("span", value=[1, 2, 3]), "front.span: 3 entries"),
        (put("span", value=[1, "2"]), "span[1]: '2' is not a finite number"),
        (put("children", value=[0] * 10_001), "front.children: 10001 entries"),
        (put("children", 0, "joules", value={"a": 1}), "children[0].joules: {'a': 1} is not"),
        (put("children", 1, "joules", value=3), "children[1]: 'joules' is not known for all"),
        (put("children", 1, "a\nb", value=3), r"children[1]: 'a\nb' is not known for all"),
        (put("children", 0, "a b", value=3), "cost: 'a b' is not a name"),
        (put("children", 0, "latency", value=3), "cost: 'latency' is taken"),
        (put("children", 1, "channels", "even", value=5), "children[1].channels: no child has"),
        (put("children", 1, "channels", "stem", value=3), "children[1].channels: no child has"),
        (put("children", 1, "channels", "stem", value=17), "children[1].channels.stem: 17 is not"),
        (put("children", 1, "channels", "stem", value=8.0), "children[1].channels.stem: 8.0 is"),
        (put("children", 1, "channels", "stem", value=9), "children[1].widths: do not give"),
        (put("children", 1, "channels", "more", value=9), "children[1].channels: more names"),
        (put("children", 1, "widths", value=[0.5]), "children[1].widths: 1 entries"),
        (put("children", 1, "widths", 0, value=0.1), "children[1].widths[0]: 0.1 is outside"),
        (put("children", 1, "widths", 0, value=None), "children[1].widths[0]: None is not"),
        (put("space", "knobs", 1, "dims", value=[1]), "space.knobs: every Dim"),
        (put("space", "knobs", 1, "dims", value=[1, 1]), "space.knobs: every Dim"),
        (put("space", "knobs", 1, "dims", value=[1, 3]), "space.knobs[1].dims[1]: 3 is not"),
        (put("space", "knobs", 1, "low", value=0), "space.knobs[1].low: 0 is outside"),
        (put("space", "dims", 1, "name", value="stem"), "space.dims: two of them"),
        (put("space", "dims", 1, "full", value=10**8), "space.dims[1].full: 100000000 is not"),
    ],
)
def test_what_is_wrong_is_named(front: Front, change: Change, words: str) -> None:
    record = copy.deepcopy(front.to_json())
    change(record)
    assert refusal(record).startswith(words)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(max_examples=60)
@given(st.sampled_from([*FIELDS, ("children", 0), ("span", 1), ("children", 1, "widths", 0)]), JSON)
def test_whatever_stands_there_it_is_a_front_or_a_user_error(path: Any, value: Any) -> None:
    found = [
        point(200, 3.0, 60.0, 61.0, 0.3, latency_ms=2.0),
        point(500, 2, 4.0, 4.1, latency_ms=5),
    ]
    record = copy.deepcopy(Front(found, "macs", SPAN).to_json())
    put(*path, value=value)(record)
    try:
        front = Front.of_json(record)
    except UserError:
        refusal(record)
    else:
        assert Front.of_json(json.loads(json.dumps(front.to_json()))) == front


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "run: 'FILE' is broken JSON: "),
        (b"{", "run: 'FILE' is broken JSON: "),
        (b'{"cost": "macs"', "run: 'FILE' is broken JSON: "),
        (b"\xff\xfe\xfa", "run: cannot read 'FILE': it is no text: "),
        (b"[" * 10**6, "run: 'FILE' is broken JSON: nested too deeply"),
        (b'{"a":' * 10**6, "run: 'FILE' is broken JSON: nested too deeply"),
        (b'{"cost": ' + b"1" * 10**5 + b"}", "run: 'FILE' is broken JSON: "),
        (b"{}", "front.json of 'RUN': front.cost: missing"),
        (b"null", "front.json of 'RUN': front: None is not a JSON object"),
        (b"NaN", "front.json of 'RUN': front: nan is not a JSON object"),
    ],
)
def test_files_that_are_no_front(run: Path, content: bytes, words: str) -> None:
    (run / "front.json").write_bytes(content)
    with pytest.raises(UserError) as caught:
        Front.read(run)
    message = str(caught.value)
    file = str(run / "front.json")
    assert message.replace(file, "FILE").replace(str(run), "RUN").startswith(words)
    assert "\n" not in message


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_named(run: Path, text: str) -> None:
    content = (run / "front.json").read_text().replace('"macs": 500', f'"macs": {text}')
    (run / "front.json").write_text(content)
    with pytest.raises(UserError, match=r"children\[1\].macs: -?(nan|inf) is not a finite number"):
        Front.read(run)


def test_a_file_too_large(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (run / "front.json").stat().st_size
    monkeypatch.setattr(module, "JSON_LIMIT", size)
    assert len(Front.read(run)) == 3
    monkeypatch.setattr(module, "JSON_LIMIT", size - 1)
    with pytest.raises(UserError, match="larger than"):
        Front.read(run)


def test_a_large_front_is_read_quickly() -> None:
    """The most children that are allowed; they are checked all at once."""
    children = [point(100 + n, 1 / (n + 1), multiplier=0.5) for n in range(10_000)]
    front = Front(children, "macs", SPAN)
    assert len(Front.of_json(front.to_json())) == 10_000


def test_folders_that_hold_no_front(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"^run: '.*nowhere' does not exist; joslim train makes one$"
    ):
        Front.read(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"^run: .* is not a run folder: it has no config.json$"):
        Front.read(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(
        UserError, match=r"^run: .* has no front yet, its training has not finished"
    ):
        Front.read(tmp_path)
    with pytest.raises(UserError, match=r"config.json': front.cost: missing$"):
        Front.read(tmp_path / "config.json")
    (tmp_path / "child.onnx").write_bytes(b"\x08")
    with pytest.raises(UserError, match=r"^run: .*child.onnx' is not a run folder"):
        Front.read(tmp_path / "child.onnx")
    with pytest.raises(UserError, match=r"^run: "):
        Front.read(tmp_path / ("x" * 5000))
    (tmp_path / "front.json").mkdir()
    with pytest.raises(UserError, match="has no front yet"):
        Front.read(tmp_path)


def test_a_pipe_does_not_make_it_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "front.json")
    with pytest.raises(UserError, match="not a run folder"):
        Front.read(tmp_path)


def test_a_front_as_a_file(front: Front, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    for _ in range(2):  # its own may be replaced
        front.save(file)
        assert Front.read(file) == front
    file.write_text("{}")
    with pytest.raises(UserError, match="exists and was not written by joslim"):
        front.save(file)
    front.save(file, overwrite=True)
    assert Front.read(file) == front
    with pytest.raises(UserError, match=r"out: cannot write .*: No such file or directory"):
        front.save(tmp_path / "nowhere" / "mine.json")


# Errors that are no percentages


def test_plain_numbers_have_no_limit_no_hypervolume_and_their_own_words(front: Front) -> None:
    name = MetricName("perplexity", "")
    points = [replace(p, test_error=300.0 / (at + 1)) for at, p in enumerate(front)]
    plain = Front(points, front.cost, front.span, 100, name)
    assert Front.of_json(json.loads(json.dumps(plain.to_json()))).metric == name
    assert plain.hypervolume() is None
    budgets = np.linspace(*front.span, 50)
    costs, losses = [p.costs["macs"] for p in points], [p.train_loss for p in points]
    errors = [p.test_error or 0.0 for p in points]
    # Where no child fits, that of the cheapest one counts.
    assert plain.area() == pytest.approx(bought(costs, losses, errors, budgets, 300.0).mean())
    assert (name.words("val_error"), name.text(12.345)) == ("validation perplexity", "12.35")
    assert name.text(0.01234) == "0.0123"
    for record, words in (
        ({"label": "perplexity"}, "metric: no unit|metric.unit"),
        ({"label": "a\nb", "unit": ""}, "metric.label: .* is not a name"),
        ({"label": "mass", "unit": "kg"}, "metric.unit: 'kg'"),
        ([], "metric"),
    ):
        with pytest.raises(UserError, match=words):
            Front.of_json({**plain.to_json(), "metric": record})
    with pytest.raises(UserError, match=r"test_error: -1.0 is outside the numbers from 0 on"):
        Front([replace(p, test_error=-1.0) for p in points], front.cost, front.span, metric=name)
