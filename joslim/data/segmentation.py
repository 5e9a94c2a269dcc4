"""A folder of images with masks: train/images/NAME.jpg, train/masks/NAME.png, val/ and test/ alike.

The pixels of a mask are the numbers of the classes, in a grey image or one with a palette. A file
classes.txt beside train/ names the classes, one in each line; without it there are as many as the
training masks show. Images of other sizes than the network's are resized, masks to the nearest
pixel; crops, flips and colours are those of `folder.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from joslim.data.augment import FLIP_AND_COLOUR_UNIFORMS, Step, flip_and_colour, normalise, uniforms
from joslim.data.base import Batch, Data, Options
from joslim.data.folder import (
    RESAMPLING,
    SUFFIXES,
    BrokenImage,
    ChooseBox,
    FolderData,
    ImageFiles,
    _Decoder,
    as_array,
    bands_of,
    random_box,
    with_validation,
)
from joslim.errors import UserError, reason
from joslim.files import read_text

LAYOUT = "train/images/NAME.jpg with train/masks/NAME.png, and val/ or test/ alike, are needed"
IGNORED = 255
MOST_BYTES = 10**6
# Crops are chosen in a square of this side, as shares of the image.
SHARES = 10_000


def load(path: str, options: Options) -> Data:
    """Load the images and masks of a folder."""
    if not path:
        raise UserError(f"data: folder: names no folder; type folder:PATH, where {LAYOUT}")
    return SegmentationData(Path(path).expanduser(), options)


class SegmentationData(FolderData):
    """A folder of images with masks. Labels are the classes of pixels, [n, h, w]."""

    task = "segmentation"

    def __init__(self, folder: Path, options: Options) -> None:
        self.ignore_index = IGNORED if options.ignore_index is None else options.ignore_index
        super().__init__(folder, options)
        if self.deep or options.channels not in (1, 3):
            raise UserError("data: images with masks are grey or in colour, of 8 bits")

    def _list(
        self, folder: Path, options: Options
    ) -> tuple[tuple[str, ...], dict[str, ImageFiles], dict[str, str]]:
        if options.split is not None:
            raise UserError("split: it is for a folder of classes; leave it out")
        found = {s: _list_pairs(folder / s) for s in ("train", "val", "test") if _has(folder, s)}
        if "train" not in found or len(found) < 2:
            raise UserError(f"data: {folder}: {LAYOUT}")
        sources = {split: f"{split}/" for split in found}
        if len(found) < 3:
            test = "test" if "test" in found else "val"
            found = with_validation(found["train"], found[test], options.val)
            sources = {"train": "train/", "val": "taken from train/", "test": f"{test}/"}
        return self._class_names(folder, found["train"]), found, sources

    def _class_names(self, folder: Path, train: ImageFiles) -> tuple[str, ...]:
        file = folder / "classes.txt"
        if file.is_file():
            lines = read_text(file, MOST_BYTES, "data").splitlines()
            names = tuple(line.strip() for line in lines if line.strip())
        else:
            seen = {int(n) for at in range(len(train)) for n in np.unique(_read_mask(train, at))}
            names = tuple(map(str, range(max(seen - {self.ignore_index}, default=0) + 1)))
        if len(names) < 2:
            raise UserError(f"data: {folder} has only one class; at least two are needed")
        return names

    def _shape(self, options: Options, size: int) -> tuple[int, ...]:
        """Return the shape of the first image, its short side resized to --size if that is given"""
        with Image.open(self.files["train"].path(0)) as image:
            width, height = image.size
        short = options.size or min(width, height)
        scale = short / min(width, height)
        return (options.channels, round(height * scale), round(width * scale))

    def label_counts(self) -> list[int]:
        train, classes = self.files["train"], len(self.classes)
        counts = np.zeros(max(classes, 256), dtype=np.int64)
        for at in range(len(train)):
            found = np.bincount(_read_mask(train, at).ravel(), minlength=len(counts))
            counts += found[: len(counts)]
        if self.ignore_index >= 0:
            counts[self.ignore_index] = 0
        return counts[:classes].tolist()

    def _decoder(self, split: str, seed: int | None = None) -> _PairDecoder:
        return _PairDecoder(
            self.files[split],
            self.shape,
            False,
            seed,
            self.scale,
            self.interpolation,
            len(self.classes),
            self.ignore_index,
        )

    def augmented(self, seed: int, schedule: Iterator[Step]) -> Iterator[Batch]:
        for step, pixels in self._decode_ahead(self._decoder("train", seed), schedule):
            drawn = uniforms(seed, "colour", *step, FLIP_AND_COLOUR_UNIFORMS)
            images, labels = _parted(pixels.to(self.device))
            flip = torch.from_numpy(drawn[:, 0] < 0.5).to(self.device)[:, None, None]
            labels = torch.where(flip, labels.flip(2), labels)
            yield flip_and_colour(images, drawn, self.mean, self.std), labels

    def _normalised(self, split: str, step: Step, pixels: Tensor) -> Batch:
        images, labels = _parted(pixels.to(self.device))
        return normalise(images, self.mean, self.std), labels


def _parted(pixels: Tensor) -> Batch:
    """Part images and masks: [n, c + 1, h, w] -> uint8 [n, c, h, w] and int64 [n, h, w]."""
    return pixels[:, :-1].to(torch.uint8), pixels[:, -1].long()


@dataclass(frozen=True)
class _PairDecoder(_Decoder):
    """Decodes images, with the mask as one more channel."""

    classes: int = 0
    ignore_index: int = IGNORED

    def pixels(self, step: Step) -> tuple[Tensor, dict[int, str]]:
        channels, height, width = self.shape
        pixels = np.empty((len(step.indices), channels + 1, height, width), dtype=np.int32)
        boxes: list[ChooseBox] = [_whole] * len(step.indices)
        if self.seed is not None:
            drawn = uniforms(self.seed, "crop", *step, 22)
            boxes = [partial(_crop, uniforms=row, scale=self.scale) for row in drawn]
        broken: dict[int, str] = {}
        for place, (index, choose) in enumerate(zip(step.indices, boxes)):
            pixels[place] = self.image(int(index), choose, broken)
        return torch.from_numpy(pixels), broken

    def image(self, index: int, choose: ChooseBox, broken: dict[int, str]) -> NDArray[Any]:
        channels, height, width = self.shape
        for candidate in self.files.same_class_from(index):
            path = self.files.path(candidate)
            try:
                with Image.open(path) as image:
                    box = choose(*image.size)
                    bands = bands_of(image, channels)
                    size = image.size
                    cut = [
                        b.resize((width, height), RESAMPLING[self.interpolation], box)
                        for b in bands
                    ]
            except Exception as error:  # a broken file can raise anything
                broken[candidate] = f"data: cannot read the image {path}: {reason(error)}"
                self.files.check_broken(broken)
                continue
            mask = _read_mask(self.files, candidate)
            if mask.shape != size[::-1]:
                raise UserError(
                    f"data: the mask of {path} is {mask.shape[1]}x{mask.shape[0]} pixels, the "
                    f"image {size[0]}x{size[1]}; they must be of one size"
                )
            self.check(mask, path)
            labels = Image.fromarray(mask.astype(np.int32))
            near = labels.resize((width, height), Image.Resampling.NEAREST, box)
            return np.concatenate([*map(as_array, cut), np.asarray(near)[None]])
        raise UserError(f"{broken[index]}; no image decodes; replace them")

    def check(self, mask: NDArray[Any], path: str) -> None:
        """Refuse labels that are no class, and are not ignored."""
        highest = int(mask.max(initial=0))
        if highest < self.classes or (highest == self.ignore_index and self.ignore_index < 0):
            return
        others = {int(n) for n in np.unique(mask)} - {self.ignore_index}
        if others and max(others) >= self.classes:
            raise UserError(
                f"data: the mask of {path} has the label {max(others)}; allowed: 0 to "
                f"{self.classes - 1}, one for each class, and --ignore-index {self.ignore_index}"
            )


def _whole(width: int, height: int) -> tuple[float, float, float, float]:
    return (0.0, 0.0, float(width), float(height))


def _crop(
    width: int, height: int, uniforms: NDArray[np.float64], scale: float
) -> tuple[float, float, float, float]:
    """Return a random crop whose sides are near those of the image in proportion."""
    left, upper, right, lower = random_box(SHARES, SHARES, uniforms, scale)
    across, down = width / SHARES, height / SHARES
    return (left * across, upper * down, right * across, lower * down)


def _has(folder: Path, split: str) -> bool:
    return (folder / split / "images").is_dir()


def _list_pairs(folder: Path) -> ImageFiles:
    """List the images that have a mask of the same name; an image without one is refused."""
    images, masks = (folder / part for part in ("images", "masks"))
    if not masks.is_dir():
        raise UserError(f"data: {folder} has no folder masks/; {LAYOUT}")
    found = sorted(n for n in os.listdir(images) if n.lower().endswith(SUFFIXES) and n[0] != ".")
    if not found:
        raise UserError(f"data: {images} has no images; allowed: {' '.join(SUFFIXES)}")
    known = {Path(name).stem for name in os.listdir(masks) if name.endswith(".png")}
    if missing := [name for name in found if Path(name).stem not in known]:
        raise UserError(
            f"data: {images / missing[0]} has no mask; {masks / Path(missing[0]).stem}.png is "
            f"needed ({len(missing)} of {len(found)} images have none)"
        )
    names = np.array([os.fsencode(f"images/{name}") for name in found])
    return ImageFiles(str(folder), names, np.zeros(len(found), dtype=np.int64))


def _read_mask(files: ImageFiles, index: int) -> NDArray[Any]:
    """Return the numbers in the mask of an image, [h, w]."""
    image = Path(files.path(index))
    path = image.parent.parent / "masks" / f"{image.stem}.png"
    try:
        with Image.open(path) as mask:
            if mask.mode not in ("L", "P", "1", "I", "I;16"):
                raise ValueError(f"it is {mask.mode}, not grey or with a palette")
            return np.asarray(mask).astype(np.int64)
    except Exception as error:  # a broken file can raise anything
        raise BrokenImage(f"data: cannot read the mask {path}: {reason(error)}") from error
