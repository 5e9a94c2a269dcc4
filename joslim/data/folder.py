"""Your own images: PATH/train/CLASS/... to train on, PATH/val/CLASS/... as the test split.

Augmented as in the paper for ImageNet: a random part of the image, flips, jitter of brightness,
contrast and saturation, PCA lighting. Images are decoded and cut in workers; the rest is done for
whole batches on the device.

In place of a file that does not decode comes the next one of its class that does: batches stay
full, labels right, and every run on these files the same. More than a few of them are an error.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from joslim.data.augment import FLIP_AND_COLOUR_UNIFORMS, LUMA, flip_and_colour, normalised
from joslim.data.base import Batch, Data, Options
from joslim.data.decoding import (
    BOX_UNIFORMS,
    Box,
    BrokenImage,
    centre_box,
    random_box,
    read_box,
)
from joslim.data.files import one_line
from joslim.data.randomness import Integers, Step, uniforms
from joslim.data.splits import carve
from joslim.errors import RunFailed, UserError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
DEFAULT_SIZE = 224
DEFAULT_SCALE = 0.25

# Of ImageNet, as everybody uses them.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

# Files of a split that may not decode: a share of them, and a few in any case.
MOST_BROKEN = 0.01
FEW_BROKEN = 3

LAYOUT = "train/CLASS/*.jpg and val/CLASS/*.jpg are needed"


@dataclass(frozen=True)
class Files:
    """Image files under `root` with their classes.

    `names` are bytes in one array: a list of a million strings would be copied into every worker,
    page by page, as their reference counts change. `broken` says of each file that was found not
    to decode what is wrong with it.
    """

    root: str
    names: NDArray[np.bytes_]
    labels: Integers
    broken: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    def at(self, positions: Integers) -> Files:
        return Files(self.root, self.names[positions], self.labels[positions])

    def path(self, index: int) -> str:
        return os.path.join(self.root, os.fsdecode(bytes(self.names[index])))

    def from_here(self, index: int) -> Iterator[int]:
        """The file itself, those of its class that come after it, and those that come before."""
        yield index
        same = np.flatnonzero(self.labels == self.labels[index])
        yield from same[same > index].tolist()
        yield from same[same < index].tolist()

    @property
    def most_broken(self) -> int:
        return max(FEW_BROKEN, int(MOST_BROKEN * len(self)))

    def too_many(self, broken: dict[int, str]) -> UserError:
        return UserError(
            f"{[*broken.values()][-1]}; {len(broken)} of {len(self)} images do not decode, "
            f"{self.most_broken} are put up with; remove or replace them"
        )

    def put_up_with(self, broken: dict[int, str]) -> None:
        """Count these too: a warning whenever there are twice as many, too many are an error."""
        before = len(self.broken)
        self.broken.update(broken)
        count = len(self.broken)
        if count > self.most_broken:
            raise self.too_many(self.broken)
        if count > before and count >= 2 * before:
            names = ", ".join(self.path(index) for index in [*self.broken][:3])
            more = ", ..." if count > 3 else ""
            warnings.warn(
                f"data: {count} of {len(self)} images do not decode, and others of their class are "
                f"taken in their place: {names}{more}",
                stacklevel=2,
            )


def load(path: str, options: Options) -> Data:
    if not path:
        raise UserError(f"data: folder: names no folder; type folder:PATH, where {LAYOUT}")
    return FolderData(Path(path).expanduser(), options)


class FolderData(Data):
    """A folder of images. `scale` is the least part of the area that a random crop keeps."""

    recipe = "imagenet"
    scale: float = DEFAULT_SCALE

    def __init__(self, folder: Path, options: Options) -> None:
        if not folder.is_dir():
            raise UserError(f"data: there is no folder {str(folder)!r}; type folder:PATH")
        self.name = f"folder:{folder}"
        self.device = torch.device(options.device)
        self.workers = options.workers
        size = options.size or DEFAULT_SIZE
        self.shape = (options.channels, size, size)
        self.mean, self.std = (MEAN, STD) if options.channels == 3 else (grey(MEAN), grey(STD))
        self.classes = classes_of(folder / "train")
        check_classes(folder, self.classes)
        train = listed(folder / "train", self.classes)
        kept, held_out = carve(train.labels, options.val)
        self.files = {
            "train": train.at(kept),
            "val": train.at(held_out),
            "test": listed(folder / "val", self.classes),
        }
        self.sizes = {split: len(files) for split, files in self.files.items()}

    def labels(self, split: str) -> Integers:
        self.check_split(split)
        return self.files[split].labels

    def content(self) -> bytes:
        return b"\0".join(self.files["train"].names.tolist()) + super().content()

    def plain(self, split: str, indices: ArrayLike) -> Batch:
        self.check_split(split)
        step = unscheduled(np.asarray(indices, dtype=np.int64).reshape(-1))
        pixels, broken = Decoder(self.files[split], self.shape).pixels(step)
        self.files[split].put_up_with(broken)
        return self.delivered(pixels, self.labels(split)[step.indices])

    def plain_batches(self, split: str, batches: Sequence[Integers]) -> Iterator[Batch]:
        labels = self.labels(split)
        decoder = Decoder(self.files[split], self.shape)
        for step, pixels in self.decoded(decoder, map(unscheduled, batches)):
            yield self.delivered(pixels, labels[step.indices])

    def augmented(self, seed: int, schedule: Iterator[Step]) -> Iterator[Batch]:
        labels = self.labels("train")
        decoder = Decoder(self.files["train"], self.shape, seed, self.scale)
        for step, pixels in self.decoded(decoder, schedule):
            drawn = uniforms(seed, "colour", *step, FLIP_AND_COLOUR_UNIFORMS)
            x = flip_and_colour(pixels.to(self.device), drawn, self.mean, self.std)
            yield x, self.beside(labels[step.indices])

    def decoded(self, decoder: Decoder, schedule: Iterable[Step]) -> Iterator[tuple[Step, Tensor]]:
        """Each step with its pixels, decoded ahead by the workers, if there are any."""
        loader: DataLoader[Any] = DataLoader(
            decoder,
            batch_size=None,
            sampler=schedule,
            num_workers=self.workers,
            collate_fn=unchanged,
            generator=torch.Generator(),  # Else it would draw from the global one.
        )
        death = ""
        try:
            for result in loader:
                if isinstance(result, UserError):
                    raise result
                step, pixels, broken = result
                decoder.files.put_up_with(broken)
                yield step, pixels
        except (RuntimeError, OSError, EOFError) as error:
            # Noticed by torch, or by the pipe to it breaking; files have given a UserError.
            if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
                raise
            death = one_line(error)
        if death:
            # Out here, where no traceback holds the dead worker: torch would complain ever after.
            raise RunFailed(
                f"data: a process that decodes images died: {death}; "
                "type fewer --workers if the memory is short"
            )

    def delivered(self, pixels: Tensor, labels: Integers) -> Batch:
        return normalised(pixels.to(self.device), self.mean, self.std), self.beside(labels)

    def beside(self, labels: Integers) -> Tensor:
        return torch.from_numpy(labels).to(self.device)


@dataclass(frozen=True)
class Decoder(Dataset[Any]):
    """What a worker holds: it reads the images of a step, without a seed the middle of each."""

    files: Files
    shape: tuple[int, int, int]
    seed: int | None = None
    scale: float = DEFAULT_SCALE

    def __getitem__(self, step: Step) -> tuple[Step, Tensor, dict[int, str]] | UserError:
        try:
            return step, *self.pixels(step)
        except UserError as error:
            return error  # Raised in a worker, its message would become a traceback.

    def pixels(self, step: Step) -> tuple[Tensor, dict[int, str]]:
        """Bytes [n, c, size, size]; and which files did not decode, with the reasons."""
        pixels = np.empty((len(step.indices), *self.shape), dtype=np.uint8)
        broken: dict[int, str] = {}
        for place, (index, choose) in enumerate(zip(step.indices, self.boxes(step))):
            pixels[place] = self.image(int(index), choose, broken)
        return torch.from_numpy(pixels), broken

    def image(
        self, index: int, choose: Callable[[int, int], Box], broken: dict[int, str]
    ) -> NDArray[np.uint8]:
        """The file, or the next of its class that decodes; those that do not go into `broken`."""
        channels, size, _ = self.shape
        for candidate in self.files.from_here(index):
            try:
                return read_box(self.files.path(candidate), choose, size, channels)
            except BrokenImage as error:
                broken[candidate] = str(error)
            if len(broken) > self.files.most_broken:
                raise self.files.too_many(broken)
        raise UserError(f"{broken[index]}; no image of its class decodes; replace them")

    def boxes(self, step: Step) -> list[Callable[[int, int], Box]]:
        """For each image the function that finds the wanted part in (width, height)."""
        if self.seed is None:
            return [centre_box] * len(step.indices)
        drawn = uniforms(self.seed, "crop", *step, BOX_UNIFORMS)
        return [partial(random_box, uniforms=row, scale=self.scale) for row in drawn]


def unscheduled(indices: Integers) -> Step:
    """Images that belong to no epoch."""
    return Step(np.zeros_like(indices), indices)


def unchanged(item: Any) -> Any:
    return item


def grey(colour: tuple[float, ...]) -> tuple[float, ...]:
    return (sum(weight * part for weight, part in zip(LUMA, colour)),)


# What lies in the folders


def classes_of(folder: Path) -> tuple[str, ...]:
    """The names of its subfolders, sorted."""
    if not folder.is_dir():
        raise UserError(f"data: {folder.parent} has no folder {folder.name}/; {LAYOUT}")
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.is_dir()]
    except OSError as error:
        raise UserError(f"data: cannot list {folder}: {one_line(error)}") from error
    return tuple(sorted(name for name in names if not name.startswith(".")))


def check_classes(folder: Path, classes: tuple[str, ...]) -> None:
    """At least two, and the same in train/ and val/."""
    if len(classes) < 2:
        found = f"only the class {classes[0]!r}" if classes else "no folder of a class"
        raise UserError(f"data: {folder / 'train'} has {found}; at least two are needed: {LAYOUT}")
    tested = classes_of(folder / "val")
    for place, missing in (
        ("train/", sorted({*classes} - {*tested})),
        ("val/", sorted({*tested} - {*classes})),
    ):
        if missing:
            some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            raise UserError(
                f"data: {folder}: train/ and val/ need the same classes; "
                f"only in {place}: {some} ({len(missing)} in all)"
            )


def listed(folder: Path, classes: tuple[str, ...]) -> Files:
    """All images of these classes, in order of their names."""
    by_class = [image_names(folder, name) for name in classes]
    names = np.array([os.fsencode(name) for found in by_class for name in found])
    labels = np.repeat(np.arange(len(classes)), [len(found) for found in by_class])
    return Files(str(folder), names, labels)


def image_names(folder: Path, class_name: str) -> list[str]:
    """Paths from the folder to the images of one class, however deep they lie."""
    found = [
        os.path.relpath(os.path.join(place, name), folder)
        for place, _, names in os.walk(folder / class_name)
        for name in names
        if name.lower().endswith(SUFFIXES) and not name.startswith(".")
    ]
    if not found:
        kinds = " ".join(SUFFIXES)
        raise UserError(f"data: {folder / class_name} has no images; allowed: {kinds}")
    return sorted(found)
