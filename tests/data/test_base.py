from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

from joslim.data.base import Batch, Data, Options
from joslim.data.randomness import Integers, Step
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


@pytest.mark.parametrize("wrong", [{"size": 0}, {"size": -1}, {"channels": 4}, {"workers": -1}])
def test_bad_options(wrong: dict[str, int]) -> None:
    (field, value), *_ = wrong.items()
    with pytest.raises(UserError, match=f"^{field}: {value}; "):
        Options(**wrong)
