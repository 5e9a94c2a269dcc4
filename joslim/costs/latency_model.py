"""A model of latency: non-negative weights on counts that never fall when a width grows.

So its prices never fall either, which the search relies on. Layers of one kind share their weights:
a layer takes so much for each multiply-add, each entry of its maps and each of its weights. Kernels
work on whole vectors of channels, so the same counts with channels rounded up are there as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from joslim.costs.pricing import Pricer
from joslim.errors import UserError
from joslim.slimmable.blueprint import Blueprint, Layer, Term

# Channels as they are, and rounded up to what a vector register holds.
MULTIPLES = (1, 16)
# Steps of the fit for each of its features; a few are usual.
MOST_STEPS = 100
FOLDS = 5

Array = NDArray[np.float64]


class LatencyModel:
    """Fitted to the milliseconds of some children, prices all of them."""

    def __init__(self, blueprint: Blueprint, counts: NDArray[np.int64], ms: Array) -> None:
        terms, sums = features_of(blueprint)
        values = [Pricer(blueprint, terms, multiple)(counts) for multiple in MULTIPLES]
        features = np.concatenate([np.ones((1, len(counts))), *(sums @ v for v in values)])
        constant, *weights = fitted(features, ms)
        self._constant = constant
        self._parts: list[tuple[Pricer, Array]] = []
        for multiple, part in zip(MULTIPLES, np.split(np.array(weights), len(MULTIPLES))):
            each = part @ sums
            used = [terms[position] for position in np.flatnonzero(each)]
            self._parts.append((Pricer(blueprint, used, multiple), each[each > 0]))

    def __call__(self, counts: NDArray[np.int64]) -> Array:
        """[n, dims] channel counts -> [n] milliseconds."""
        total = np.full(len(counts), self._constant)
        for pricer, weights in self._parts:
            # One after the other: a matrix product adds up in another order for one child than
            # for many, and equal children would have prices that differ in the last digit.
            for weight, values in zip(weights, pricer(counts)):
                total += weight * values
        return total


def features_of(blueprint: Blueprint) -> tuple[list[Term], Array]:
    """The distinct terms of all layers, and [features, terms]: how often each is in a feature."""
    labelled = list(labelled_terms(blueprint))
    labels = list(dict.fromkeys(label for label, _ in labelled))
    terms = list(dict.fromkeys(term for _, term in labelled))
    sums = np.zeros((len(labels), len(terms)))
    rows = {label: row for row, label in enumerate(labels)}
    columns = {term: column for column, term in enumerate(terms)}
    for label, term in labelled:
        sums[rows[label], columns[term]] += 1
    return terms, sums


def labelled_terms(blueprint: Blueprint) -> Iterator[tuple[tuple[object, ...], Term]]:
    """What a layer takes time for; terms with the same label share a weight."""
    for layer in blueprint.layers:
        kind = (layer.op, layer.kernel, is_depthwise(layer))
        yield ("macs", *kind), layer.macs
        yield ("weights", *kind), layer.weights
        for position in layer.maps:
            yield ("maps", *kind), blueprint.maps[position]


def is_depthwise(layer: Layer) -> bool:
    """Whether a channel is made of one channel, which kernels do in another way."""
    return len(layer.weights.layouts) == 1 and layer.weights.times == math.prod(layer.kernel)


def fitted(features: Array, ms: Array) -> Array:
    """[features, n], [n] -> [features] non-negative weights of least squared relative error."""
    from scipy.optimize import nnls  # type: ignore[import-untyped]  # half a second, needed late

    scale = np.maximum(features.max(axis=1, keepdims=True), 1e-300)
    most = MOST_STEPS * len(features)
    try:
        weights, _ = nnls((features / scale / ms).T, np.ones(len(ms)), maxiter=most)
    except RuntimeError as error:
        raise UserError(f"latency: no model fits these times ({error}); measure again") from error
    return weights / scale[:, 0]


def held_out_error(blueprint: Blueprint, counts: NDArray[np.int64], ms: Array) -> float:
    """The mean relative error for children that the model has not seen: each fold in turn."""
    fold = np.arange(len(ms)) % FOLDS
    errors = []
    for held in range(min(FOLDS, len(ms))):
        seen, rest = fold != held, fold == held
        model = LatencyModel(blueprint, counts[seen], ms[seen])
        errors.append(np.abs(model(counts[rest]) / ms[rest] - 1))
    return float(np.concatenate(errors).mean())
