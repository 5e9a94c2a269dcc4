"""A front in the milliseconds of a device, from a device file that `joslim latency` has written.

A device file serves every run of its network, whatever the cost that the run was trained for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joslim.errors import UserError
from joslim.files import json_count, json_rows, json_value
from joslim.front import LATENCY, Front
from joslim.results.run_files import CONFIG, facts_of_run, read_front
from joslim.space import Widths

if TYPE_CHECKING:
    from joslim.costs.device_file import DeviceFile, Shapes
    from joslim.slimmable import SlimmableNet

MOST_PIXELS = 10_000

# Loading a network takes time, so it is only called where a child was not measured.
Network = Callable[[], "SlimmableNet"]


def timed_front(front: Front, inputs: Shapes, path: str | Path, net: Network) -> Front:
    """Read a device file and put its milliseconds into a front.

    inputs: shapes of the network's inputs; a device file for others is refused.
    """
    from joslim.costs.device_file import DeviceFile

    file = DeviceFile.read(path)
    file.check_network(front.space, inputs, path)
    return repriced(front, times_on(file, children_to_time(front), net))


def children_to_time(front: Front) -> list[Widths]:
    """The children of a front, and both ends of its span if that is in milliseconds as well."""
    ends = [front.space.smallest, front.space.full] if front.key == LATENCY else []
    return [*(point.widths for point in front), *ends]


def times_on(file: DeviceFile, children: Iterable[Widths], net: Network) -> dict[Widths, float]:
    """Milliseconds of these children: as measured if all of them were, else by the latency model.

    The two are never mixed: they differ by more than neighbours on a front do.
    """
    wanted = list(dict.fromkeys(children))
    measured = dict(zip(file.children, file.ms))
    if measured.keys() >= {*wanted}:
        return {child: measured[child] for child in wanted}
    from joslim.costs.latency import LatencyModel

    model = LatencyModel(net().blueprint, file.counts, np.array(file.ms))
    counts = np.array([child.counts for child in wanted], dtype=np.int64)
    return dict(zip(wanted, model(counts).tolist()))


def repriced(front: Front, times: dict[Widths, float]) -> Front:
    """Put milliseconds into a front; if they are its own cost, dominated children are left out.

    times: those of `children_to_time`.
    """
    points = [replace(p, costs={**p.costs, LATENCY: times[p.widths]}) for p in front]
    if front.key != LATENCY:
        return Front(points, front.cost, front.span, front.val_images)
    span = (times[front.space.smallest], times[front.space.full])
    return Front.of(points, front.cost, span, front.val_images)


def input_shapes(facts: dict[str, Any]) -> Shapes:
    """Shapes of the inputs of a run's network. facts: the content of its config.json."""
    where = f"{CONFIG}.data"
    sizes = json_rows(json_value(facts, "data", CONFIG), "shape", where, most=3, least=3)
    return ((1, *(json_count(size, f"{where}.shape", 1, MOST_PIXELS) for size in sizes)),)


def matching_files(
    folders: Sequence[Path], device_files: Sequence[str | Path]
) -> dict[Path, str | Path]:
    """Find the device file of each run's network; a file that matches no run is refused."""
    if not device_files:
        return {}
    from joslim.costs.device_file import DeviceFile

    networks = {f: (read_front(f).space, input_shapes(facts_of_run(f))) for f in folders}
    found: dict[Path, str | Path] = {}
    for path in device_files:
        file = DeviceFile.read(path)
        own = (file.space, file.conditions.inputs)
        served = [folder for folder, network in networks.items() if network == own]
        if not served:
            if len(networks) == 1:  # then the difference can be named
                file.check_network(*next(iter(networks.values())), path)
            raise UserError(
                f"device_file: {str(path)!r} is of none of these {len(networks)} networks; "
                "measure one of them: joslim latency RUN -o FILE"
            )
        for folder in served:
            if folder in found:
                both = f"{str(found[folder])!r} and {str(path)!r}"
                raise UserError(f"device_file: {both} are of the same network; type one of them")
            found[folder] = path
    return found
