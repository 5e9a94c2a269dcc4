"""The blueprint: a summary of the computation graph, enough to price any child.

plan.py makes it from a trace, and costs/ reads it. A `Layout` says how one axis of a tensor is made
of Dims, a `Term` is a product of such axes (the multiply-adds of a layer, the entries of a feature
map), and a `Blueprint` holds all layers, maps and parameters. Nothing here refers to the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from joslim.space import WidthSpace


@dataclass(frozen=True)
class Stretch:
    """Neighbouring entries of an axis: `each` for every unit of a Dim, or `full` fixed ones."""

    dim: int | None
    each: int
    full: int


@dataclass(frozen=True)
class Layout:
    """An axis as a sequence of stretches, of each of which a child keeps a prefix."""

    stretches: tuple[Stretch, ...]

    @property
    def full(self) -> int:
        return sum(stretch.full for stretch in self.stretches)

    @property
    def slimmable(self) -> bool:
        return any(stretch.dim is not None for stretch in self.stretches)

    def size(self, units: tuple[int, ...] | None) -> int:
        """Return the length of the axis in the child with these units of each Dim, or in full."""
        if units is None:
            return self.full
        return sum(s.full if s.dim is None else units[s.dim] * s.each for s in self.stretches)

    def runs(self, units: tuple[int, ...]) -> list[tuple[int, int]]:
        """Return the (start, stop) ranges of the full axis that the child keeps, merged."""
        result: list[tuple[int, int]] = []
        start = 0
        for s in self.stretches:
            stop = start + (s.full if s.dim is None else units[s.dim] * s.each)
            if result and result[-1][1] == start:
                result[-1] = (result[-1][0], stop)
            else:
                result.append((start, stop))
            start += s.full
        return result


@dataclass(frozen=True)
class Term:
    """A constant times the lengths of slimmable axes.

    Attributes:
        times: The constant, at the full size of the input.
        layouts: The slimmable axes.
        at_sizes: The constant at each allowed size of the input, if sizes are a knob.
        block: The position of a Dim of blocks, and the number of a block of it, counted from 0: the
            term is 0 in a child that keeps no more blocks than that.
    """

    times: int
    layouts: tuple[Layout, ...] = ()
    at_sizes: tuple[int, ...] = ()
    block: tuple[int, int] | None = None


@dataclass(frozen=True)
class Layer:
    """A multiplication in the network: a conv, a linear layer, a matrix product.

    `maps` (its inputs, then its outputs) and `skips` are positions in `Blueprint.maps`. The skips
    are the other maps that are still read after this layer.
    """

    name: str
    op: str
    macs: Term
    weights: Term
    kernel: tuple[int, ...]
    resolution: tuple[int, ...]
    maps: tuple[int, ...]
    skips: tuple[int, ...]


@dataclass(frozen=True)
class Blueprint:
    """All layers, feature maps and parameters of a network, in terms of its Dims."""

    space: WidthSpace
    layers: tuple[Layer, ...]
    maps: tuple[Term, ...]
    parameters: tuple[Term, ...]

    def units(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """[n, dims] counts -> [n, dims] units, in which Layouts are measured."""
        return counts // self._steps

    @cached_property
    def _steps(self) -> NDArray[np.int64]:
        return np.array([dim.step for dim in self.space.dims], dtype=np.int64)
