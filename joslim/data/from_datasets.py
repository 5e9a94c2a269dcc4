"""A pair (train, test) of data sets from Python: any objects with len() and (image, label) items.

An image is a PIL image, or an array or tensor of bytes (0 to 255), 16 bits (0 to 65535) or floats
(0 to 1) with the axes (height, width), (height, width, channels) or (channels, height, width). All
images are copied into memory; those of 16 bits become floats, and floats stay floats, because
rounding them to bytes would lose information. A label is a class, or, as the task has it, a mask
of the size of the image or some numbers.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from joslim.data.base import Data, Options
from joslim.data.folder import as_array, convert_mode
from joslim.data.in_memory import (
    NUMBERS,
    DatasetInfo,
    Images,
    MemoryData,
    ignored_by,
    resize,
    set_channels,
)
from joslim.errors import UserError


def load(pair: tuple[Any, Any], options: Options) -> Data:
    """Load a pair of data sets.

    Images are cropped and flipped as those of CIFAR; `shift` and `flip` of the result change that.
    """
    both = pair if isinstance(pair, (tuple, list)) else ()
    if len(both) != 2 or not all(hasattr(part, "__getitem__") for part in both):
        kind = type(pair).__name__
        raise UserError(f"data: {kind} is not a pair (train, test) of data sets with [i] and len()")
    for part in both:
        if not hasattr(part, "__len__"):
            raise UserError(f"data: {type(part).__name__} has no len(); iterables do not do")
    train, test = both
    images = _read_all(train, "train", options)
    classes = getattr(train, "classes", None)
    if not isinstance(classes, Iterable):  # some data sets give the number of classes
        classes = range(_number_of_outputs(images.labels, options))
    info = DatasetInfo("pair", tuple(map(str, classes)), len(test), shift=8, flip=True)
    return MemoryData(info, images, lambda: _read_all(test, "test", options), options)


def _number_of_outputs(labels: Tensor, options: Options) -> int:
    """Return the number of classes that occur, or of the numbers of each label."""
    if options.task in NUMBERS:
        return labels[0].numel() if len(labels) else 0
    counted = labels[labels != ignored_by(options)]
    return int(counted.max()) + 1 if len(counted) else 0


def _read_all(dataset: Any, split: str, options: Options) -> Images:
    """Read all items, and bring the images to the requested channels and size."""
    pixels: list[Tensor] = []
    labels, checksum, numbers = [], 0, options.task in NUMBERS
    for index in range(len(dataset)):
        where = f"{split}[{index}]"
        item = dataset[index]
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            kind = type(item).__name__
            raise UserError(f"data: {where} is {kind}; a pair (image, label) is needed")
        image, label = item
        tensor = _as_tensor(image, options.channels, where)
        checksum = zlib.crc32(np.ascontiguousarray(tensor.numpy()).data, checksum)
        pixels.append(resize(set_channels(tensor[None], options.channels), options.size))
        labels.append(_as_label(label, tensor, options, where))
    for index, one in enumerate(pixels):
        if one.shape != pixels[0].shape:
            here, first = ("x".join(map(str, p.shape[2:])) for p in (one, pixels[0]))
            raise UserError(
                f"data: {split}[{index}] is {here} pixels, {split}[0] is {first}; give a size"
            )
        if one.dtype != pixels[0].dtype:
            raise UserError(f"data: {split} has images of bytes and of floats; give one kind")
    stacked = torch.cat(pixels) if pixels else torch.zeros(0, options.channels, 1, 1)
    try:
        found = torch.from_numpy(np.array(labels, dtype=np.float32 if numbers else np.int64))
        return Images(stacked, found, checksum)
    except ValueError as error:
        raise UserError(f"data: the labels of {split} have different sizes: {error}") from error


def _as_label(label: Any, image: Tensor, options: Options, where: str) -> Any:
    """Check a label: a class; numbers; or a mask of the size of the image, resized with it."""
    if options.task == "classification":
        try:
            return operator.index(label)
        except TypeError:
            kind = type(label).__name__
            raise UserError(
                f"data: the label of {where} is {kind}; a whole number is needed"
            ) from None
    array = label.numpy(force=True) if isinstance(label, Tensor) else np.asarray(label)
    if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
        raise UserError(f"data: the label of {where} holds no finite numbers")
    if options.task != "segmentation":
        return array.reshape(-1)
    if array.shape != tuple(image.shape[1:]):
        sizes = ("x".join(map(str, shape[::-1])) for shape in (array.shape, image.shape[1:]))
        raise UserError("data: the mask of {} is {} pixels, the image {}".format(where, *sizes))
    if options.size is None:
        return array.astype(np.int64)
    mask = torch.from_numpy(array.astype(np.float32))[None, None]
    near = F.interpolate(mask, (options.size, options.size), mode="nearest-exact")
    return near[0, 0].long().numpy()


def _as_tensor(image: Any, channels: int, where: str) -> Tensor:
    """Convert an image to a tensor [c, h, w] of uint8 or float32."""
    if isinstance(image, Image.Image) and image.mode.startswith("I"):
        image = np.asarray(image).clip(0, 65535).astype(np.uint16)
    if isinstance(image, Image.Image):
        try:
            return torch.from_numpy(as_array(convert_mode(image, channels)).copy())
        except ValueError as error:
            raise UserError(f"data: the image of {where}: {error}") from error
    array = image.numpy(force=True) if isinstance(image, Tensor) else np.asarray(image)
    array = _channels_first(array, channels, isinstance(image, Tensor), where)
    return torch.from_numpy(np.array(_bytes_or_floats(array, where)))


def _channels_first(
    array: NDArray[Any], channels: int, is_tensor: bool, where: str
) -> NDArray[Any]:
    """[h, w], [h, w, c] or [c, h, w] -> [c, h, w].

    Grey and colour stand for each other; for both, a fourth channel, alpha, is dropped.
    """
    colours = channels in (1, 3)
    if array.ndim == 2 and colours:
        return array[None]
    if array.ndim == 3:
        first = array.shape[0] in ((1, 3) if colours else (channels,))
        last = array.shape[2] in ((1, 3, 4) if colours else (channels,))
        # Where the shape fits both, tensors have their channels first and arrays last.
        if first and (is_tensor or not last):
            return array
        if last:
            kept = 3 if colours and array.shape[2] == 4 else array.shape[2]
            return array.transpose(2, 0, 1)[:kept]
    wanted = "1 or 3" if colours else channels
    raise UserError(
        f"data: the image of {where} has the shape {array.shape}; height x width (x {wanted} "
        "channels, first or last) is needed; the option channels sets another number"
    )


def _bytes_or_floats(array: NDArray[Any], where: str) -> NDArray[Any]:
    """Convert floats and uint16 to float32, booleans to 0 and 255, other integers to uint8."""
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise UserError(f"data: the image of {where} has pixels that are not finite")
        return array.astype(np.float32)
    if array.dtype == np.uint16:
        return array.astype(np.float32) / np.float32(65535)
    if array.dtype.kind == "b":
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype.kind in "iu" and (array.size == 0 or (array.min() >= 0 and array.max() <= 255)):
        return array.astype(np.uint8)
    raise UserError(
        f"data: the image of {where} has pixels of {array.dtype}; "
        "allowed: whole numbers from 0 to 255, uint16 from 0 to 65535, floats from 0 to 1"
    )
