"""A folder of images: PATH/train/CLASS/... to train on, PATH/val/CLASS/... as the test split.

Augmentation follows the paper's for ImageNet: a random crop, flips, jitter of brightness, contrast
and saturation, and PCA lighting. Workers decode and crop the images; the rest is computed for whole
batches on the device.

A file that does not decode is replaced by the next file of its class that does. Batches stay full,
labels stay right, and every run on these files sees the same images. More than a few such files are
an error.
"""

from __future__ import annotations

import math
import os
import stat
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from joslim.data.augment import (
    FLIP_AND_COLOUR_UNIFORMS,
    LUMA,
    Integers,
    Step,
    flip_and_colour,
    normalise,
    uniforms,
)
from joslim.data.base import Batch, Data, Options, carve
from joslim.errors import RunFailed, UserError, reason

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
LAYOUT = "train/CLASS/*.jpg and val/CLASS/*.jpg are needed"
DEFAULT_SIZE = 224

# Mean and standard deviation of ImageNet, in common use.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

# Evaluation keeps this share of the short side: 224 of 256 pixels.
CENTRE = 224 / 256

# Random crops: the least share of the area, the aspect ratios, the attempts to draw a crop that
# fits into the image, and the uniform numbers that these need.
DEFAULT_SCALE = 0.25
RATIOS = (3 / 4, 4 / 3)
ATTEMPTS = 10
CROP_UNIFORMS = 2 * ATTEMPTS + 2

# This share of the files of a split may fail to decode, and this number in any case.
BROKEN_SHARE = 0.01
BROKEN_COUNT = 3

# The identity of a split reads the first bytes of this many files, which are evenly spread.
FINGERPRINT_FILES = 256
FINGERPRINT_BYTES = 10**6

# Left, upper, right and lower edge of a crop in pixels; and a function that chooses the crop of an
# image of (width, height).
Box = tuple[float, float, float, float]
ChooseBox = Callable[[int, int], Box]


def load(path: str, options: Options) -> Data:
    """Load the images of a folder."""
    if not path:
        raise UserError(f"data: folder: names no folder; type folder:PATH, where {LAYOUT}")
    return FolderData(Path(path).expanduser(), options)


class FolderData(Data):
    """A folder of images. `scale` is the least share of the area that a random crop keeps."""

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
        self.mean, self.std = MEAN, STD
        if options.channels == 1:
            self.mean, self.std = (
                (sum(weight * value for weight, value in zip(LUMA, values)),)
                for values in (MEAN, STD)
            )
        self.classes = _class_names(folder)
        train = _list_images(folder / "train", self.classes)
        kept, held_out = carve(train.labels, options.val)
        self.files = {
            "train": train.at(kept),
            "val": train.at(held_out),
            "test": _list_images(folder / "val", self.classes),
        }
        self.sizes = {split: len(files) for split, files in self.files.items()}

    def labels(self, split: str) -> Integers:
        self.check_split(split)
        return self.files[split].labels

    def content(self) -> bytes:
        parts = [self.files[split].fingerprint() for split in ("train", "val")]
        return b"".join(parts) + super().content()

    def plain(self, split: str, indices: ArrayLike) -> Batch:
        self.check_split(split)
        step = _without_epoch(np.asarray(indices, dtype=np.int64).reshape(-1))
        pixels, broken = _Decoder(self.files[split], self.shape).pixels(step)
        self.files[split].add_broken(broken)
        return self._normalised(split, step, pixels)

    def plain_batches(self, split: str, batches: Sequence[Integers]) -> Iterator[Batch]:
        self.check_split(split)
        decoder = _Decoder(self.files[split], self.shape)
        for step, pixels in self._decode_ahead(decoder, map(_without_epoch, batches)):
            yield self._normalised(split, step, pixels)

    def augmented(self, seed: int, schedule: Iterator[Step]) -> Iterator[Batch]:
        labels = self.labels("train")
        decoder = _Decoder(self.files["train"], self.shape, seed, self.scale)
        for step, pixels in self._decode_ahead(decoder, schedule):
            drawn = uniforms(seed, "colour", *step, FLIP_AND_COLOUR_UNIFORMS)
            x = flip_and_colour(pixels.to(self.device), drawn, self.mean, self.std)
            yield x, torch.from_numpy(labels[step.indices]).to(self.device)

    def _normalised(self, split: str, step: Step, pixels: Tensor) -> Batch:
        labels = torch.from_numpy(self.files[split].labels[step.indices])
        return normalise(pixels.to(self.device), self.mean, self.std), labels.to(self.device)

    def _decode_ahead(
        self, decoder: _Decoder, schedule: Iterable[Step]
    ) -> Iterator[tuple[Step, Tensor]]:
        """Yield each step with its pixels, which workers, if there are any, decode ahead."""
        loader: DataLoader[Any] = DataLoader(
            decoder,
            batch_size=None,
            sampler=schedule,
            num_workers=self.workers,
            collate_fn=_unchanged,
            generator=torch.Generator(),  # By default it would draw from the global generator.
        )
        death = ""
        try:
            for result in loader:
                if isinstance(result, UserError):
                    raise result
                step, pixels, broken = result
                decoder.files.add_broken(broken)
                yield step, pixels
        except (RuntimeError, OSError, EOFError) as error:
            # A worker died, which torch or the broken pipe reports; bad files give a UserError.
            if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
                raise
            death = reason(error)
        if death:
            # This is raised outside of the handler, because a traceback that refers to the dead
            # worker would make torch complain at exit.
            raise RunFailed(
                f"data: a process that decodes images died: {death}; "
                "type fewer --workers if the memory is short"
            )


@dataclass(frozen=True)
class ImageFiles:
    """Image files under `root` with their classes.

    Names are bytes in one array: a list of a million strings would be copied into every worker,
    page by page, as their reference counts change.
    """

    root: str
    names: NDArray[np.bytes_]
    labels: Integers
    broken: dict[int, str] = field(default_factory=dict)  # why a file did not decode

    def __len__(self) -> int:
        return len(self.names)

    def at(self, positions: Integers) -> ImageFiles:
        return ImageFiles(self.root, self.names[positions], self.labels[positions])

    def path(self, index: int) -> str:
        return os.path.join(self.root, os.fsdecode(bytes(self.names[index])))

    def same_class_from(self, index: int) -> Iterator[int]:
        """Yield this file, the later files of its class, and then the earlier ones."""
        yield index
        same = np.flatnonzero(self.labels == self.labels[index])
        yield from same[same > index].tolist()
        yield from same[same < index].tolist()

    @property
    def max_broken(self) -> int:
        return max(BROKEN_COUNT, int(BROKEN_SHARE * len(self)))

    def check_broken(self, broken: dict[int, str]) -> None:
        """Refuse more broken files than `max_broken`."""
        if len(broken) > self.max_broken:
            raise UserError(
                f"{[*broken.values()][-1]}; {len(broken)} of {len(self)} images do not decode, "
                f"at most {self.max_broken} may; remove or replace them"
            )

    def add_broken(self, broken: dict[int, str]) -> None:
        """Add broken files, and warn whenever their number has doubled."""
        before = len(self.broken)
        self.broken.update(broken)
        self.check_broken(self.broken)
        count = len(self.broken)
        if count > before and count >= 2 * before:
            names = ", ".join(self.path(index) for index in [*self.broken][:3])
            more = ", ..." if count > 3 else ""
            warnings.warn(
                f"data: {count} of {len(self)} images do not decode, and others of their class are "
                f"taken in their place: {names}{more}",
                stacklevel=2,
            )

    def fingerprint(self) -> bytes:
        """Return the names and sizes of all files, and a checksum of the contents of some."""
        paths = [self.path(index) for index in range(len(self))]
        sizes = np.array([_file_size(path) for path in paths], dtype="<i8")
        chosen = np.linspace(0, len(self) - 1, min(len(self), FINGERPRINT_FILES)).astype(int)
        check = 0
        for index in chosen.tolist():
            if sizes[index] >= 0:
                check = zlib.crc32(_first_bytes(paths[index]), check)
        return b"\0".join([*self.names.tolist(), sizes.tobytes(), check.to_bytes(4, "little")])


def _file_size(path: str) -> int:
    """Return the size, or -1 if this is not a regular file, which is an error only when decoded."""
    try:
        found = os.stat(path)
    except OSError:
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


def _first_bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(FINGERPRINT_BYTES)
    except OSError:
        return b""


# Listing


def _subfolders(folder: Path) -> list[str]:
    """Return the sorted names of the subfolders, which are those of the classes."""
    if not folder.is_dir():
        raise UserError(f"data: {folder.parent} has no folder {folder.name}/; {LAYOUT}")
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.is_dir()]
    except OSError as error:
        raise UserError(f"data: cannot list {folder}: {reason(error)}") from error
    shown = sorted(name for name in names if not name.startswith("."))
    if wrong := [name for name in shown if not name.isprintable()]:  # also invalid UTF-8
        raise UserError(
            f"data: the class {wrong[0]!r} in {folder} has no printable name; rename it"
        )
    return shown


def _class_names(folder: Path) -> tuple[str, ...]:
    """Return the classes, of which there are at least two, the same in train/ and val/."""
    train = _subfolders(folder / "train")
    if len(train) < 2:
        found = f"only the class {train[0]!r}" if train else "no folder of a class"
        raise UserError(f"data: {folder / 'train'} has {found}; at least two are needed: {LAYOUT}")
    val = _subfolders(folder / "val")
    if differing := sorted({*train} - {*val}) or sorted({*val} - {*train}):
        place = "train/" if differing[0] in train else "val/"
        some = ", ".join(differing[:3]) + (", ..." if len(differing) > 3 else "")
        raise UserError(
            f"data: {folder}: train/ and val/ need the same classes; "
            f"only in {place}: {some} ({len(differing)} in all)"
        )
    return tuple(train)


def _list_images(folder: Path, classes: tuple[str, ...]) -> ImageFiles:
    """List the images of these classes at any depth, sorted by name within each class."""
    names: list[bytes] = []
    labels: list[int] = []
    for label, class_name in enumerate(classes):
        found = sorted(
            os.path.relpath(os.path.join(place, name), folder)
            for place, _, files in os.walk(folder / class_name)
            for name in files
            if name.lower().endswith(SUFFIXES) and not name.startswith(".")
        )
        if not found:
            kinds = " ".join(SUFFIXES)
            raise UserError(f"data: {folder / class_name} has no images; allowed: {kinds}")
        names += map(os.fsencode, found)
        labels += [label] * len(found)
    return ImageFiles(str(folder), np.array(names), np.array(labels, dtype=np.int64))


# Decoding


@dataclass(frozen=True)
class _Decoder(Dataset[Any]):
    """Decodes the images of a step, in a worker; without a seed it takes the centre of each."""

    files: ImageFiles
    shape: tuple[int, int, int]
    seed: int | None = None
    scale: float = DEFAULT_SCALE

    def __getitem__(self, step: Step) -> tuple[Step, Tensor, dict[int, str]] | UserError:
        try:
            return step, *self.pixels(step)
        except UserError as error:
            return error  # If a worker raised it, the message would become a traceback.

    def pixels(self, step: Step) -> tuple[Tensor, dict[int, str]]:
        """Return uint8 [n, c, size, size], and the files that did not decode with the reasons."""
        pixels = np.empty((len(step.indices), *self.shape), dtype=np.uint8)
        boxes: list[ChooseBox] = [centre_box] * len(step.indices)
        if self.seed is not None:
            drawn = uniforms(self.seed, "crop", *step, CROP_UNIFORMS)
            boxes = [partial(random_box, uniforms=row, scale=self.scale) for row in drawn]
        broken: dict[int, str] = {}
        for place, (index, choose) in enumerate(zip(step.indices, boxes)):
            pixels[place] = self.image(int(index), choose, broken)
        return torch.from_numpy(pixels), broken

    def image(self, index: int, choose: ChooseBox, broken: dict[int, str]) -> NDArray[np.uint8]:
        """Decode a file, or the next one of its class that decodes; add the others to `broken`."""
        channels, size, _ = self.shape
        for candidate in self.files.same_class_from(index):
            try:
                return read_box(self.files.path(candidate), choose, size, channels)
            except BrokenImage as error:
                broken[candidate] = str(error)
            self.files.check_broken(broken)
        raise UserError(f"{broken[index]}; no image of its class decodes; replace them")


def _without_epoch(indices: Integers) -> Step:
    return Step(np.zeros_like(indices), indices)


def _unchanged(item: Any) -> Any:
    return item


class BrokenImage(UserError):
    """A file that can be read and does not hold an image that can be decoded."""


def read_box(path: str | Path, choose: ChooseBox, size: int, channels: int) -> NDArray[np.uint8]:
    """Read the chosen box of an image and resize it to uint8 [c, size, size]."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # Reading a pipe or a device would never end.
            raise ValueError("not a regular file")
        with Image.open(path) as image:
            box = _shrink_while_decoding(image, choose(*image.size), size)
            converted = convert_mode(image, channels)
            cut = converted.resize((size, size), Image.Resampling.BILINEAR, box)
    except Exception as error:  # A broken file can raise anything.
        # A file that is missing, or too large for the memory, may be readable another time.
        passing = isinstance(error, MemoryError) or getattr(error, "errno", None) is not None
        kind = UserError if passing else BrokenImage
        raise kind(f"data: cannot read the image {path}: {reason(error)}") from error
    return as_bytes(cut)


def _shrink_while_decoding(image: Image.Image, box: Box, size: int) -> Box:
    """Let JPEG decode at 1/2, 1/4 or 1/8 of its size, and return the box in the smaller image."""
    width, height = image.size
    across, down = size / (box[2] - box[0]), size / (box[3] - box[1])
    drafted = image.draft(None, (math.ceil(width * across), math.ceil(height * down)))
    if drafted is None:
        return box
    # The size of the decoded image is rounded up; the exact factors come from its box.
    _, (_, _, new_width, new_height) = drafted
    across, down = new_width / width, new_height / height
    return (box[0] * across, box[1] * down, box[2] * across, box[3] * down)


def convert_mode(image: Image.Image, channels: int) -> Image.Image:
    """Convert an image of any mode to grey or RGB; transparency is dropped."""
    if image.mode.startswith("I"):
        # PIL would clip 16 bits of grey at 255.
        image = Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB" if channels == 3 else "L")


def as_bytes(image: Image.Image) -> NDArray[np.uint8]:
    """Return a grey or RGB image as an array [c, h, w]."""
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def centre_box(width: int, height: int) -> Box:
    """Return the crop of evaluation: short side to 256, then 224 x 224 in the middle."""
    side = min(width, height) * CENTRE
    left, upper = (width - side) / 2, (height - side) / 2
    return (left, upper, left + side, upper + side)


def random_box(width: int, height: int, uniforms: NDArray[np.float64], scale: float) -> Box:
    """Return a crop with `scale` to 1 of the area and sides from 3:4 to 4:3; uniforms [22].

    It is the first of ten draws that fits into the image, or the middle if none does.
    """
    low, high = math.log(RATIOS[0]), math.log(RATIOS[1])
    for area, ratio in uniforms[: 2 * ATTEMPTS].reshape(ATTEMPTS, 2):
        pixels = width * height * (scale + (1 - scale) * area)
        aspect = math.exp(low + (high - low) * ratio)
        across, down = round(math.sqrt(pixels * aspect)), round(math.sqrt(pixels / aspect))
        if 0 < across <= width and 0 < down <= height:
            left = int(uniforms[-2] * (width - across + 1))
            upper = int(uniforms[-1] * (height - down + 1))
            return (left, upper, left + across, upper + down)
    return middle_box(width, height)


def middle_box(width: int, height: int) -> Box:
    """Return the largest crop in the middle with sides from 3:4 to 4:3."""
    across = min(float(width), height * RATIOS[1])
    down = min(float(height), width / RATIOS[0])
    left, upper = (width - across) / 2, (height - down) / 2
    return (left, upper, left + across, upper + down)
