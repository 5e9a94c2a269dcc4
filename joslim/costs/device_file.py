"""The device file: measured latencies of the children of one network on one device, as JSON."""

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

from joslim.costs.timing import BATCH_LIMIT, THREADS_LIMIT, Setting, device_of
from joslim.errors import UserError
from joslim.files import (
    JSON_LIMIT,
    json_count,
    json_name,
    json_number,
    json_rows,
    json_value,
    read_json,
    shown,
    write_whole,
    writing,
)
from joslim.slimmable.net import SlimmableNet
from joslim.space import Widths, WidthSpace

VERSION = 1
CHILDREN_LIMIT = 10_000
# From a nanosecond to a fortnight.
SHORTEST_MS, LONGEST_MS = 1e-6, 1e9

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Conditions:
    """The conditions of a measurement. `threads` are those of the processor on any device."""

    device: str
    threads: int
    batch: int
    precision: str
    backend: str
    torch: str
    inputs: Shapes

    @classmethod
    def here(cls, net: SlimmableNet, setting: Setting) -> Conditions:
        """The conditions of a measurement with this setting on the device of the network."""
        threads = setting.threads or torch.get_num_threads()
        how = (threads, setting.batch, setting.precision, setting.backend)
        return cls(device_name(net), *how, str(torch.__version__), shapes_of(net))

    @classmethod
    def of_json(cls, record: Any) -> Conditions:
        where = "conditions"
        values = {
            field: json_value(record, field, where)
            for field in ("device", "threads", "batch", "precision", "backend", "torch")
        }
        for field, most in (("threads", THREADS_LIMIT), ("batch", BATCH_LIMIT)):
            json_count(values[field], f"{where}.{field}", 1, most)
        for field in ("device", "precision", "backend", "torch"):
            json_name(values[field], f"{where}.{field}")
        # `Setting` checks the names.
        Setting(values["threads"], values["batch"], values["precision"], values["backend"])
        inputs = []
        for i, row in enumerate(json_rows(record, "inputs", where, most=100, least=0)):
            place = f"{where}.inputs[{i}]"
            sizes = json_rows({"shape": row}, "shape", place, most=20, least=0)
            inputs.append(tuple(json_count(size, place, 0, 10**9) for size in sizes))
        return cls(**values, inputs=tuple(inputs))

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "inputs": [list(shape) for shape in self.inputs]}

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        how = f"batch {self.batch}, {self.precision}, {self.backend}"
        return f"{self.device}, {threads}, {how}, torch {self.torch}"


@dataclass(frozen=True)
class DeviceFile:
    """Measured children. `spread` is the interquartile range of a child's times over its ms."""

    conditions: Conditions
    children: tuple[Widths, ...]
    ms: tuple[float, ...]
    spread: tuple[float, ...]

    @property
    def space(self) -> WidthSpace:
        return self.children[0].space

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Channel counts of the children: [n, dims]."""
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
        json_count(record["joslim_latency"], "file.joslim_latency", 1, VERSION)
        conditions = Conditions.of_json(json_value(record, "conditions", "file"))
        space = WidthSpace.of_json(json_value(record, "space", "file"))
        rows = json_rows(record, "children", "file", CHILDREN_LIMIT)
        measured = [_measured(space, row, f"children[{at}]") for at, row in enumerate(rows)]
        children, ms, spread = zip(*measured)
        return cls(conditions, children, ms, spread)

    @classmethod
    def read(cls, path: str | Path) -> DeviceFile:
        """Read a device file that anybody may have written.

        Raises:
            UserError: The file cannot be read, or a value in it is not valid.
        """
        try:
            record = read_json(Path(path), JSON_LIMIT, "device_file")
        except UserError as error:
            raise UserError(f"{error}; joslim latency writes one") from error
        try:
            return cls.of_json(record)
        except UserError as error:
            raise UserError(f"device_file: {str(path)!r}: {error}") from error

    def write(self, path: str | Path) -> None:
        text = json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"
        with writing(path, "device_file"):
            write_whole(Path(path), text)

    def check_fits(self, net: SlimmableNet, path: str | Path) -> None:
        self.check_network(net.space, shapes_of(net), path)

    def check_network(self, space: WidthSpace, inputs: Shapes, path: str | Path) -> None:
        """Refuse a file of another network, or of the same one with inputs of another size."""
        given = f"device_file: {str(path)!r}"
        if self.space != space:
            raise UserError(
                f"{given} is of another network: {difference(self.space, space)}; "
                "measure this one: joslim latency"
            )
        if self.conditions.inputs != inputs:
            there, here = (
                ", ".join("x".join(map(str, shape)) for shape in shapes) or "no shape"
                for shapes in (self.conditions.inputs, inputs)
            )
            raise UserError(f"{given} was measured on inputs of {there}, this network has {here}")


def _measured(space: WidthSpace, row: Any, where: str) -> tuple[Widths, float, float]:
    """A child, its milliseconds and their spread, from one row of the file."""
    dims = len(space.dims)
    counts = json_rows(row, "channels", where, dims, dims)
    for dim, count in zip(space.dims, counts):
        json_count(count, f"{where}.channels", 1, dim.full)
    try:
        child = space.of_counts(counts)
    except UserError as error:
        raise UserError(f"{where}.channels: not a child of the space of this file") from error
    ms = json_number(json_value(row, "ms", where), f"{where}.ms")
    if not SHORTEST_MS <= ms <= LONGEST_MS:
        raise UserError(f"{where}.ms: {shown(ms)} is not from {SHORTEST_MS:g} to {LONGEST_MS:g}")
    spread = json_number(json_value(row, "spread", where), f"{where}.spread")
    if spread < 0:
        raise UserError(f"{where}.spread: {shown(spread)} is below 0")
    return child, float(ms), float(spread)


def shapes_of(net: SlimmableNet) -> Shapes:
    leaves = tree_leaves(net.example)
    return tuple(tuple(leaf.shape) for leaf in leaves if isinstance(leaf, Tensor))


def difference(there: WidthSpace, here: WidthSpace) -> str:
    """Describe the first difference of two search spaces."""
    if len(there.dims) != len(here.dims):
        return f"{len(there.dims)} dims, this one has {len(here.dims)}"
    for theirs, ours in zip(there.dims, here.dims):
        if theirs != ours:
            there_and_here = (
                f"{dim.name} with {' '.join(map(str, dim.values)) or f'{dim.full} by {dim.grain}'}"
                for dim in (theirs, ours)
            )
            return f"{theirs.kind} of " + " for ".join(there_and_here)
    lows = [(t.low, o.low) for t, o in zip(there.knobs, here.knobs) if t.low != o.low]
    return f"low {lows[0][0]:g} for {lows[0][1]:g}" if lows else "its knobs are tied in other ways"


def device_name(net: SlimmableNet) -> str:
    """Name of the processor or GPU that the network is on."""
    device = device_of(net)
    if device.type not in ("cuda", "cpu"):
        return device.type
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()
    return "".join(letter for letter in name if letter.isprintable())[:100] or "unknown"


def processor_name() -> str:
    """Name of the processor: Linux keeps it in a file; elsewhere Python may know it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, [*names, platform.processor(), platform.machine()]), "unknown")
