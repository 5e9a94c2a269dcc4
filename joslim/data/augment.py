"""Augmentations of whole batches, on the device of the images, driven by given uniform numbers.

Everything is elementwise or exact in integers, so that an image comes out the same, bit by bit, in
whatever batch it stands.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

# Weights of red, green and blue in the grey that the eye sees (ITU-R BT.601).
LUMA = (0.299, 0.587, 0.114)

# Principal components of the colours of ImageNet's pixels (A. Krizhevsky, I. Sutskever, G. Hinton,
# 2012, section 4.1), in the figures that are in common use: standard deviations, and directions in
# columns.
PCA_SPREAD = (0.2175, 0.0188, 0.0045)
PCA_AXES = (
    (-0.5675, 0.7192, 0.4009),
    (-0.5808, -0.0045, -0.8140),
    (-0.5836, -0.6948, 0.4203),
)

FLIP_AND_COLOUR_UNIFORMS = 8

Uniforms = NDArray[np.float64]


def shifts(uniforms: Uniforms, most: int) -> NDArray[np.int64]:
    """Whole numbers from -most to most, all equally likely."""
    return np.floor(uniforms * (2 * most + 1)).astype(np.int64) - most


def shift_and_flip(
    images: Tensor, down: NDArray[np.int64], right: NDArray[np.int64], flip: NDArray[np.bool_]
) -> Tensor:
    """Moves each image's content by (down, right) pixels, black coming in; then mirrors it.

    images [n, c, h, w]; down, right, flip [n]. The same as a crop of the padded image.
    """
    count, channels, height, width = images.shape
    most = int(max(np.abs(down).max(initial=0), np.abs(right).max(initial=0)))
    rows = np.arange(height) + (most - down[:, None])
    columns = np.where(flip[:, None], np.arange(width)[::-1], np.arange(width))
    columns = columns + (most - right[:, None])
    row_index = torch.from_numpy(rows).to(images.device)[:, None, :, None]
    column_index = torch.from_numpy(columns).to(images.device)[:, None, None, :]
    padded = F.pad(images, [most] * 4)
    padded = padded.gather(2, row_index.expand(count, channels, height, padded.shape[3]))
    return padded.gather(3, column_index.expand(count, channels, height, width))


def flip_and_colour(
    images: Tensor,
    uniforms: Uniforms,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    jitter: float = 0.4,
    lighting: float = 0.1,
) -> Tensor:
    """Mirrors half of the images, changes brightness, contrast, saturation and light; normalises.

    images uint8 [n, c, h, w], uniforms [n, 8]; gives float32. Nothing is cut off at 0 or 1: so the
    three changes of colour commute (saturation keeps the grey of a pixel, brightness scales the
    mean as it scales the pixel), need no random order, and come to one linear formula,

        ((grey + (pixel - grey) * saturation - middle) * contrast + middle) * brightness + light

    normalised, which is computed here as (pixel + grey * blend) * scale + offset: large images make
    every pass over their pixels count.
    """
    brightness, contrast, saturation = (
        column(1 - jitter + 2 * jitter * uniforms[:, k], images) for k in (1, 2, 3)
    )
    means, stds = along_channels(mean, images), along_channels(std, images)
    light = light_of(uniforms[:, 4:8], lighting, images)
    middle = mean_grey(images)
    blend = (1 - saturation) / saturation
    scale = saturation * contrast * brightness / (255 * stds)
    offset = (middle * (1 - contrast) * brightness + light - means) / stds

    mirrored = column(uniforms[:, 0] < 0.5, images)
    pixels = torch.where(mirrored, images.flip(3), images).float()
    return pixels.add_(luma(pixels) * blend).mul_(scale).add_(offset)


def column(values: NDArray[Any], images: Tensor) -> Tensor:
    """[n] -> [n, 1, 1, 1], beside the images; floats in single precision."""
    single = values.astype(np.float32) if values.dtype.kind == "f" else values
    return torch.from_numpy(single).to(images.device)[:, None, None, None]


def luma(pixels: Tensor) -> Tensor:
    """[n, 3, h, w] -> [n, 1, h, w]; grey stays what it is."""
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = pixels.split(1, dim=1)
    return red * LUMA[0] + green * LUMA[1] + blue * LUMA[2]


def mean_grey(images: Tensor) -> Tensor:
    """The mean grey of each image of bytes, 0 to 1: [n, 1, 1, 1], from sums of whole numbers."""
    sums = images.sum((2, 3), dtype=torch.int64, keepdim=True).float()
    return luma(sums) / (255 * images.shape[2] * images.shape[3])


def light_of(uniforms: Uniforms, strength: float, images: Tensor) -> Tensor:
    """A random light along the principal components: [n, c, 1, 1] to be added to the pixels."""
    amounts = normals(uniforms)[:, :3] * np.array(PCA_SPREAD) * strength
    # A sum of three products in this order, and no matrix product, whose order may vary.
    colours = sum(amounts[:, k, None] * np.array(PCA_AXES)[:, k] for k in range(3))
    light = torch.from_numpy(np.asarray(colours, dtype=np.float32)).to(images.device)
    light = light[:, :, None, None]
    return light if images.shape[1] == 3 else luma(light)


def normals(uniforms: Uniforms) -> Uniforms:
    """[n, 2 k] uniform numbers to as many normal ones (Box and Muller)."""
    first, second = np.split(uniforms, 2, axis=1)
    radius = np.sqrt(-2 * np.log1p(-first))  # 1 - u is never 0.
    angle = 2 * np.pi * second
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def normalised(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """(pixel - mean) / std as float32; pixels are bytes, or floats from 0 to 1: [n, c, h, w]."""
    unit = 255.0 if pixels.dtype == torch.uint8 else 1.0
    means, stds = along_channels(mean, pixels) * unit, along_channels(std, pixels) * unit
    return pixels.to(torch.float32, copy=True).sub_(means).div_(stds)


def along_channels(values: tuple[float, ...], images: Tensor) -> Tensor:
    """[c] -> [c, 1, 1], beside the images."""
    return torch.tensor(values, device=images.device)[:, None, None]
