"""Images in tar files, in the layout of WebDataset: train-000000.tar, ..., val-000000.tar, ...

A shard holds KEY.jpg with KEY.cls, the number of the class as text, or with KEY.json, whose "label"
is that number. The file system of a cluster reads a few large files faster than many small ones.

Shards are not unpacked and not streamed. An index has the place of each image in its shard, so that
shards are `ImageFiles` like any others: images are read in any order, several processes read
disjoint images, and a resume is exact. The index of a shard is written beside it once; where that
is not allowed, it is made for every run. Nothing is opened by the name of a member.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from joslim.data.augment import Integers
from joslim.data.base import Data, Options
from joslim.data.folder import SUFFIXES, FolderData, ImageFiles, Member, with_validation
from joslim.distributed import rank, world
from joslim.errors import UserError, reason
from joslim.files import (
    disk_errors,
    json_count,
    json_value,
    parse_json,
    printable,
    read_text,
    stored_tensors,
    whole,
    write_tensors,
)

LAYOUT = "train-000000.tar, ..., val-000000.tar, ... with KEY.jpg and KEY.cls are needed"
# The word in the path of a shard that says to which split it belongs.
WORDS = {"train": "train", "val": "val", "validation": "val", "test": "test"}
INDEX_SUFFIX = ".joslim-index"
INDEX_FORMAT = 1
MOST_CLASSES = 10**6
# The largest label, as a number or as JSON, and the largest list of classes, in bytes.
LABEL_LIMIT, CLASSES_LIMIT = 10**6, 10**8
# Shards that a process indexes at once; a network answers several questions as fast as one.
AT_ONCE = 8


def load(path: str, options: Options) -> Data:
    """Load the images of tar files."""
    if not path:
        raise UserError(f"data: shards: names no folder; type shards:PATH, where {LAYOUT}")
    return ShardData(Path(path).expanduser(), options)


class ShardData(FolderData):
    """Images in the tar files of a folder."""

    kind = "shards"

    def _list(
        self, folder: Path, options: Options
    ) -> tuple[tuple[str, ...], dict[str, ImageFiles], dict[str, str]]:
        paths = _find_shards(folder)
        found = {split: _join(some, _index_all(some)) for split, some in paths.items()}
        classes = _class_names(folder, found["train"])
        for files in found.values():
            if len(wrong := np.flatnonzero(files.labels >= len(classes))):
                raise UserError(
                    f"data: {files.path(wrong[0])} has the class {files.labels[wrong[0]]}; "
                    f"allowed: 0 to {len(classes) - 1}, {_classes_from(folder)}"
                )
        sources = {split: f"{len(some)} shards" for split, some in paths.items()}
        if len(found) == 3:
            return classes, {**found}, sources
        last = "test" if "test" in found else "val"
        sources["val"], sources["test"] = "taken from train", f"{sources[last]} of {last}"
        return classes, with_validation(found["train"], found[last], options.val), sources


@dataclass(frozen=True)
class ShardFiles(ImageFiles):
    """Images in shards: names, labels, and [n, 3] of shard, offset and size."""

    shards: tuple[str, ...] = ()
    places: Integers = field(default_factory=lambda: np.zeros((0, 3), dtype=np.int64))

    def at(self, positions: Integers) -> ShardFiles:
        names, labels = self.names[positions], self.labels[positions]
        return replace(self, names=names, labels=labels, places=self.places[positions], broken={})

    def place(self, index: int) -> Member:
        shard, offset, size = self.places[index].tolist()
        name = printable(os.fsdecode(bytes(self.names[index])))
        return Member(self.shards[shard], name, offset, size)

    def path(self, index: int) -> str:
        return str(self.place(index))


def _find_shards(folder: Path) -> dict[str, list[Path]]:
    """Return the shards of each split, sorted by name; there are train, and val or test."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*.tar")):
        below = path.relative_to(folder).with_suffix("").as_posix().lower()
        splits = {WORDS[word] for word in re.split("[^a-z]+", below) if word in WORDS}
        if len(splits) != 1:
            raise UserError(
                f"data: {str(path)!r}: its name has {' and '.join(sorted(splits)) or 'no split'}; "
                f"one of train, val and test is needed, as in {LAYOUT}"
            )
        found.setdefault(splits.pop(), []).append(path)
    if "train" not in found or len(found) < 2:
        there = ", ".join(f"{len(some)} of {split}" for split, some in found.items())
        raise UserError(f"data: {folder} has the shards {there or 'of no split'}; {LAYOUT}")
    return found


def _class_names(folder: Path, train: ShardFiles) -> tuple[str, ...]:
    """Return the lines of classes.txt, or else the numbers up to the largest of the labels."""
    file = folder / "classes.txt"
    names = tuple(map(str, range(int(train.labels.max()) + 1)))
    if file.is_file():
        lines = read_text(file, CLASSES_LIMIT, "data").splitlines()
        names = tuple(line.strip() for line in lines if line.strip())
    if wrong := [name for name in names if not name.isprintable()]:
        raise UserError(f"data: the class {wrong[0]!r} in {file} has no printable name; rename it")
    if len(names) < 2:
        raise UserError(f"data: {folder} has only one class; at least two are needed")
    return names


def _classes_from(folder: Path) -> str:
    named = (folder / "classes.txt").is_file()
    return "one for each line of classes.txt" if named else "since the training images have these"


# The index of a shard


@dataclass(frozen=True)
class Index:
    """The names [n] of the images of a shard, with [n, 3] of label, offset and size."""

    names: NDArray[np.bytes_]
    numbers: Integers


def _index_all(shards: Sequence[Path]) -> list[Index]:
    """Index shards. Several processes begin at different ones, and find those of the others."""
    first = len(shards) * rank() // world()
    order = [*range(first, len(shards)), *range(first)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(order, pool.map(lambda number: _index(shards[number]), order)))
    return [found[number] for number in range(len(shards))]


def _index(shard: Path) -> Index:
    """Read the index of a shard, or make it and write it beside the shard if that is allowed."""
    try:
        stat = shard.stat()
        if not shard.is_file():
            raise UserError(f"data: {str(shard)!r} is not a file")
    except OSError as error:
        raise UserError(f"data: cannot read {str(shard)!r}: {reason(error)}") from error
    file = shard.with_name(shard.name + INDEX_SUFFIX)
    stamp = torch.tensor([INDEX_FORMAT, stat.st_size, stat.st_mtime_ns])
    if (stored := _read_index(file, stamp)) is not None:
        return stored
    index = _make_index(shard)
    names = np.frombuffer(index.names.tobytes(), dtype=np.uint8).reshape(len(index.names), -1)
    tensors = {"stamp": stamp, "names": names.copy(), "numbers": index.numbers}
    try:
        with whole(file) as beside, disk_errors(file):
            write_tensors({key: torch.as_tensor(value) for key, value in tensors.items()}, beside)
    except OSError:
        pass  # a data set that may only be read
    return index


def _read_index(file: Path, stamp: Tensor) -> Index | None:
    """Return a stored index if it is of this shard and every image lies within the shard."""
    try:
        stored = stored_tensors(file)
        numbers, names = stored["numbers"].numpy(), stored["names"].numpy()
        labels, offsets, sizes = numbers.T
        if not torch.equal(stored["stamp"], stamp):
            return None
        right = names.dtype == np.uint8 and numbers.dtype == np.int64 and names.ndim == 2
        if not right or not 0 < len(names) == len(numbers) or not names.shape[1]:
            return None
        if (numbers < 0).any() or (labels >= MOST_CLASSES).any():
            return None
        if (offsets > int(stamp[1]) - sizes).any():
            return None
        return Index(np.ascontiguousarray(names).view(f"S{names.shape[1]}")[:, 0], numbers)
    except (OSError, SafetensorError, KeyError, ValueError, TypeError):
        return None


def _make_index(shard: Path) -> Index:
    """Find the images of a shard and their classes."""
    images: dict[str, tarfile.TarInfo] = {}
    descriptions: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, int] = {}
    try:
        with shard.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                key, suffix = _parts(member.name)
                if not member.isreg() or member.issparse():
                    continue
                if suffix in SUFFIXES:
                    if key in images:
                        raise UserError(f"data: {printable(key)} in {shard} has two images")
                    images[key] = member
                elif suffix == ".cls":
                    labels[key] = _label(tar, member, shard)
                elif suffix == ".json":
                    descriptions[key] = member
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise ValueError("it is cut off or damaged")
            for key in descriptions.keys() & images.keys() - labels.keys():
                labels[key] = _label(tar, descriptions[key], shard)
    except UserError:
        raise
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        why = reason(error)
        raise UserError(
            f"data: cannot read {str(shard)!r} as an uncompressed tar: {why}"
        ) from error
    for key in images.keys() ^ labels.keys():
        lacks = "class; KEY.cls or KEY.json" if key in images else "image; KEY.jpg"
        raise UserError(f"data: {printable(key)} in {shard} has no {lacks} is needed beside it")
    if not images:
        raise UserError(f"data: {str(shard)!r} has no images; {LAYOUT}")
    names = np.array([os.fsencode(member.name) for member in images.values()])
    numbers = [(labels[key], found.offset_data, found.size) for key, found in images.items()]
    return Index(names, np.array(numbers, dtype=np.int64))


def _parts(name: str) -> tuple[str, str]:
    """a/b.c.jpg -> a/b, .c.jpg: a key ends at the first dot after the last slash."""
    folder, slash, file = name.rpartition("/")
    stem, dot, suffix = file.partition(".")
    return folder + slash + stem, (dot + suffix).lower()


def _label(tar: tarfile.TarFile, member: tarfile.TarInfo, shard: Path) -> int:
    """Read a class: a number as text, or a JSON object that has it as "label"."""
    where = f"data: {printable(member.name)} in {shard}"
    stream = tar.extractfile(member)
    content = stream.read(LABEL_LIMIT + 1) if stream is not None else b""
    if len(content) > LABEL_LIMIT:
        raise UserError(f"{where} is larger than {LABEL_LIMIT} bytes")
    text = content.decode("utf-8", "replace").strip()
    if member.name.endswith(".json"):
        value = json_value(parse_json(text, where), "label", where)
    else:
        value = int(text) if re.fullmatch("[0-9]{1,9}", text) else text
    return json_count(value, where, 0, MOST_CLASSES - 1)


def _join(shards: Sequence[Path], indices: Sequence[Index]) -> ShardFiles:
    """Join the indices of the shards of a split."""
    numbers = np.concatenate([index.numbers for index in indices])
    shard = np.repeat(np.arange(len(shards)), [len(index.names) for index in indices])
    places = np.column_stack([shard, numbers[:, 1:]])
    names = np.concatenate([index.names for index in indices])
    root = str(shards[0].parent)
    return ShardFiles(root, names, numbers[:, 0], {}, tuple(map(str, shards)), places)
