import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joslim.data.splits import balanced_order, balanced_subset, carve, validation_count
from joslim.errors import UserError

LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=200).map(np.array)


@given(LABELS)
def test_every_prefix_is_balanced(labels: np.ndarray) -> None:
    order = balanced_order(labels)
    assert sorted(order) == list(range(len(labels)))
    share = np.bincount(labels) / len(labels)
    for length in range(len(labels) + 1):
        counts = np.bincount(labels[order[:length]], minlength=len(share))
        assert (np.abs(counts - share * length) < len(share)).all()
    if len({*np.bincount(labels)}) == 1:
        for length in range(len(labels) + 1):
            counts = np.bincount(labels[order[:length]], minlength=len(share))
            assert counts.max() - counts.min() <= 1


def test_it_is_spread_over_each_class() -> None:
    """Files are often sorted by class, and by time within a class."""
    labels = np.repeat(np.arange(10), 100)
    within = balanced_subset(labels, 200) % 100
    assert 40 < within.mean() < 60
    assert np.histogram(within, bins=4, range=(0, 100))[0].min() > 30


@given(LABELS, st.floats(0, 0.9))
def test_carving(labels: np.ndarray, val: float) -> None:
    if round(val * len(labels)) == len(labels):
        return
    kept, held_out = carve(labels, val)
    assert sorted([*kept, *held_out]) == list(range(len(labels)))
    assert len(held_out) == round(val * len(labels))
    assert (np.diff(kept) > 0).all()
    assert (np.diff(held_out) > 0).all()


def test_a_class_of_one_image_stays_in_train() -> None:
    labels = np.array([0] * 50 + [1])
    kept, _ = carve(labels, 0.3)
    assert 50 in kept


@pytest.mark.parametrize(
    ("val", "count"), [(0, 0), (0.0, 0), (0.1, 10), (1, 1), (99, 99), (0.99, 99), (np.int64(3), 3)]
)
def test_fractions_and_numbers(val: float, count: int) -> None:
    assert validation_count(100, val) == count


@pytest.mark.parametrize("val", [-0.1, 1.0, 1.5, -3, 100, 0.999, float("nan"), float("inf")])
def test_what_is_no_validation_part(val: float) -> None:
    with pytest.raises(UserError, match=r"^val: "):
        validation_count(100, val)


@given(LABELS, st.integers(1, 300))
def test_subsets(labels: np.ndarray, limit: int) -> None:
    chosen = balanced_subset(labels, limit)
    assert len(chosen) == min(limit, len(labels))
    assert (np.diff(chosen) > 0).all()
    assert {*chosen} <= {*balanced_subset(labels, limit + 1)}, "a larger one contains a smaller"


def test_no_limit_is_everything() -> None:
    assert balanced_subset(np.zeros(5, dtype=int), None).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(UserError, match="limit: 0 images"):
        balanced_subset(np.zeros(5, dtype=int), 0)
