"""NSGA-II."""

import sys
from collections.abc import Callable

import numpy as np
import pytest

from joslim import Cost, UserError, Widths
from joslim.search import History, Random
from joslim.search.nsga2 import Evolution, tournament

HistoryOf = Callable[..., History]


def test_before_there_are_parents_children_are_random(history_of: HistoryOf, macs: Cost) -> None:
    history = history_of(macs, 3)
    one, two = (s.propose(history, 4, np.random.default_rng(0)) for s in (Evolution(), Random()))
    assert one == two


def test_offspring_are_like_the_best_children(history_of: HistoryOf, macs: Cost) -> None:
    """Only the last knob lowers the loss, and costs least if the others are low."""

    def loss(widths: Widths) -> float:
        return 2 - float(widths.multipliers[-1])

    history = history_of(macs, 200, loss)
    young = Evolution(population=10).propose(history, 40, np.random.default_rng(0))
    everyone = history.scored().matrix[2:, :-1].mean()
    assert np.mean([child.multipliers[:-1].mean() for child in young]) < everyone - 0.03


def test_unseen_children_are_preferred(history_of: HistoryOf, macs: Cost) -> None:
    history = history_of(macs, 60)
    young = Evolution().propose(history, 20, np.random.default_rng(0))
    assert len(set(young)) == 20
    assert not any(child in history for child in young)


def test_the_lower_rank_wins_and_then_the_one_with_more_room() -> None:
    ranks, crowding = np.array([1, 0, 0]), np.array([np.inf, 0.1, np.inf])
    winners = tournament(ranks, crowding, 3000, np.random.default_rng(0))
    share = np.bincount(winners, minlength=3) / 3000
    # Of nine pairs the last wins five, the second three, the first only against itself.
    np.testing.assert_allclose(share, [1 / 9, 3 / 9, 5 / 9], atol=0.03)


def test_without_pymoo_the_user_is_told_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymoo", None)
    with pytest.raises(UserError, match=r"pip install 'joslim\[nsga2\]'"):
        Evolution()
