"""What all data sets have in common: three splits, endless training batches, plain sweeps."""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from joslim.data.randomness import Integers, Step, steps
from joslim.data.splits import balanced_subset
from joslim.errors import UserError, unknown

SPLITS = ("train", "val", "test")

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Options:
    """How to load a data set; the same for all of them."""

    root: str | Path | None = None
    size: int | None = None
    channels: int = 3
    val: float = 0.1
    device: str | torch.device = "cpu"
    workers: int = 0

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise UserError(f"size: {self.size}; type the side of the images in pixels, 1 or more")
        if self.channels not in (1, 3):
            raise UserError(f"channels: {self.channels}; allowed: 1 (grey), 3 (colour)")
        if self.workers < 0:
            raise UserError(f"workers: {self.workers}; type 0 (none) or more")


class Data(ABC):
    """Images with labels, in three splits.

    `shape` is that of one image (channels, height, width); `mean` and `std` are per channel, for
    pixels from 0 to 1; `recipe` names the training recipe that suits the data. The test split is
    not read before somebody asks for its images or labels.
    """

    name: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    recipe: str
    sizes: dict[str, int]
    device: torch.device

    @abstractmethod
    def labels(self, split: str) -> Integers:
        """The class of each image of a split: [n]."""

    @abstractmethod
    def plain(self, split: str, indices: ArrayLike) -> Batch:
        """These images as they are, normalised: float32 [n, c, h, w] and int64 [n]."""

    @abstractmethod
    def augmented(self, seed: int, schedule: Iterator[Step]) -> Iterator[Batch]:
        """The training images of each step, augmented by (seed, epoch, index) and normalised."""

    def content(self) -> bytes:
        """What tells this training data from other data of the same shape, for `identity`."""
        return self.labels("train").astype("<i8").tobytes()

    def plain_batches(self, split: str, batches: Sequence[Integers]) -> Iterator[Batch]:
        """Many calls of `plain`; a data set that can work ahead does."""
        for indices in batches:
            yield self.plain(split, indices)

    def batches(
        self, seed: int, batch: int, start: int = 0, rank: int = 0, world: int = 1
    ) -> Iterator[Batch]:
        """Endless training batches from optimizer step `start` on; `batch` counts all processes."""
        count = self.sizes["train"]
        if batch < 1:
            raise UserError(f"batch: {batch}; type a number from 1 to {count}")
        if batch > count:
            raise UserError(f"batch: {batch} is more than the {count} training images; type less")
        if batch < world:
            raise UserError(f"batch: {batch} is less than one image for each of {world} processes")
        return self.augmented(seed, steps(seed, count, batch, start, rank, world))

    def sweep(self, split: str, batch: int, limit: int | None = None) -> Sweep:
        """All images of a split, or a fixed balanced subset of `limit`, as plain batches."""
        self.check_split(split)
        if batch < 1:
            raise UserError(f"batch: {batch}; type 1 or more")
        everything = limit is None or limit >= self.sizes[split]
        indices = (
            np.arange(self.sizes[split])
            if everything
            else balanced_subset(self.labels(split), limit)
        )
        return Sweep(self, split, indices, batch)

    def check_split(self, split: str) -> None:
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)

    @property
    def identity(self) -> str:
        """A short fingerprint that differs where a run must not be resumed on these data.

        It is made without reading the test split.
        """
        counts = "+".join(str(self.sizes[split]) for split in SPLITS)
        shape = "x".join(map(str, self.shape))
        check = zlib.crc32("\0".join(self.classes).encode())
        check = zlib.crc32(self.content(), check)
        kind = self.name.partition(":")[0]  # A folder may be moved.
        return f"{kind} {shape} {counts} {check:08x}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.identity}>"


class Sweep:
    """Plain batches in order, as often as one likes; the last may be short. len(): batches."""

    def __init__(self, data: Data, split: str, indices: Integers, batch: int) -> None:
        self.data, self.split, self.indices, self.batch = data, split, indices, batch

    def __len__(self) -> int:
        return math.ceil(len(self.indices) / self.batch)

    def __getitem__(self, position: int) -> Batch:
        if not 0 <= position < len(self):
            raise IndexError(position)
        start = position * self.batch
        return self.data.plain(self.split, self.indices[start : start + self.batch])

    def __iter__(self) -> Iterator[Batch]:
        starts = range(0, len(self.indices), self.batch)
        chunks = [self.indices[start : start + self.batch] for start in starts]
        return self.data.plain_batches(self.split, chunks)
