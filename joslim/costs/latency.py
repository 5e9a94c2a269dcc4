"""Latency: some children are measured once, all others are priced by a model fitted to them.

The model puts non-negative weights on counts that never fall when a width grows. So its prices
never fall either, which the search relies on. Layers of one kind share their weights: a layer takes
so much for each multiply-add, each entry of its maps and each of its weights. Kernels work on whole
vectors of channels, so the same counts with channels rounded up are features as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from joslim.costs.base import Cost
from joslim.costs.counted import Macs, Pricer
from joslim.costs.device_file import CHILDREN_LIMIT, Conditions, DeviceFile
from joslim.costs.timing import Setting, Watch, measure
from joslim.errors import UserError
from joslim.files import json_count
from joslim.slimmable.blueprint import Blueprint, Layer, Term
from joslim.slimmable.net import SlimmableNet
from joslim.space import Widths

CHILDREN = 64
REPEATS = 5
REPEATS_LIMIT = 10_000
# Random candidates for each child that is measured.
CANDIDATES = 50
# Channels as they are, and rounded up to the length of a vector register.
MULTIPLES = (1, 16)
# Steps of the fit for each of its features; a few are usual.
STEPS_PER_FEATURE = 100
FOLDS = 5

Array = NDArray[np.float64]


class Latency(Cost):
    """Milliseconds of a forward pass on the example, by a model of measured children.

    The first price measures `children` of them on the network's device, `repeats` times each; or
    they are read from a `device_file`, which may be of another machine.
    """

    def __init__(
        self,
        name: str,
        net: SlimmableNet,
        *,
        device_file: str | Path | None = None,
        children: int = CHILDREN,
        repeats: int = REPEATS,
        threads: int | None = None,
        batch: int = 1,
        precision: str = "fp32",
        backend: str = "eager",
    ) -> None:
        super().__init__(name, net)
        self.net = net
        self.children = json_count(children, "children", 2, CHILDREN_LIMIT)
        self.repeats = json_count(repeats, "repeats", 1, REPEATS_LIMIT)
        self.setting = Setting(threads, batch, precision, backend)
        if device_file is not None:
            if self.setting != Setting():
                raise UserError("device_file: it is measured already; give no other options")
            self.device_file = DeviceFile.read(device_file)
            self.device_file.check_fits(net, device_file)

    @cached_property
    def device_file(self) -> DeviceFile:
        """Measured children; `cost.device_file.write(path)` keeps them."""
        chosen = with_both_ends(self.net, self.children, np.random.default_rng(0))
        return measure_device(self.net, chosen, self.setting, self.repeats)

    @cached_property
    def model(self) -> LatencyModel:
        measured = self.device_file
        return LatencyModel(self.net.blueprint, measured.counts, np.array(measured.ms))

    def _price(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.model(counts)


# Which children are measured


def measure_device(
    net: SlimmableNet,
    children: Sequence[Widths],
    setting: Setting,
    repeats: int = REPEATS,
    watch: Watch | None = None,
) -> DeviceFile:
    """Measure children on the device of the network."""
    times = measure(net, children, setting, repeats, watch)
    conditions = Conditions.here(net, setting)
    return DeviceFile(
        conditions, tuple(children), tuple(times.ms.tolist()), tuple(times.spread.tolist())
    )


def with_both_ends(net: SlimmableNet, count: int, rng: np.random.Generator) -> list[Widths]:
    """Choose the smallest child, the full network, and others between them."""
    ends = list(dict.fromkeys([net.space.smallest, net.space.full]))
    return [*ends, *spread_children(net, count - len(ends), rng, without=ends)]


def spread_children(
    net: SlimmableNet, count: int, rng: np.random.Generator, without: Iterable[Widths] = ()
) -> list[Widths]:
    """Choose different children, evenly spread over the multiply-adds; fewer if there are fewer.

    Uniformly drawn children are rarely small or large. Therefore half of the candidates have some
    knobs at their low, and the others have some at full width.
    """
    space, known = net.space, {child.counts for child in without}
    rows = CANDIDATES * count
    points = rng.uniform(size=(rows, len(space)))
    points *= rng.uniform(size=points.shape) < rng.uniform(size=(rows, 1))
    points = np.where(rng.uniform(size=(rows, 1)) < 0.5, points, 1.0 - points)
    counts = space.counts(np.minimum(space.low + points * (1.0 - space.low), 1.0))
    candidates = [row for row in dict.fromkeys(map(tuple, counts.tolist())) if row not in known]
    if not candidates:
        return []
    macs = Macs("macs", net).of_counts(np.array(candidates)).astype(np.float64)
    chosen = []
    for target in np.linspace(macs.min(), macs.max(), min(count, len(candidates))):
        chosen.append(int(np.abs(macs - target).argmin()))
        macs[chosen[-1]] = np.inf
    return [space.of_counts(candidates[position]) for position in chosen]


# The model


class LatencyModel:
    """A model of latency, fitted to the milliseconds of some children, that prices all of them."""

    def __init__(self, blueprint: Blueprint, counts: NDArray[np.int64], ms: Array) -> None:
        terms, sums = _features(blueprint)
        values = [Pricer(blueprint, terms, multiple)(counts) for multiple in MULTIPLES]
        features = np.concatenate([np.ones((1, len(counts))), *(sums @ v for v in values)])
        constant, *weights = _fit(features, ms)
        self._constant = constant
        self._parts: list[tuple[Pricer, Array]] = []
        for multiple, part in zip(MULTIPLES, np.split(np.array(weights), len(MULTIPLES))):
            each = part @ sums
            used = [terms[position] for position in np.flatnonzero(each)]
            self._parts.append((Pricer(blueprint, used, multiple), each[each > 0]))

    def __call__(self, counts: NDArray[np.int64]) -> Array:
        """Price children: [n, dims] channel counts -> [n] milliseconds."""
        total = np.full(len(counts), self._constant)
        for pricer, weights in self._parts:
            # One after the other: a matrix product adds up in another order for one child than
            # for many, and equal children would have prices that differ in the last digit.
            for weight, values in zip(weights, pricer(counts)):
                total += weight * values
        return total


def _features(blueprint: Blueprint) -> tuple[list[Term], Array]:
    """The distinct terms of all layers, and [features, terms]: how often each is in a feature.

    A layer takes time for its multiply-adds, weights and maps. Layers of one kind share a feature.
    """
    found: list[tuple[object, Term]] = []
    for layer in blueprint.layers:
        kind = (layer.op, layer.kernel, is_depthwise(layer))
        found.append((("macs", *kind), layer.macs))
        found.append((("weights", *kind), layer.weights))
        maps = [replace(blueprint.maps[at], block=layer.macs.block) for at in layer.maps]
        found += [(("maps", *kind), term) for term in maps]
    rows: dict[object, int] = {}
    columns: dict[Term, int] = {}
    for label, term in found:
        rows.setdefault(label, len(rows))
        columns.setdefault(term, len(columns))
    sums = np.zeros((len(rows), len(columns)))
    for label, term in found:
        sums[rows[label], columns[term]] += 1
    return list(columns), sums


def is_depthwise(layer: Layer) -> bool:
    """Whether each channel is computed from one channel, for which there are other kernels."""
    return len(layer.weights.layouts) == 1 and layer.weights.times == math.prod(layer.kernel)


def _fit(features: Array, ms: Array) -> Array:
    """[features, n], [n] -> [features] non-negative weights of least squared relative error."""
    from scipy.optimize import nnls  # type: ignore[import-untyped]  # half a second, needed late

    scale = np.maximum(features.max(axis=1, keepdims=True), 1e-300)
    steps = STEPS_PER_FEATURE * len(features)
    try:
        weights, _ = nnls((features / scale / ms).T, np.ones(len(ms)), maxiter=steps)
    except RuntimeError as error:
        raise UserError(f"latency: no model fits these times ({error}); measure again") from error
    return weights / scale[:, 0]


def held_out_error(blueprint: Blueprint, counts: NDArray[np.int64], ms: Array) -> float:
    """Mean relative error of the model on children that it was not fitted to (cross-validation)."""
    fold = np.arange(len(ms)) % FOLDS
    errors = []
    for held in range(min(FOLDS, len(ms))):
        seen, rest = fold != held, fold == held
        model = LatencyModel(blueprint, counts[seen], ms[seen])
        errors.append(np.abs(model(counts[rest]) / ms[rest] - 1))
    return float(np.concatenate(errors).mean())
