"""CIFAR-10 and CIFAR-100: 50,000 + 10,000 colour images of 32x32 pixels.

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009,
https://www.cs.toronto.edu/~kriz/cifar.html. The official files for Python are read from the data
root, unpacked or as .tar.gz, or downloaded to it.
"""

from __future__ import annotations

import codecs
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joslim.data.base import Data, Options
from joslim.data.download import Archive, OfficialFile, archive_member, data_root, one_line
from joslim.data.in_memory import DatasetInfo, Images, MemoryData
from joslim.errors import UserError

SITE = "https://www.cs.toronto.edu/~kriz/"
SHAPE = (3, 32, 32)


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
    path = archive_member(cifar.archive, cifar.meta, root)
    classes = tuple(_text(name) for name in _field(read_pickle(path), cifar.class_key, path))
    info = DatasetInfo(cifar.name, classes, cifar.test_count, shift=8, flip=True)
    train = _read_images(cifar, cifar.train, root)
    return MemoryData(info, train, lambda: _read_images(cifar, (cifar.test,), root), options)


def _read_images(cifar: Cifar, names: tuple[str, ...], root: Path) -> Images:
    pixels, labels = [], []
    for name in names:
        path = archive_member(cifar.archive, name, root)
        content = read_pickle(path)
        rows, numbers = _field(content, "data", path), _field(content, cifar.label_key, path)
        if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.ndim != 2:
            raise UserError(f"data: {path}: data is not an array of bytes")
        if rows.shape[1] != np.prod(SHAPE) or len(rows) != len(numbers):
            raise UserError(f"data: {path}: {rows.shape} pixels do not fit {len(numbers)} labels")
        if not all(isinstance(number, int) for number in numbers):
            raise UserError(f"data: {path}: labels are not whole numbers")
        pixels.append(rows.reshape(-1, *SHAPE))
        labels += numbers
    return Images.from_arrays(np.concatenate(pixels), labels)


def _field(content: dict[str, Any], key: str, path: Path) -> Any:
    if key not in content:
        raise UserError(f"data: {path} has no {key!r}; it has: {', '.join(content)}")
    return content[key]


# The official files are pickles, and a pickle can call any function by its name. This reader allows
# only the names below, and replaces numpy's functions: numpy trusts the state of an array in a
# pickle, and a damaged one crashes the interpreter.


def read_pickle(path: Path) -> dict[str, Any]:
    """Read a dictionary of numbers, bytes and integer arrays; its keys become text."""
    try:
        with path.open("rb") as file:
            content = _Unpickler(file, encoding="bytes").load()
    except UserError as error:
        raise UserError(f"data: {path} is refused: {error}") from error
    except Exception as error:  # A broken pickle can raise anything.
        raise UserError(f"data: {path} cannot be read: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise UserError(f"data: {path} holds {type(content).__name__}, a dictionary is needed")
    return {
        _text(key): value.array if isinstance(value, _PickledArray) else value
        for key, value in content.items()
    }


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        # A pickle can set attributes of the results. The lambdas are new each time, so that this
        # does not reach another pickle, and the built-in function does not allow it.
        match module, name:
            case ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct"):
                return lambda *_: _PickledArray()
            case ("numpy", "ndarray"):
                return lambda *_: None  # only passed to _reconstruct
            case ("numpy", "dtype"):
                return lambda code, *_: _PickledDtype(code)
            case ("_codecs", "encode"):
                return codecs.encode  # Python 3 writes bytes in old protocols by this.
        raise UserError(f"it asks to run {f'{module}.{name}'!r}; data needs nothing of the kind")


class _PickledDtype:
    """The integer type of an array in a pickle; its state has the byte order."""

    def __init__(self, code: object) -> None:
        self.code = _text(code)
        if self.code[:1] not in ("u", "i") or self.code[1:] not in ("1", "2", "4", "8"):
            raise UserError(f"an array of {self.code!r}; only arrays of whole numbers are allowed")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if (order := _text(state[1])) not in ("<", ">", "|", "="):
            raise ValueError(f"byte order {order!r}")
        self.code = order + self.code


class _PickledArray:
    """An array in a pickle, built from its state."""

    array: NDArray[Any]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran_order, content = state
        # frombuffer and reshape check the length, and the copy is writable.
        flat = np.frombuffer(content, dtype=dtype.code)
        self.array = flat.reshape(shape, order="F" if fortran_order else "C").copy()


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
