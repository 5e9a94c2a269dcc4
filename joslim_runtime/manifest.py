"""The manifest of a bundle: inputs, classes, tensors and children, each value checked."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# It goes up when older versions of this package cannot read a bundle. Format 2 has weights of 8
# bits, format 3 children that take images of other sizes; a bundle has the lowest that will do.
FORMAT, FORMAT_INT8, FORMAT_SIZES = 1, 2, 3
CHILDREN_LIMIT = 10_000
ROWS_LIMIT = 10**6
AXES_LIMIT = 8
SIZE_LIMIT = 10**9
VALUES_LIMIT = 2**40
NUMBER_LIMIT = 1e18
NAME_LIMIT = 1000

# The (start, stop) ranges of an axis that a child keeps, in order.
Ranges = tuple[tuple[int, int], ...]


class BundleError(ValueError):
    """A bundle that cannot be read, or a request that it cannot meet. The message is one line."""


@dataclass(frozen=True)
class Child:
    """One size of the network (a subnet).

    Attributes:
        name: Name of the child, such as "child-03".
        costs: Cost by name: "macs", "params", "memory", and "latency_ms" where it was measured.
        train_loss: Loss on training images, by which `Network.use` chooses.
        val_error: Validation error in percent, or None.
        test_error: Test error in percent, or None.
        channels: Number of channels of each slimmable dimension, in the order of `Network.dims`.
        shape: Channels, height and width of the images that it takes.
    """

    name: str
    costs: dict[str, float]
    train_loss: float
    val_error: float | None
    test_error: float | None
    channels: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """A tensor among the shared values: the position of its first value, and its shape.

    With `scale`, the values are 8-bit integers, and scale has a factor for each first index.
    """

    offset: int
    shape: tuple[int, ...]
    scale: Tensor | None = None


@dataclass(frozen=True)
class Weight:
    """A weight of one child: kept ranges of a tensor, times a factor for each first index."""

    name: str
    of: Tensor
    keep: tuple[Ranges, ...]
    times: Tensor | None


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json.

    Attributes:
        count: Number of all float32 values.
        integers: Number of all 8-bit values.
        files: Size and checksum of each entry of the bundle.
        input: Name of the input in the graphs.
        output: Name of the output in the graphs.
        shape: Channels, height and width of an image, for the largest children.
        mean: Mean of each channel, for pixels from 0 to 1.
        std: Standard deviation of each channel.
        crop: Share of the short side of an image that `Network.classify` keeps.
        classes: Names of the classes.
        dims: Name and full number of channels of each slimmable dimension.
        children: The children, from the cheapest to the dearest.
        parts: The graph and the weights of each child, by the name of the child.
    """

    count: int
    integers: int
    files: dict[str, tuple[int, str]]
    input: str
    output: str
    shape: tuple[int, ...]
    mean: NDArray[np.float32]
    std: NDArray[np.float32]
    crop: float
    classes: tuple[str, ...]
    dims: tuple[tuple[str, int], ...]
    children: tuple[Child, ...]
    parts: dict[str, tuple[str, list[Weight]]]


class Field:
    """A value of the manifest with its place in it, for messages."""

    def __init__(self, value: Any, where: str) -> None:
        self.value, self.where = value, where

    def wrong(self, needed: str) -> BundleError:
        value = self.value
        huge = isinstance(value, int) and not -NUMBER_LIMIT < value < NUMBER_LIMIT
        text = "a large number" if huge else ascii(value)
        text = text if len(text) <= 40 else f"{text[:37]}..."
        return BundleError(f"{self.where}: {text} given, {needed} needed")

    def __getitem__(self, key: str) -> Field:
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        if key not in self.value:
            raise BundleError(f"{self.where}.{key}: missing")
        return Field(self.value[key], f"{self.where}.{key}")

    def get(self, key: str) -> Field | None:
        """The value of a key, or None if it is absent or null."""
        known = isinstance(self.value, dict) and self.value.get(key) is not None
        return self[key] if known else None

    def items(self, most: int = ROWS_LIMIT) -> dict[str, Field]:
        if not isinstance(self.value, dict) or len(self.value) > most:
            raise self.wrong(f"an object of at most {most} entries")
        return {Field(key, self.where).text(): self[key] for key in self.value}

    def rows(self, most: int = ROWS_LIMIT) -> list[Field]:
        if not isinstance(self.value, list) or len(self.value) > most:
            raise self.wrong(f"a list of at most {most} entries")
        return [Field(value, f"{self.where}[{at}]") for at, value in enumerate(self.value)]

    def whole(self, most: int = SIZE_LIMIT) -> int:
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise self.wrong(f"a whole number from 0 to {most}")
        return value

    def number(self) -> float:
        value = self.value
        known = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not known or not -NUMBER_LIMIT <= value <= NUMBER_LIMIT:
            raise self.wrong("a finite number")
        return value

    def text(self) -> str:
        if not isinstance(self.value, str) or len(self.value) > NAME_LIMIT:
            raise self.wrong("a name")
        return self.value


def read_manifest(content: bytes) -> Manifest:
    """Read manifest.json.

    Raises:
        BundleError: The format is newer, or a value is missing or wrong.
    """
    try:
        record = Field(json.loads(content), "manifest.json")
    except (ValueError, RecursionError) as error:
        raise BundleError(f"manifest.json: broken JSON: {error}") from error
    version = record["format"].whole()
    if not FORMAT <= version <= FORMAT_SIZES:
        raise BundleError(
            f"it has format {version}, this joslim_runtime reads {FORMAT} to {FORMAT_SIZES}; "
            "type pip install -U joslim-runtime, or export it again"
        )
    count = record["values"].whole(VALUES_LIMIT)
    stored = record.get("integers") if version > FORMAT else None
    integers = 0 if stored is None else stored.whole(VALUES_LIMIT)
    shape = read_shape(record["shape"])
    mean, std = (
        np.array([value.number() for value in record[key].rows()], np.float32)
        for key in ("mean", "std")
    )
    if not len(mean) == len(std) == shape[0] or not (std > 0).all():
        raise record["std"].wrong(f"{shape[0]} means and {shape[0]} positive deviations")
    crop = record["crop"].number()
    if not 0 < crop <= 1:
        raise record["crop"].wrong("a number above 0 and up to 1")
    tensors: list[Tensor] = []
    for row in record["tensors"].rows():
        tensors.append(read_tensor(row, count, integers, tensors))
    dims = tuple((d["name"].text(), d["full"].whole()) for d in record["dims"].rows())
    rows = record["children"].rows(CHILDREN_LIMIT)
    if not rows:
        raise BundleError("it has no children; export it again")
    children = tuple(read_child(row, len(dims), shape) for row in rows)
    parts = {
        child.name: (row["graph"].text(), [read_weight(w, tensors) for w in row["weights"].rows()])
        for child, row in zip(children, rows)
    }
    if len(parts) != len(children):
        raise BundleError("manifest.json.children: two have the same name")
    files = {
        name: (file["bytes"].whole(VALUES_LIMIT), file["sha256"].text())
        for name, file in record["files"].items().items()
    }
    return Manifest(
        count,
        integers,
        files,
        record["input"].text(),
        record["output"].text(),
        shape,
        mean,
        std,
        crop,
        tuple(name.text() for name in record["classes"].rows()),
        dims,
        children,
        parts,
    )


def read_tensor(row: Field, count: int, integers: int, known: list[Tensor]) -> Tensor:
    """Read a tensor; one of 8 bits has its scales in a tensor before it."""
    scale = row.get("scale")
    count = count if scale is None else integers
    offset = row["offset"].whole(count)
    shape = tuple(size.whole() for size in row["shape"].rows(AXES_LIMIT))
    if offset + math.prod(shape) > count:
        raise row.wrong(f"a tensor within {count} values")
    if scale is None:
        return Tensor(offset, shape)
    if not known or known[scale.whole(len(known) - 1)].shape != shape[:1]:
        raise scale.wrong("a tensor before it with a factor for each first index")
    return Tensor(offset, shape, known[scale.whole(len(known) - 1)])


def read_shape(field: Field) -> tuple[int, ...]:
    shape = tuple(size.whole(10**5) for size in field.rows(3))
    if len(shape) != 3 or not 0 < math.prod(shape) <= SIZE_LIMIT:
        raise field.wrong("channels, height and width")
    return shape


def read_child(row: Field, dims: int, full: tuple[int, ...]) -> Child:
    """Read a child. full: the shape of the images of all children that state no other."""
    channels = tuple(count.whole() for count in row["channels"].rows())
    if len(channels) != dims:
        raise row["channels"].wrong(f"{dims} counts")
    val_error, test_error = row.get("val_error"), row.get("test_error")
    shape = full if (own := row.get("shape")) is None else read_shape(own)
    if shape[0] != full[0]:
        raise row["shape"].wrong(f"images of {full[0]} channels")
    return Child(
        row["name"].text(),
        {name: cost.number() for name, cost in row["costs"].items().items()},
        row["train_loss"].number(),
        None if val_error is None else val_error.number(),
        None if test_error is None else test_error.number(),
        channels,
        shape,
    )


def read_weight(row: Field, tensors: list[Tensor]) -> Weight:
    of = tensors[row["of"].whole(len(tensors) - 1)]
    keep: tuple[Ranges, ...] = tuple(((0, full),) for full in of.shape)
    if (kept := row.get("keep")) is not None:
        axes = kept.rows(AXES_LIMIT)
        if len(axes) != len(of.shape):
            raise kept.wrong(f"{len(of.shape)} axes")
        keep = tuple(read_ranges(axis, full) for axis, full in zip(axes, of.shape))
    times = None
    if (factors := row.get("times")) is not None:
        times = tensors[factors.whole(len(tensors) - 1)]
        if not keep or times.shape != (sum(stop - start for start, stop in keep[0]),):
            raise factors.wrong("a tensor with a factor for each first index")
    return Weight(row["name"].text(), of, keep, times)


def read_ranges(axis: Field, full: int) -> Ranges:
    """Read what a child keeps of an axis: a number for a prefix, or pairs in order."""
    if isinstance(axis.value, int):
        return ((0, axis.whole(full)),)
    ends = [end.whole(full) for pair in axis.rows(full) for end in pair.rows(2)]
    if not ends or len(ends) % 2 or ends != sorted(ends):
        raise axis.wrong("ranges in order")
    return tuple(zip(ends[::2], ends[1::2]))
