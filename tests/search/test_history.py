"""The history: ids, costs, the latest losses, and which children are scored again."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import joslim
from joslim import Cost, SlimmableNet
from joslim.search import History
from joslim.search.history import ALL, Estimates, children_to_rescore, first_unseen

NET = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 8, 8))
COST = joslim.cost("macs", NET)
LOSSES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=12)


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


def test_a_visit_again_is_an_entry_of_its_own(history: History, macs: Cost) -> None:
    """The history of Algorithm 1 gains M entries in each round."""
    child = history.visits[2].widths
    assert history.visit(child, 7, again=True) == 5
    assert history.visit(macs.space.full, 7, again=True) == 6
    history.record({2: 0.5, 5: 0.5}, 7)
    assert history.scored().ids.tolist() == [2, 5]
    restored = History(macs)
    restored.load_state_dict(history.state_dict())
    assert restored.visits == history.visits
    for each in (history, restored):
        assert each.visit(child, 8) == 2, "the first entry of a child is its id"


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


def test_a_long_history_is_read_in_linear_time(history: History) -> None:
    """Each scoring once took as long as there were children: 27 s for 20,000 and 10,000."""
    space, rng = history.space, np.random.default_rng(0)
    rows = np.unique(space.counts(rng.uniform(space.low, 1, (8000, len(space)))), axis=0)
    visits = [[row, 1.0, 0] for row in rows.tolist()]
    scorings = [[step, [step, 0], [1.0 + step % 7, 2.0]] for step in range(1, len(visits))]
    started = time.process_time()
    history.load_state_dict({"visits": visits, "scorings": scorings})
    assert len(history.scored()) == len(visits)
    assert time.process_time() - started < 3


# Unseen children come first, and there is always one


def test_visited_and_chosen_children_are_passed_over(macs: Cost) -> None:
    history = History(macs)
    a, b, c = (macs.space.uniform(m) for m in (0.5, 0.75, 1.0))
    history.visit(a, 0)
    assert first_unseen([a, b, c], history) == b
    assert first_unseen([a, b, c], history, [b]) == c
    assert first_unseen([a, b, c], history, [b, c]) == a, "the first, if all are seen"


def test_no_more_are_drawn_than_needed(macs: Cost) -> None:
    draws = iter([macs.space.full, macs.space.smallest])
    assert first_unseen(draws, History(macs)) == macs.space.full
    assert list(draws) == [macs.space.smallest]


def test_there_must_be_a_child(macs: Cost) -> None:
    with pytest.raises(AssertionError):
        first_unseen([], History(macs))


# Which children are scored again: the unscored, the front, then those with the oldest losses


def visited(count: int, seed: int = 0) -> History:
    """So many different children, none of them scored."""
    history, rng = History(COST), np.random.default_rng(seed)
    while len(history) < count:
        history.visit(NET.space.random(rng), 0)
    return history


def front_of(history: History) -> set[int]:
    """By the definition: nobody is as cheap and as good, and better in one of the two."""
    points = [(v.cost, history.loss(child)) for child, v in enumerate(history.visits)]
    return {
        child
        for child, (cost, loss) in enumerate(points)
        if loss is not None
        and not any(
            c <= cost and x <= loss and (c, x) != (cost, loss) for c, x in points if x is not None
        )
    }


def scored(count: int, seed: int = 0) -> History:
    """Random losses, taken at different steps."""
    history, rng = visited(count, seed), np.random.default_rng(seed + 1)
    for child in rng.permutation(count).tolist():
        history.record({child: rng.uniform()}, int(rng.integers(100)))
    return history


def test_everybody_within_the_budget() -> None:
    history = scored(10)
    assert children_to_rescore(history, 10) == children_to_rescore(history, ALL) == list(range(10))
    assert children_to_rescore(visited(3), 5) == [0, 1, 2]
    assert children_to_rescore(History(COST), 5) == []


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 5))
def test_never_more_than_the_budget_and_nobody_twice(count: int, budget: int, seed: int) -> None:
    history = scored(count, seed)
    ids = children_to_rescore(history, budget)
    assert len(ids) == len(set(ids)) == min(count, budget)
    assert set(ids) <= set(range(count))
    assert ids == sorted(ids)


def test_the_unscored_come_first() -> None:
    history = scored(20)
    new = [history.visit(w, 100) for w in (NET.space.full, NET.space.smallest)]
    assert set(children_to_rescore(history, 2)) == set(new)
    assert set(new) < set(children_to_rescore(history, 5))
    history.record({3: math.nan}, 100)  # a loss that was not finite is no reason to hurry
    assert set(new) < set(children_to_rescore(history, 3))
    assert 3 not in children_to_rescore(history, 3)


def test_then_half_for_the_front_and_half_for_the_stalest() -> None:
    history = scored(30)
    stalest = sorted(range(30), key=lambda child: (history.tried(child), child))
    front = [child for child in stalest if child in front_of(history)]
    for budget in (2, 5, 8):
        half = front[: budget // 2]
        others = [child for child in stalest if child not in half]
        assert set(children_to_rescore(history, budget)) == {*half, *others[: budget - len(half)]}


def test_of_a_front_that_is_too_large_the_stalest() -> None:
    history = visited(12)
    order = np.argsort([visit.cost for visit in history.visits])
    for place, child in enumerate(order.tolist()):  # the dearer the better: all are on the front
        history.record({child: 1.0 - place / 100}, step=place)
    assert set(children_to_rescore(history, 4)) == set(order[:4].tolist())


def test_every_child_comes_round() -> None:
    """With fixed losses the front stays; the others take turns in what it leaves of the budget."""
    history, budget = scored(50), 16
    front = front_of(history)
    assert len(front) < budget
    losses = {child: history.loss(child) for child in range(50)}
    rounds = math.ceil((50 - len(front)) / (budget - len(front)))
    seen: set[int] = set()
    for number in range(rounds):
        ids = children_to_rescore(history, budget)
        seen |= set(ids)
        history.record({child: losses[child] for child in ids}, step=1000 + number)
    assert seen == set(range(50))


def all_seen(history: History, budget: int, losses: dict[int, float], rounds: int) -> set[int]:
    seen: set[int] = set()
    for number in range(rounds):
        ids = children_to_rescore(history, budget)
        seen |= set(ids)
        history.record({child: losses[child] for child in ids}, step=1000 + number)
    return seen


def test_every_child_comes_round_beside_a_large_front() -> None:
    history = visited(24)
    order = np.argsort([visit.cost for visit in history.visits]).tolist()
    losses = {child: 1.0 - place / 100 for place, child in enumerate(order)}
    for child in order[1::3]:
        losses[child] = 5.0  # dominated
    history.record(losses, 0)
    assert len(front_of(history)) == 16
    assert all_seen(history, 8, losses, rounds=50) == set(range(24))


def test_every_child_comes_round_beside_some_that_diverge() -> None:
    history = scored(24)
    losses = {child: history.loss(child) or 0.0 for child in range(24)}
    for child in range(8):
        losses[child] = math.nan
        history.record({child: math.nan}, 100)
    assert all_seen(history, 8, losses, rounds=50) == set(range(24))


# Old losses brought up to date by those that were measured again


def arrays(*lists: list[float]) -> list[np.ndarray]:
    return [np.array(values, dtype=np.float64) for values in lists]


def carried_over(before: np.ndarray, now: np.ndarray, stale: np.ndarray) -> np.ndarray:
    """Children with the losses `before` and `stale`, of whom the first are scored again."""
    estimates = Estimates()
    everyone = np.arange(len(before) + len(stale))
    some, others = everyone[: len(before)], everyone[len(before) :]
    for children, losses in ((some, before), (others, stale), (some, now)):
        if len(children):
            estimates.update(children, losses)
    assert estimates[some] == pytest.approx(now)
    return estimates[others]


def test_a_factor_is_carried_over() -> None:
    before, now, stale = arrays([1.0, 2.0, 4.0], [0.5, 1.0, 2.0], [3.0, 8.0])
    assert carried_over(before, now, stale) == pytest.approx([1.5, 4.0])


def test_one_pair_is_a_factor() -> None:
    before, now, stale = arrays([2.0], [1.0], [2.0, 6.0])
    assert carried_over(before, now, stale) == pytest.approx([1.0, 3.0])


def test_many_pairs_show_a_slope() -> None:
    """Losses of large networks fall faster: on the logarithmic scale that is a slope."""
    before = np.exp(np.linspace(-3, 0, 200))
    stale = np.exp(np.array([-2.5, -0.5]))
    now = np.exp(1.5 * np.log(before) - 1)
    assert np.log(carried_over(before, now, stale)) == pytest.approx([-4.75, -1.75], abs=0.05)


def test_few_pairs_say_little_of_a_slope() -> None:
    before, now, stale = arrays([1.0, 1.1], [1.0, 5.0], [2.0])
    assert carried_over(before, now, stale)[0] < 6


def test_losses_below_zero_are_shifted() -> None:
    before, now, stale = arrays([-1.0, 0.0, 1.0], [-2.0, -1.0, 0.0], [0.5])
    assert carried_over(before, now, stale) == pytest.approx([-0.5])


@pytest.mark.parametrize(("before", "stale"), [([], [1.0, 2.0]), ([1.0], [])])
def test_nothing_to_learn_from_changes_nothing(before: list[float], stale: list[float]) -> None:
    old, now, others = arrays(before, before, stale)
    assert carried_over(old, now, others).tolist() == stale


@given(LOSSES, LOSSES, st.integers(0, 5))
def test_results_are_finite_and_in_order(
    before: list[float], stale: list[float], seed: int
) -> None:
    old, others = arrays(before, stale)
    now = old * np.exp(np.random.default_rng(seed).normal(size=len(old)))
    result = carried_over(old, now, others)
    assert np.isfinite(result).all()
    order = np.argsort(others, kind="stable")
    assert (np.diff(result[order]) >= -1e-9 * np.abs(result).max()).all()


def test_a_history_keeps_what_was_measured_and_what_it_would_be_now() -> None:
    rng = np.random.default_rng(0)
    history = History(joslim.cost("macs", NET))
    for _ in range(4):
        history.visit(NET.space.random(rng), 0)
    history.record({0: 1.0, 1: 2.0, 2: 4.0, 3: 8.0}, 0)
    history.record({0: 0.5, 1: 1.0, 2: math.nan}, 10)
    scored = history.scored()
    assert scored.ids.tolist() == [0, 1, 3]
    assert scored.losses.tolist() == [0.5, 1.0, 8.0]
    assert scored.estimates == pytest.approx([0.5, 1.0, 4.0])
    again = History(joslim.cost("macs", NET))
    again.load_state_dict(history.state_dict())
    assert again.scored().estimates.tolist() == scored.estimates.tolist()


def test_a_child_whose_cost_fails_is_not_visited(net: SlimmableNet) -> None:
    def price(widths: joslim.Widths) -> float:
        raise RuntimeError("the device is gone")

    history = History(joslim.cost(price, net))
    for _ in range(2):
        with pytest.raises(joslim.UserError, match="the device is gone"):
            history.visit(net.space.full, 0)
    assert net.space.full not in history
    assert len(history) == 0
