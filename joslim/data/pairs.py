"""A pair (train, test) of data sets from Python: anything with len() and (image, label) items.

An image is a PIL image, or an array or tensor of bytes (0 to 255) or floats (0 to 1), with its
axes as height, width; height, width, channels; or channels, height, width. All images are brought
into memory; floats stay floats, since rounding to bytes would lose something.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from joslim.data.base import Data, Options
from joslim.data.decoding import as_bytes, plain_mode
from joslim.data.memory import Facts, Images, MemoryData, resized, with_channels
from joslim.errors import UserError


def load(pair: tuple[Any, Any], options: Options) -> Data:
    """Images are cropped and flipped as CIFAR's; `shift` and `flip` of the result change that."""
    check_pair(pair)
    train, test = pair
    images = collected(train, "train", options)
    facts = Facts("pair", class_names(train, images.labels), len(test), shift=8, flip=True)
    return MemoryData(facts, images, lambda: collected(test, "test", options), options)


def check_pair(pair: object) -> None:
    both = pair if isinstance(pair, (tuple, list)) else ()
    if len(both) != 2 or not all(hasattr(part, "__getitem__") for part in both):
        kind = type(pair).__name__
        raise UserError(f"data: {kind} is not a pair (train, test) of data sets with [i] and len()")
    for part in both:
        if not hasattr(part, "__len__"):
            raise UserError(f"data: {type(part).__name__} has no len(); iterables do not do")


def class_names(train: object, labels: Tensor) -> tuple[str, ...]:
    """As the data set names its classes, else numbers."""
    named = getattr(train, "classes", None)
    if isinstance(named, Iterable):  # Some say how many there are.
        return tuple(str(name) for name in named)
    return tuple(str(number) for number in range(int(labels.max()) + 1 if len(labels) else 0))


def collected(dataset: Any, split: str, options: Options) -> Images:
    """All items, the images with the channels and the size that were asked for."""
    pixels, labels = [], []
    for index in range(len(dataset)):
        where = f"{split}[{index}]"
        image, label = item(dataset, index, where)
        one = with_channels(as_tensor(image, options.channels, where)[None], options.channels)
        pixels.append(resized(one, options.size))
        labels.append(whole(label, where))
    check_alike(pixels, split)
    stacked = torch.cat(pixels) if pixels else torch.zeros(0, options.channels, 1, 1)
    return Images(stacked, torch.tensor(labels, dtype=torch.int64))


def item(dataset: Any, index: int, where: str) -> tuple[Any, Any]:
    found = dataset[index]
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise UserError(f"data: {where} is {type(found).__name__}; a pair (image, label) is needed")
    return found[0], found[1]


def whole(label: Any, where: str) -> int:
    try:
        return operator.index(label)
    except TypeError:
        kind = type(label).__name__
        raise UserError(f"data: the label of {where} is {kind}; a whole number is needed") from None


def as_tensor(image: Any, channels: int, where: str) -> Tensor:
    """[c, h, w], uint8 or float32, c is 1 or 3."""
    if isinstance(image, Image.Image):
        return torch.from_numpy(as_bytes(plain_mode(image, channels)).copy())
    array = image.numpy(force=True) if isinstance(image, Tensor) else np.asarray(image)
    array = channels_first(array, isinstance(image, Tensor), where)
    return torch.from_numpy(np.array(storable(array, where)))


def channels_first(array: NDArray[Any], is_tensor: bool, where: str) -> NDArray[Any]:
    """[h, w], [h, w, c] or [c, h, w] -> [1 or 3, h, w]; a fourth channel is transparency."""
    if array.ndim == 2:
        return array[None]
    if array.ndim == 3:
        first, last = array.shape[0] in (1, 3), array.shape[2] in (1, 3, 4)
        # Where both would do, tensors have their channels first and arrays last.
        if first and (is_tensor or not last):
            return array
        if last:
            return array.transpose(2, 0, 1)[: 1 if array.shape[2] == 1 else 3]
    raise UserError(
        f"data: the image of {where} has the shape {array.shape}; "
        "height x width (x 1 or 3 channels, first or last) is needed"
    )


def storable(array: NDArray[Any], where: str) -> NDArray[Any]:
    """Bytes as bytes, floats as float32, other whole numbers as bytes if they fit."""
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise UserError(f"data: the image of {where} has pixels that are not finite")
        return array.astype(np.float32)
    if array.dtype.kind == "b":
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype.kind in "iu" and (array.size == 0 or (array.min() >= 0 and array.max() <= 255)):
        return array.astype(np.uint8)
    raise UserError(
        f"data: the image of {where} has pixels of {array.dtype}; "
        "allowed: whole numbers from 0 to 255, floats from 0 to 1"
    )


def check_alike(pixels: list[Tensor], split: str) -> None:
    for index, one in enumerate(pixels):
        if one.shape != pixels[0].shape:
            here, first = ("x".join(map(str, p.shape[2:])) for p in (one, pixels[0]))
            raise UserError(
                f"data: {split}[{index}] is {here} pixels, {split}[0] is {first}; give a size"
            )
        if one.dtype != pixels[0].dtype:
            raise UserError(f"data: {split} has images of bytes and of floats; give one kind")
