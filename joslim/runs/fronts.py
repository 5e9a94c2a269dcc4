"""Fronts of runs, and the device files that give them their milliseconds."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from joslim.errors import UserError
from joslim.front import Front
from joslim.runs.opening import facts_of_run
from joslim.runs.timed import Network, shapes_in, timed_front
from joslim.runs.whereabouts import read_front
from joslim.widths import WidthSpace

if TYPE_CHECKING:
    from joslim.costs.device_file import DeviceFile, Shapes
    from joslim.runs.run import Run
    from joslim.slimmable import SlimmableNet


def timed_fronts(
    folders: Sequence[Path], device_files: Sequence[str | Path], model: str | None = None
) -> list[Front]:
    """The front of each run; in the times of that device file which is of its network.

    A file that is of no network here is an error. model: of a run of somebody's own network, needed
    if not all its children were measured.
    """
    if model is not None and not device_files:
        raise UserError("model: it goes with a device file; leave out --model")
    files = serving(folders, device_files)
    fronts = []
    for folder in folders:
        front = read_front(folder)
        if folder in files:
            network = opener(folder, model)
            front = timed_front(front, shapes_of(folder), files[folder], network)
        fronts.append(front)
    return fronts


def serving(folders: Sequence[Path], device_files: Sequence[str | Path]) -> dict[Path, str | Path]:
    """The folders of the runs that a file is of, with that file."""
    if not device_files:
        return {}
    from joslim.costs.device_file import DeviceFile

    networks = {folder: (read_front(folder).space, shapes_of(folder)) for folder in folders}
    found: dict[Path, str | Path] = {}
    for path in device_files:
        file = DeviceFile.read(path)
        served = [
            folder
            for folder, network in networks.items()
            if network == (file.space, file.conditions.inputs)
        ]
        if not served:
            refuse_stranger(file, path, list(networks.values()))
        for folder in served:
            if folder in found:
                both = f"{str(found[folder])!r} and {str(path)!r}"
                raise UserError(f"device_file: {both} are of the same network; type one of them")
            found[folder] = path
    return found


def refuse_stranger(
    file: DeviceFile, path: str | Path, networks: Sequence[tuple[WidthSpace, Shapes]]
) -> None:
    """Of a single network it can be said what differs."""
    if len(networks) == 1:
        file.check_network(*networks[0], path)
    raise UserError(
        f"device_file: {str(path)!r} is of none of these {len(networks)} networks; "
        "measure one of them: joslim latency RUN -o FILE"
    )


def shapes_of(folder: str | Path) -> Shapes:
    return shapes_in(facts_of_run(Path(folder)))


def opener(folder: Path, model: str | None) -> Network:
    def network() -> SlimmableNet:
        try:
            return opened(folder, model).net
        except NotNamed as error:
            measure = f"joslim latency {shlex.quote(str(folder))} --model {error.again} -o FILE"
            raise UserError(
                f"device_file: it lacks children of {str(folder)!r}, whose {error.own!r} is not "
                f"imported because a file says so; type {measure}"
            ) from error

    return network


class NotNamed(UserError):
    """A run of somebody's own network, which has to be named again."""

    def __init__(self, own: str) -> None:
        self.own, self.again = own, own if ":" in own else "package.module:function"
        super().__init__(
            f"model: {own!r} is not imported because a file says so; type --model {self.again}"
        )


def opened(path: str | Path, model: str | None) -> Run:
    """A run with its network: one of somebody's own is named again, others need no name."""
    from joslim.runs.run import load

    run = load(path, model=model)
    own = run.config.model
    if model is None and (":" in own or own.startswith("<")):
        raise NotNamed(own)
    if not own.startswith("<") and model not in (None, own):
        raise UserError(f"model: {model!r} given, the run has {own!r}; type --model {own}")
    return run
