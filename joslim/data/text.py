"""A text to learn the next byte of: a file, or a folder with train.txt, val.txt and test.txt.

A token is a byte, so that every text in every script can be read. The last tenth of a file is the
test split, and a share of the rest, `val`, the validation split; `split` divides it otherwise. A
sample is a window of `context` tokens, and its labels are the tokens that follow each of them.
Windows of the training begin anywhere: the place is a function of seed, epoch and index.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from joslim.data.augment import Integers, Step, uniforms
from joslim.data.base import Batch, Data, Options, split_shares, validation_count
from joslim.errors import UserError
from joslim.files import read_bytes

MOST_BYTES = 10**9
TEST_SHARE = 0.1
VOCABULARY = 256


def load(path: str, options: Options) -> Data:
    """Load a text."""
    place = Path(path).expanduser()
    if not path or not place.exists():
        raise UserError(f"data: there is no file {path!r}; type text:PATH of a text file")
    return TextData(place, options)


class TextData(Data):
    """A text as windows of bytes."""

    recipe = "text"
    task = "language"
    dtype = torch.int64
    unit = "windows"
    mean = std = ()

    def __init__(self, place: Path, options: Options) -> None:
        self.folder, self.name = place, f"text:{place}"
        self.device, self.context = torch.device(options.device), options.context
        self.classes = tuple(chr(n) if 32 < n < 127 else f"byte {n}" for n in range(VOCABULARY))
        self.shape = (self.context,)
        self.parts = _read(place, options)
        self.sizes = {split: (len(part) - 1) // self.context for split, part in self.parts.items()}
        for split, part in self.parts.items():
            if self.sizes[split] < 1 and (split != "val" or len(part)):
                raise UserError(
                    f"data: the {split} part of {place} has {len(part)} bytes, fewer than a window "
                    f"of {self.context} and one more; give a longer text, or a smaller --context"
                )
        self.sizes["val"] = max(0, self.sizes["val"])

    def labels(self, split: str) -> Integers:
        self.check_split(split)
        return np.zeros(self.sizes[split], dtype=np.int64)

    def label_counts(self) -> list[int]:
        return np.bincount(self.parts["train"], minlength=VOCABULARY).tolist()

    def content(self) -> bytes:
        checks = [zlib.crc32(self.parts[split].tobytes()) for split in ("train", "val")]
        return b"".join(check.to_bytes(4, "little") for check in checks)

    def plain(self, split: str, indices: ArrayLike) -> Batch:
        self.check_split(split)
        starts = np.asarray(indices, dtype=np.int64).reshape(-1) * self.context
        return self._windows(split, starts)

    def augmented(self, seed: int, schedule: Iterator[Step]) -> Iterator[Batch]:
        last = len(self.parts["train"]) - 1 - self.context
        for step in schedule:
            moved = uniforms(seed, "window", step.epochs, step.indices, 1)[:, 0]
            starts = ((step.indices + moved) * self.context).astype(np.int64)
            yield self._windows("train", np.minimum(starts, last))

    def _windows(self, split: str, starts: Integers) -> Batch:
        """Return the tokens from each start, and those that follow them: two of [n, context]."""
        places = starts[:, None] + np.arange(self.context + 1)
        found = torch.from_numpy(self.parts[split][places].astype(np.int64)).to(self.device)
        return found[:, :-1].contiguous(), found[:, 1:].contiguous()


def _read(place: Path, options: Options) -> dict[str, NDArray[np.uint8]]:
    def tokens(file: Path) -> NDArray[np.uint8]:
        return np.frombuffer(read_bytes(file, MOST_BYTES, "data"), dtype=np.uint8)

    if place.is_dir():
        files = {split: place / f"{split}.txt" for split in ("train", "val", "test")}
        if not (files["train"].is_file() and files["test"].is_file()):
            raise UserError(f"data: {place} has no train.txt and test.txt; val.txt may be missing")
        train, test = tokens(files["train"]), tokens(files["test"])
        if files["val"].is_file():
            return {"train": train, "val": tokens(files["val"]), "test": test}
    else:
        whole = tokens(place)
        if options.split is not None:
            first, val, _ = split_shares(options.split)
            ends = [round(first * len(whole)), round((first + val) * len(whole))]
            return dict(zip(("train", "val", "test"), np.split(whole, ends)))
        train, test = np.split(whole, [round((1 - TEST_SHARE) * len(whole))])
    windows = max(1, len(train) // options.context)
    kept = len(train) - validation_count(windows, options.val) * options.context
    return {"train": train[:kept], "val": train[kept:], "test": test}
