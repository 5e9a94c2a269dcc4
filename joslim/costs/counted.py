"""Costs that are counted from the blueprint: multiply-adds, parameters, memory footprint."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from joslim.costs.base import Cost
from joslim.errors import UserError
from joslim.slimmable.blueprint import Blueprint, Term
from joslim.slimmable.net import SlimmableNet
from joslim.space import PIXELS


class Pricer:
    """Evaluates Terms for many children at once, in exact integer arithmetic.

    The lengths of all distinct axes are one matrix product of the units. Doubles hold integers
    exactly up to 2**53, which is far above any count here, and multiply much faster. `multiple`:
    the lengths of axes are rounded up to its multiples.
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
        self._times = np.array([term.times for term in terms], dtype=np.float64)[:, None]
        most = max((len(term.layouts) for term in terms), default=0)
        # Terms of fewer factors are filled up with a last row of ones.
        self._factors = np.full((most, len(terms)), len(layouts), dtype=np.int64)
        for column, term in enumerate(terms):
            for row, layout in enumerate(term.layouts):
                self._factors[row, column] = position[layout]
        self._sizes = next(
            ((at, dim.values) for at, dim in enumerate(blueprint.space.dims) if dim.kind == PIXELS),
            None,
        )
        if self._sizes is not None:
            sizes = len(self._sizes[1])
            self._times = np.array([t.at_sizes or (t.times,) * sizes for t in terms], np.float64)
            self._times = self._times.reshape(len(terms), sizes)
        self._blocks = [(row, *term.block) for row, term in enumerate(terms) if term.block]

    def __call__(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """[n, dims] counts -> [terms, n]."""
        units = self.blueprint.units(counts).astype(np.float64)
        sizes = np.ones((len(self._constants) + 1, len(counts)))
        sizes[:-1] = self._weights @ units.T + self._constants
        if self.multiple > 1:
            sizes[:-1] = np.ceil(sizes[:-1] / self.multiple) * self.multiple
        if self._sizes is None:
            result = np.repeat(self._times, len(counts), axis=1)
        else:
            position, values = self._sizes
            result = self._times[:, np.searchsorted(values, counts[:, position])]
        for factor in self._factors:
            result *= sizes[factor]
        if self._blocks:
            rows, dims, numbers = np.array(self._blocks).T
            result[rows] *= numbers[:, None] < counts[:, dims].T
        return result


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
