"""A folder of images: train/CLASS/..., val/CLASS/... and test/CLASS/... under PATH.

Without test/, the images of val/ are the test split, and validation images are taken from train/. A
folder of classes alone is divided by the option `split`.

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
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

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
    flip_and_clip_colour,
    flip_and_colour,
    largest,
    normalise,
    sent,
    uniforms,
)
from joslim.data.base import Batch, Data, Options, carve, carve_three
from joslim.data.in_memory import channel_moments
from joslim.distributed import all_of, rank, world
from joslim.errors import RunFailed, UserError, reason

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
LAYOUT = "train/CLASS/*.jpg and val/CLASS/*.jpg are needed"
# The default size is that of the images, and at most this.
LARGEST_DEFAULT_SIZE = 224
RESAMPLING = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "nearest": Image.Resampling.NEAREST,
    "lanczos": Image.Resampling.LANCZOS,
}
# PIL's modes of images with 1 to 4 channels.
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}

# Recipes for fewer training images than these. More images of at least so many pixels are trained
# as ImageNet is.
RECIPES = {1_000: "small-data", 20_000: "medium-data"}
IMAGENET_IMAGES, IMAGENET_SIZE = 200_000, 128

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
# The mean and the deviation of other images than ordinary ones are those of this many.
MOMENTS_FILES = 256

# Shards that a process keeps open; a cluster's file system is slow at opening files.
OPEN_SHARDS = 256

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
    """A folder of images. `scale` is the least share of the area that a random crop keeps.

    `clip_colours` says how colours are jittered: by `flip_and_clip_colour`.
    `deep` says that the images have 16 bits: those of the data set follow its first image.
    """

    kind = "folder"
    scale: float = DEFAULT_SCALE
    clip_colours: bool = False
    interpolation: str = "bilinear"
    _kept: tuple[tuple[str, bytes], Tensor] | None = None

    def __init__(self, folder: Path, options: Options) -> None:
        if not folder.is_dir():
            raise UserError(f"data: there is no folder {str(folder)!r}; type {self.kind}:PATH")
        self.folder, self.name = folder, f"{self.kind}:{folder}"
        self.device = torch.device(options.device)
        self.workers = options.workers
        if options.channels not in MODES:
            raise UserError(
                f"channels: {options.channels}; files have 1 to 4; give data sets from Python"
            )
        self.classes, self.files, self.sources = self._list(folder, options)
        size = options.size or _usual_size(self.files["train"])
        self.shape = self._shape(options, size)
        self.sizes = {split: len(files) for split, files in self.files.items()}
        self.recipe = recipe_for(self.sizes["train"], size)
        self.deep = _has_16_bits(self.files["train"].place(0))
        self.mean, self.std = MEAN, STD
        if self.deep or options.channels in (2, 4):
            self.mean, self.std = self._moments()
        elif options.channels == 1:
            self.mean, self.std = (
                (sum(weight * value for weight, value in zip(LUMA, values)),)
                for values in (MEAN, STD)
            )

    def _list(
        self, folder: Path, options: Options
    ) -> tuple[tuple[str, ...], dict[str, ImageFiles], dict[str, str]]:
        return _list_splits(folder, options)

    def _shape(self, options: Options, size: int) -> tuple[int, ...]:
        return (options.channels, size, size)

    def _decoder(self, split: str, seed: int | None = None) -> _Decoder:
        kind = self.interpolation
        return _Decoder(self.files[split], self.shape, self.deep, seed, self.scale, kind)

    def _moments(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the mean and the deviation of each channel of some training images."""
        count = self.sizes["train"]
        chosen = np.linspace(0, count - 1, min(count, MOMENTS_FILES)).astype(np.int64)
        pixels = self._plain_pixels("train", _without_epoch(chosen))
        scaled = pixels if pixels.dtype == torch.uint8 else pixels / largest(pixels)
        mean, std = zip(*map(channel_moments, scaled.unbind(1)))
        return mean, std

    def labels(self, split: str) -> Integers:
        self.check_split(split)
        return self.files[split].labels

    def content(self) -> bytes:
        parts = [self.files[split].fingerprint() for split in ("train", "val")]
        return b"".join(parts) + super().content()

    def plain(self, split: str, indices: ArrayLike) -> Batch:
        self.check_split(split)
        step = _without_epoch(np.asarray(indices, dtype=np.int64).reshape(-1))
        return self._normalised(split, step, self._plain_pixels(split, step))

    def plain_together(self, split: str, indices: Integers) -> Batch:
        """Decode a share of the batch on each process. The last batch is kept, as bytes.

        A round scores children several times on the same images.
        """
        key = (split, indices.tobytes())
        if self._kept is None or self._kept[0] != key:
            share = _without_epoch(np.array_split(indices, world())[rank()])
            mine: Tensor | UserError
            try:
                mine = self._plain_pixels(split, share)
            except UserError as error:
                mine = error  # All processes raise it.
            parts = all_of(mine)
            for part in parts:
                if isinstance(part, UserError):
                    raise part
            self._kept = key, torch.cat([part for part in parts if isinstance(part, Tensor)])
        return self._normalised(split, _without_epoch(indices), self._kept[1])

    def _plain_pixels(self, split: str, step: Step) -> Tensor:
        pixels, broken = self._decoder(split).pixels(step)
        self.files[split].add_broken(broken)
        return pixels

    def plain_batches(self, split: str, batches: Sequence[Integers]) -> Iterator[Batch]:
        self.check_split(split)
        decoder = self._decoder(split)
        for step, pixels in self._decode_ahead(decoder, map(_without_epoch, batches)):
            yield self._normalised(split, step, pixels)

    def augmented(self, seed: int, schedule: Iterator[Step]) -> Iterator[Batch]:
        labels = self.labels("train")
        decoder = self._decoder("train", seed)
        for step, pixels in self._decode_ahead(decoder, schedule):
            drawn = uniforms(seed, "colour", *step, FLIP_AND_COLOUR_UNIFORMS)
            augment = flip_and_clip_colour if self.clip_colours else flip_and_colour
            x = augment(sent(pixels, self.device), drawn, self.mean, self.std)
            yield x, sent(labels[step.indices], self.device)

    def _normalised(self, split: str, step: Step, pixels: Tensor) -> Batch:
        labels = sent(self.files[split].labels[step.indices], self.device)
        return normalise(sent(pixels, self.device), self.mean, self.std), labels

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


class Member(NamedTuple):
    """The place of an image in a shard, an uncompressed tar file: a range of its bytes."""

    shard: str
    name: str
    offset: int
    size: int

    def __str__(self) -> str:
        return f"{self.name} in {self.shard}"

    def read(self, most: int | None = None) -> bytes:
        size = self.size if most is None else min(self.size, most)
        # Workers share open files with the process that started them, but pread has no position.
        content = os.pread(_open_shard(self.shard).fileno(), size, self.offset)
        if len(content) < size:
            raise ValueError("the shard has changed since it was indexed")
        return content


@lru_cache(maxsize=OPEN_SHARDS)
def _open_shard(path: str) -> BinaryIO:
    return open(path, "rb")  # It is closed when the cache drops it.


# The path of an image, or its place in a shard.
Place = str | Path | Member


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

    def place(self, index: int) -> Place:
        """Return where the image is read; `path` names it in messages."""
        return self.path(index)

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
        places = [self.place(index) for index in range(len(self))]
        sizes = np.array([_file_size(place) for place in places], dtype="<i8")
        chosen = np.linspace(0, len(self) - 1, min(len(self), FINGERPRINT_FILES)).astype(int)
        check = 0
        for index in chosen.tolist():
            if sizes[index] >= 0:
                check = zlib.crc32(_first_bytes(places[index]), check)
        return b"\0".join([*self.names.tolist(), sizes.tobytes(), check.to_bytes(4, "little")])


def _file_size(place: Place) -> int:
    """Return the size, or -1 if this is not a regular file, which is an error only when decoded."""
    if isinstance(place, Member):
        return place.size
    try:
        found = os.stat(place)
    except OSError:
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


def _first_bytes(place: Place) -> bytes:
    try:
        if isinstance(place, Member):
            return place.read(FINGERPRINT_BYTES)
        with open(place, "rb") as file:
            return file.read(FINGERPRINT_BYTES)
    except (OSError, ValueError):
        return b""


# Listing


def recipe_for(images: int, size: int) -> str:
    """Return the name of the recipe for so many training images of this side in pixels."""
    if images >= IMAGENET_IMAGES and size >= IMAGENET_SIZE:
        return "imagenet"
    return next((name for limit, name in RECIPES.items() if images < limit), "large-data")


def _list_splits(
    folder: Path, options: Options
) -> tuple[tuple[str, ...], dict[str, ImageFiles], dict[str, str]]:
    """Return the classes, and the files of each split with their sources in words."""
    if options.split is not None:
        if (folder / "train").is_dir():
            raise UserError(f"split: {folder} has a folder train/ already; leave out --split")
        classes = _class_names([folder])
        images = _list_images(folder, classes)
        parts = zip(("train", "val", "test"), carve_three(images.labels, options.split))
        files = {split: images.at(positions) for split, positions in parts}
        return classes, files, {"test": f"split {options.split}"}
    train, val, test = (folder / split for split in ("train", "val", "test"))
    if train.is_dir() and {*_subfolders(train)} == {"images", "masks"}:
        raise UserError(f"data: {train} has images/ and masks/, type --task segmentation")
    if not train.is_dir() and len(_subfolders(folder)) > 1 and not val.is_dir():
        raise UserError(
            f"data: {folder} has no folder train/; {LAYOUT}, or --split 0.8/0.1/0.1 to divide "
            "folders of classes into training, validation and test images"
        )
    # The test images of ImageNet have no labels, and are not in folders of classes.
    labelled = test.is_dir() and bool(_subfolders(test))
    if labelled and val.is_dir():
        classes = _class_names([train, val, test])
        places = {"train": train, "val": val, "test": test}
        files = {split: _list_images(place, classes) for split, place in places.items()}
        return classes, files, {split: f"{split}/" for split in files}
    last = test if labelled else val
    classes = _class_names([train, last])
    images = _list_images(train, classes)
    files = with_validation(images, _list_images(last, classes), options.val)
    sources = {"train": "train/", "val": "taken from train/", "test": "test/"}
    if not labelled:
        why = "test/ has no folders of classes" if test.is_dir() else "there is no test/"
        sources["test"] = f"val/, since {why}"
    return classes, files, sources


def with_validation(train: ImageFiles, test: ImageFiles, val: float) -> dict[str, ImageFiles]:
    """Take validation images from the training images."""
    kept, held_out = carve(train.labels, val)
    return {"train": train.at(kept), "val": train.at(held_out), "test": test}


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


def _class_names(folders: list[Path]) -> tuple[str, ...]:
    """Return the classes, of which there are at least two, the same in all folders."""
    first, *others = folders
    names = _subfolders(first)
    if len(names) < 2:
        found = f"only the class {names[0]!r}" if names else "no folder of a class"
        raise UserError(f"data: {first} has {found}; at least two are needed: {LAYOUT}")
    for other in others:
        there = _subfolders(other)
        if differing := sorted({*names} - {*there}) or sorted({*there} - {*names}):
            place = first.name if differing[0] in names else other.name
            some = ", ".join(differing[:3]) + (", ..." if len(differing) > 3 else "")
            raise UserError(
                f"data: {first.parent}: {first.name}/ and {other.name}/ need the same classes; "
                f"only in {place}/: {some} ({len(differing)} in all)"
            )
    return tuple(names)


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
    shape: tuple[int, ...]
    deep: bool = False
    seed: int | None = None
    scale: float = DEFAULT_SCALE
    interpolation: str = "bilinear"

    def __getitem__(self, step: Step) -> tuple[Step, Tensor, dict[int, str]] | UserError:
        try:
            return step, *self.pixels(step)
        except UserError as error:
            return error  # If a worker raised it, the message would become a traceback.

    def pixels(self, step: Step) -> tuple[Tensor, dict[int, str]]:
        """Return [n, c, size, size], and the files that did not decode with the reasons.

        The pixels are uint8, or int32 from 0 to 65535 if they are `deep`.
        """
        kind = np.int32 if self.deep else np.uint8
        pixels = np.empty((len(step.indices), *self.shape), dtype=kind)
        boxes: list[ChooseBox] = [centre_box] * len(step.indices)
        if self.seed is not None:
            drawn = uniforms(self.seed, "crop", *step, CROP_UNIFORMS)
            boxes = [partial(random_box, uniforms=row, scale=self.scale) for row in drawn]
        broken: dict[int, str] = {}
        for place, (index, choose) in enumerate(zip(step.indices, boxes)):
            pixels[place] = self.image(int(index), choose, broken)
        return torch.from_numpy(pixels), broken

    def image(self, index: int, choose: ChooseBox, broken: dict[int, str]) -> NDArray[Any]:
        """Decode a file, or the next one of its class that decodes; add the others to `broken`."""
        channels, size, _ = self.shape
        for candidate in self.files.same_class_from(index):
            try:
                place, kind = self.files.place(candidate), self.interpolation
                draft = self.seed is not None  # Evaluation sees every pixel.
                return read_box(place, choose, size, channels, self.deep, kind, draft)
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


def _open_image(place: Place) -> Image.Image:
    if isinstance(place, Member):
        return Image.open(BytesIO(place.read()))
    if not stat.S_ISREG(os.stat(place).st_mode):  # Reading a pipe or a device would never end.
        raise ValueError("not a regular file")
    return Image.open(place)


def _has_16_bits(place: Place) -> bool:
    try:
        with _open_image(place) as image:
            return image.mode.startswith("I")
    except Exception:  # it is replaced by another of its class, or named, when it is decoded
        return False


def _usual_size(files: ImageFiles) -> int:
    """Return the median short side of some images, so that small ones are not blown up."""
    sides = []
    for index in np.linspace(0, len(files) - 1, min(len(files), 64)).astype(np.int64):
        try:
            with _open_image(files.place(index)) as image:
                sides.append(min(image.size))
        except Exception:  # as above
            continue
    return min(LARGEST_DEFAULT_SIZE, int(np.median(sides))) if sides else LARGEST_DEFAULT_SIZE


def read_box(
    place: Place,
    choose: ChooseBox,
    size: int,
    channels: int,
    deep: bool = False,
    interpolation: str = "bilinear",
    draft: bool = False,
) -> NDArray[Any]:
    """Read the chosen box of an image and resize it to [c, size, size].

    The pixels are uint8, or int32 from 0 to 65535 if they are `deep`; grey of 16 bits has c = 1.
    With `draft`, a large JPEG is decoded at a fraction of its size; pixels differ by about 1%.
    """
    try:
        with _open_image(place) as image:
            box = choose(*image.size)
            if draft:
                box = _shrink_while_decoding(image, box, size)
            bands = deep_bands(image, channels) if deep else bands_of(image, channels)
            cut = [band.resize((size, size), RESAMPLING[interpolation], box) for band in bands]
    except Exception as error:  # A broken file can raise anything.
        # A file that is missing, or too large for the memory, may be readable another time.
        passing = isinstance(error, MemoryError) or getattr(error, "errno", None) is not None
        kind = UserError if passing else BrokenImage
        raise kind(f"data: cannot read the image {place}: {reason(error)}") from error
    arrays = [as_array(band) for band in cut]
    pixels = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return np.rint(pixels).astype(np.int32) if deep else pixels


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


def bands_of(image: Image.Image, channels: int) -> list[Image.Image]:
    """Return the image as grey or RGB, or each of its 2 or 4 channels by itself.

    PIL would weight the others by the last channel, which it takes for transparency, in a resize.
    """
    converted = convert_mode(image, channels)
    return [converted] if channels in (1, 3) else list(converted.split())


def deep_bands(image: Image.Image, channels: int) -> list[Image.Image]:
    """Return the channels as floats from 0 to 65535; grey of 16 bits is one channel."""
    if image.mode.startswith("I") and channels in (1, 3):
        return [Image.fromarray(np.asarray(image).clip(0, 65535).astype(np.float32))]
    bands = convert_mode(image, channels).split()
    return [Image.fromarray(np.asarray(band).astype(np.float32) * 257) for band in bands]


def convert_mode(image: Image.Image, channels: int) -> Image.Image:
    """Convert an image of any mode to one with 1 to 4 channels of bytes.

    Grey and RGB drop transparency. An image with 2 or 4 channels must have them all.
    """
    if image.mode == "F":
        raise ValueError("its pixels are floats; save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        # PIL would clip 16 bits of grey at 255.
        image = Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    if channels in (1, 3):
        # PIL would copy an image that has the mode already.
        return image if image.mode == MODES[channels] else image.convert(MODES[channels])
    if len(image.getbands()) != channels:
        raise ValueError(f"its channels are {', '.join(image.getbands())}; {channels} are needed")
    return image


def as_array(image: Image.Image) -> NDArray[Any]:
    """Return an image as an array [c, h, w], which may be a view with another order in memory."""
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


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
