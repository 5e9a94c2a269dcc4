import numpy as np
import pytest
import torch
from PIL import Image

from joslim.data.base import Options
from joslim.data.in_memory import (
    DatasetInfo,
    Images,
    MemoryData,
    channel_moments,
    resize,
    set_channels,
)
from joslim.errors import UserError


def some(count: int = 40, size: int = 12, channels: int = 3, classes: int = 4) -> Images:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (count, channels, size, size), dtype=np.uint8)
    return Images.from_arrays(pixels, np.arange(count) % classes)


def loaded(
    images: Images | None = None, test: Images | None = None, **options: object
) -> MemoryData:
    info = DatasetInfo("some", ("a", "b", "c", "d"), test_count=40)
    train = some() if images is None else images
    return MemoryData(info, train, lambda: test or some(), Options(**options))


def test_train_and_val_are_the_images() -> None:
    images = some()
    data = loaded(images, val=0.25)
    parts = torch.cat([data.parts[split].pixels for split in ("train", "val")]).flatten(1)
    assert data.sizes == {"train": 30, "val": 10, "test": 40}
    assert torch.equal(torch.unique(parts, dim=0), torch.unique(images.pixels.flatten(1), dim=0))
    assert {*np.bincount(data.labels("val"))} == {2, 3}


def test_images_stay_bytes_and_moments_are_of_the_training_part() -> None:
    data = loaded(val=0.5)
    assert data.parts["train"].pixels.dtype == torch.uint8
    pixels = data.parts["train"].pixels.double() / 255
    np.testing.assert_allclose(data.mean, pixels.mean((0, 2, 3)))
    np.testing.assert_allclose(data.std, pixels.std((0, 2, 3), correction=0))


def test_moments_of_floats_and_of_one_value() -> None:
    pixels = torch.rand(5, 3, 4, 4)
    data = loaded(Images(pixels, torch.arange(5) % 4), val=0)
    mean, std = data.mean, data.std
    np.testing.assert_allclose(mean, pixels.double().mean((0, 2, 3)))
    np.testing.assert_allclose(std, pixels.double().std((0, 2, 3), correction=0))
    assert channel_moments(torch.full((4,), 51, dtype=torch.uint8)) == (0.2, 1.0)
    assert channel_moments(torch.full((4,), 0.5)) == (0.5, 1.0)


def test_the_shift_grows_with_the_size() -> None:
    assert [loaded(size=size).shift for size in (4, 8, 16, 32, 64)] == [1, 1, 2, 4, 8]


def test_augmentation_stays_within_its_bounds() -> None:
    """One white pixel in the middle of black: it moves by at most the shift, and mirrors."""
    pixels = np.zeros((40, 1, 16, 16), dtype=np.uint8)
    pixels[:, :, 7, 5] = 255
    data = loaded(Images.from_arrays(pixels, np.arange(40) % 4), channels=1, val=0)
    found: set[tuple[int, int]] = set()
    batches = data.batches(seed=0, batch=40)
    for _ in range(20):
        x, _ = next(batches)
        found |= {(int(r), int(c)) for _, _, r, c in (x > x.min()).nonzero()}
    assert {r for r, _ in found} == {5, 6, 7, 8, 9}
    assert {c for _, c in found} == {3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
    data.flip, data.shift = False, 1
    x, _ = next(data.batches(seed=0, batch=40))
    assert {int(c) for c in (x > x.min()).nonzero()[:, 3]} == {4, 5, 6}


@pytest.mark.parametrize(("size", "to"), [(32, 16), (32, 20), (8, 16), (28, 32)])
def test_resizing_is_that_of_pil(size: int, to: int) -> None:
    coarse = Image.fromarray(np.random.default_rng(0).integers(0, 256, (5, 5, 3), dtype=np.uint8))
    image = coarse.resize((size, size), Image.Resampling.BICUBIC)
    expected = np.asarray(image.resize((to, to), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    pixels = torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())[None]
    difference = resize(pixels, to)[0].int() - torch.from_numpy(expected.astype(np.int32))
    assert difference.abs().max() <= 1


def test_channels() -> None:
    grey, colour = some(channels=1).pixels, some().pixels
    assert torch.equal(set_channels(grey, 3), grey.repeat(1, 3, 1, 1))
    image = Image.fromarray(colour[0].permute(1, 2, 0).numpy())
    expected = torch.from_numpy(np.asarray(image.convert("L")).astype(np.int32))
    assert (set_channels(colour, 1)[0, 0].int() - expected).abs().max() <= 1
    assert torch.equal(set_channels(set_channels(grey, 3), 1), grey)
    assert set_channels(colour / 255, 1).dtype == torch.float32


def test_sides_may_differ() -> None:
    pixels = np.zeros((8, 3, 16, 40), dtype=np.uint8)
    data = loaded(Images.from_arrays(pixels, np.arange(8) % 4), val=0)
    assert data.shape == (3, 16, 40)
    assert data.shift == 2
    assert next(data.batches(0, 4))[0].shape == (4, 3, 16, 40)


@pytest.mark.parametrize(
    ("test", "message"),
    [
        (some(count=39), "some has 39 test images, not 40"),
        (some(size=10), "test images are 10x10 pixels, training images 12x12; give a size"),
        (some(classes=5), "label 4; allowed: 0 to 3"),
    ],
)
def test_a_test_split_that_does_not_fit(test: Images, message: str) -> None:
    data = loaded(test=test)
    with pytest.raises(UserError, match=f"^data: {message}"):
        data.plain("test", [0])


def test_bad_labels() -> None:
    images = some()
    images.labels[3] = -1
    with pytest.raises(UserError, match="label -1; allowed: 0 to 3"):
        loaded(images)
    with pytest.raises(UserError, match="there are no images"):
        loaded(some(count=0))
    with pytest.raises(UserError, match="only one class"):
        MemoryData(DatasetInfo("one", ("a",), 1), some(classes=1), some, Options())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_the_same_images_on_cuda() -> None:
    here, there = (next(loaded(device=d).batches(0, 8)) for d in ("cpu", "cuda"))
    torch.testing.assert_close(there[0].cpu(), here[0])
