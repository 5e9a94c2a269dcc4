import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from joslim.data import augment
from joslim.data.augment import (
    LUMA,
    PCA_AXES,
    PCA_SPREAD,
    box_muller,
    luma,
    mean_grey,
    normalise,
    pca_lighting,
    permutation,
    random_bits,
    random_shifts,
    shift_and_flip,
    splitmix64,
    steps,
    uniforms,
)

MASK = (1 << 64) - 1


def one_by_one(state: int) -> int:
    """One number at a time, in Python's unbounded integers."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@given(st.lists(st.integers(0, MASK), min_size=1))
def test_splitmix64(words: list[int]) -> None:
    assert splitmix64(np.array(words, dtype=np.uint64)).tolist() == [one_by_one(w) for w in words]


def test_published_values_of_splitmix64() -> None:
    """The first outputs for the seed 1234567, in the tests of many implementations."""
    states = [1234567 + i * 0x9E3779B97F4A7C15 & MASK for i in range(3)]
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert splitmix64(np.array(states, dtype=np.uint64)).tolist() == expected


def test_values_stay_what_they_are() -> None:
    """A resume, maybe under another release, must see the same images."""
    drawn = uniforms(0, "augment", np.array([0, 3]), np.array([5, 7]), 2)
    assert drawn.round(6).tolist() == [[0.076351, 0.450773], [0.708095, 0.537964]]
    assert permutation(1, 2, 8).tolist() == [5, 4, 7, 3, 6, 0, 2, 1]


def test_uniforms_are_uniform_and_independent() -> None:
    epochs, indices = np.repeat(np.arange(20), 500), np.tile(np.arange(500), 20)
    drawn = uniforms(0, "test", epochs, indices, 4)
    assert drawn.shape == (10_000, 4)
    assert 0 <= drawn.min() < drawn.max() < 1
    for column in drawn.T:
        counts = np.histogram(column, bins=10, range=(0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 30  # chi-squared, 9 degrees of freedom
    assert np.abs(np.corrcoef(drawn.T) - np.eye(4)).max() < 0.04
    neighbours = np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]
    assert abs(neighbours) < 0.04


def test_every_key_matters() -> None:
    keys = [(0, "a", 1, 2), (1, "a", 1, 2), (0, "b", 1, 2), (0, "a", 2, 2), (0, "a", 2, 1)]
    values = [int(random_bits(seed, purpose, *rest)[0]) for seed, purpose, *rest in keys]
    assert len({*values}) == len(keys)


@pytest.mark.parametrize("seed", [-1, 0, 2**63, 2**64 + 5, np.int64(3), np.uint8(3)])
def test_any_whole_number_is_a_seed(seed: int) -> None:
    assert sorted(permutation(seed, 0, 10)) == list(range(10))


@given(st.integers(0, 100), st.integers(0, 50), st.integers(1, 300))
def test_permutations(seed: int, epoch: int, count: int) -> None:
    order = permutation(seed, epoch, count)
    assert sorted(order) == list(range(count))
    assert not order.flags.writeable, "it is cached"


@given(st.integers(1, 40), st.data())
def test_every_image_once_an_epoch(count: int, data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, count))
    drawn = list(itertools.islice(steps(0, count, batch), 3 * count // batch + 1))
    epochs = np.concatenate([step.epochs for step in drawn])
    indices = np.concatenate([step.indices for step in drawn])
    assert all(len(step.indices) == batch for step in drawn)
    assert (epochs == np.arange(len(epochs)) // count).all()
    for epoch in range(3):
        assert sorted(indices[epochs == epoch]) == list(range(count))


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 30), st.data())
def test_shares_make_the_batch(count: int, world: int, start: int, data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, count))
    whole = next(steps(4, count, batch, start))
    if batch >= world:
        shares = [next(steps(4, count, batch, start, rank, world)) for rank in range(world)]
        assert (
            np.concatenate([share.indices for share in shares]).tolist() == whole.indices.tolist()
        )
        assert np.concatenate([share.epochs for share in shares]).tolist() == whole.epochs.tolist()


# Shifts


def random_bytes(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def shifted_by_loops(image: torch.Tensor, down: int, right: int, flip: bool) -> torch.Tensor:
    result = torch.zeros_like(image)
    channels, height, width = image.shape
    for c, row, column in itertools.product(range(channels), range(height), range(width)):
        from_row = row - down
        from_column = (width - 1 - column if flip else column) - right
        if 0 <= from_row < height and 0 <= from_column < width:
            result[c, row, column] = image[c, from_row, from_column]
    return result


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.booleans()), min_size=1),
    st.sampled_from([(1, 4, 4), (3, 5, 3), (3, 2, 7)]),
)
def test_shifts_against_loops(moves: list[tuple[int, int, bool]], shape: tuple[int, ...]) -> None:
    images = random_bytes(len(moves), *shape)
    down, right, flip = (np.array(column) for column in zip(*moves))
    moved = shift_and_flip(images, down, right, flip)
    for image, result, move in zip(images, moved, moves):
        assert torch.equal(result, shifted_by_loops(image, *move))


def test_a_shift_is_a_crop_of_the_padded_image() -> None:
    images = random_bytes(9, 3, 8, 8)
    padded = torch.nn.functional.pad(images, [2] * 4)
    down, right = np.repeat([-2, 0, 2], 3), np.tile([-2, 0, 2], 3)
    moved = shift_and_flip(images, down, right, np.zeros(9, dtype=bool))
    for i in range(9):
        top, left = 2 - down[i], 2 - right[i]
        assert torch.equal(moved[i], padded[i, :, top : top + 8, left : left + 8])


def test_floats_and_nothing_at_all() -> None:
    images = torch.rand(2, 1, 3, 3)
    none = np.zeros(2, dtype=int)
    assert torch.equal(shift_and_flip(images, none, none, np.zeros(2, dtype=bool)), images)
    mirrored = shift_and_flip(images, none, none, np.ones(2, dtype=bool))
    assert torch.equal(mirrored, images.flip(3))


@given(st.integers(0, 9))
def test_shifts_are_equally_likely(most: int) -> None:
    grid = (np.arange(1000 * (2 * most + 1)) + 0.5) / (1000 * (2 * most + 1))
    values, counts = np.unique(random_shifts(grid, most), return_counts=True)
    assert values.tolist() == list(range(-most, most + 1))
    assert (counts == 1000).all()
    assert random_shifts(np.array([0.0, np.nextafter(1, 0)]), most).tolist() == [-most, most]


# Colour


def flip_and_colour(images: torch.Tensor, uniforms: np.ndarray) -> torch.Tensor:
    """Not normalised."""
    channels = images.shape[1]
    return augment.flip_and_colour(images, uniforms, (0.0,) * channels, (1.0,) * channels)


NEUTRAL = [0.9, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0]


def drawn(count: int, **columns: float) -> np.ndarray:
    names = {"flip": 0, "brightness": 1, "contrast": 2, "saturation": 3}
    uniforms = np.tile(NEUTRAL, (count, 1))
    for name, value in columns.items():
        uniforms[:, names[name]] = value
    return uniforms


def test_the_middle_changes_nothing() -> None:
    images = random_bytes(4, 3, 6, 6)
    torch.testing.assert_close(flip_and_colour(images, drawn(4)), images / 255)


def test_flip() -> None:
    images = random_bytes(4, 3, 6, 6)
    torch.testing.assert_close(flip_and_colour(images, drawn(4, flip=0.1)), images.flip(3) / 255)


def test_brightness_contrast_saturation_alone() -> None:
    images = random_bytes(4, 3, 6, 6)
    x = images / 255
    grey = (x * torch.tensor(LUMA)[:, None, None]).sum(1, keepdim=True)
    mean = grey.mean((1, 2, 3), keepdim=True)
    for name, target in (("brightness", torch.zeros(1)), ("contrast", mean), ("saturation", grey)):
        for uniform, factor in ((0.0, 0.6), (1.0, 1.4), (0.25, 0.8)):
            got = flip_and_colour(images, drawn(4, **{name: uniform}))
            torch.testing.assert_close(got, target + (x - target) * factor, msg=name)


@given(st.permutations(["brightness", "contrast", "saturation"]), st.integers(0, 1000))
def test_one_formula_for_any_order(order: list[str], seed: int) -> None:
    """One change after another, each on the result of the one before."""
    images = random_bytes(2, 3, 5, 4, seed=seed)
    uniforms = np.random.default_rng(seed).random((2, 8))
    factors = {
        name: torch.tensor(0.6 + 0.8 * uniforms[:, k], dtype=torch.float32)[:, None, None, None]
        for k, name in enumerate(("brightness", "contrast", "saturation"), 1)
    }
    x = torch.stack([i.flip(2) if u < 0.5 else i for i, u in zip(images, uniforms[:, 0])]) / 255
    for name in order:
        grey = luma(x)
        mean = grey.mean((1, 2, 3), keepdim=True)
        target = {"brightness": 0 * grey, "contrast": mean, "saturation": grey}[name]
        x = target + (x - target) * factors[name]
    light = pca_lighting(uniforms[:, 4:8], 0.1, images)
    torch.testing.assert_close(flip_and_colour(images, uniforms), x + light)


def test_it_is_normalise() -> None:
    images = random_bytes(4, 3, 6, 6)
    uniforms = np.random.default_rng(0).random((4, 8))
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    expected = normalise(flip_and_colour(images, uniforms), mean, std)
    torch.testing.assert_close(augment.flip_and_colour(images, uniforms, mean, std), expected)


def test_grey_images_stay_grey() -> None:
    images = random_bytes(3, 1, 5, 5)
    uniforms = np.random.default_rng(0).random((3, 8))
    grey = flip_and_colour(images, uniforms)
    colour = flip_and_colour(images.expand(-1, 3, -1, -1), uniforms)
    assert grey.shape == (3, 1, 5, 5)
    torch.testing.assert_close(grey, luma(colour))


@pytest.mark.parametrize("channels", [1, 3])
def test_colour_does_not_depend_on_the_batch(channels: int) -> None:
    images = random_bytes(33, channels, 17, 19)
    uniforms = np.random.default_rng(0).random((33, 8))
    together = flip_and_colour(images, uniforms)
    alone = [flip_and_colour(images[i : i + 1], uniforms[i : i + 1]) for i in range(33)]
    assert torch.equal(together, torch.cat(alone))


def test_the_light_has_the_spread_of_the_colours() -> None:
    uniforms = np.random.default_rng(0).random((20_000, 4))
    light = pca_lighting(uniforms, 0.1, torch.zeros(1, 3, 1, 1)).flatten(1).double()
    axes = torch.tensor(PCA_AXES).double()
    expected = axes @ torch.diag(torch.tensor(PCA_SPREAD).double() * 0.1).square() @ axes.T
    torch.testing.assert_close(torch.cov(light.T), expected, rtol=0.05, atol=1e-6)


def test_box_muller() -> None:
    uniforms = np.random.default_rng(0).random((20_000, 4))
    values = box_muller(uniforms)
    assert np.isfinite(box_muller(np.array([[0.0, 0.0], [np.nextafter(1, 0)] * 2]))).all()
    assert np.abs(values.mean(0)).max() < 0.03
    assert np.abs(np.cov(values.T) - np.eye(4)).max() < 0.03
    assert abs((np.abs(values) < 1.96).mean() - 0.95) < 0.005


def test_mean_grey() -> None:
    images = random_bytes(3, 3, 7, 5)
    expected = luma(images / 255).mean((1, 2, 3), keepdim=True)
    torch.testing.assert_close(mean_grey(images), expected)


def test_normalise() -> None:
    images = random_bytes(3, 3, 4, 4)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    columns = [torch.tensor(values)[:, None, None] for values in (mean, std)]
    expected = (images / 255 - columns[0]) / columns[1]
    torch.testing.assert_close(normalise(images, mean, std), expected)
    floats = images / 255
    torch.testing.assert_close(normalise(floats, mean, std), expected)
    assert torch.equal(floats, images / 255), "stored images are left alone"


# Colour as US-Nets have it


def clipped(images: torch.Tensor, uniforms: np.ndarray) -> torch.Tensor:
    """Not normalised, as whole numbers."""
    channels = images.shape[1]
    found = augment.flip_and_clip_colour(images, uniforms, (0.0,) * channels, (1.0,) * channels)
    return (found * augment.largest(images)).round().to(images.dtype)


def test_clipped_colours_are_those_of_pil() -> None:
    """PIL's enhancements one after the other, then the lighting of US-Nets on bytes."""
    images = random_bytes(24, 3, 9, 7)
    drawn = uniforms(3, "colour", np.zeros(24, dtype=np.int64), np.arange(24), 9)
    enhance = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    light = pca_lighting(drawn[:, 4:8], 0.1, images)
    seen = set()
    for image, row, colour, got in zip(images, drawn, light, clipped(images, drawn)):
        expected = Image.fromarray(image.permute(1, 2, 0).numpy())
        order = [*itertools.permutations(range(3))][int(row[8] * 6)]
        seen.add(order)
        for change in order:
            expected = enhance[change](expected).enhance(0.6 + 0.8 * row[1 + change])
        lit = np.clip(np.asarray(expected) + colour.permute(1, 2, 0).numpy(), 0, 255)
        mirrored = lit.astype(np.uint8)[:, :: -1 if row[0] < 0.5 else 1]
        np.testing.assert_array_equal(got.permute(1, 2, 0).numpy(), mirrored)
    assert len(seen) == 6


def test_clipped_colours_of_an_image_do_not_depend_on_its_batch() -> None:
    for images in (
        random_bytes(33, 3, 5, 5),
        random_bytes(33, 1, 5, 5),
        random_bytes(33, 3, 5, 5).int() * 257,
    ):
        drawn = uniforms(0, "colour", np.zeros(33, dtype=np.int64), np.arange(33), 9)
        together = clipped(images, drawn)
        alone = [clipped(images[i : i + 1], drawn[i : i + 1]) for i in range(33)]
        assert torch.equal(together, torch.cat(alone))
        assert together.float().std() > 0
        assert 0 <= together.min() <= together.max() <= augment.largest(images)


def test_other_channels_than_colours_are_only_mirrored() -> None:
    images = random_bytes(4, 4, 5, 5)
    assert torch.equal(clipped(images, drawn(4, flip=0.1)), images.flip(3))
