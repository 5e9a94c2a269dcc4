"""Unseen children come first, and there is always one."""

import pytest

from joslim import Cost
from joslim.search import History
from joslim.search.unseen import first_unseen


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
