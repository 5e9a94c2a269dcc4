"""Image files and PIL images, of whatever kind, as bytes of grey or colour."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from joslim.data.files import one_line
from joslim.errors import UserError

# Left, upper, right, lower, in pixels of the whole image.
Box = tuple[float, float, float, float]

# What evaluation keeps of the short side: 224 pixels of 256.
CENTRE = 224 / 256

RATIOS = (3 / 4, 4 / 3)
ATTEMPTS = 10
BOX_UNIFORMS = 2 * ATTEMPTS + 2


class BrokenImage(UserError):
    """A file that is there, can be read, and holds no image that can be decoded."""


def read_box(
    path: str | Path, choose: Callable[[int, int], Box], size: int, channels: int
) -> NDArray[np.uint8]:
    """The box that `choose` finds in an image of (width, height), as bytes [c, size, size]."""
    try:
        with Image.open(path) as image:
            box = choose(*image.size)
            box = shrink_while_decoding(image, box, size)
            plain = plain_mode(image, channels)
            cut = plain.resize((size, size), Image.Resampling.BILINEAR, box)
    except Exception as error:  # A broken file can raise anything.
        # One that is gone, or too large for the memory, may be read another time.
        passing = isinstance(error, MemoryError) or getattr(error, "errno", None) is not None
        kind = UserError if passing else BrokenImage
        raise kind(f"data: cannot read the image {path}: {one_line(error)}") from error
    return as_bytes(cut)


def shrink_while_decoding(image: Image.Image, box: Box, size: int) -> Box:
    """JPEG can be decoded at 1/2, 1/4, 1/8 of its size: as small as has the pixels we need.

    Returns the box in the image as it will be decoded.
    """
    width, height = image.size
    across, down = size / (box[2] - box[0]), size / (box[3] - box[1])
    drafted = image.draft(None, (math.ceil(width * across), math.ceil(height * down)))
    if drafted is None:
        return box
    # The size is rounded up, so that the factor is not to be had from it.
    _, (_, _, new_width, new_height) = drafted
    across, down = new_width / width, new_height / height
    return (box[0] * across, box[1] * down, box[2] * across, box[3] * down)


def as_bytes(image: Image.Image) -> NDArray[np.uint8]:
    """[c, h, w] of an image in plain mode."""
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def plain_mode(image: Image.Image, channels: int) -> Image.Image:
    """Grey or RGB from any mode; transparency is dropped."""
    if image.mode.startswith("I"):
        # 16 bits of grey, which PIL would cut off at 255.
        image = Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB" if channels == 3 else "L")


def centre_box(width: int, height: int) -> Box:
    """The square of evaluation: short side to 256, then 224 x 224 in the middle."""
    side = min(width, height) * CENTRE
    left, upper = (width - side) / 2, (height - side) / 2
    return (left, upper, left + side, upper + side)


def random_box(width: int, height: int, uniforms: NDArray[np.float64], scale: float) -> Box:
    """A part of the image of `scale` to 1 of its area, its sides 3:4 to 4:3; uniforms [22].

    The first of ten draws that fits into the image; if none does, the middle of it.
    """
    low, high = math.log(RATIOS[0]), math.log(RATIOS[1])
    for area, ratio in uniforms[: 2 * ATTEMPTS].reshape(ATTEMPTS, 2):
        pixels = width * height * (scale + (1 - scale) * area)
        aspect = math.exp(low + (high - low) * ratio)
        across, down = round(math.sqrt(pixels * aspect)), round(math.sqrt(pixels / aspect))
        if 0 < across <= width and 0 < down <= height:
            left = int(uniforms[-2] * (width - across + 1))
            upper = int(uniforms[-1] * (height - down + 1))
            return (left, upper, left + across, upper + down)
    return middle_box(width, height)


def middle_box(width: int, height: int) -> Box:
    """The largest middle part with sides from 3:4 to 4:3."""
    across = min(float(width), height * RATIOS[1])
    down = min(float(height), width / RATIOS[0])
    left, upper = (width - across) / 2, (height - down) / 2
    return (left, upper, left + across, upper + down)
