"""The exam that every data set sits: those of the table, a folder, a pair."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from joslim.data import Data, load_data
from joslim.data.folder import FolderData
from joslim.errors import UserError
from joslim.runs.recipes import RECIPES

Case = Any  # Of conftest.py, which cannot be imported.


def first(data: Data, count: int, **how: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(itertools.islice(data.batches(**how), count))


def same(a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b))


def test_what_it_says_of_itself(case: Case) -> None:
    data = case.load()
    channels = data.shape[0]
    assert channels == len(data.mean) == len(data.std) == 3
    assert len(data.classes) >= 3
    assert all(isinstance(name, str) for name in data.classes)
    assert all(0 < value < 1 for value in (*data.mean, *data.std))
    assert data.recipe in RECIPES
    assert set(data.sizes) == {"train", "val", "test"}
    total = data.sizes["train"] + data.sizes["val"]
    assert data.sizes["val"] == round(0.1 * total)
    assert data.identity in repr(data)


def test_shapes_and_kinds(case: Case) -> None:
    data = case.load()
    for x, y in (first(data, 1, seed=0, batch=7)[0], data.plain("test", range(7))):
        assert x.shape == (7, *data.shape)
        assert x.dtype == torch.float32
        assert y.dtype == torch.int64
        assert y.shape == (7,)
        assert x.is_contiguous()
        assert 0 <= int(y.min()) <= int(y.max()) < len(data.classes)


def test_training_images_are_normalised(case: Case) -> None:
    data = case.load()
    x = torch.cat([x for x, _ in data.sweep("train", 64)])
    if not isinstance(data, FolderData):  # Which takes the moments of ImageNet.
        torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
        torch.testing.assert_close(x.std((0, 2, 3)), torch.ones(3), atol=1e-3, rtol=0)


@pytest.mark.parametrize("size", [8, 33])
@pytest.mark.parametrize("channels", [1, 3])
def test_size_and_channels(case: Case, size: int, channels: int) -> None:
    data = case.load(size=size, channels=channels)
    assert data.shape == (channels, size, size)
    assert len(data.mean) == len(data.std) == channels
    for x, _ in (first(data, 1, seed=0, batch=4)[0], data.plain("test", range(4))):
        assert x.shape == (4, channels, size, size)
        assert torch.isfinite(x).all()


def test_everything_but_the_test_split_works_without_it(case: Case) -> None:
    case.ruin_test()
    data = case.load()
    assert data.sizes["test"] > 0
    assert data.identity
    first(data, 2, seed=0, batch=4)
    data.plain("val", [0])
    list(data.sweep("train", 16, limit=20))
    assert len(data.sweep("test", 16)) > 0
    with pytest.raises(UserError) as caught:
        data.plain("test", [0])
    assert "\n" not in str(caught.value)


def test_start_equals_skipping(case: Case) -> None:
    data = case.load()
    batch = data.sizes["train"] // 2 - 1
    batches = first(data, 6, seed=3, batch=batch)
    for start in (1, 4):
        resumed = first(case.load(), 6 - start, seed=3, batch=batch, start=start)
        assert all(same(a, b) for a, b in zip(batches[start:], resumed))


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_a_batch(case: Case, world: int) -> None:
    data = case.load()
    whole = first(data, 3, seed=1, batch=10)
    shares = [first(data, 3, seed=1, batch=10, rank=rank, world=world) for rank in range(world)]
    for step, batch in enumerate(whole):
        parts = [share[step] for share in shares]
        assert same(batch, tuple(torch.cat(both) for both in zip(*parts)))
        sizes = [len(y) for _, y in parts]
        assert max(sizes) - min(sizes) <= 1


def test_an_image_does_not_depend_on_its_batch(case: Case) -> None:
    data = case.load()
    small, large = first(data, 12, seed=2, batch=2), first(data, 2, seed=2, batch=12)
    joined = tuple(torch.cat(both) for both in zip(*small))
    assert same(joined, tuple(torch.cat(both) for both in zip(*large)))


def test_seeds_and_epochs_differ(case: Case) -> None:
    data = case.load()
    batch = data.sizes["train"]
    (one, again), (other,) = (
        first(data, 2, seed=0, batch=batch),
        first(data, 1, seed=1, batch=batch),
    )
    assert not torch.equal(one[0], again[0])
    assert not torch.equal(one[0], other[0])
    assert torch.equal(one[1].bincount(), again[1].bincount())


def test_drawing_touches_no_global_generator(case: Case) -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1]
    data = case.load()
    first(data, 2, seed=0, batch=4)
    list(data.sweep("train", 16, limit=20))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()


def test_sweeps(case: Case) -> None:
    data = case.load()
    for split, count in data.sizes.items():
        sweep = data.sweep(split, 16)
        batches = list(sweep)
        assert len(batches) == len(sweep)
        assert [len(y) for _, y in batches[:-1]] == [16] * (len(sweep) - 1)
        assert sum(len(y) for _, y in batches) == count
        assert torch.equal(torch.cat([y for _, y in batches]), torch.from_numpy(data.labels(split)))
        assert same(batches[0], data.plain(split, range(min(16, count))))
        assert same(batches[0], next(iter(sweep))), "it can be repeated"


def test_a_limited_sweep_is_balanced(case: Case) -> None:
    data = case.load()
    limit = 2 * len(data.classes)
    sweep = data.sweep("train", 5, limit=limit)
    labels = torch.cat([y for _, y in sweep])
    counts, everywhere = (
        np.bincount(x, minlength=len(data.classes)) for x in (labels, data.labels("train"))
    )
    shares = everywhere * limit / everywhere.sum()
    assert len(labels) == limit
    assert (np.abs(counts - shares) <= 1).all()
    assert sweep.indices[-1] > data.sizes["train"] / 2, "not only the first images"


def test_validation_images_are_apart_and_stratified(case: Case) -> None:
    data = case.load(val=0.2)
    whole = case.load(val=0)
    assert whole.sizes["val"] == 0
    assert list(whole.sweep("val", 4)) == []
    if isinstance(data, FolderData):
        parts = [x for split in ("train", "val") for x, _ in data.sweep(split, 99)]
        everything = torch.cat([x for x, _ in whole.sweep("train", 99)])
        unique = torch.unique(torch.cat(parts).flatten(1), dim=0)
        assert torch.equal(unique, torch.unique(everything.flatten(1), dim=0))
    counts = np.bincount(data.labels("val"), minlength=len(data.classes))
    shares = np.bincount(whole.labels("train")) * data.sizes["val"] / whole.sizes["train"]
    assert (np.abs(counts - shares) <= 1).all()


def test_validation_images_are_always_the_same(case: Case) -> None:
    assert same(case.load().plain("val", [0, 1]), case.load().plain("val", [0, 1]))


def test_identity(case: Case) -> None:
    data = case.load()
    assert data.identity == case.load().identity
    others = [case.load(size=9), case.load(channels=1), case.load(val=0.3)]
    assert len({data.identity, *(other.identity for other in others)}) == 4
    assert "\n" not in data.identity
    assert len(data.identity) < 100


def test_data_are_taken_as_they_are(case: Case) -> None:
    data = case.load()
    assert load_data(data) is data


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size: 0; type"),
        ({"channels": 0}, "channels: 0; type 1 .*, 3"),
        ({"val": 1.0}, "val: 1.0; type a fraction"),
        ({"val": -1}, "val: -1; type a fraction"),
        ({"val": float("nan")}, "val: nan; type a fraction"),
        ({"val": 10**9}, "val: 1000000000 leaves none of"),
        ({"val": 0.9999}, "val: 0.9999 leaves none of"),
        ({"workers": -1}, "workers: -1; type 0"),
    ],
)
def test_bad_options(case: Case, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}") as caught:
        case.load(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"batch": 0}, "batch: 0; type a number from 1 to"),
        ({"batch": 10**6}, "batch: 1000000 is more than the .* training images"),
        ({"batch": 1, "world": 2}, "batch: 1 is less than one image for each of 2 processes"),
    ],
)
def test_bad_batches(case: Case, how: dict[str, int], message: str) -> None:
    data = case.load()
    with pytest.raises(UserError, match=f"^{message}"):
        data.batches(seed=0, **how)  # At once, not when the first batch is drawn.


def test_bad_sweeps(case: Case) -> None:
    data = case.load()
    for how, message in (
        ({"split": "tset", "batch": 1}, "split: unknown name 'tset'; allowed: train, val, test"),
        ({"split": "val", "batch": 0}, "batch: 0; type 1 or more"),
        ({"split": "val", "batch": 1, "limit": 0}, "limit: 0 images; at least 1"),
    ):
        with pytest.raises(UserError, match=message):
            data.sweep(**how)
    with pytest.raises(UserError, match="split: unknown name 'tset'"):
        data.plain("tset", [0])
