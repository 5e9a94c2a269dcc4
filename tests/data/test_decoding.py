import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from joslim.data.decoding import (
    BOX_UNIFORMS,
    BrokenImage,
    as_bytes,
    centre_box,
    middle_box,
    plain_mode,
    random_box,
    read_box,
)
from joslim.errors import UserError


def picture(width: int = 40, height: int = 30) -> Image.Image:
    """Smooth, so that files that lose something lose little."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def whole(width: int, height: int) -> tuple[float, float, float, float]:
    return (0, 0, width, height)


def difference(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a.astype(float) - b.astype(float)).mean())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("mode", "suffix"),
    [
        ("RGB", "jpg"),
        ("CMYK", "jpg"),
        ("L", "jpg"),
        ("RGB", "png"),
        ("RGBA", "png"),
        ("LA", "png"),
        ("L", "png"),
        ("P", "png"),
        ("1", "png"),
        ("I;16", "png"),
        ("RGB", "webp"),
        ("RGBA", "webp"),
        ("RGB", "bmp"),
        ("P", "bmp"),
    ],
)
def test_files_of_all_kinds(tmp_path: Path, mode: str, suffix: str, channels: int) -> None:
    original = picture()
    if mode == "I;16":
        stored = Image.fromarray(np.asarray(original.convert("L")).astype(np.uint16) * 257)
    else:
        stored = original.convert(mode)
    if mode == "RGBA":
        stored.putalpha(200)
    path = tmp_path / f"image.{suffix}"
    stored.save(path, **({"lossless": True} if suffix == "webp" else {}))
    with Image.open(path) as image:
        assert image.mode in {"I;16": ("I;16", "I")}.get(mode, (mode,))
    pixels = read_box(path, whole, 30, channels)
    assert pixels.shape == (channels, 30, 30)
    assert pixels.dtype == np.uint8
    if mode == "1":
        original = stored  # Dots of black and white.
    is_grey = mode in ("L", "LA", "1", "I;16")
    expected = original.convert("L" if is_grey else "RGB").convert("RGB" if channels == 3 else "L")
    expected = expected.resize((30, 30), Image.Resampling.BILINEAR, whole(40, 30))
    loss = {"P": 20}.get(mode, 4)
    assert difference(pixels, as_bytes(expected)) < loss


def test_a_palette_with_transparency(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    indexed = picture().convert("P", palette=Image.Palette.ADAPTIVE)
    indexed.save(path, transparency=bytes(range(0, 250)))
    assert difference(read_box(path, whole, 30, 3), read_box(path, whole, 30, 3)) == 0
    with Image.open(path) as image:
        assert "transparency" in image.info
        assert plain_mode(image, 3).mode == "RGB"


@pytest.mark.parametrize("factor", [2, 3.3, 4, 9])
def test_shrinking_while_decoding_shows_the_same_picture(tmp_path: Path, factor: float) -> None:
    path = tmp_path / "large.jpg"
    picture(round(64 * factor) + 3, round(48 * factor) + 1).save(path, quality=95)

    def part(width: int, height: int) -> tuple[float, float, float, float]:
        return (width * 0.1, height * 0.2, width * 0.9, height * 0.9)

    with Image.open(path) as image:
        box = part(*image.size)
        expected = image.resize((32, 32), Image.Resampling.BILINEAR, box)
        shrunk = read_box(path, part, 32, 3)
    assert difference(shrunk, as_bytes(expected)) < 2


@pytest.mark.parametrize(("width", "height"), [(500, 375), (64, 64), (100, 333)])
def test_the_centre_is_that_of_evaluation(width: int, height: int, tmp_path: Path) -> None:
    """Short side to 256 * size / 224, then size x size from the middle."""
    path = tmp_path / "a.png"
    image = picture(width, height)
    image.save(path)
    size = 56
    short = 64 / min(width, height)
    resized = image.resize((round(width * short), round(height * short)), Image.Resampling.BILINEAR)
    left, upper = (resized.width - size) / 2, (resized.height - size) / 2
    cropped = resized.crop((round(left), round(upper), round(left) + size, round(upper) + size))
    assert (
        difference(read_box(path, centre_box, size, 3), as_bytes(cropped)) < 3
    )  # Rounding is half a pixel.


SIDES = st.integers(1, 600)


@given(SIDES, SIDES, st.integers(0, 10_000), st.sampled_from([0.08, 0.25, 1.0]))
def test_random_boxes(width: int, height: int, seed: int, scale: float) -> None:
    uniforms = np.random.default_rng(seed).random(BOX_UNIFORMS)
    left, upper, right, lower = random_box(width, height, uniforms, scale)
    assert 0 <= left < right <= width
    assert 0 <= upper < lower <= height
    if min(width, height) > 50 and 3 / 4 <= width / height <= 4 / 3:
        area = (right - left) * (lower - upper) / (width * height)
        ratio = (right - left) / (lower - upper)
        assert scale * 0.95 < area <= 1.0
        assert 0.72 < ratio < 1.39


def test_boxes_of_a_square_fill_the_range() -> None:
    rng = np.random.default_rng(0)
    boxes = np.array([random_box(200, 200, rng.random(BOX_UNIFORMS), 0.25) for _ in range(3000)])
    left, upper, right, lower = boxes.T
    areas = (right - left) * (lower - upper) / 200**2
    assert 0.24 < areas.min() < 0.26
    assert areas.max() > 0.98
    assert abs(np.log((right - left) / (lower - upper)).mean()) < 0.02
    assert abs((left + right).mean() / 2 - 100) < 2
    assert abs((upper + lower).mean() / 2 - 100) < 2


@given(SIDES, SIDES)
def test_the_middle(width: int, height: int) -> None:
    left, upper, right, lower = middle_box(width, height)
    ratio = (right - left) / (lower - upper)
    assert min(3 / 4, ratio) == pytest.approx(3 / 4)
    assert max(4 / 3, ratio) == pytest.approx(4 / 3)
    assert math.isclose(left + right, width)
    assert math.isclose(upper + lower, height)
    assert right - left == width or lower - upper == height


def test_narrow_images_give_their_middle() -> None:
    uniforms = np.random.default_rng(0).random(BOX_UNIFORMS)
    assert random_box(1000, 10, uniforms, 0.25) == middle_box(1000, 10)


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "missing"])
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "bmp"])
def test_images_that_cannot_be_read(tmp_path: Path, suffix: str, damage: str) -> None:
    path = tmp_path / f"broken.{suffix}"
    picture().save(path)
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        damaged = {"empty": b"", "text": b"text", "cut": content[: len(content) // 2]}
        path.write_bytes(damaged[damage])
    with pytest.raises(
        UserError, match=rf"^data: cannot read the image .*broken.{suffix}: \w+"
    ) as e:
        read_box(path, whole, 8, 3)
    assert "\n" not in str(e.value)
    # What is not there may come back; what is there and broken stays so.
    assert isinstance(e.value, BrokenImage) == (damage != "missing")
