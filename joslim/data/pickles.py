"""Reads pickles of numbers, bytes and numpy arrays without being able to run anything.

CIFAR is published as pickles, and a pickle is a program. This reader knows no function but the
few stand-ins below, which take apart what numpy wrote about an array and call nothing. Every other
name that a pickle asks for is refused.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joslim.data.files import one_line
from joslim.errors import UserError

ELEMENTS = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in this file; strings of Python 2 come as bytes, its keys as text."""
    try:
        with path.open("rb") as file:
            content = Reader(file, encoding="bytes").load()
    except UserError as error:
        raise UserError(f"data: {path} is refused: {error}") from error
    except Exception as error:  # A broken pickle can raise anything.
        raise UserError(f"data: {path} cannot be read: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise UserError(f"data: {path} holds {type(content).__name__}, a dictionary is needed")
    return {as_text(key): unwrapped(value) for key, value in content.items()}


def as_text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def unwrapped(value: object) -> object:
    return value.array if isinstance(value, PickledArray) else value


class Reader(pickle.Unpickler):
    """An unpickler for which only the stand-ins exist."""

    def find_class(self, module: str, name: str) -> object:
        if (module, name) in STAND_INS:
            return STAND_INS[module, name]
        raise UserError(f"it asks to run {f'{module}.{name}'!r}; data needs nothing of the kind")

    def persistent_load(self, pid: object) -> object:
        raise UserError("it refers to objects outside of itself")


# The stand-ins have no attributes that a pickle could set, and none of them is a class that it
# could make instances of in another way.


class PickledType:
    """What a pickle says about the elements of an array."""

    __slots__ = ("code",)

    def __init__(self, code: str) -> None:
        self.code = code

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = as_text(state[1])
        if order not in ("<", ">", "|", "="):
            raise ValueError(f"byte order {order!r}")
        self.code = order + self.code


class PickledArray:
    """What a pickle says about an array."""

    __slots__ = ("array",)

    array: NDArray[Any]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, elements, columns_first, content = state
        if not isinstance(elements, PickledType) or not isinstance(content, bytes):
            raise ValueError("an array of something else than whole numbers")
        # frombuffer and reshape check the length, and a copy can be written to.
        flat = np.frombuffer(content, dtype=elements.code)
        self.array = flat.reshape(shape, order="F" if columns_first else "C").copy()


class NewArray:
    """For numpy's _reconstruct: an array whose shape and content come next."""

    __slots__ = ()

    def __call__(self, *_: object) -> PickledArray:
        return PickledArray()


class NewType:
    """For numpy.dtype."""

    __slots__ = ()

    def __call__(self, code: object, *_: object) -> PickledType:
        if (name := as_text(code)) not in ELEMENTS:
            raise UserError(f"an array of {name!r}; allowed: {', '.join(ELEMENTS)}")
        return PickledType(name)


class ArrayType:
    """For numpy.ndarray, which is only ever handed to _reconstruct."""

    __slots__ = ()


class ToBytes:
    """For _codecs.encode, by which Python 3 writes bytes in old protocols."""

    __slots__ = ()

    def __call__(self, text: object, encoding: object = "latin1") -> bytes:
        if not isinstance(text, str) or as_text(encoding) not in ("latin1", "latin-1"):
            raise ValueError("bytes that are not bytes")
        return text.encode("latin1")


STAND_INS: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): NewArray(),
    ("numpy._core.multiarray", "_reconstruct"): NewArray(),
    ("numpy", "ndarray"): ArrayType(),
    ("numpy", "dtype"): NewType(),
    ("_codecs", "encode"): ToBytes(),
}
