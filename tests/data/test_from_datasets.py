from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from joslim.data import load_data
from joslim.data.in_memory import MemoryData
from joslim.errors import UserError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (12, 6, 8, 3), dtype=np.uint8)
LABELS = [i % 3 for i in range(12)]


def loaded(images: Any, labels: Any = LABELS, test: Any = None, **options: Any) -> MemoryData:
    train = list(zip(images, labels))
    data = load_data((train, test or train), **{"val": 0, **options})
    assert isinstance(data, MemoryData)
    return data


def stored(data: MemoryData) -> np.ndarray:
    return data.parts["train"].pixels.numpy().transpose(0, 2, 3, 1)


@pytest.mark.parametrize(
    "images",
    [
        PIXELS,
        list(PIXELS),
        PIXELS.transpose(0, 3, 1, 2),
        torch.from_numpy(PIXELS),
        torch.from_numpy(PIXELS).permute(0, 3, 1, 2),
        PIXELS.astype(np.int64),
        [Image.fromarray(p) for p in PIXELS],
        np.concatenate([PIXELS, PIXELS[..., :1]], axis=3),  # with transparency
    ],
    ids=["hwc", "list", "chw", "tensor hwc", "tensor chw", "int64", "pil", "rgba"],
)
def test_images_of_all_kinds(images: Any) -> None:
    data = loaded(images)
    assert data.parts["train"].pixels.dtype == torch.uint8
    assert (stored(data) == PIXELS).all()
    assert data.shape == (3, 6, 8)
    assert (data.recipe, data.name) == ("cifar", "pair")


@pytest.mark.parametrize("axes", ["hw", "hw1", "1hw"])
def test_grey(axes: str) -> None:
    grey = {"hw": PIXELS[..., 0], "hw1": PIXELS[..., :1], "1hw": PIXELS[:, None, :, :, 0]}[axes]
    assert (stored(loaded(grey, channels=1)) == PIXELS[..., :1]).all()
    assert (stored(loaded(grey)) == PIXELS[..., :1].repeat(3, axis=3)).all()


def test_axes_that_could_be_either() -> None:
    square = RNG.integers(0, 256, (12, 3, 5, 3), dtype=np.uint8)
    assert loaded(square).shape == (3, 3, 5), "arrays: channels last"
    assert loaded(torch.from_numpy(square)).shape == (3, 5, 3), "tensors: channels first"


def test_floats_stay_floats() -> None:
    floats = (PIXELS / 255).astype(np.float64)
    data = loaded(floats)
    assert data.parts["train"].pixels.dtype == torch.float32
    assert (stored(data) == floats.astype(np.float32)).all()
    from_bytes = loaded(PIXELS)
    for one, other in zip(data.plain("train", range(12)), from_bytes.plain("train", range(12))):
        torch.testing.assert_close(one, other)
    both = zip(next(data.batches(0, 12)), next(from_bytes.batches(0, 12)))
    for one, other in both:
        torch.testing.assert_close(one, other)


def test_masks_are_black_and_white() -> None:
    assert {*np.unique(stored(loaded(PIXELS > 127)))} == {0, 255}


def test_data_sets_of_torch() -> None:
    images = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
    dataset = TensorDataset(images, torch.tensor(LABELS))
    data = load_data((dataset, dataset), val=0)
    assert data.classes == ("0", "1", "2")
    assert data.plain("test", range(12))[1].tolist() == LABELS


def test_sizes_may_differ_if_one_is_given() -> None:
    images = [PIXELS[0], PIXELS[1, :5], Image.fromarray(PIXELS[2, :, :7]), PIXELS[3, ..., 0]]
    data = loaded(images, [0, 1, 0, 1], size=6)
    assert data.shape == (3, 6, 6)
    with pytest.raises(
        UserError, match=r"^data: train\[1\] is 5x8 pixels, train\[0\] is 6x8; give a size"
    ):
        loaded(images, [0, 1, 0, 1])


def test_other_pixels_are_other_data() -> None:
    """Whatever size they are brought to, and with whatever kind of numbers."""
    rng = np.random.default_rng(0)
    for images in (PIXELS.copy(), rng.random(PIXELS.shape, dtype=np.float32)):
        for options in ({}, {"size": 3}, {"channels": 1}):
            before = loaded(images, **options).identity
            assert loaded(images.copy(), **options).identity == before
            changed = images.copy()
            changed[-1, 0, 0] = 1 - images[-1, 0, 0] if images.dtype.kind == "f" else 77
            assert loaded(changed, **options).identity != before


def test_names_of_classes() -> None:
    class Named(list[Any]):
        classes = ("a", "b", "c", "d")

    train = Named(zip(PIXELS, LABELS))
    assert load_data((train, train)).classes == ("a", "b", "c", "d")
    train.classes = ("a", "b")  # type: ignore[misc, assignment]
    with pytest.raises(UserError, match="label 2; allowed: 0 to 1"):
        load_data((train, train))


def test_a_number_of_classes_names_none() -> None:
    class Counted(list[Any]):
        classes = 3

    train = Counted((np.zeros((8, 8, 3), dtype=np.uint8), i % 3) for i in range(30))
    assert load_data((train, train)).classes == ("0", "1", "2")


def test_uneven_classes() -> None:
    data = loaded(PIXELS, [0] * 10 + [2, 5], val=0.25)
    assert data.classes == tuple("012345")
    assert data.sizes["val"] == 3


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        ([np.zeros((4, 4, 2))] * 2, [0, 1], r"image of train\[0\] has the shape \(4, 4, 2\)"),
        ([np.zeros(4)] * 2, [0, 1], r"image of train\[0\] has the shape \(4,\)"),
        ([np.full((4, 4), np.nan)] * 2, [0, 1], r"train\[0\] has pixels that are not finite"),
        ([np.full((4, 4), 256)] * 2, [0, 1], r"train\[0\] has pixels of int64; allowed"),
        ([np.full((4, 4), -1)] * 2, [0, 1], r"train\[0\] has pixels of int64; allowed"),
        ([np.full((4, 4), "a")] * 2, [0, 1], r"train\[0\] has pixels of <U1; allowed"),
        ([np.zeros((4, 4)), np.zeros((4, 4), dtype=np.uint8)], [0, 1], "bytes and of floats"),
        (PIXELS[:2], [0.5, 1], r"the label of train\[0\] is float; a whole number"),
        (PIXELS[:2], [0, "dog"], r"the label of train\[1\] is str; a whole number"),
        (PIXELS[:2], [0, -1], "label -1; allowed: 0"),
        (PIXELS[:2], [0, 0], "there is only one class"),
        ([], [], "there are no images"),
    ],
)
def test_bad_pairs(images: Any, labels: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        loaded(images, labels)
    assert "\n" not in str(caught.value)


def test_items_that_are_no_pairs() -> None:
    with pytest.raises(UserError, match=r"^data: train\[0\] is int; a pair \(image, label\)"):
        load_data(([1, 2], [1, 2]))

    class NoLength:
        def __getitem__(self, index: int) -> Any:
            return PIXELS[index], 0

    with pytest.raises(UserError, match=r"^data: NoLength has no len\(\)"):
        load_data((NoLength(), NoLength()))


@pytest.mark.parametrize("first", [True, False])
def test_other_numbers_of_channels(first: bool) -> None:
    shape = (5, 8, 9) if first else (8, 9, 5)
    images = np.random.default_rng(0).integers(0, 256, (6, *shape), dtype=np.uint8)
    pairs = [(image, index % 2) for index, image in enumerate(images)]
    data = load_data((pairs, pairs), channels=5, val=0)
    assert data.shape == (5, 8, 9)
    x, _ = data.plain("test", [1])
    pixels = images[1] if first else images[1].transpose(2, 0, 1)
    means, stds = (np.array(values)[:, None, None] for values in (data.mean, data.std))
    np.testing.assert_allclose(x[0].numpy(), (pixels / 255 - means) / stds, atol=1e-5)
    with pytest.raises(UserError, match=r"x 1 or 3 channels, .*option channels sets another"):
        load_data((pairs, pairs))
    with pytest.raises(UserError, match=r"x 4 channels"):
        load_data((pairs, pairs), channels=4)


def test_16_bits_become_floats() -> None:
    images = np.random.default_rng(0).integers(0, 4096, (6, 8, 8), dtype=np.uint16)
    for kind in (lambda image: image, Image.fromarray):
        pairs = [(kind(image), index % 2) for index, image in enumerate(images)]
        data = load_data((pairs, pairs), channels=1, val=0)
        x, _ = data.plain("train", [2])
        expected = (images[2] / 65535 - data.mean[0]) / data.std[0]
        np.testing.assert_allclose(x[0, 0].numpy(), expected, atol=1e-4)
