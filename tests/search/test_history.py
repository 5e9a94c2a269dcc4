"""The history: ids, costs, the latest losses, and what has none."""

import math

import numpy as np
import pytest

from joslim import Cost
from joslim.search import History


@pytest.fixture
def history(macs: Cost) -> History:
    history, rng = History(macs), np.random.default_rng(0)
    for step in range(5):
        history.visit(macs.space.random(rng), step)
    return history


def test_ids_are_positions_and_a_revisit_keeps_its_id(history: History) -> None:
    visited = [visit.widths for visit in history.visits]
    assert [history.visit(widths, 99) for widths in visited] == [0, 1, 2, 3, 4]
    assert len(history) == 5
    assert [visit.step for visit in history.visits] == [0, 1, 2, 3, 4]


def test_equal_children_are_one(history: History, macs: Cost) -> None:
    child = history.visits[2].widths
    again = macs.space.of_counts(child.counts)
    assert again is not child
    assert again in history
    assert history.visit(again, 7) == 2


def test_what_was_not_visited_is_not_in_it(history: History, macs: Cost) -> None:
    assert macs.space.full not in history
    assert history.visit(macs.space.full, 5) == 5
    assert macs.space.full in history


def test_a_visit_knows_its_exact_cost(history: History, macs: Cost) -> None:
    assert [visit.cost for visit in history.visits] == [macs(v.widths) for v in history.visits]


def test_unscored_children_are_not_scored(history: History) -> None:
    assert len(history.scored()) == 0
    assert history.scored().matrix.shape == (0, 6)
    history.record({1: 0.5, 3: 0.25}, 10)
    scored = history.scored()
    assert scored.ids.tolist() == [1, 3]
    assert scored.losses.tolist() == [0.5, 0.25]
    assert scored.steps.tolist() == [10, 10]
    assert history.loss(0) is None
    assert history.loss(3) == 0.25


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_unscores_its_child(history: History, bad: float) -> None:
    history.record({0: 0.5, 1: 0.7}, 1)
    history.record({0: bad, 2: bad}, 2)
    scored = history.scored()
    assert scored.ids.tolist() == [1]
    assert np.isfinite(scored.losses).all()
    assert history.loss(0) is None
    history.record({0: 0.4}, 3)
    assert history.scored().losses.tolist() == [0.4, 0.7]


def test_the_latest_loss_counts_and_all_are_kept(history: History) -> None:
    history.record({0: 0.9, 1: 0.8}, 1)
    history.record({0: 0.1}, 2)
    scored = history.scored()
    assert scored.losses.tolist() == [0.1, 0.8]
    assert scored.steps.tolist() == [2, 1]
    assert [(s.step, dict(s.losses)) for s in history.scorings] == [
        (1, {0: 0.9, 1: 0.8}),
        (2, {0: 0.1}),
    ]


def test_a_record_is_a_copy(history: History) -> None:
    losses = {0: 0.9}
    history.record(losses, 1)
    losses[0] = 0.0
    assert history.scorings[0].losses[0] == 0.9


def test_an_empty_record_leaves_nothing(history: History) -> None:
    history.record({}, 1)
    assert history.scorings == []


def test_scored_rows_give_their_children_back(history: History, macs: Cost) -> None:
    history.record({4: 0.1, 0: 0.2}, 1)
    scored = history.scored()
    assert scored.ids.tolist() == [0, 4]
    for child, row in zip(scored.ids, scored.matrix):
        assert macs.space.at(row) == history.visits[child].widths
    assert scored.costs.tolist() == [history.visits[0].cost, history.visits[4].cost]


def test_a_child_without_a_finite_cost_is_not_scored(history: History) -> None:
    visit = history.visits[0]
    history.visits[0] = type(visit)(visit.widths, math.nan, visit.step)
    history.record({0: 0.1, 1: 0.2}, 1)
    assert history.scored().ids.tolist() == [1]


@pytest.mark.parametrize("wrong", ["3", None, True])
@pytest.mark.parametrize("place", ["cost", "step", "scored at", "id", "loss"])
def test_a_state_of_other_things_than_numbers(macs: Cost, place: str, wrong: object) -> None:
    counts = list(macs.space.full.counts)
    right = {"cost": 3.0, "step": 0, "scored at": 1, "id": 0, "loss": 0.5}
    value = {**right, place: wrong}
    state = {
        "visits": [[counts, value["cost"], value["step"]]],
        "scorings": [[value["scored at"], [value["id"]], [value["loss"]]]],
    }
    with pytest.raises(TypeError, match="is not a number"):
        History(macs).load_state_dict(state)
