"""Costs that are counted from the blueprint: multiply-adds, parameters, memory footprint."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from joslim.costs.base import Cost
from joslim.errors import UserError
from joslim.slimmable.blueprint import Blueprint, Term
from joslim.slimmable.net import SlimmableNet
from joslim.space import PIXELS

# The position of a Dim of blocks and the number of a block in it, or None.
Block = tuple[int, int] | None


class Pricer:
    """Evaluates Terms for many children at once, in exact integer arithmetic.

    The lengths of all distinct axes are one matrix product of the units. Doubles hold integers
    exactly up to 2**53, which is far above any count here, and multiply much faster. `multiple`:
    the lengths of axes are rounded up to its multiples.

    Whether a block is there and the size of the input change a factor of a term: such a term has
    its own copy of the row of its first axis.
    """

    def __init__(self, blueprint: Blueprint, terms: list[Term], multiple: int = 1) -> None:
        self.blueprint, self.multiple = blueprint, multiple
        layouts = list(dict.fromkeys(layout for term in terms for layout in term.layouts))
        position = {layout: i for i, layout in enumerate(layouts)}
        self._weights = np.zeros((len(layouts), len(blueprint.space.dims)))
        self._constants = np.zeros((len(layouts), 1))
        for i, layout in enumerate(layouts):
            for s in layout.stretches:
                if s.dim is None:
                    self._constants[i] += s.full
                else:
                    self._weights[i, s.dim] += s.each
        # Rows of factors: the lengths of axes, ones, and copies for (axis, block, sizes).
        ones = len(layouts)
        copies: dict[tuple[int, Block, tuple[int, ...]], int] = {}
        times, factors = [], []
        for term in terms:
            own = [position[layout] for layout in term.layouts]
            common = math.gcd(*term.at_sizes) if term.at_sizes else term.times
            times.append(common)
            if term.block or term.at_sizes:
                first, *rest = own or [ones]
                key = (first, term.block, tuple(n // common for n in term.at_sizes))
                own = [copies.setdefault(key, ones + 1 + len(copies)), *rest]
            factors.append(own)
        self._times = np.array(times, dtype=np.float64)[:, None]
        most = max(map(len, factors), default=0)
        # Terms of fewer factors are filled up with ones.
        self._factors = np.full((most, len(terms)), ones, dtype=np.int64)
        for column, own in enumerate(factors):
            self._factors[: len(own), column] = own
        self._copied = [axis for axis, _, _ in copies]
        self._blocks = [(row, *block) for row, (_, block, _) in enumerate(copies) if block]
        self._sized = [(row, sizes) for row, (_, _, sizes) in enumerate(copies) if sizes]
        kinds = [dim.kind for dim in blueprint.space.dims]
        self._pixels = kinds.index(PIXELS) if self._sized else None

    def __call__(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """[n, dims] counts -> [terms, n]."""
        units = self.blueprint.units(counts).astype(np.float64)
        axes = len(self._constants)
        sizes = np.ones((axes + 1 + len(self._copied), len(counts)))
        sizes[:axes] = self._weights @ units.T + self._constants
        if self.multiple > 1:
            sizes[:axes] = np.ceil(sizes[:axes] / self.multiple) * self.multiple
        if self._copied:
            self._fill_copies(sizes, counts)
        result = np.repeat(self._times, len(counts), axis=1)
        for factor in self._factors:
            result *= sizes[factor]
        return result

    def _fill_copies(self, sizes: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
        copies = sizes[len(self._constants) + 1 :]
        copies[:] = sizes[self._copied]
        if self._blocks:
            rows, dims, numbers = np.array(self._blocks).T
            copies[rows] *= numbers[:, None] < counts[:, dims].T
        if self._pixels is not None:
            rows, at_sizes = zip(*self._sized)
            dim = self.blueprint.space.dims[self._pixels]
            copies[list(rows)] *= np.array(at_sizes)[
                :, np.searchsorted(dim.values, counts[:, self._pixels])
            ]


class Macs(Cost):
    """Multiply-adds of all conv, linear and matrix products, for one sample."""

    def __init__(self, name: str, net: SlimmableNet) -> None:
        super().__init__(name, net)
        self.uncounted = [missing for missing in net.uncounted if missing.cost == "macs"]
        self._pricer = Pricer(net.blueprint, [layer.macs for layer in net.blueprint.layers])

    def _price(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._pricer(counts).sum(axis=0).astype(np.int64)


class Params(Cost):
    """The number of parameters."""

    def __init__(self, name: str, net: SlimmableNet) -> None:
        super().__init__(name, net)
        self._pricer = Pricer(net.blueprint, list(net.blueprint.parameters))

    def _price(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._pricer(counts).sum(axis=0).astype(np.int64)


class Memory(Cost):
    """The memory footprint of inference on one image, in bytes (appendix E of the paper).

    The largest, over all layers, of input maps + output maps + weights + skips, where the skips are
    the maps other than its own inputs and outputs that are still read after the layer.
    """

    def __init__(self, name: str, net: SlimmableNet, bytes_per_element: int = 4) -> None:
        super().__init__(name, net)
        if bytes_per_element < 1:
            raise UserError(f"bytes_per_element: {bytes_per_element} is below 1; type 4, 2 or 1")
        # An operation that nobody can count is no layer either, so its maps are missing as well.
        self.uncounted = list(net.uncounted)
        blueprint = net.blueprint
        maps = len(blueprint.maps)
        terms = [*blueprint.maps, *(layer.weights for layer in blueprint.layers)]
        self._pricer = Pricer(blueprint, terms)
        # A layer of a block that is left out needs nothing, not even its input.
        presence = [Term(1, block=layer.macs.block) for layer in blueprint.layers]
        self._runs = Pricer(blueprint, presence) if any(t.block for t in presence) else None
        # [layers, terms]: which maps and weights are in memory while a layer runs.
        self._present = np.zeros((len(blueprint.layers), len(terms)))
        for position, layer in enumerate(blueprint.layers):
            present = [*layer.maps, *layer.skips, maps + position]
            self._present[position, present] = bytes_per_element

    def _price(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        needed = self._present @ self._pricer(counts)
        if self._runs is not None:
            needed *= self._runs(counts)
        return needed.max(axis=0).astype(np.int64)
