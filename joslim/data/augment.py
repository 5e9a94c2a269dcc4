"""Random numbers without a state, and the augmentations of whole batches that they drive.

No generator has a state here: the order of an epoch is a function of (seed, epoch), and the
augmentation of an image is a function of (seed, epoch, index). Images therefore do not depend on
how they are put into batches, on the number of processes or workers, or on where a run was resumed.
The bits come from splitmix64 (G. Steele, D. Lea, C. Flood, 2014), because the streams of numpy's
generators may change from one release to the next.

Augmentations run on the device of the images. They are elementwise or exact in integers, so that
an image comes out the same, bit by bit, in every batch.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

Integers = NDArray[np.int64]
Uniforms = NDArray[np.float64]

# Weights of red, green and blue in the brightness that the eye sees (ITU-R BT.601).
LUMA = (0.299, 0.587, 0.114)

# Principal components of the colours of ImageNet's pixels (A. Krizhevsky, I. Sutskever, G. Hinton,
# 2012, section 4.1), with the values in common use: standard deviations, and axes as columns.
PCA_SPREAD = (0.2175, 0.0188, 0.0045)
PCA_AXES = (
    (-0.5675, 0.7192, 0.4009),
    (-0.5808, -0.0045, -0.8140),
    (-0.5836, -0.6948, 0.4203),
)

FLIP_AND_COLOUR_UNIFORMS = 9
# Pixels that are in the cache of a CPU at once: 1 MB of floats.
CACHED_PIXELS = 2**18
# The orders in which brightness, contrast and saturation can be changed.
ORDERS = np.array([*itertools.permutations(range(3))])


# Random numbers


def splitmix64(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the next output of splitmix64 for each state; unsigned arrays wrap around."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def random_bits(seed: int, purpose: str, *keys: ArrayLike) -> NDArray[np.uint64]:
    """Return 64 random bits for each combination of the keys, which are broadcast."""
    state = np.array([int(seed) & ((1 << 64) - 1)], dtype=np.uint64)
    state = splitmix64(splitmix64(state) + np.uint64(zlib.crc32(purpose.encode())))
    for key in keys:
        state = splitmix64(state + np.asarray(key).astype(np.uint64))
    return state


def uniforms(seed: int, purpose: str, epochs: Integers, indices: Integers, count: int) -> Uniforms:
    """Return `count` numbers in [0, 1) for each of n images, of shape [n, count]."""
    drawn = random_bits(seed, purpose, epochs[:, None], indices[:, None], np.arange(count))
    return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53  # a float holds 53 bits


# A batch lies in one epoch or straddles two, and two data sets may be used in turn.
@lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, count: int) -> Integers:
    """Return the order in which this epoch visits the images."""
    order = np.argsort(random_bits(seed, "order", epoch, np.arange(count)), kind="stable")
    order.setflags(write=False)
    return order


class Step(NamedTuple):
    """The images of one training step, and the epoch of each."""

    epochs: Integers
    indices: Integers


def steps(
    seed: int, count: int, batch: int, start: int = 0, rank: int = 0, world: int = 1
) -> Iterator[Step]:
    """Yield steps over `count` images without end; epochs follow each other in full batches.

    Step s covers the positions [s * batch, (s + 1) * batch) of the stream of epochs. Process `rank`
    of `world` gets its contiguous share of them.
    """
    low, high = batch * rank // world, batch * (rank + 1) // world
    for step in itertools.count(start):
        positions = np.arange(step * batch + low, step * batch + high)
        epochs = positions // count
        parts = [
            permutation(seed, int(epoch), count)[positions[epochs == epoch] % count]
            for epoch in np.unique(epochs)
        ]
        yield Step(epochs, np.concatenate(parts))


# Shifts and flips, for small images


def random_shifts(uniforms: Uniforms, largest: int) -> Integers:
    """Map uniform numbers to integers from -largest to largest, all equally likely."""
    return np.floor(uniforms * (2 * largest + 1)).astype(np.int64) - largest


def shift_and_flip(
    images: Tensor, down: Integers, right: Integers, flip: NDArray[np.bool_]
) -> Tensor:
    """Move each image by (down, right) pixels, filling with zeros, then mirror it where asked.

    This equals a crop of the padded image. images [n, c, h, w]; down, right, flip [n].
    """
    count, channels, height, width = images.shape
    padding = int(max(np.abs(down).max(initial=0), np.abs(right).max(initial=0)))
    rows = np.arange(height) + (padding - down[:, None])
    columns = np.where(flip[:, None], np.arange(width)[::-1], np.arange(width))
    columns = columns + (padding - right[:, None])
    row_index = sent(rows, images.device)[:, None, :, None]
    column_index = sent(columns, images.device)[:, None, None, :]
    padded = F.pad(images, [padding] * 4)
    padded = padded.gather(2, row_index.expand(count, channels, height, padded.shape[3]))
    return padded.gather(3, column_index.expand(count, channels, height, width))


# Flips and colours, for photographs


def flip_and_colour(
    images: Tensor,
    uniforms: Uniforms,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    jitter: float = 0.4,
    lighting: float = 0.1,
) -> Tensor:
    """Mirror half of the images, jitter their colours, add PCA lighting, and normalise them.

    images [n, c, h, w] of bytes or 16 bits, uniforms [n, 9]; the result is float32. Images with
    other numbers of channels than 1 and 3 need not be colours, and are only mirrored. Values are
    not clipped to [0, 1], and therefore brightness, contrast and saturation commute (saturation
    keeps the grey value of a pixel, brightness scales the mean as it scales the pixel). They need
    no random order and reduce to one linear formula,

        ((grey + (pixel - grey) * saturation - middle) * contrast + middle) * brightness + light

    which is normalised and computed as (pixel + grey * blend) * scale + offset, because every pass
    over the pixels of large images takes time.
    """
    flip = _per_image(uniforms[:, 0] < 0.5, images)
    if images.shape[1] not in (1, 3):
        return normalise(_mirrored(images, flip), mean, std)
    brightness, contrast, saturation = (
        _per_image(1 - jitter + 2 * jitter * uniforms[:, k], images) for k in (1, 2, 3)
    )
    means, stds = _per_channel(mean, images), _per_channel(std, images)
    light = pca_lighting(uniforms[:, 4:8], lighting, images)
    blend = (1 - saturation) / saturation
    scale = saturation * contrast * brightness / (largest(images) * stds)

    result = torch.empty(images.shape, device=images.device)
    # On a CPU, all passes over some images are made while these are in its cache.
    some = (
        max(1, CACHED_PIXELS // images[0].numel()) if images.device.type == "cpu" else len(images)
    )
    for start in range(0, len(images), some):
        part = slice(start, start + some)
        pixels, shown = images[part], result[part]
        shown.copy_(_mirrored(pixels, flip[part]))
        middle = mean_grey(pixels) * (1 - contrast[part]) * brightness[part]
        offset = (middle + light[part] - means) / stds
        shown.add_(luma(shown) * blend[part]).mul_(scale[part]).add_(offset)
    return result


def flip_and_clip_colour(
    images: Tensor,
    uniforms: Uniforms,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    jitter: float = 0.4,
    lighting: float = 0.1,
) -> Tensor:
    """Do the same as `flip_and_colour` in integers, as the public code of US-Nets does with PIL.

    Brightness, contrast and saturation are changed in a random order, and every change is clipped
    and rounded down to integers, so that bright and dark areas lose their details. The lighting is
    added to these integers with the strength that others use for pixels from 0 to 1: it changes a
    byte by 1 at most.
    """
    if images.shape[1] not in (1, 3):
        return flip_and_colour(images, uniforms, mean, std)
    white = largest(images)
    pixels = _mirrored(images, _per_image(uniforms[:, 0] < 0.5, images)).float()
    orders = ORDERS[(uniforms[:, 8] * len(ORDERS)).astype(np.int64)]
    for turn in range(3):
        for change in range(3):
            rows = np.flatnonzero(orders[:, turn] == change)
            place = sent(rows, images.device)
            some = pixels[place]
            # The image is moved towards black, its mean grey, or its own grey; or away from it.
            towards = torch.zeros((), device=images.device)
            if change:
                towards = rounded_luma(some)
            if change == 1:
                sums = towards.sum((2, 3), dtype=torch.int64, keepdim=True)
                count = some.shape[2] * some.shape[3]
                towards = (2 * sums + count) // (2 * count)  # the rounded mean
            towards = towards.float()
            factor = _per_image(1 - jitter + 2 * jitter * uniforms[rows, 1 + change], images)
            pixels[place] = (towards + factor * (some - towards)).clamp_(0, white).floor_()
    pixels += pca_lighting(uniforms[:, 4:8], lighting, images)
    return normalise(pixels.clamp_(0, white).floor_().to(images.dtype), mean, std)


def _mirrored(images: Tensor, flip: Tensor) -> Tensor:
    """Mirror the images of integers where `flip` [n, 1, 1, 1] is true."""
    # With one condition for each image, torch.where takes seven times as long on a CPU.
    return images.flip(3).mul_(flip) + images * ~flip


def rounded_luma(pixels: Tensor) -> Tensor:
    """Return the grey of whole numbers as PIL rounds it: [n, c, h, w] -> [n, 1, h, w]."""
    if pixels.shape[1] == 1:
        return pixels.long()
    red, green, blue = pixels.long().split(1, dim=1)
    return (red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16


def largest(pixels: Tensor) -> int:
    """Return the value of white: of bytes (uint8), of 16 bits (int32), or of floats."""
    return {torch.uint8: 255, torch.int32: 65535}.get(pixels.dtype, 1)


def luma(pixels: Tensor) -> Tensor:
    """Convert colour to grey: [n, 3, h, w] -> [n, 1, h, w]. Grey images stay as they are."""
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = pixels.split(1, dim=1)
    return red * LUMA[0] + green * LUMA[1] + blue * LUMA[2]


def mean_grey(images: Tensor) -> Tensor:
    """Return the mean grey of each image of integers, from 0 to 1, of shape [n, 1, 1, 1]."""
    # The sums are exact in integers, whatever the batch. So is the sum of a row of bytes in floats
    # of 24 bits, which needs no copy of the image as integers of 64 bits.
    exact = images.dtype == torch.uint8 and images.shape[3] < 2**16
    rows = images.float().sum(3, keepdim=True).long() if exact else images.long()
    sums = rows.sum((2, 3), keepdim=True).float()
    return luma(sums) / (largest(images) * images.shape[2] * images.shape[3])


def pca_lighting(uniforms: Uniforms, strength: float, images: Tensor) -> Tensor:
    """Return a random colour along the principal components for each image, [n, c, 1, 1]."""
    amounts = box_muller(uniforms)[:, :3] * np.array(PCA_SPREAD) * strength
    # The order of the additions is fixed here; in a matrix product it may vary.
    colours = sum(amounts[:, k, None] * np.array(PCA_AXES)[:, k] for k in range(3))
    light = sent(np.asarray(colours, dtype=np.float32), images.device)
    light = light[:, :, None, None]
    return light if images.shape[1] == 3 else luma(light)


def box_muller(uniforms: Uniforms) -> Uniforms:
    """Map uniform numbers [n, 2 k] to as many normal ones."""
    first, second = np.split(uniforms, 2, axis=1)
    radius = np.sqrt(-2 * np.log1p(-first))  # 1 - u is never 0.
    angle = 2 * np.pi * second
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def normalise(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return (pixel - mean) / std as float32 [n, c, h, w]; pixels are as in `largest`."""
    unit = largest(pixels)
    means, stds = _per_channel(mean, pixels) * unit, _per_channel(std, pixels) * unit
    return pixels.to(torch.float32, copy=True).sub_(means).div_(stds)


def _per_image(values: NDArray[Any], images: Tensor) -> Tensor:
    """[n] -> [n, 1, 1, 1] on the device of the images; floats become float32."""
    single = values.astype(np.float32) if values.dtype.kind == "f" else values
    return sent(single, images.device)[:, None, None, None]


def _per_channel(values: tuple[float, ...], images: Tensor) -> Tensor:
    """[c] -> [c, 1, 1] on the device of the images."""
    return sent(np.array(values, dtype=np.float32), images.device)[:, None, None]


def sent(values: NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """Copy values to a device. The host does not wait for a GPU: it copies from pinned memory."""
    here = values if isinstance(values, Tensor) else torch.from_numpy(values)
    if device.type != "cuda" or here.is_cuda:
        return here.to(device)
    return here.pin_memory().to(device, non_blocking=True)
