from importlib import resources

import numpy as np
import pytest
import torch

from joslim.data import digits, load_data


def test_counts() -> None:
    train, test = digits.read("train"), digits.read("test")
    assert (len(train), len(test)) == (1437, 360)
    per_class = torch.bincount(train.labels) + torch.bincount(test.labels)
    assert per_class.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert torch.bincount(test.labels).tolist() == [36, 36, 36, 36, 37, 36, 36, 36, 35, 36]
    assert train.pixels.shape == (1437, 1, 8, 8)
    assert (int(train.pixels.min()), int(train.pixels.max())) == (0, 255)
    assert train.pixels.unique().tolist() == [round(i * 255 / 16) for i in range(17)]


def test_they_are_those_of_scikit_learn() -> None:
    theirs = pytest.importorskip("sklearn.datasets").load_digits()
    order = np.argsort(theirs.target, kind="stable")
    images, is_test = theirs.images[order], np.arange(1797) % 5 == 0
    for split, chosen in (("train", ~is_test), ("test", is_test)):
        ours = digits.read(split)
        expected = np.round(images[chosen] * 255 / 16)
        assert (ours.pixels[:, 0].numpy() == expected).all()
        assert (ours.labels.numpy() == theirs.target[order][chosen]).all()


def test_they_are_small_and_their_source_is_named() -> None:
    folder = resources.files("joslim.data")
    assert len(folder.joinpath("digits.npz").read_bytes()) < 60_000
    said = folder.joinpath("digits.md").read_text()
    assert "10.24432/C50P49" in said
    assert "CC BY 4.0" in said


@pytest.mark.parametrize(("size", "shift"), [(None, 1), (8, 1), (16, 2)])
def test_no_flips_and_small_shifts(size: int | None, shift: int) -> None:
    data = load_data("digits", size=size)
    assert (data.flip, data.shift) == (False, shift)  # type: ignore[attr-defined]
    assert data.recipe == "digits"
    assert data.classes == tuple("0123456789")


def test_nearest_neighbours_know_the_digits() -> None:
    """Labels belong to their images, in all three splits."""
    data = load_data("digits")
    x, y = data.plain("train", range(data.sizes["train"]))
    for split in ("val", "test"):
        asked, known = data.plain(split, range(data.sizes[split]))
        nearest = torch.cdist(asked.flatten(1), x.flatten(1)).argmin(1)
        assert (y[nearest] == known).float().mean() > 0.95
