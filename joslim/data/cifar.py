"""CIFAR-10 and CIFAR-100: 50,000 + 10,000 colour images of 32x32 pixels.

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009,
https://www.cs.toronto.edu/~kriz/cifar.html. The official files for Python are read from the data
root, unpacked or as .tar.gz, or downloaded to it.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from joslim.data.base import Data, Options
from joslim.data.download import Archive, OfficialFile, archive_member, data_root
from joslim.data.in_memory import DatasetInfo, Images, MemoryData
from joslim.errors import UserError

SITE = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True)
class Cifar:
    """The files of one of the two data sets, and the keys of labels and class names in them."""

    name: str
    archive: Archive
    train: tuple[str, ...]
    test: str
    meta: str
    label_key: str
    class_key: str
    test_count: int = 10_000


def _archive(name: str, md5: str, members: dict[str, str]) -> Archive:
    return Archive(OfficialFile(name, SITE + name, md5), members)


CIFAR10 = Cifar(
    name="cifar10",
    archive=_archive(
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
    archive=_archive(
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
    return _load(CIFAR10, options)


def load_cifar100(options: Options) -> Data:
    return _load(CIFAR100, options)


def _load(cifar: Cifar, options: Options) -> Data:
    """Load CIFAR, cropped with a padding of 4 pixels (1/8 of the side) and flipped."""
    root = data_root(options.root)
    classes = read_pickle(archive_member(cifar.archive, cifar.meta, root))[cifar.class_key]
    info = DatasetInfo(cifar.name, tuple(classes), cifar.test_count, shift=8, flip=True)
    train = _read_images(cifar, cifar.train, root)
    return MemoryData(info, train, lambda: _read_images(cifar, (cifar.test,), root), options)


def _read_images(cifar: Cifar, names: tuple[str, ...], root: Path) -> Images:
    parts = [read_pickle(archive_member(cifar.archive, name, root)) for name in names]
    pixels = np.concatenate([part["data"].reshape(-1, 3, 32, 32) for part in parts])
    return Images.from_arrays(pixels, [label for part in parts for label in part[cifar.label_key]])


def read_pickle(path: Path) -> dict[str, Any]:
    """Read an official file, a pickle of Python 2, without running anything that it may name."""
    with path.open("rb") as file:
        content: dict[str, Any] = _Unpickler(file, encoding="latin1").load()
    return content


class _Unpickler(pickle.Unpickler):
    """Allows the names that a pickled array needs. A pickle can call any other function."""

    def find_class(self, module: str, name: str) -> object:
        match module, name:
            case ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct"):
                return np.empty(0).__reduce__()[0]
            case ("numpy", "ndarray"):
                return np.ndarray
            case ("numpy", "dtype"):
                return lambda code, *_: np.dtype(code)  # numpy warns about Python 2's arguments
        raise UserError(f"data: a file asks to run {f'{module}.{name}'!r}; it is refused")
