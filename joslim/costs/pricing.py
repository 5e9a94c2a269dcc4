"""Terms of a blueprint, evaluated for thousands of children at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from joslim.slimmable.blueprint import Blueprint, Term


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

    def __call__(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """[n, dims] channel counts -> [terms, n]."""
        units = self.blueprint.units(counts).astype(np.float64)
        sizes = np.ones((len(self._constants) + 1, len(counts)))
        sizes[:-1] = self._weights @ units.T + self._constants
        if self.multiple > 1:
            sizes[:-1] = np.ceil(sizes[:-1] / self.multiple) * self.multiple
        result = np.repeat(self._times, len(counts), axis=1)
        for factor in self._factors:
            result *= sizes[factor]
        return result
