"""The space of children: which channel counts a network can have, and one choice of them.

A `Dim` is a group of channels that has one count everywhere, a `Knob` is one coordinate of the
search (a multiplier that drives one Dim or several tied ones), a `WidthSpace` is all the knobs of
a network, and `Widths` is one child. Everything downstream works on the integer counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joslim.errors import UserError
from joslim.untrusted import json_count, json_name, json_number, json_rows, json_value

# Lost to rounding otherwise: 29/200 * 200 is 28.999999999999996.
ROUNDING = 1e-9

# A file may come from anybody: above these it is broken, and would only take time and memory.
MOST_DIMS = 10_000
MOST_CHANNELS = 10_000_000


@dataclass(frozen=True)
class Dim:
    """Channels that have one count everywhere they appear.

    `step` is the number of channels that come and go together (a group of a grouped conv, one
    channel in each half of a chunk); `divisor` additionally rounds counts down to its multiples.
    `layers` are the modules that make these channels.
    """

    name: str
    full: int
    step: int = 1
    divisor: int = 1
    layers: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @property
    def grain(self) -> int:
        return math.lcm(self.step, self.divisor)

    @property
    def least(self) -> int:
        """The smallest count above zero."""
        return min(self.grain, self.full)


@dataclass(frozen=True)
class Knob:
    """One coordinate of the search: a multiplier in [low, 1] for the Dims at these positions."""

    name: str
    dims: tuple[int, ...]
    low: float


@dataclass(frozen=True, eq=False)
class Widths:
    """One child: a channel count for each Dim of its space."""

    space: WidthSpace
    counts: tuple[int, ...]

    @property
    def channels(self) -> dict[str, int]:
        return {dim.name: count for dim, count in zip(self.space.dims, self.counts)}

    @cached_property
    def units(self) -> tuple[int, ...]:
        """The counts in steps of their Dims."""
        return tuple(count // dim.step for dim, count in zip(self.space.dims, self.counts))

    @cached_property
    def multipliers(self) -> NDArray[np.float64]:
        """[knobs]: the smallest multipliers that give these counts, so `space.at` returns them."""
        return self.space.multipliers(np.array([self.counts]))[0]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Widths):
            return NotImplemented
        return self.counts == other.counts and self.space == other.space

    def __hash__(self) -> int:
        return hash(self.counts)

    def __str__(self) -> str:
        return " ".join(f"{name}={count}" for name, count in self.channels.items())

    def __repr__(self) -> str:
        return f"Widths({self})"


@dataclass(frozen=True)
class WidthSpace:
    """All knobs of a network, and so all its children."""

    dims: tuple[Dim, ...]
    knobs: tuple[Knob, ...]
    _driver: NDArray[np.int64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        driver = np.empty(len(self.dims), dtype=np.int64)
        for position, knob in enumerate(self.knobs):
            driver[list(knob.dims)] = position
        object.__setattr__(self, "_driver", driver)

    def __len__(self) -> int:
        return len(self.knobs)

    @cached_property
    def low(self) -> NDArray[np.float64]:
        """[knobs]: the lowest multiplier of each knob."""
        return np.array([knob.low for knob in self.knobs])

    @cached_property
    def _dim_table(self) -> NDArray[np.int64]:
        """[3, dims]: full, grain and least count of each Dim."""
        return np.array([(d.full, d.grain, d.least) for d in self.dims]).T.reshape(3, -1)

    def counts(self, multipliers: ArrayLike) -> NDArray[np.int64]:
        """[n, knobs] multipliers -> [n, dims] channel counts."""
        matrix = self._checked(np.atleast_2d(as_numbers(multipliers)))
        full, grain, least = self._dim_table
        matrix = np.clip(matrix, self.low, 1.0)[:, self._driver]
        counts = np.floor((matrix + ROUNDING) * (full / grain)).astype(np.int64) * grain
        counts = np.clip(counts, least, full)
        return np.where(matrix >= 1.0 - ROUNDING, full, counts)

    def multipliers(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """[n, dims] counts -> [n, knobs]: the smallest multipliers that give these counts."""
        full, _, least = self._dim_table
        # A Dim at its least count may have been clamped up to it: it says nothing of its knob.
        share = np.where(counts > least, counts / full, 0.0)
        result = np.repeat(self.low[None], len(counts), axis=0)
        for position, knob in enumerate(self.knobs):
            highest = share[:, list(knob.dims)].max(axis=1)
            result[:, position] = np.maximum(result[:, position], highest)
        return result

    def at(self, multipliers: Sequence[float] | NDArray[np.float64]) -> Widths:
        """The child at these multipliers, one for each knob."""
        return self._widths(self.counts(as_numbers(multipliers)[None])[0])

    def of_counts(self, counts: Sequence[int]) -> Widths:
        """The child with these channel counts, one for each Dim."""
        if len(counts) != len(self.dims):
            raise UserError(
                f"widths: {len(counts)} counts given, this network has {len(self.dims)}"
            )
        if not all(isinstance(count, (int, np.integer)) for count in counts):
            raise UserError(f"widths: {list(counts)} are not whole numbers of channels")
        child = self._widths(np.array(counts, dtype=np.int64))
        if self.at(child.multipliers) != child:
            raise UserError(f"widths: {list(counts)} is not a child of this network")
        return child

    def uniform(self, multiplier: float) -> Widths:
        """One multiplier for all knobs, each kept at or above its own low."""
        if not 0 < float(as_numbers(multiplier)) <= 1:
            raise UserError(f"multiplier: {multiplier} is outside (0, 1]")
        return self.at(np.maximum(self.low, multiplier))

    def random(self, rng: np.random.Generator) -> Widths:
        return self.at(rng.uniform(self.low, 1.0))

    @cached_property
    def full(self) -> Widths:
        return self.at(np.ones(len(self)))

    @cached_property
    def smallest(self) -> Widths:
        return self.at(self.low)

    def to_json(self) -> dict[str, Any]:
        """What `of_json` takes back."""
        return {
            "dims": [
                {
                    "name": dim.name,
                    "full": dim.full,
                    "step": dim.step,
                    "divisor": dim.divisor,
                    "layers": list(dim.layers),
                }
                for dim in self.dims
            ],
            "knobs": [
                {"name": knob.name, "dims": list(knob.dims), "low": float(knob.low)}
                for knob in self.knobs
            ],
        }

    @classmethod
    def of_json(cls, record: Any) -> WidthSpace:
        """A space that anybody may have written: what is wrong in it is a UserError."""
        rows = json_rows(record, "dims", "space", MOST_DIMS)
        dims = tuple(dim_of_json(row, f"space.dims[{at}]") for at, row in enumerate(rows))
        rows = json_rows(record, "knobs", "space", MOST_DIMS)
        knobs = tuple(
            knob_of_json(row, f"space.knobs[{at}]", len(dims)) for at, row in enumerate(rows)
        )
        if len({dim.name for dim in dims}) < len(dims):
            raise UserError("space.dims: two of them have the same name")
        if sorted(position for knob in knobs for position in knob.dims) != [*range(len(dims))]:
            raise UserError("space.knobs: every Dim must belong to exactly one knob")
        return cls(dims, knobs)

    def _widths(self, counts: NDArray[np.int64]) -> Widths:
        return Widths(self, tuple(int(count) for count in counts))

    def _checked(self, matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        if matrix.ndim != 2 or matrix.shape[1] != len(self):
            raise UserError(
                f"widths: {matrix.shape[-1]} multipliers given, this network has {len(self)} knobs"
            )
        outside = ~((matrix >= self.low - ROUNDING) & (matrix <= 1.0 + ROUNDING))
        if outside.any():
            row, column = np.argwhere(outside)[0]
            knob = self.knobs[column]
            raise UserError(
                f"widths: multiplier {matrix[row, column]} for knob {knob.name!r} "
                f"is outside [{knob.low}, 1]"
            )
        return matrix


def as_numbers(values: ArrayLike) -> NDArray[np.float64]:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"widths: {values!r} are not numbers; type multipliers: 0.5") from error


def dim_of_json(record: Any, where: str) -> Dim:
    full, step, divisor = (
        json_count(json_value(record, key, where), f"{where}.{key}", 1, MOST_CHANNELS)
        for key in ("full", "step", "divisor")
    )
    layers = json_rows(record, "layers", where, MOST_DIMS, least=0)
    names = tuple(json_name(layer, f"{where}.layers[{at}]") for at, layer in enumerate(layers))
    name = json_name(json_value(record, "name", where), f"{where}.name")
    return Dim(name, full, step, divisor, names)


def knob_of_json(record: Any, where: str, dims: int) -> Knob:
    positions = json_rows(record, "dims", where, dims)
    members = tuple(
        json_count(position, f"{where}.dims[{at}]", 0, dims - 1)
        for at, position in enumerate(positions)
    )
    low = json_number(json_value(record, "low", where), f"{where}.low")
    if not 0 < low <= 1:
        raise UserError(f"{where}.low: {low} is outside (0, 1]")
    name = json_name(json_value(record, "name", where), f"{where}.name")
    return Knob(name, members, float(low))
