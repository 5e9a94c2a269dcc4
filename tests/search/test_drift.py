"""Old losses brought up to date by those that were taken again."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import joslim
from joslim.search.drift import carried_over
from joslim.search.history import History

NET = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 8, 8))
LOSSES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=12)


def arrays(*lists: list[float]) -> list[np.ndarray]:
    return [np.array(values, dtype=np.float64) for values in lists]


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
