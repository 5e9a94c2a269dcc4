"""Which children are scored anew: within a budget, the unscored, the front, then the stalest."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

import joslim
from joslim.search.history import History
from joslim.search.rescoring import ALL, due

NET = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 8, 8))
COST = joslim.cost("macs", NET)


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
    assert due(history, 10) == due(history, ALL) == list(range(10))
    assert due(visited(3), 5) == [0, 1, 2]
    assert due(History(COST), 5) == []


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 5))
def test_never_more_than_the_budget_and_nobody_twice(count: int, budget: int, seed: int) -> None:
    history = scored(count, seed)
    ids = due(history, budget)
    assert len(ids) == len(set(ids)) == min(count, budget)
    assert set(ids) <= set(range(count))
    assert ids == sorted(ids)


def test_the_unscored_come_first() -> None:
    history = scored(20)
    new = [history.visit(w, 100) for w in (NET.space.full, NET.space.smallest)]
    assert set(due(history, 2)) == set(new)
    assert set(new) < set(due(history, 5))
    history.record({3: math.nan}, 100)  # a loss that was not finite is no reason to hurry
    assert set(new) < set(due(history, 3))
    assert 3 not in due(history, 3)


def test_then_half_for_the_front_and_half_for_the_stalest() -> None:
    history = scored(30)
    stalest = sorted(range(30), key=lambda child: (history.tried(child), child))
    front = [child for child in stalest if child in front_of(history)]
    for budget in (2, 5, 8):
        half = front[: budget // 2]
        others = [child for child in stalest if child not in half]
        assert set(due(history, budget)) == {*half, *others[: budget - len(half)]}


def test_of_a_front_that_is_too_large_the_stalest() -> None:
    history = visited(12)
    order = np.argsort([visit.cost for visit in history.visits])
    for place, child in enumerate(order.tolist()):  # the dearer the better: all are on the front
        history.record({child: 1.0 - place / 100}, step=place)
    assert set(due(history, 4)) == set(order[:4].tolist())


def test_every_child_comes_round() -> None:
    """With fixed losses the front stays; the others take turns in what it leaves of the budget."""
    history, budget = scored(50), 16
    front = front_of(history)
    assert len(front) < budget
    losses = {child: history.loss(child) for child in range(50)}
    rounds = math.ceil((50 - len(front)) / (budget - len(front)))
    seen: set[int] = set()
    for number in range(rounds):
        ids = due(history, budget)
        seen |= set(ids)
        history.record({child: losses[child] for child in ids}, step=1000 + number)
    assert seen == set(range(50))


def all_seen(history: History, budget: int, losses: dict[int, float], rounds: int) -> set[int]:
    seen: set[int] = set()
    for number in range(rounds):
        ids = due(history, budget)
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
