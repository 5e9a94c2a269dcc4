"""CIFAR-10 and CIFAR-100: 50,000 + 10,000 colour images of 32x32 pixels.

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009,
https://www.cs.toronto.edu/~kriz/cifar.html. The official files for Python lie under the data root,
as folder or as .tar.gz, or are fetched from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joslim.data.base import Data, Options
from joslim.data.files import Archive, OfficialFile, data_root, member
from joslim.data.memory import Facts, Images, MemoryData, from_arrays
from joslim.data.pickles import as_text, read_pickle
from joslim.errors import UserError

SITE = "https://www.cs.toronto.edu/~kriz/"
SHAPE = (3, 32, 32)


@dataclass(frozen=True)
class Cifar:
    """Where the parts of one of the two sets stand, in which files and under which keys."""

    name: str
    archive: Archive
    train: tuple[str, ...]
    test: str
    meta: str
    label_key: str
    class_key: str
    test_count: int = 10_000


def archive(name: str, md5: str, members: dict[str, str]) -> Archive:
    return Archive(OfficialFile(name, SITE + name, md5), members)


CIFAR10 = Cifar(
    name="cifar10",
    archive=archive(
        "cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        {
            "cifar-10-batches-py/data_batch_1": "c99cafc152244af753f735de768cd75f",
            "cifar-10-batches-py/data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "cifar-10-batches-py/data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "cifar-10-batches-py/data_batch_4": "634d18415352ddfa80567beed471001a",
            "cifar-10-batches-py/data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "cifar-10-batches-py/test_batch": "40351d587109b95175f43aff81a1287e",
            "cifar-10-batches-py/batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        },
    ),
    train=tuple(f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)),
    test="cifar-10-batches-py/test_batch",
    meta="cifar-10-batches-py/batches.meta",
    label_key="labels",
    class_key="label_names",
)

CIFAR100 = Cifar(
    name="cifar100",
    archive=archive(
        "cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        {
            "cifar-100-python/train": "16019d7e3df5f24257cddd939b257f8d",
            "cifar-100-python/test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            "cifar-100-python/meta": "7973b15100ade9c7d40fb424638fde48",
        },
    ),
    train=("cifar-100-python/train",),
    test="cifar-100-python/test",
    meta="cifar-100-python/meta",
    label_key="fine_labels",
    class_key="fine_label_names",
)


def load_cifar10(options: Options) -> Data:
    return load(CIFAR10, options)


def load_cifar100(options: Options) -> Data:
    return load(CIFAR100, options)


def load(cifar: Cifar, options: Options) -> Data:
    """The crop has a padding of 4 pixels (1/8 of the side at other sizes), and flips."""
    root = data_root(options.root)
    facts = Facts(cifar.name, classes(cifar, root), cifar.test_count, shift=8, flip=True)
    train = images(cifar, cifar.train, root)
    return MemoryData(facts, train, lambda: images(cifar, (cifar.test,), root), options)


def classes(cifar: Cifar, root: Path) -> tuple[str, ...]:
    path = member(cifar.archive, cifar.meta, root)
    return tuple(as_text(name) for name in field(read_pickle(path), cifar.class_key, path))


def images(cifar: Cifar, names: tuple[str, ...], root: Path) -> Images:
    parts = [pixels_and_labels(member(cifar.archive, name, root), cifar) for name in names]
    pixels = parts[0][0] if len(parts) == 1 else np.concatenate([part for part, _ in parts])
    return from_arrays(pixels, np.concatenate([labels for _, labels in parts]))


def pixels_and_labels(path: Path, cifar: Cifar) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    content = read_pickle(path)
    rows, labels = field(content, "data", path), field(content, cifar.label_key, path)
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.ndim != 2:
        raise UserError(f"data: {path}: data is not an array of bytes")
    if rows.shape[1] != np.prod(SHAPE) or len(rows) != len(labels):
        raise UserError(f"data: {path}: {rows.shape} pixels do not fit {len(labels)} labels")
    if not all(isinstance(label, int) for label in labels):
        raise UserError(f"data: {path}: labels are not whole numbers")
    return rows.reshape(-1, *SHAPE), np.array(labels, dtype=np.int64)


def field(content: dict[str, Any], key: str, path: Path) -> Any:
    if key not in content:
        raise UserError(f"data: {path} has no {key!r}; it has: {', '.join(content)}")
    return content[key]
