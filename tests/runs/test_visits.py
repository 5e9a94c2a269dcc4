"""history.jsonl read without torch: all children, their losses over time, and their fronts."""

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joslim.errors import UserError
from joslim.runs.folder import read_lines
from joslim.runs.run import Run
from joslim.runs.visits import MOMENTS, Visits, number
from joslim.widths import Dim, Knob, WidthSpace

SPACE = WidthSpace((Dim("stem", 16),), (Knob("stem", (0,), 0.25),))
HEADER = {"cost": "macs", "space": SPACE.to_json()}


def visit(child: int, cost: float | None, step: int = 0) -> dict[str, Any]:
    return {"id": child, "step": step, "widths": [4 + child % 12], "cost": cost}


def scoring(step: int, losses: dict[int, float | None]) -> dict[str, Any]:
    return {"step": step, "ids": [*losses], "losses": [*losses.values()]}


def test_it_tells_what_the_history_of_the_run_tells(finished: Run) -> None:
    visits, history = Visits(read_lines(finished.path / "history.jsonl")), finished.history
    assert (visits.key, visits.space) == (history.cost.name, history.space)
    assert visits.counts == [found.widths.counts for found in history.visits]
    assert visits.costs == [found.cost for found in history.visits]
    assert visits.steps == [found.step for found in history.visits]
    assert [(s.step, dict(s.losses)) for s in history.scorings] == visits.scorings


def test_the_latest_loss_of_each_child_counts() -> None:
    lines = [visit(0, 10), visit(1, 20), visit(2, 30), scoring(0, {0: 3.0, 1: 2.0, 2: 1.0})]
    lines += [scoring(5, {1: 0.5}), scoring(9, {0: 2.5})]
    visits = Visits([HEADER, *lines])
    assert [step for step, _ in visits.moments] == [0, 5, 9]
    assert visits.losses == {0: 2.5, 1: 0.5, 2: 1.0}
    assert visits.moments[0][1] == {0: 3.0, 1: 2.0, 2: 1.0}
    assert visits.front(visits.moments[0][1]) == [0, 1, 2]
    assert visits.front(visits.losses) == [0, 1]


def test_the_judging_at_the_end_is_on_other_images() -> None:
    lines = [visit(0, 10), visit(1, 20), scoring(0, {0: 3.0}), scoring(8, {0: 2.0, 1: 1.0})]
    judging = scoring(8, {0: 9.0})
    assert Visits([HEADER, *lines, judging]).losses == {0: 2.0, 1: 1.0}
    # All children were scored once, long ago: what came later is the course of the training.
    later = scoring(9, {0: 9.0})
    assert Visits([HEADER, *lines, later]).losses == {0: 9.0, 1: 1.0}


def test_a_long_training_has_a_few_moments_up_to_the_last() -> None:
    lines = [visit(0, 10), visit(1, 20), *(scoring(step, {0: 1.0}) for step in range(500))]
    steps = [step for step, _ in Visits([HEADER, *lines]).moments]
    assert len(steps) == MOMENTS
    assert (steps[0], steps[-1]) == (0, 499)


def test_a_search_at_the_end_is_one_moment() -> None:
    """Where there is no other search, its course is what there is to see."""
    lines = [visit(0, 10), visit(1, 20)]
    search = [scoring(9, {0: 5.0 - at}) for at in range(5)]
    steps = [0, 3, 6]
    mixed = Visits([HEADER, *lines, *(scoring(step, {0: 9.0}) for step in steps), *search])
    assert [step for step, _ in mixed.moments] == [0, 3, 6, 9]
    assert mixed.losses == {0: 1.0}
    alone = Visits([HEADER, *lines, *search])
    assert [losses[0] for _, losses in alone.moments] == [5.0, 4.0, 3.0, 2.0, 1.0]


def test_what_is_not_known_is_on_no_front() -> None:
    lines = [visit(0, 10), visit(1, None), scoring(0, {0: None, 1: 0.1})]
    visits = Visits([HEADER, *lines])
    assert visits.front(visits.losses) == []
    assert math.isnan(visits.losses[0])
    assert Visits([HEADER]).losses == {}


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12))
def test_a_front_is_what_no_other_child_beats(children: list[tuple[int, int]]) -> None:
    lines = [visit(at, cost) for at, (cost, _) in enumerate(children)]
    lines.append(scoring(0, {at: float(loss) for at, (_, loss) in enumerate(children)}))
    visits = Visits([HEADER, *lines])
    front = [children[at] for at in visits.front(visits.losses)]
    assert front == sorted(front)
    best = {
        (c, x)
        for c, x in children
        if not any(d <= c and y <= x and (d, y) != (c, x) for d, y in children)
    }
    assert set(front) == best
    assert all(a[1] > b[1] for a, b in itertools.pairwise(front))


GOOD = [HEADER, visit(0, 10), visit(1, 20), scoring(0, {0: 3.0, 1: 2.0})]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda lines: lines[0].pop("cost"),
        lambda lines: lines[0].update(cost="\x1b[31m"),
        lambda lines: lines[0].pop("space"),
        lambda lines: lines[1].update(widths=[4, 4]),
        lambda lines: lines[1].update(widths=[[4]]),
        lambda lines: lines[1].update(widths=[17]),
        lambda lines: lines[1].pop("step"),
        lambda lines: lines[1].update(step=-1),
        lambda lines: lines[3].update(ids=[0, 2]),
        lambda lines: lines[3].update(ids=[0]),
        lambda lines: lines[3].update(losses="x"),
        lambda lines: lines[3].update(losses=[1.0, "x"]),
        lambda lines: lines[3].update(step=True),
    ],
)
def test_broken_lines_are_one_line(spoil: Callable[[list[Any]], Any]) -> None:
    lines = copy.deepcopy(GOOD)
    assert len(Visits(lines)) == 2
    spoil(lines)
    with pytest.raises(UserError, match=r"^(history\.jsonl|space|dims|knobs)"):
        Visits(lines)


@pytest.mark.parametrize("value", [None, "3", True, math.nan, math.inf, 10**400, [1], {}])
def test_what_is_no_number_is_none(value: Any) -> None:
    assert number({"a": value}, "a") is None
    assert number({}, "a") is None
    assert number({"a": 3}, "a") == 3
