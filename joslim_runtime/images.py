"""Images as a network takes them: cropped, resized and normalised, with numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from joslim_runtime.manifest import BundleError, Manifest

# Weights of red, green and blue in the grey of ITU-R 601, as Pillow has them.
LUMA = np.array([299, 587, 114]) / 1000

Floats = NDArray[np.float32]


def prepared(image: NDArray[Any], manifest: Manifest) -> Floats:
    """Return [channels, height, width] for an image [h, w, c] or [h, w] of any size.

    The square in the middle is kept, the share `crop` of the short side, and resized as Pillow's
    BILINEAR does. Only if the sides of the network differ, the whole image is resized instead.
    """
    channels, height, width = manifest.shape
    if image.ndim not in (2, 3) or not image.size:
        raise BundleError(
            f"image: shape {image.shape} given, [height, width, channels] or [height, width] needed"
        )
    if image.dtype != np.uint8 and image.dtype.kind != "f":
        raise BundleError(f"image: {image.dtype} given, bytes or floats from 0 to 1 needed")
    pixels = image.astype(np.float64) / (255 if image.dtype == np.uint8 else 1)
    pixels = with_channels(pixels if pixels.ndim == 3 else pixels[..., None], channels)
    rows, columns = pixels.shape[:2]
    if height == width:
        side = manifest.crop * min(rows, columns)
        edges = [((full - side) / 2, (full + side) / 2) for full in (rows, columns)]
    else:
        edges = [(0, rows), (0, columns)]
    down, across = (
        resizing(full, size, *edge)
        for full, size, edge in zip((rows, columns), (height, width), edges)
    )
    pixels = np.einsum("ya,abc,xb->cyx", down, pixels, across, optimize=True)
    scaled = (pixels - manifest.mean[:, None, None]) / manifest.std[:, None, None]
    return scaled.astype(np.float32)


def resized(images: Floats, shape: tuple[int, ...]) -> Floats:
    """Resize [n, channels, height, width], as the network resized its batches in the training."""
    down, across = (resizing(old, new, 0, old) for old, new in zip(images.shape[2:], shape[1:]))
    found = np.einsum("ya,ncab,xb->ncyx", down, images, across, optimize=True)
    return found.astype(np.float32)


def with_channels(pixels: NDArray[np.float64], channels: int) -> NDArray[np.float64]:
    """[h, w, c] -> [h, w, channels]: repeat grey, convert colours to grey, drop transparency."""
    given = pixels.shape[2]
    if given == 4:
        pixels, given = pixels[..., :3], 3
    if given == channels:
        return pixels
    if given == 1:
        return np.repeat(pixels, channels, axis=2)
    if given == 3 and channels == 1:
        return (pixels @ LUMA)[..., None]
    raise BundleError(f"image: {given} channels given, 1 or {channels} needed")


def resizing(full: int, size: int, start: float, stop: float) -> NDArray[np.float64]:
    """Return the matrix [size, full] that resizes the part of an axis from start to stop.

    Each new pixel is an average with triangular weights; a reduction widens the triangle.
    """
    scale = (stop - start) / size
    centres = start + (np.arange(size) + 0.5) * scale
    distances = np.abs(np.arange(full) + 0.5 - centres[:, None])
    weights = np.maximum(0, 1 - distances / max(scale, 1.0))
    return weights / weights.sum(axis=1, keepdims=True)
