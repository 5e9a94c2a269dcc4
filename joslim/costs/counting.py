"""Costs that are counted from the blueprint: multiply-adds, parameters, memory footprint."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from joslim.costs.base import Cost
from joslim.costs.pricing import Pricer
from joslim.errors import UserError
from joslim.slimmable.net import SlimmableNet


class Macs(Cost):
    """Multiply-adds of all conv, linear and matrix products, for one image."""

    unit = "multiply-adds"

    def __init__(self, name: str, net: SlimmableNet) -> None:
        super().__init__(name, net)
        self._pricer = Pricer(net.blueprint, [layer.macs for layer in net.blueprint.layers])

    def _price(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._pricer(counts).sum(axis=0).astype(np.int64)


class Params(Cost):
    """The number of parameters."""

    unit = "parameters"

    def __init__(self, name: str, net: SlimmableNet) -> None:
        super().__init__(name, net)
        self._pricer = Pricer(net.blueprint, list(net.blueprint.parameters))

    def _price(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._pricer(counts).sum(axis=0).astype(np.int64)


class Memory(Cost):
    """The memory footprint of inference on one image, in bytes (appendix E of the paper).

    The largest, over all layers, of input map + output map + weights + skips, where the skips are
    the maps other than its own input and output that are still read after the layer.
    """

    unit = "bytes"

    def __init__(self, name: str, net: SlimmableNet, bytes_per_element: int = 4) -> None:
        super().__init__(name, net)
        if bytes_per_element < 1:
            raise UserError(f"bytes_per_element: {bytes_per_element} is below 1; type 4, 2 or 1")
        blueprint = net.blueprint
        maps = len(blueprint.maps)
        terms = [*blueprint.maps, *(layer.weights for layer in blueprint.layers)]
        self._pricer = Pricer(blueprint, terms)
        # [layers, terms]: which maps and weights are in memory while a layer runs.
        self._present = np.zeros((len(blueprint.layers), len(terms)))
        for position, layer in enumerate(blueprint.layers):
            present = [*layer.maps, *layer.skips, maps + position]
            self._present[position, present] = bytes_per_element

    def _price(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        return (self._present @ self._pricer(counts)).max(axis=0).astype(np.int64)
