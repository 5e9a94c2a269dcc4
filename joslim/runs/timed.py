"""A front in the milliseconds of a device, from what `joslim latency` has measured on it.

A device file serves every run of its network, whatever the cost that the run was trained for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joslim.front import LATENCY, Front
from joslim.runs.folder import CONFIG
from joslim.untrusted import json_count, json_rows, json_value
from joslim.widths import Widths

if TYPE_CHECKING:
    from joslim.costs.device_file import DeviceFile, Shapes
    from joslim.slimmable import SlimmableNet

MOST_PIXELS = 10_000

# A network takes its time to load: it is asked for only where it is needed.
Network = Callable[[], "SlimmableNet"]


def timed_front(front: Front, inputs: Shapes, path: str | Path, net: Network) -> Front:
    """inputs: the shapes that the network takes, which the device file has to be of."""
    from joslim.costs.device_file import DeviceFile

    file = DeviceFile.read(path)
    file.check_network(front.space, inputs, path)
    return repriced(front, times_on(file, needed(front), net))


def needed(front: Front) -> list[Widths]:
    """Its children; and both ends, if the span is in milliseconds as well."""
    ends = [front.space.smallest, front.space.full] if front.key == LATENCY else []
    return [*(point.widths for point in front), *ends]


def times_on(file: DeviceFile, children: Iterable[Widths], net: Network) -> dict[Widths, float]:
    """The milliseconds of these children: as measured if all of them were, else by the model.

    Never some of each: what is measured and what is modelled differ by more than neighbours do.
    """
    wanted = list(dict.fromkeys(children))
    measured = dict(zip(file.children, file.ms))
    if measured.keys() >= {*wanted}:
        return {child: measured[child] for child in wanted}
    from joslim.costs.latency_model import LatencyModel

    model = LatencyModel(net().blueprint, file.counts, np.array(file.ms))
    counts = np.array([child.counts for child in wanted], dtype=np.int64)
    return dict(zip(wanted, model(counts).tolist()))


def repriced(front: Front, times: dict[Widths, float]) -> Front:
    """With these milliseconds. If they are its own cost, children that are beaten now are left out.

    times: of what is `needed`.
    """
    points = [replace(p, costs={**p.costs, LATENCY: times[p.widths]}) for p in front]
    if front.key != LATENCY:
        return Front(points, front.cost, front.span)
    span = (times[front.space.smallest], times[front.space.full])
    return Front.of(points, front.cost, span)


def shapes_in(facts: dict[str, Any]) -> Shapes:
    """What the network of a run takes, by its config.json."""
    where = f"{CONFIG}.data"
    sizes = json_rows(json_value(facts, "data", CONFIG), "shape", where, most=3, least=3)
    return ((1, *(json_count(size, f"{where}.shape", 1, MOST_PIXELS) for size in sizes)),)
