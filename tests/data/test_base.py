from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from joslim.data.augment import Integers, Step
from joslim.data.base import (
    Batch,
    Data,
    Options,
    balanced_order,
    carve,
    validation_count,
)
from joslim.errors import UserError


class Numbers(Data):
    """The least that a data set must say: image i is the number i, its label i % 3."""

    name, classes, recipe = "numbers", ("a", "b", "c"), "cifar"
    shape, mean, std = (1, 1, 1), (0.0,), (1.0,)
    device = torch.device("cpu")

    def __init__(self, train: int = 12, name: str = "numbers") -> None:
        self.sizes = {"train": train, "val": 4, "test": 5}
        self.name = name

    def labels(self, split: str) -> Integers:
        assert split != "test"
        return np.arange(self.sizes[split]) % 3

    def plain(self, split: str, indices: ArrayLike) -> Batch:
        x = torch.tensor(np.asarray(indices))
        return x[:, None, None, None].float(), x % 3

    def augmented(self, seed: int, schedule: Iterator[Step]) -> Iterator[Batch]:
        return (self.plain("train", step.indices) for step in schedule)


def test_a_data_set_of_ones_own() -> None:
    data = Numbers()
    _, y = next(data.batches(seed=0, batch=12))
    assert sorted(y.tolist()) == sorted([0, 1, 2] * 4)
    assert [len(y) for _, y in data.sweep("test", 2)] == [2, 2, 1]
    assert [x.flatten().tolist() for x, _ in data.sweep("val", 3)] == [[0, 1, 2], [3]]


def test_a_full_sweep_of_test_asks_for_no_labels() -> None:
    data = Numbers()
    assert len(data.sweep("test", 2)) == 3
    assert len(data.sweep("test", 2, limit=5)) == 3
    with pytest.raises(AssertionError):
        data.sweep("test", 2, limit=4)


def test_identity_is_readable_and_forgets_where_a_folder_lies() -> None:
    assert Numbers().identity.startswith("numbers 1x1x1 12+4+5 ")
    assert Numbers(name="folder:/a").identity == Numbers(name="folder:/b").identity
    assert Numbers(train=12).identity != Numbers(train=13).identity


@pytest.mark.parametrize("size", [None, 1, 224])
def test_good_options(size: int | None) -> None:
    assert Options(size=size, channels=1).size == size


@pytest.mark.parametrize("wrong", [{"size": 0}, {"size": -1}, {"channels": 0}, {"workers": -1}])
def test_bad_options(wrong: dict[str, int]) -> None:
    (field, value), *_ = wrong.items()
    with pytest.raises(UserError, match=f"^{field}: {value}; "):
        Options(**wrong)


# Subsets

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
    within = balanced_order(labels)[:200] % 100
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


@pytest.mark.parametrize("limit", [1, 5, 12])
def test_limits_of_a_sweep(limit: int) -> None:
    sweep = Numbers().sweep("train", 4, limit)
    assert len(sweep.indices) == limit
    assert (np.diff(sweep.indices) > 0).all()
    assert {*sweep.indices} <= {*Numbers().sweep("train", 4, limit + 1).indices}
    with pytest.raises(UserError, match="limit: 0 images"):
        Numbers().sweep("train", 4, 0)
