"""Data sets that fit into memory: all images on the device, augmented there in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from joslim.data.augment import luma, normalised, shift_and_flip, shifts
from joslim.data.base import Batch, Data, Options
from joslim.data.randomness import Integers, Step, uniforms
from joslim.data.splits import carve
from joslim.errors import UserError

# Images that are resized at once: a compromise between memory and speed.
CHUNK = 1024


@dataclass
class Images:
    """pixels [n, c, h, w]: uint8 from 0 to 255, or float32 from 0 to 1; labels int64 [n]."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, positions: Integers) -> Images:
        chosen = torch.from_numpy(positions)
        return Images(self.pixels[chosen], self.labels[chosen])

    def to(self, device: torch.device) -> Images:
        return Images(self.pixels.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Facts:
    """What is known of a data set before its images are read.

    An augmented image is shifted by at most 1/`shift` of its side, and mirrored if `flip`.
    """

    name: str
    classes: tuple[str, ...]
    test_count: int
    recipe: str = "cifar"
    shift: int = 8
    flip: bool = True


class MemoryData(Data):
    """Images in memory. `shift` (pixels) and `flip` say how they are augmented, and may be set."""

    def __init__(
        self, facts: Facts, train: Images, read_test: Callable[[], Images], options: Options
    ) -> None:
        self.name, self.classes, self.recipe = facts.name, facts.classes, facts.recipe
        self.device = torch.device(options.device)
        self.options = options
        self.read_test = read_test
        check_labels(train, self.classes)
        kept, held_out = carve(train.labels.numpy(), options.val)
        train = fitted(train, options)
        _, channels, height, width = train.pixels.shape
        self.shape = (channels, height, width)
        self.parts = {"train": train.at(kept), "val": train.at(held_out)}
        self.mean, self.std = moments(self.parts["train"].pixels)
        self.parts = {split: images.to(self.device) for split, images in self.parts.items()}
        self.sizes = {"train": len(kept), "val": len(held_out), "test": facts.test_count}
        self.shift = max(1, min(height, width) // facts.shift)
        self.flip = facts.flip

    def images(self, split: str) -> Images:
        """The images of a split; those of the test split are read when first asked for."""
        self.check_split(split)
        if split not in self.parts:
            self.parts[split] = self.checked_test(self.read_test()).to(self.device)
        return self.parts[split]

    def checked_test(self, test: Images) -> Images:
        check_labels(test, self.classes)
        test = fitted(test, self.options)
        if len(test) != self.sizes["test"]:
            raise UserError(
                f"data: {self.name} has {len(test)} test images, not {self.sizes['test']}"
            )
        if (found := tuple(test.pixels.shape[1:])) != self.shape:
            raise UserError(
                f"data: test images are {found[1]}x{found[2]} pixels, training images "
                f"{self.shape[1]}x{self.shape[2]}; give a size"
            )
        return test

    def labels(self, split: str) -> Integers:
        return self.images(split).labels.cpu().numpy()

    def plain(self, split: str, indices: ArrayLike) -> Batch:
        images = self.images(split)
        chosen = torch.as_tensor(np.asarray(indices, dtype=np.int64)).to(self.device)
        return self.normalised(images.pixels[chosen]), images.labels[chosen]

    def augmented(self, seed: int, schedule: Iterator[Step]) -> Iterator[Batch]:
        images = self.images("train")
        for step in schedule:
            drawn = uniforms(seed, "augment", step.epochs, step.indices, 3)
            down, right = shifts(drawn[:, 0], self.shift), shifts(drawn[:, 1], self.shift)
            flip = (drawn[:, 2] < 0.5) & self.flip
            chosen = torch.from_numpy(step.indices).to(self.device)
            moved = shift_and_flip(images.pixels[chosen], down, right, flip)
            yield self.normalised(moved), images.labels[chosen]

    def normalised(self, pixels: Tensor) -> Tensor:
        return normalised(pixels, self.mean, self.std)


def check_labels(images: Images, classes: tuple[str, ...]) -> None:
    if len(images) == 0:
        raise UserError("data: there are no images; at least two are needed")
    low, high = int(images.labels.min()), int(images.labels.max())
    if low < 0 or high >= len(classes):
        wrong = low if low < 0 else high
        raise UserError(
            f"data: label {wrong}; allowed: 0 to {len(classes) - 1}, one for each class"
        )
    if len(classes) < 2:
        raise UserError("data: there is only one class; at least two are needed")


def fitted(images: Images, options: Options) -> Images:
    """With the channels and the size that were asked for."""
    pixels = with_channels(images.pixels, options.channels)
    return Images(resized(pixels, options.size), images.labels)


def with_channels(pixels: Tensor, channels: int) -> Tensor:
    """Grey is repeated to colour, colour is weighed to grey: [n, 1 or 3, h, w] -> [n, c, h, w]."""
    if pixels.shape[1] == channels:
        return pixels
    if channels == 3:
        return pixels.expand(-1, 3, -1, -1).contiguous()
    grey = [as_stored(luma(chunk.float()), pixels.dtype) for chunk in pixels.split(CHUNK)]
    return torch.cat(grey)


def resized(pixels: Tensor, size: int | None) -> Tensor:
    """All images size x size: bilinear, and antialiased where they shrink."""
    if size is None or pixels.shape[2:] == (size, size):
        return pixels
    parts = [
        as_stored(
            F.interpolate(chunk.float(), (size, size), mode="bilinear", antialias=True),
            pixels.dtype,
        )
        for chunk in pixels.split(CHUNK)
    ]
    return torch.cat(parts)


def as_stored(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.round_().clamp_(0, 255).to(dtype) if dtype == torch.uint8 else values


def moments(pixels: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, in units of a pixel from 0 to 1."""
    found = [channel_moments(channel) for channel in pixels.transpose(0, 1)]
    return tuple(mean for mean, _ in found), tuple(std for _, std in found)


def channel_moments(channel: Tensor) -> tuple[float, float]:
    if channel.dtype == torch.uint8:
        # Counting is exact, and needs no copy in double precision.
        counts = torch.bincount(channel.flatten(), minlength=256).double()
        levels = torch.arange(256).double() / 255
        mean = float((counts * levels).sum() / counts.sum())
        variance = float((counts * (levels - mean).square()).sum() / counts.sum())
    else:
        mean = float(channel.double().mean())
        variance = float(channel.double().var(correction=0))
    return mean, variance**0.5 or 1.0  # A channel of one value has no scale.


def from_arrays(pixels: NDArray[np.uint8], labels: ArrayLike) -> Images:
    """Images in memory from pixels [n, c, h, w] and labels [n]."""
    return Images(torch.from_numpy(pixels), torch.from_numpy(np.array(labels, dtype=np.int64)))
