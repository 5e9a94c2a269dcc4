"""The interface of all data sets: three splits, endless training batches, plain sweeps."""

from __future__ import annotations

import math
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from joslim.data.augment import Integers, Step, random_bits, steps
from joslim.errors import UserError, unknown

SPLITS = ("train", "val", "test")

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Options:
    """How to load a data set; the arguments of `load_data`."""

    root: str | Path | None = None
    size: int | None = None
    channels: int = 3
    val: float = 0.1
    device: str | torch.device = "cpu"
    workers: int = 0
    split: str | None = None
    task: str = "classification"
    context: int = 128
    ignore_index: int | None = None

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise UserError(f"size: {self.size}; type the side of the images in pixels, 1 or more")
        if self.channels < 1:
            raise UserError(f"channels: {self.channels}; type 1 (grey), 3 (colour) or more")
        if self.workers < 0:
            raise UserError(f"workers: {self.workers}; type 0 (none) or more")


class Data(ABC):
    """Images with labels in three splits: "train", "val" and "test".

    The test split is not read before its images or labels are requested. Subclasses implement
    `labels`, `plain` and `augmented`.

    Attributes:
        name: Name of the data set.
        classes: Names of the classes.
        shape: Shape of one input: (channels, height, width) of images.
        mean: Mean of each channel, for pixels from 0 to 1.
        std: Standard deviation of each channel.
        recipe: Name of the training recipe that suits the data.
        sizes: Number of images by split.
        sources: Where the images of a split come from, by split, if there is something to say.
        device: Device of the batches.

    Examples:
        >>> data = joslim.load_data("digits")
        >>> images, labels = next(data.batches(seed=0, batch=32))
        >>> images.shape, labels.shape
        (torch.Size([32, 3, 8, 8]), torch.Size([32]))
        >>> sum(len(labels) for images, labels in data.sweep("test", batch=100))
        360
    """

    name: str
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    recipe: str
    sizes: dict[str, int]
    sources: dict[str, str] = {}
    device: torch.device
    # What is learned of the data, the type of the inputs, and the words of the summary.
    task: str = "classification"
    dtype: torch.dtype = torch.float32
    unit: str = "images"

    def example(self) -> Tensor:
        """Return an input of the network: zeros of shape [1, *shape]."""
        return torch.zeros(1, *self.shape, dtype=self.dtype)

    def label_counts(self) -> list[int]:
        """Return how often each class occurs in the training data."""
        labels = self.labels("train")
        return [int((labels == number).sum()) for number in range(len(self.classes))]

    @abstractmethod
    def labels(self, split: str) -> Integers:
        """Return the class of each sample of a split, of shape [n]; zeros if it has not one class.

        Args:
            split: Name of the split.
        """

    @abstractmethod
    def plain(self, split: str, indices: ArrayLike) -> Batch:
        """Return normalised images without augmentation, and their labels.

        Args:
            split: Name of the split.
            indices: Positions of n images in the split.

        Returns:
            Images as float32 of shape [n, c, h, w], labels as int64 of shape [n].
        """

    @abstractmethod
    def augmented(self, seed: int, schedule: Iterator[Step]) -> Iterator[Batch]:
        """Yield the normalised training batch of each step; augmentation is a function of seed,
        epoch and index.

        Args:
            seed: Random seed of the augmentation.
            schedule: The epoch and the images of each step.
        """

    def content(self) -> bytes:
        """Return bytes that differ between data sets of the same shape, for `identity`.

        These are the labels; data sets that know their images add a digest of them.
        """
        return self.labels("train").astype("<i8").tobytes()

    def plain_batches(self, split: str, batches: Sequence[Integers]) -> Iterator[Batch]:
        """Yield one batch of `plain` for each set of indices; a data set may load ahead here.

        Args:
            split: Name of the split.
            batches: Positions of the images of each batch.
        """
        for indices in batches:
            yield self.plain(split, indices)

    def plain_together(self, split: str, indices: Integers) -> Batch:
        """Return the batch of `plain`; all processes call this, and each may load a share of it.

        Args:
            split: Name of the split.
            indices: Positions of the images in the split, the same on all processes.
        """
        return self.plain(split, indices)

    def batches(
        self, seed: int, batch: int, start: int = 0, rank: int = 0, world: int = 1
    ) -> Iterator[Batch]:
        """Yield training batches without end.

        Args:
            seed: Random seed of order and augmentation.
            batch: Images of one step, of all processes together.
            start: The first step.
            rank: Number of this process.
            world: Number of processes.

        Raises:
            UserError: The batch is larger than the training split, or smaller than the number of
                processes.
        """
        count = self.sizes["train"]
        if batch < 1:
            raise UserError(f"batch: {batch}; type a number from 1 to {count}")
        if batch > count:
            raise UserError(f"batch: {batch} is more than the {count} training images; type less")
        if batch < world:
            raise UserError(f"batch: {batch} is less than one image for each of {world} processes")
        return self.augmented(seed, steps(seed, count, batch, start, rank, world))

    def sweep(self, split: str, batch: int, limit: int | None = None) -> Sweep:
        """Return all images of a split in order, as batches without augmentation.

        Args:
            split: Name of the split.
            batch: Images in a batch; the last one may have fewer.
            limit: Number of images of a fixed subset with balanced classes; by default all images.

        Raises:
            UserError: The split is unknown, or the batch or the limit is below 1.
        """
        self.check_split(split)
        if batch < 1:
            raise UserError(f"batch: {batch}; type 1 or more")
        if limit is not None and limit < 1:
            raise UserError(f"limit: {limit} images; at least 1 is needed")
        # The labels of the test split are read only where a subset needs them.
        if limit is None or limit >= self.sizes[split]:
            return Sweep(self, split, np.arange(self.sizes[split]), batch)
        return Sweep(self, split, np.sort(balanced_order(self.labels(split))[:limit]), batch)

    def check_split(self, split: str) -> None:
        """Refuse a split that is not "train", "val" or "test".

        Raises:
            UserError: The split is unknown.
        """
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)

    @cached_property
    def identity(self) -> str:
        """A short fingerprint; a run is resumed only on data with the same fingerprint.

        It is computed once, because it may read many files, and does not read the test split.
        """
        counts = "+".join(str(self.sizes[split]) for split in SPLITS)
        shape = "x".join(map(str, self.shape))
        check = zlib.crc32(os.fsencode("\0".join(self.classes)))
        check = zlib.crc32(self.content(), check)
        kind = self.name.partition(":")[0]  # without the path: a folder may be moved
        return f"{kind} {shape} {counts} {check:08x}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.identity}>"


class Sweep:
    """Batches without augmentation, in order, which can be iterated repeatedly.

    The last batch may be short. `len()` is the number of batches. With `together`, all processes
    ask for the same batches by their positions, and share the work.
    """

    def __init__(
        self, data: Data, split: str, indices: Integers, batch: int, together: bool = False
    ) -> None:
        self.data, self.split, self.indices, self.batch = data, split, indices, batch
        self.together = together

    def __len__(self) -> int:
        return math.ceil(len(self.indices) / self.batch)

    def __getitem__(self, position: int) -> Batch:
        if not 0 <= position < len(self):
            raise IndexError(position)
        start = position * self.batch
        indices = self.indices[start : start + self.batch]
        load = self.data.plain_together if self.together else self.data.plain
        return load(self.split, indices)

    def __iter__(self) -> Iterator[Batch]:
        starts = range(0, len(self.indices), self.batch)
        chunks = [self.indices[start : start + self.batch] for start in starts]
        return self.data.plain_batches(self.split, chunks)


# Subsets


def balanced_order(labels: Integers) -> Integers:
    """Order all positions so that every prefix has the classes in the proportions of the whole.

    The order depends on the labels only, so that methods and seeds can be compared.
    """
    count = len(labels)
    shuffled = np.argsort(random_bits(0, "balance", np.arange(count)), kind="stable")
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    sorted_labels = labels[by_class]
    starts = np.searchsorted(sorted_labels, sorted_labels, side="left")
    ends = np.searchsorted(sorted_labels, sorted_labels, side="right")
    # The k-th image of a class of n is placed at the fraction (k + 1/2) / n of the order.
    progress = (np.arange(count) - starts + 0.5) / np.maximum(ends - starts, 1)
    return by_class[np.lexsort((random_bits(0, "ties", sorted_labels), progress))]


def carve(labels: Integers, val: float) -> tuple[Integers, Integers]:
    """Split the training images: positions to train on, and positions for validation."""
    held_out = np.zeros(len(labels), dtype=bool)
    held_out[balanced_order(labels)[: validation_count(len(labels), val)]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def split_shares(text: str) -> tuple[float, float, float]:
    """0.8/0.1/0.1 -> the shares of training, validation and test images."""
    try:
        train, val, test = (float(part) for part in text.split("/"))
    except ValueError:
        train = val = test = math.nan
    if not (min(train, test) > 0 and val >= 0 and abs(train + val + test - 1) < 1e-6):
        raise UserError(
            f"split: {text!r}; type the shares of training, validation and test images, which add "
            "up to 1: 0.8/0.1/0.1"
        )
    return train, val, test


def carve_three(labels: Integers, split: str) -> tuple[Integers, Integers, Integers]:
    """Divide all images by `split_shares`: positions of training, validation and test images."""
    _, val, test = split_shares(split)
    count, order = len(labels), balanced_order(labels)
    ends = round(val * count), round(val * count) + round(test * count)
    if not ends[0] < ends[1] < count:
        raise UserError(f"split: {split!r} leaves no training or no test images of {count}")
    val_part, test_part, train_part = np.split(order, ends)
    return np.sort(train_part), np.sort(val_part), np.sort(test_part)


def validation_count(count: int, val: float) -> int:
    """Return the number of validation images; `val` is a fraction below 1 or a whole number."""
    whole = isinstance(val, (int, np.integer))
    if not (val >= 0 and (whole or val < 1)):
        raise UserError(f"val: {val}; type a fraction from 0 to below 1, or a number of images")
    wanted = int(val) if whole else round(val * count)
    if wanted >= count:
        raise UserError(f"val: {val} leaves none of {count} training images; type a smaller one")
    return wanted
