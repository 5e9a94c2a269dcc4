"""The search space: the counts that a network can have, and one choice of them.

A `Dim` is a count that a child chooses: the channels of coupled layers, the blocks that are kept of
a stage, or the pixels of the input. A `Knob` is one coordinate of the search (a multiplier that
drives one Dim or several tied ones), a `WidthSpace` holds all knobs of a network, and `Widths` is
one child (subnet). `slim` makes the space; costs, searches and layers work on the integer counts of
children.
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
from joslim.files import json_count, json_name, json_number, json_rows, json_value, shown

# Added before rounding down, because 29/200 * 200 is 28.999999999999996.
ROUNDING = 1e-9

# Limits for files, which may come from anyone: beyond these a file is broken.
MAX_DIMS = 10_000
MAX_CHANNELS = 10_000_000

# What a Dim counts.
CHANNELS, BLOCKS, PIXELS = ("channels", "blocks", "pixels")


@dataclass(frozen=True)
class Dim:
    """A prunable dimension: channels that must have one count everywhere they appear.

    Channels are coupled where an addition, a depthwise convolution or a concatenation joins them.
    A Dim of another kind counts the blocks that are kept of a stage, or the pixels of a side of the
    input, and has a list of allowed values.

    Attributes:
        name: Name of the layer that makes the channels, of the stage, or "input".
        full: Count of the full network.
        step: Number of channels that are kept or dropped together, such as one group of a grouped
            convolution.
        divisor: Counts are rounded down to multiples of this number.
        layers: Names of all modules that make these channels, or of the blocks of the stage.
        kind: "channels", "blocks" or "pixels".
        values: Allowed counts in rising order, if it is not a Dim of channels.
        heads: Whether each step is an attention head, or a key and value head with its queries.

    Examples:
        >>> net = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 32, 32), divisor=4)
        >>> dim = net.space.dims[0]
        >>> dim.name, dim.full, dim.least
        ('conv1', 16, 4)
    """

    name: str
    full: int
    step: int = 1
    divisor: int = 1
    layers: tuple[str, ...] = field(default=(), compare=False, repr=False)
    kind: str = CHANNELS
    values: tuple[int, ...] = ()
    heads: bool = field(default=False, compare=False, repr=False)

    @property
    def grain(self) -> int:
        """Smallest difference between two counts: the least common multiple of `step` and
        `divisor`.
        """
        return math.lcm(self.step, self.divisor)

    @property
    def least(self) -> int:
        """Smallest count that a child may have."""
        return self.values[0] if self.values else min(self.grain, self.full)


@dataclass(frozen=True)
class Knob:
    """One coordinate of the search space: a multiplier in [low, 1].

    The multiplier of a Dim with a list of values divides [low, 1] into equal parts, one for each
    value.

    Attributes:
        name: Name of the knob.
        dims: Positions in `WidthSpace.dims` of the Dims that it drives; several if they are tied.
        low: Lowest multiplier.

    Examples:
        >>> names, x = ["conv1", "layer1.0.conv1"], torch.zeros(1, 3, 32, 32)
        >>> net = joslim.slim(joslim.models.resnet8(), x, tie=[names])
        >>> len(net.space.dims), len(net.space.knobs)
        (6, 5)
        >>> net.space.knobs[0].dims
        (0, 1)
    """

    name: str
    dims: tuple[int, ...]
    low: float


@dataclass(frozen=True, eq=False)
class Widths:
    """One child (subnet): a count for each Dim of its search space.

    Children are hashable, and equal if their counts and their spaces are.

    Attributes:
        space: The search space.
        counts: Number of channels, blocks or pixels for each Dim of the space.

    Examples:
        >>> net = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 32, 32))
        >>> child = net.space.uniform(0.5)
        >>> child.channels["conv1"]
        8
        >>> net.space.at(child.multipliers) == child
        True
    """

    space: WidthSpace
    counts: tuple[int, ...]

    @property
    def channels(self) -> dict[str, int]:
        """Count by the name of the Dim, also of blocks and pixels."""
        return {dim.name: count for dim, count in zip(self.space.dims, self.counts)}

    @cached_property
    def pixels(self) -> int | None:
        """Height and width of the input of this child; None if all children take the same."""
        counts = zip(self.space.dims, self.counts)
        return next((count for dim, count in counts if dim.kind == PIXELS), None)

    @cached_property
    def left_out(self) -> frozenset[str]:
        """Names of the Dims of channels that only blocks have which this child leaves out."""
        dims = [*zip(self.space.dims, self.counts)]
        gone = {f"{b}." for d, count in dims if d.kind == BLOCKS for b in d.layers[count:]}
        return frozenset(
            dim.name
            for dim, _ in dims
            if gone and dim.kind == CHANNELS
            if all(any(map(layer.startswith, gone)) for layer in dim.layers)
        )

    @cached_property
    def units(self) -> tuple[int, ...]:
        """Counts in steps of their Dims."""
        return tuple(count // dim.step for dim, count in zip(self.space.dims, self.counts))

    @cached_property
    def multipliers(self) -> NDArray[np.float64]:
        """Smallest multipliers that give these counts, of shape [knobs]; `space.at` turns them back
        into this child.
        """
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
    """The search space of a network: all knobs, and so all children (subnets).

    Its length is the number of knobs.

    Attributes:
        dims: The groups of coupled channels; then the stages and the input, if children differ in
            their depth and in the size of their input.
        knobs: The coordinates of the search.

    Examples:
        >>> space = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 32, 32)).space
        >>> len(space)
        6
        >>> space.uniform(0.5).counts
        (8, 8, 16, 16, 32, 32)
        >>> space.at([1, 0.5, 1, 0.5, 1, 0.5]).counts
        (16, 8, 32, 16, 64, 32)
        >>> space.random(np.random.default_rng(0)).space == space
        True
    """

    dims: tuple[Dim, ...]
    knobs: tuple[Knob, ...]

    def __len__(self) -> int:
        return len(self.knobs)

    @cached_property
    def _driver(self) -> NDArray[np.int64]:
        """Position of the knob that drives each Dim, of shape [dims]."""
        driver = np.empty(len(self.dims), dtype=np.int64)
        for position, knob in enumerate(self.knobs):
            driver[list(knob.dims)] = position
        return driver

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Kind of each knob: "channels", "blocks" or "pixels"."""
        return tuple(self.dims[knob.dims[0]].kind for knob in self.knobs)

    @cached_property
    def _listed(self) -> list[tuple[int, int, NDArray[np.int64]]]:
        """Position, knob and allowed values of each Dim that has a list of them."""
        dims = enumerate(self.dims)
        return [(at, int(self._driver[at]), np.array(d.values)) for at, d in dims if d.values]

    @cached_property
    def low(self) -> NDArray[np.float64]:
        """Lowest multiplier of each knob, of shape [knobs]."""
        return np.array([knob.low for knob in self.knobs])

    @cached_property
    def _dim_table(self) -> NDArray[np.int64]:
        """[3, dims]: full, grain and least count of each Dim."""
        return np.array([(d.full, d.grain, d.least) for d in self.dims]).T.reshape(3, -1)

    def counts(self, multipliers: ArrayLike) -> NDArray[np.int64]:
        """Convert multipliers to counts, for many children at once.

        Args:
            multipliers: Matrix of shape [n, knobs].

        Returns:
            Matrix of shape [n, dims].

        Raises:
            UserError: The shape is wrong, or a multiplier is outside [low, 1] of its knob.
        """
        matrix = self._checked(np.atleast_2d(_as_array(multipliers)))
        full, grain, least = self._dim_table
        matrix = np.clip(matrix, self.low, 1.0)[:, self._driver]
        counts = np.floor((matrix + ROUNDING) * (full / grain)).astype(np.int64) * grain
        counts = np.clip(counts, least, full)
        counts = np.where(matrix >= 1.0 - ROUNDING, full, counts)
        for position, knob, values in self._listed:
            share = (matrix[:, position] - self.low[knob]) / (1.0 - self.low[knob])
            part = np.floor((share + ROUNDING) * len(values)).astype(np.int64)
            counts[:, position] = values[np.minimum(part, len(values) - 1)]
        return counts

    def multipliers(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Convert counts to the smallest multipliers that give them.

        Values of a list are spread evenly over [low, 1] instead, the largest at 1.

        Args:
            counts: Matrix of shape [n, dims].

        Returns:
            Matrix of shape [n, knobs].
        """
        full, _, least = self._dim_table
        # A Dim at its least count may have been clamped up to it, so it does not bound its knob.
        share = np.where(counts > least, counts / full, 0.0)
        result = np.repeat(self.low[None], len(counts), axis=0)
        for position, knob in enumerate(self.knobs):
            highest = share[:, list(knob.dims)].max(axis=1)
            result[:, position] = np.maximum(result[:, position], highest)
        for position, driver, values in self._listed:
            rank = np.minimum(np.searchsorted(values, counts[:, position]), len(values) - 1)
            low = self.low[driver]
            result[:, driver] = np.minimum(low + (1.0 - low) * (rank / (len(values) - 1)), 1.0)
        return result

    def at(self, multipliers: Sequence[float] | NDArray[np.float64]) -> Widths:
        """Return the child at these multipliers.

        Args:
            multipliers: One multiplier for each knob.

        Raises:
            UserError: Their number is wrong, or one is outside [low, 1] of its knob.
        """
        return Widths(self, tuple(self.counts(_as_array(multipliers)[None])[0].tolist()))

    def of_counts(self, counts: Sequence[int]) -> Widths:
        """Return the child with these counts.

        Args:
            counts: One count for each Dim.

        Raises:
            UserError: No child has these counts.
        """
        return self.all_of_counts([counts])[0]

    def all_of_counts(self, rows: Sequence[Sequence[int]]) -> list[Widths]:
        """Return the children with these counts. Many are checked in one pass."""
        for counts in rows:
            if len(counts) != len(self.dims):
                raise UserError(
                    f"widths: {len(counts)} counts given, this network has {len(self.dims)}"
                )
            if not all(isinstance(count, (int, np.integer)) for count in counts):
                raise UserError(f"widths: {list(counts)} are not whole numbers")
        matrix = np.array(rows, dtype=np.int64).reshape(len(rows), len(self.dims))
        wrong = (self.counts(self.multipliers(matrix)) != matrix).any(axis=1)
        if wrong.any():
            raise UserError(f"widths: {list(rows[wrong.argmax()])} is not a child of this network")
        return [Widths(self, tuple(row)) for row in matrix.tolist()]

    def uniform(self, multiplier: float, channels_only: bool = False) -> Widths:
        """Return the child with one multiplier for all knobs, each at or above its own lowest.

        Args:
            multiplier: A share of the channels, in (0, 1].
            channels_only: Scale channels only, and keep all blocks and pixels. By default all of
                them are scaled together.

        Raises:
            UserError: The multiplier is outside (0, 1].
        """
        if not 0 < float(_as_array(multiplier)) <= 1:
            raise UserError(f"multiplier: {multiplier} is outside (0, 1]")
        return self.at(self.ray([float(multiplier)], channels_only)[0])

    def ray(self, multipliers: ArrayLike, channels_only: bool = False) -> NDArray[np.float64]:
        """Return the multipliers of all knobs in the children of `uniform`, of shape [n, knobs].

        Args:
            multipliers: One for each child, of shape [n].
            channels_only: As in `uniform`.
        """
        scaled = np.maximum(self.low, np.asarray(multipliers, dtype=np.float64)[:, None])
        is_scaled = np.array([not channels_only or kind == CHANNELS for kind in self.kinds])
        return np.where(is_scaled, scaled, 1.0)

    def random(self, rng: np.random.Generator) -> Widths:
        """Draw a child with independent multipliers, uniform between the lowest and 1.

        Args:
            rng: Source of randomness.
        """
        return self.at(rng.uniform(self.low, 1.0))

    @cached_property
    def full(self) -> Widths:
        """The full network: the full count of every Dim."""
        return self.at(np.ones(len(self)))

    @cached_property
    def smallest(self) -> Widths:
        """The smallest child: every knob at its lowest multiplier."""
        return self.at(self.low)

    def to_json(self) -> dict[str, Any]:
        """Return plain lists and dictionaries; `of_json` reads them back."""
        return {
            "dims": [_dim_to_json(dim) for dim in self.dims],
            "knobs": [
                {**vars(knob), "dims": list(knob.dims), "low": float(knob.low)}
                for knob in self.knobs
            ],
        }

    @classmethod
    def of_json(cls, record: Any) -> WidthSpace:
        """Read a space from parsed JSON. The source need not be trusted: every field is checked.

        Raises:
            UserError: A field is missing or not valid.
        """
        rows = json_rows(record, "dims", "space", MAX_DIMS)
        dims = tuple(_dim_of_json(row, f"space.dims[{at}]") for at, row in enumerate(rows))
        rows = json_rows(record, "knobs", "space", MAX_DIMS)
        knobs = tuple(
            _knob_of_json(row, f"space.knobs[{at}]", len(dims)) for at, row in enumerate(rows)
        )
        if len({dim.name for dim in dims}) < len(dims):
            raise UserError("space.dims: two of them have the same name")
        if sorted(position for knob in knobs for position in knob.dims) != [*range(len(dims))]:
            raise UserError("space.knobs: every Dim must belong to exactly one knob")
        for at, knob in enumerate(knobs):
            listed = [dims[position] for position in knob.dims if dims[position].values]
            if listed and (len(knob.dims) > 1 or knob.low != lowest_share(listed[0])):
                raise UserError(f"space.knobs[{at}]: it does not fit the values of its Dim")
        return cls(dims, knobs)

    def _checked(self, matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        """Check the shape and the range of [n, knobs] multipliers."""
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


def _as_array(values: ArrayLike) -> NDArray[np.float64]:
    """Convert to numbers, or raise an error that says what to type."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"widths: {values!r} are not numbers; type multipliers: 0.5") from error


def lowest_share(dim: Dim) -> float:
    """Return the lowest multiplier of a Dim with a list of values."""
    return dim.values[0] / dim.full


def _dim_to_json(dim: Dim) -> dict[str, Any]:
    record = {**vars(dim), "layers": list(dim.layers), "values": list(dim.values)}
    if dim.kind == CHANNELS:  # as in files of versions that knew no other kind
        del record["kind"], record["values"]
    if not dim.heads:
        del record["heads"]
    return record


def _dim_of_json(record: Any, where: str) -> Dim:
    full, step, divisor = (
        json_count(json_value(record, key, where), f"{where}.{key}", 1, MAX_CHANNELS)
        for key in ("full", "step", "divisor")
    )
    layers = json_rows(record, "layers", where, MAX_DIMS, least=0)
    names = tuple(json_name(layer, f"{where}.layers[{at}]") for at, layer in enumerate(layers))
    name = json_name(json_value(record, "name", where), f"{where}.name")
    if "kind" not in record:
        return Dim(name, full, step, divisor, names, heads=record.get("heads") is True)
    kind = json_value(record, "kind", where)
    if kind not in (BLOCKS, PIXELS):
        raise UserError(f"{where}.kind: {shown(kind)} given; allowed: {BLOCKS}, {PIXELS}")
    rows = json_rows(record, "values", where, MAX_DIMS, least=2)
    values = tuple(json_count(n, f"{where}.values[{at}]", 1, full) for at, n in enumerate(rows))
    if sorted({*values}) != [*values] or values[-1] != full or (step, divisor) != (1, 1):
        raise UserError(f"{where}.values: they do not rise to {full} in steps of whole numbers")
    return Dim(name, full, layers=names, kind=kind, values=values)


def _knob_of_json(record: Any, where: str, dims: int) -> Knob:
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
