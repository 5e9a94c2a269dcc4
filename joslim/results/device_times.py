"""A front in the milliseconds of a device, from a device file that `joslim latency` has written.

A device file serves every run of its network, whatever the cost that the run was trained for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joslim.errors import UserError
from joslim.files import json_count, json_name, json_rows
from joslim.front import LATENCY, Front
from joslim.results.run_files import CONFIG, facts_of_run, read_front
from joslim.space import Widths

if TYPE_CHECKING:
    from joslim.costs.device_file import DeviceFile, Shapes
    from joslim.slimmable import SlimmableNet

# Limits of the inputs of a network that a file states.
MOST_INPUTS = 100
MOST_AXES = 16
MOST_VALUES = 2**26

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
        return Front(points, front.cost, front.span, front.val_images, front.metric)
    span = (times[front.space.smallest], times[front.space.full])
    return Front.of(points, front.cost, span, front.val_images, front.metric)


def input_shapes(facts: dict[str, Any]) -> Shapes:
    """Shapes of the inputs of a run's network. facts: the content of its config.json."""
    return tuple(shape for shape, _ in inputs_of(facts))


def inputs_of(facts: dict[str, Any]) -> list[tuple[tuple[int, ...], str]]:
    """Shape and type of each input of the network of a run or of an exported child.

    A network from somebody's own loop has its inputs on record, others take images.
    """
    if "network" in facts:
        rows = json_rows(facts["network"], "inputs", f"{CONFIG}.network", MOST_INPUTS)
        places = [f"{CONFIG}.network.inputs[{at}]" for at in range(len(rows))]
    else:
        images, place = (facts["data"], f"{CONFIG}.data") if "data" in facts else (facts, CONFIG)
        sizes = [1, *json_rows(images, "shape", place, MOST_AXES - 1)]
        rows, places = [{"shape": sizes, "dtype": images.get("dtype", "float32")}], [place]
    inputs = []
    for row, place in zip(rows, places):
        sizes = json_rows(row, "shape", place, MOST_AXES, least=0)
        shape = tuple(json_count(size, f"{place}.shape", 1, MOST_VALUES) for size in sizes)
        if math.prod(shape) > MOST_VALUES:
            raise UserError(f"{place}.shape: {shape} is more than {MOST_VALUES} values")
        inputs.append((shape, json_name(row.get("dtype", "float32"), f"{place}.dtype")))
    return inputs


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
