"""The device file: what children of one network take on one device. JSON that anybody may write."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves

from joslim.costs.measuring import MOST_BATCH, MOST_THREADS, Setting, device_of
from joslim.errors import UserError
from joslim.slimmable.net import SlimmableNet
from joslim.untrusted import json_count, json_name, json_number, json_rows, json_value, shown
from joslim.whole import write_whole
from joslim.widths import Widths, WidthSpace

VERSION = 1
MOST_BYTES = 64 * 10**6
MOST_CHILDREN = 10_000
MOST_INPUTS = 100
MOST_AXES = 20
MOST_LENGTH = 10**9
# From a nanosecond to a fortnight.
LEAST_MS, MOST_MS = 1e-6, 1e9

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Conditions:
    """What was measured on. threads: those of the processor, whatever the device."""

    device: str
    threads: int
    batch: int
    precision: str
    backend: str
    torch: str
    inputs: Shapes

    @classmethod
    def here(cls, net: SlimmableNet, setting: Setting) -> Conditions:
        threads = setting.threads or torch.get_num_threads()
        return cls(
            device_name(net),
            threads,
            setting.batch,
            setting.precision,
            setting.backend,
            str(torch.__version__),
            shapes_of(net),
        )

    @classmethod
    def of_json(cls, record: Any) -> Conditions:
        def name(field: str) -> str:
            return json_name(json_value(record, field, where), f"{where}.{field}")

        def count(field: str, most: int) -> int:
            return json_count(json_value(record, field, where), f"{where}.{field}", 1, most)

        where = "conditions"
        threads, batch = count("threads", MOST_THREADS), count("batch", MOST_BATCH)
        # What a setting may not be, a file may not say.
        setting = Setting(threads, batch, name("precision"), name("backend"))
        rows = json_rows(record, "inputs", where, MOST_INPUTS, least=0)
        inputs = tuple(shape_of_json(row, f"{where}.inputs[{i}]") for i, row in enumerate(rows))
        how = threads, batch, setting.precision, setting.backend
        return cls(name("device"), *how, name("torch"), inputs)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "inputs": [list(shape) for shape in self.inputs]}

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        how = f"batch {self.batch}, {self.precision}, {self.backend}"
        return f"{self.device}, {threads}, {how}, torch {self.torch}"


@dataclass(frozen=True)
class DeviceFile:
    """Measured children. `spread`: the middle half of a child's times, as a share of its ms."""

    conditions: Conditions
    children: tuple[Widths, ...]
    ms: tuple[float, ...]
    spread: tuple[float, ...]

    @property
    def space(self) -> WidthSpace:
        return self.children[0].space

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """[n, dims]"""
        return np.array([child.counts for child in self.children], dtype=np.int64)

    def to_json(self) -> dict[str, Any]:
        rows = zip(self.children, self.ms, self.spread)
        return {
            "joslim_latency": VERSION,
            "conditions": self.conditions.to_json(),
            "space": self.space.to_json(),
            "children": [
                {"channels": list(child.counts), "ms": ms, "spread": spread}
                for child, ms, spread in rows
            ],
        }

    @classmethod
    def of_json(cls, record: Any) -> DeviceFile:
        if not isinstance(record, dict) or "joslim_latency" not in record:
            raise UserError("it is no device file; joslim latency RUN -o FILE writes one")
        version = record["joslim_latency"]
        json_count(version, "file.joslim_latency", 1, VERSION)
        conditions = Conditions.of_json(json_value(record, "conditions", "file"))
        space = WidthSpace.of_json(json_value(record, "space", "file"))
        rows = json_rows(record, "children", "file", MOST_CHILDREN)
        places = [f"children[{position}]" for position in range(len(rows))]
        return cls(
            conditions,
            tuple(child_of_json(space, row, where) for row, where in zip(rows, places)),
            tuple(ms_of_json(row, where) for row, where in zip(rows, places)),
            tuple(spread_of_json(row, where) for row, where in zip(rows, places)),
        )

    @classmethod
    def read(cls, path: str | Path) -> DeviceFile:
        """What is wrong in it is a UserError of one line."""
        try:
            return cls.of_json(read_json(Path(path)))
        except UserError as error:
            raise UserError(f"device_file: {str(path)!r}: {error}") from error

    def write(self, path: str | Path) -> None:
        text = json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"
        try:
            write_whole(Path(path), text)
        except OSError as error:
            raise UserError(f"device_file: cannot write {str(path)!r}: {error.strerror}") from error

    def check_fits(self, net: SlimmableNet, path: str | Path) -> None:
        self.check_network(net.space, shapes_of(net), path)

    def check_network(self, space: WidthSpace, inputs: Shapes, path: str | Path) -> None:
        """Another network, or the same at another size, has other times."""
        given = f"device_file: {str(path)!r}"
        if self.space != space:
            raise UserError(
                f"{given} is of another network: {difference(self.space, space)}; "
                "measure this one: joslim latency"
            )
        if self.conditions.inputs != inputs:
            there, here = shown_shapes(self.conditions.inputs), shown_shapes(inputs)
            raise UserError(f"{given} was measured on inputs of {there}, this network has {here}")


def read_json(file: Path) -> Any:
    try:
        if file.exists() and not file.is_file():  # a pipe or a device would never end
            raise UserError("cannot be read: it is no file; joslim latency writes one")
        if file.stat().st_size > MOST_BYTES:
            raise UserError(f"larger than {MOST_BYTES} bytes")
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}; joslim latency writes one") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"not JSON: {error}") from error


def child_of_json(space: WidthSpace, row: Any, where: str) -> Widths:
    dims = len(space.dims)
    counts = json_rows(row, "channels", where, dims, dims)
    for dim, count in zip(space.dims, counts):
        json_count(count, f"{where}.channels", 1, dim.full)
    try:
        return space.of_counts(counts)
    except UserError as error:
        raise UserError(f"{where}.channels: not a child of the space of this file") from error


def ms_of_json(row: Any, where: str) -> float:
    ms = json_number(json_value(row, "ms", where), f"{where}.ms")
    if not LEAST_MS <= ms <= MOST_MS:
        raise UserError(f"{where}.ms: {shown(ms)} is not from {LEAST_MS:g} to {MOST_MS:g}")
    return float(ms)


def spread_of_json(row: Any, where: str) -> float:
    spread = json_number(json_value(row, "spread", where), f"{where}.spread")
    if spread < 0:
        raise UserError(f"{where}.spread: {shown(spread)} is below 0")
    return float(spread)


def shape_of_json(row: Any, where: str) -> tuple[int, ...]:
    sizes = json_rows({"shape": row}, "shape", where, MOST_AXES, least=0)
    return tuple(json_count(size, where, 0, MOST_LENGTH) for size in sizes)


def shapes_of(net: SlimmableNet) -> Shapes:
    leaves = tree_leaves(net.example)
    return tuple(tuple(leaf.shape) for leaf in leaves if isinstance(leaf, Tensor))


def shown_shapes(shapes: Shapes) -> str:
    return ", ".join("x".join(map(str, shape)) for shape in shapes) or "no shape"


def difference(there: WidthSpace, here: WidthSpace) -> str:
    """The first thing that is not the same."""
    if len(there.dims) != len(here.dims):
        return f"{len(there.dims)} dims, this one has {len(here.dims)}"
    for theirs, ours in zip(there.dims, here.dims):
        if theirs != ours:
            there_and_here = (
                f"{dim.name} with {dim.full} by {dim.grain}" for dim in (theirs, ours)
            )
            return "channels of " + " for ".join(there_and_here)
    lows = [(t.low, o.low) for t, o in zip(there.knobs, here.knobs) if t.low != o.low]
    return f"low {lows[0][0]:g} for {lows[0][1]:g}" if lows else "its knobs are tied in other ways"


def device_name(net: SlimmableNet) -> str:
    device = device_of(net)
    if device.type == "cuda":
        return cleaned(torch.cuda.get_device_name(device))
    if device.type == "cpu":
        return cleaned(processor_name())
    return device.type


def processor_name() -> str:
    """Linux keeps it in a file; elsewhere Python may know it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, [*names, platform.processor(), platform.machine()]), "unknown")


def cleaned(name: str) -> str:
    return "".join(letter for letter in name if letter.isprintable())[:100] or "unknown"
