"""Groups of runs: their terms, means over seeds, and what a budget buys."""

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from joslim.errors import UserError
from joslim.front import Front, Point
from joslim.results import groups
from joslim.results.groups import (
    Spread,
    boards_of,
    cell_text,
    curve,
    differences,
    group_names,
    overhead,
    paired_test,
    refuse_repetitions,
    run_settings,
    spread_budgets,
    terms_of,
    value_text,
)
from joslim.results.record import Record, read_record
from joslim.results.run_files import RunStatus
from joslim.runs.config import FIELDS, Config
from joslim.runs.run import Run
from joslim.space import Dim, Knob, WidthSpace
from joslim.training.settings import WHERE_AND_HOW

SPACE = WidthSpace((Dim("a", 16), Dim("b", 16)), (Knob("a", (0,), 0.25), Knob("b", (1,), 0.25)))

NOWHERE = Path("there is no such run")


def facts_of(**config: Any) -> dict[str, Any]:
    values = Config(**{"batch": 64, "steps": 100, **config}).to_json()
    return {"config": values, "data": {"identity": "digits", "sizes": {"train": 1280}}}


def record_of(
    facts: dict[str, Any], path: Path = NOWHERE, space: WidthSpace = SPACE, name: str = "run"
) -> Record:
    costs = {"macs": 1, "params": 1, "memory": 1}
    front = Front([Point(space.full, costs, 1.0)], "macs", (1, 2))
    return Record(path, name, facts, facts["config"], RunStatus("finished", 1, 1), front)


def terms(**config: Any) -> dict[str, Any]:
    return terms_of(record_of(facts_of(**config)))


def test_the_lowest_width_that_was_left_out_is_that_of_the_network() -> None:
    assert terms() == terms(low=0.25)
    assert terms()["low"] == 0.25
    mixed = replace(SPACE, knobs=(SPACE.knobs[0], Knob("b", (1,), 0.5)))
    assert record_of(facts_of(), space=mixed).low == "0.25 to 0.5"
    assert record_of(facts_of(), space=WidthSpace((), ())).low is None


def test_a_real_run_knows_it(finished: Run) -> None:
    found = terms_of(read_record(finished.path))
    assert found["low"] == finished.net.space.knobs[0].low
    assert (found["data"], found["steps"]) == (finished.facts["data"]["identity"], 6)


@pytest.mark.parametrize(
    "same",
    [
        {"steps": None, "epochs": 5},
        {"threads": 2, "device": "cpu", "data_root": "x", "log_every": 3},
        {"method": "slim", "seed": 3, "cost": "memory", "model": "resnet20"},
        {"every": 9, "searcher": "mobo-rs", "preset": "paper", "random_share": 0.5},
        {"data": "folder:elsewhere", "recipe": "digits"},
    ],
)
def test_what_does_not_matter(same: dict[str, Any]) -> None:
    assert terms(**same) == terms()


@pytest.mark.parametrize(
    "other", [{"steps": 99}, {"batch": 5}, {"size": 16}, {"lr": 0.5}, {"distill": "kl"}]
)
def test_what_matters(other: dict[str, Any]) -> None:
    (key,) = other
    one, two = terms(), terms(**other)
    assert [name for name in one if one[name] != two[name]] == [key]


def test_latencies_of_two_devices_are_two_costs(tmp_path: Path) -> None:
    def on(device: str, **others: Any) -> dict[str, Any]:
        how = {"threads": 1, "batch": 1, "precision": "fp32", "backend": "eager", **others}
        record = {"conditions": {"device": device, **how, "inputs": [[1, 3, 8, 8]]}}
        (tmp_path / "latency.json").write_text(json.dumps(record))
        return terms_of(record_of(facts_of(cost="latency"), tmp_path))

    assert on("phone") == on("phone")
    for other in (on("server"), on("phone", threads=2)):
        assert [key for key, value in on("phone").items() if other[key] != value] == ["device_file"]
    (tmp_path / "latency.json").write_text('{"conditions": [1]}')
    with pytest.raises(UserError, match=r"latency.json: .* is not a JSON object"):
        terms_of(record_of(facts_of(), tmp_path))


def test_settings_have_the_method_too() -> None:
    found = run_settings(record_of(facts_of(method="slim")))
    assert (found["method"], found["low"], found["steps"]) == ("slim", 0.25, 100)
    assert not {"epochs", "recipe", "data", "threads"} & found.keys()


def test_files_of_strangers() -> None:
    facts = facts_of()
    facts["config"]["lr"] = [1, {"x": 2}]
    assert hash(tuple(terms_of(record_of(facts)).values()))
    facts["config"]["steps"] = "many"
    assert run_settings(record_of(facts))["steps"] is None
    with pytest.raises(UserError, match=r"such run': steps: 'many' is not a whole number"):
        terms_of(record_of(facts))
    with pytest.raises(UserError, match="is not a name"):
        terms_of(record_of({**facts_of(), "data": {"identity": "\x1b"}}))


def test_words() -> None:
    assert [value_text(value) for value in (None, 0.25, "x")] == ["default", "0.25", "x"]
    assert "None" not in json.dumps([value_text(value) for value in terms().values()])


def test_settings_are_sorted_as_the_configuration_sorts_them() -> None:
    assert {*FIELDS} > WHERE_AND_HOW | groups.REPLACED | groups.VARIED
    assert not WHERE_AND_HOW & groups.VARIED


def test_terms_that_differ() -> None:
    same = [{"steps": 1, "batch": 2}, {"steps": 1, "batch": 2}, {}]
    assert differences(same) == {}
    assert differences([*same, {"steps": 3, "batch": 2}]) == {"steps": ["1", "3"]}
    assert differences([*same, {"steps": 1, "batch": None}]) == {"batch": ["2", "default"]}


def test_the_same_run_twice(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    refuse_repetitions([("slim", 1, a), ("slim", 2, b), ("joslim", 1, b)])
    with pytest.raises(UserError, match="are both slim with seed 1; leave one out"):
        refuse_repetitions([("slim", 1, a), ("slim", 1, b)])
    for again in (a, b / ".." / "a"):
        with pytest.raises(UserError, match="a' is given twice; leave one out"):
            refuse_repetitions([("slim", 1, a), ("slim", 1, again)])


# Means over seeds


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=8))
def test_a_paired_test_is_one_of_differences(pairs: list[tuple[float, float]]) -> None:
    mine = {seed: pair[0] for seed, pair in enumerate(pairs)}
    theirs = {seed: pair[1] for seed, pair in enumerate(pairs)}
    result = paired_test(mine, {**theirs, 99: 5.0}, "slim")
    assert result is not None
    assert result["pairs"] == len(pairs)
    gains = [a - b for a, b in pairs]
    assert result["difference"] == pytest.approx(statistics.fmean(gains))
    assert (result["p_value"] is None) == (len(pairs) < 3 or len({round(g, 9) for g in gains}) == 1)
    if result["p_value"] is not None:
        spread = statistics.stdev(gains) / len(gains) ** 0.5
        expected = 2 * stats.t.sf(abs(statistics.fmean(gains)) / spread, len(gains) - 1)
        assert result["p_value"] == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_no_pairs() -> None:
    assert paired_test({0: 1.0}, {1: 1.0}, "slim") is None


def test_means() -> None:
    assert Spread.of([]) == Spread(None, None)
    assert Spread.of([3.0]) == Spread(3.0, None)
    assert Spread.of([1.0, 3.0]) == Spread(2.0, pytest.approx(2**0.5))
    assert Spread.of([3.0]).named("x") == {"x": 3.0, "x_deviation": None}


def test_overhead_is_of_seeds_that_both_have() -> None:
    assert overhead({0: 30.0, 1: 99.0}, {0: 20.0, 2: 1.0}) == pytest.approx(0.5)
    assert overhead({0: 30.0}, {1: 20.0}) is None


# What a budget buys


SPACE_OF_ONE = WidthSpace((Dim("stem", 16),), (Knob("stem", (0,), 0.25),))


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.floats(0, 3), st.floats(0, 100)), min_size=1, max_size=8
    ),
    st.lists(st.integers(0, 50), min_size=1, max_size=6),
)
def test_a_curve_is_what_pick_finds(children: list[Any], budgets: list[int]) -> None:
    points = [
        Point(
            SPACE_OF_ONE.full,
            {"macs": macs, "params": 100 - macs, "memory": 9},
            loss,
            test_error=error,
        )
        for macs, loss, error in children
    ]
    front = Front(points, "macs", (1, 40))
    for key, other in ((None, budgets), ("params", [100 - budget for budget in budgets])):
        found = curve(front, other, key)
        for budget, error in zip(other, found):
            try:
                best = min(
                    (p.train_loss for p in points if p.costs[key or "macs"] <= budget),
                )
            except ValueError:
                assert math.isnan(error)
                continue
            # Of children with equal losses, either may be meant.
            equals = [
                p.test_error
                for p in points
                if p.train_loss == best and p.costs[key or "macs"] <= budget
            ]
            assert error in equals
            if key is None and budget > 0:
                assert front.pick(macs=budget).train_loss == best


def test_budgets_reach_both_ends_exactly() -> None:
    for low, high in ((3.0, 3.0), (1.0, 15.0), (7198.0, 765568.0), (0.0, 5.0), (0.1, 1e9)):
        found = spread_budgets(low, high, 160)
        assert (found[0], found[-1]) == (low, high)
        assert (np.diff(found) >= 0).all()


# Groups of one page


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ([{"method": "slim", "low": "0.1"}], ["slim"]),
        ([{"method": "joslim"}, {"method": "slim"}], ["joslim", "slim"]),
        (
            [{"low": "0.1", "method": "joslim"}, {"low": "0.2", "method": "slim"}],
            ["joslim, low 0.1", "slim, low 0.2"],
        ),
        ([{"model": "resnet8"}, {"model": "resnet20"}], ["resnet8", "resnet20"]),
        ([{"searcher": "mobo-rs"}, {"searcher": None}], ["searcher mobo-rs", "searcher default"]),
        ([{"low": "0.1"}, {"low": "0.1"}], ["run 0", "run 1"]),
    ],
)
def test_groups_are_named_by_what_differs(settings: list[Any], names: list[str]) -> None:
    runs = [f"run {at}" for at in range(len(settings))]
    assert group_names(settings, runs) == names


def test_costs_are_drawn_apart() -> None:
    one = record_of(facts_of())
    front = one.front
    assert front is not None
    other = replace(one, front=Front([*front], "memory", front.span))
    assert [board.key for board in boards_of([one, other, one])] == ["macs", "memory"]


def test_long_and_strange_values_fit_into_a_cell() -> None:
    assert cell_text("x" * 999) == "x" * 200 + "…"
    assert cell_text(None) == "null"
    assert cell_text([1, {"a": "<b>"}]) == '[1, {"a": "<b>"}]'
