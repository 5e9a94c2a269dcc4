"""Data sets that fit into memory: all images are on the device and are augmented there."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from joslim.data.augment import (
    Integers,
    Step,
    luma,
    normalise,
    random_shifts,
    sent,
    shift_and_flip,
    uniforms,
)
from joslim.data.base import Batch, Data, Options, carve
from joslim.errors import UserError

# Number of images that are converted at once, a compromise between memory and speed.
CHUNK = 1024
# Tasks whose labels are numbers and no classes.
NUMBERS = ("regression", "multi-label")


@dataclass
class Images:
    """Images with their labels."""

    pixels: Tensor  # [n, c, h, w]; uint8 from 0 to 255, or float32 from 0 to 1
    labels: Tensor  # [n], int64; masks [n, h, w]; or numbers [n, k], float32
    # Of the pixels as they were read: resized pixels differ a little between machines.
    checksum: int = 0

    @classmethod
    def from_arrays(cls, pixels: NDArray[np.uint8], labels: ArrayLike) -> Images:
        """Take pixels [n, c, h, w] and labels [n], and compute the checksum."""
        checksum = zlib.crc32(np.ascontiguousarray(pixels).data)
        numbers = torch.from_numpy(np.array(labels, dtype=np.int64))
        return cls(torch.from_numpy(pixels), numbers, checksum)

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, positions: Integers) -> Images:
        chosen = torch.from_numpy(positions)
        return Images(self.pixels[chosen], self.labels[chosen])

    def to(self, device: torch.device) -> Images:
        return Images(self.pixels.to(device), self.labels.to(device))


@dataclass(frozen=True)
class DatasetInfo:
    """The description of a data set, known before its images are read.

    Augmentation shifts an image by at most 1/`shift` of its side, and mirrors it if `flip`.
    """

    name: str
    classes: tuple[str, ...]
    test_count: int
    recipe: str = "cifar"
    shift: int = 8
    flip: bool = True


class MemoryData(Data):
    """Images in memory. Augmentation follows `shift` (in pixels) and `flip`, which may be set."""

    def __init__(
        self, info: DatasetInfo, train: Images, read_test: Callable[[], Images], options: Options
    ) -> None:
        self.name, self.classes, self.recipe = info.name, info.classes, info.recipe
        self.device = torch.device(options.device)
        self.options = options
        self.read_test = read_test
        self.task = options.task
        _check_labels(train, self.classes, options)
        self.checksum = train.checksum
        kept, held_out = carve(_classes_of(train), options.val)
        train = _fit_to_options(train, options)
        _, channels, height, width = train.pixels.shape
        self.shape = (channels, height, width)
        self.parts = {"train": train.at(kept), "val": train.at(held_out)}
        moments = [channel_moments(pixels) for pixels in self.parts["train"].pixels.unbind(1)]
        self.mean, self.std = (tuple(values) for values in zip(*moments))
        self.parts = {split: images.to(self.device) for split, images in self.parts.items()}
        self.sizes = {"train": len(kept), "val": len(held_out), "test": info.test_count}
        self.shift = max(1, min(height, width) // info.shift)
        self.flip = info.flip

    def images(self, split: str) -> Images:
        """Return the images of a split; the test split is read at its first use."""
        self.check_split(split)
        if split in self.parts:
            return self.parts[split]
        test = self.read_test()
        _check_labels(test, self.classes, self.options)
        test = _fit_to_options(test, self.options)
        if len(test) != self.sizes["test"]:
            raise UserError(
                f"data: {self.name} has {len(test)} test images, not {self.sizes['test']}"
            )
        if (found := tuple(test.pixels.shape[1:])) != self.shape:
            raise UserError(
                f"data: test images are {found[1]}x{found[2]} pixels, training images "
                f"{self.shape[1]}x{self.shape[2]}; give a size"
            )
        self.parts[split] = test.to(self.device)
        return self.parts[split]

    def labels(self, split: str) -> Integers:
        return _classes_of(self.images(split))

    def label_counts(self) -> list[int]:
        labels = self.images("train").labels
        return [int((labels == number).sum()) for number in range(len(self.classes))]

    def content(self) -> bytes:
        content = self.checksum.to_bytes(4, "little") + super().content()
        if self.task == "classification":
            return content
        return content + self.images("train").labels.cpu().numpy().tobytes()

    def plain(self, split: str, indices: ArrayLike) -> Batch:
        images = self.images(split)
        chosen = sent(np.asarray(indices, dtype=np.int64), self.device)
        return normalise(images.pixels[chosen], self.mean, self.std), images.labels[chosen]

    def augmented(self, seed: int, schedule: Iterator[Step]) -> Iterator[Batch]:
        images = self.images("train")
        for step in schedule:
            drawn = uniforms(seed, "augment", step.epochs, step.indices, 3)
            down, right = (random_shifts(drawn[:, k], self.shift) for k in (0, 1))
            flip = (drawn[:, 2] < 0.5) & self.flip
            chosen = sent(step.indices, self.device)
            moved = shift_and_flip(images.pixels[chosen], down, right, flip)
            labels = images.labels[chosen]
            if self.task == "segmentation":  # pixels from beyond the edge are not counted
                ignored = ignored_by(self.options)
                masks = shift_and_flip(labels[:, None] - ignored, down, right, flip)
                labels = masks[:, 0] + ignored
            yield normalise(moved, self.mean, self.std), labels


def ignored_by(options: Options) -> int:
    """Return the value of the pixels of masks that have no class."""
    return 255 if options.ignore_index is None else options.ignore_index


def _classes_of(images: Images) -> Integers:
    """Return the class of each image, [n]; zeros if labels are no classes of images."""
    labels = images.labels.cpu().numpy()
    if labels.ndim == 1 and labels.dtype == np.int64:
        return labels
    return np.zeros(len(labels), dtype=np.int64)


def _check_labels(images: Images, classes: tuple[str, ...], options: Options) -> None:
    if len(images) == 0:
        raise UserError("data: there are no images; at least two are needed")
    labels = images.labels
    if options.task == "multi-label" and not bool(((labels == 0) | (labels == 1)).all()):
        raise UserError("data: labels of task multi-label are 0 or 1; other numbers are there")
    if options.task in NUMBERS:
        if labels.shape[1] != len(classes):
            raise UserError(f"data: {labels.shape[1]} numbers in a label, {len(classes)} names")
        return
    if options.task == "segmentation":
        labels = labels[labels != ignored_by(options)]
        if not len(labels):
            raise UserError("data: all pixels of the masks are ignored; label some")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= len(classes):
        wrong = low if low < 0 else high
        raise UserError(
            f"data: label {wrong}; allowed: 0 to {len(classes) - 1}, one for each class"
        )
    if len(classes) < 2:
        raise UserError("data: there is only one class; at least two are needed")


def _fit_to_options(images: Images, options: Options) -> Images:
    pixels = set_channels(images.pixels, options.channels)
    return Images(resize(pixels, options.size), images.labels)


def set_channels(pixels: Tensor, channels: int) -> Tensor:
    """Repeat grey to colour, or convert colour to grey: [n, c, h, w] -> [n, channels, h, w]."""
    if (found := pixels.shape[1]) == channels:
        return pixels
    if {found, channels} - {1, 3}:
        raise UserError(f"channels: {channels}; the images have {found}")
    if channels == 3:
        return pixels.expand(-1, 3, -1, -1).contiguous()
    return _in_chunks(luma, pixels)


def resize(pixels: Tensor, size: int | None) -> Tensor:
    """Resize all images to size x size: bilinear, with antialiasing where they shrink."""
    if size is None or pixels.shape[2:] == (size, size):
        return pixels
    return _in_chunks(
        lambda chunk: F.interpolate(chunk, (size, size), mode="bilinear", antialias=True), pixels
    )


def _in_chunks(convert: Callable[[Tensor], Tensor], pixels: Tensor) -> Tensor:
    """Apply a function to the pixels as floats, and round the results to bytes if they were."""
    parts = []
    for chunk in pixels.split(CHUNK):
        values = convert(chunk.float())
        if pixels.dtype == torch.uint8:
            values = values.round_().clamp_(0, 255).to(torch.uint8)
        parts.append(values)
    return torch.cat(parts)


def channel_moments(channel: Tensor) -> tuple[float, float]:
    """Return the mean and the standard deviation of pixels, scaled to the range from 0 to 1."""
    if channel.dtype == torch.uint8:
        # Counting is exact, and needs no copy in double precision.
        counts = torch.bincount(channel.flatten(), minlength=256).double()
        levels = torch.arange(256).double() / 255
        mean = float((counts * levels).sum() / counts.sum())
        variance = float((counts * (levels - mean).square()).sum() / counts.sum())
    else:
        mean = float(channel.double().mean())
        variance = float(channel.double().var(correction=0))
    return mean, variance**0.5 or 1.0  # a constant channel is only shifted
