"""Latency: some children are measured once, the rest is priced by a model of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from joslim.costs.base import Cost
from joslim.costs.counting import Macs
from joslim.costs.device_file import MOST_CHILDREN, Conditions, DeviceFile
from joslim.costs.latency_model import LatencyModel
from joslim.costs.measuring import Setting, Watch, check_count, measure
from joslim.errors import UserError
from joslim.slimmable.net import SlimmableNet
from joslim.widths import Widths

CHILDREN = 64
REPEATS = 5
MOST_REPEATS = 10_000
# Random children from which those that are measured are chosen, for each of them.
CANDIDATES = 50


class Latency(Cost):
    """Milliseconds of a forward pass on the example, by a model of measured children.

    At the first price `children` of them are measured on the network's device, `repeats` times
    each; or they are read from a `device_file`, which may be of another machine.
    """

    unit = "ms"

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
        self.net, self.children, self.repeats = net, children, repeats
        check_count("children", children, 2, MOST_CHILDREN)
        check_count("repeats", repeats, 1, MOST_REPEATS)
        self.setting = Setting(threads, batch, precision, backend)
        if device_file is not None:
            if self.setting != Setting():
                raise UserError("device_file: it is measured already; give no other options")
            self.device_file = DeviceFile.read(device_file)
            self.device_file.check_fits(net, device_file)

    @cached_property
    def device_file(self) -> DeviceFile:
        """What was measured: `cost.device_file.write(path)` keeps it."""
        chosen = with_both_ends(self.net, self.children, np.random.default_rng(0))
        return measure_device(self.net, chosen, self.setting, self.repeats)

    @cached_property
    def model(self) -> LatencyModel:
        measured = self.device_file
        return LatencyModel(self.net.blueprint, measured.counts, np.array(measured.ms))

    def _price(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.model(counts)


def measure_device(
    net: SlimmableNet,
    children: Sequence[Widths],
    setting: Setting,
    repeats: int = REPEATS,
    watch: Watch | None = None,
) -> DeviceFile:
    times = measure(net, children, setting, repeats, watch)
    conditions = Conditions.here(net, setting)
    return DeviceFile(
        conditions, tuple(children), tuple(times.ms.tolist()), tuple(times.spread.tolist())
    )


def spread_children(
    net: SlimmableNet, count: int, rng: np.random.Generator, without: Iterable[Widths] = ()
) -> list[Widths]:
    """Different children, evenly along the multiply-adds; fewer if there are not so many.

    What lies in the box evenly is rarely small or large: half of the candidates have some knobs at
    their low, the others have some at full width.
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


def with_both_ends(net: SlimmableNet, count: int, rng: np.random.Generator) -> list[Widths]:
    """The smallest child, the full one, and others between them."""
    ends = list(dict.fromkeys([net.space.smallest, net.space.full]))
    return [*ends, *spread_children(net, count - len(ends), rng, without=ends)]
