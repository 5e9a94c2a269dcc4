"""Fronts of runs in the milliseconds of device files, and the networks that these may need."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from joslim.errors import UserError
from joslim.front import Front
from joslim.results.device_times import input_shapes, matching_files, timed_front
from joslim.results.run_files import facts_of_run, read_front

if TYPE_CHECKING:
    from joslim.runs.run import Run
    from joslim.slimmable import SlimmableNet


class NotNamed(UserError):
    """A run of somebody's own network, which has to be named again."""

    def __init__(self, own: str) -> None:
        self.own, self.again = own, own if ":" in own else "package.module:function"
        super().__init__(
            f"model: {own!r} is not imported because a file says so; type --model {self.again}"
        )


def timed_fronts(
    folders: Sequence[Path], device_files: Sequence[str | Path], model: str | None = None
) -> list[Front]:
    """Read the front of each run, with the times of the device file that is of its network.

    model: The user's own network, needed if the file lacks some children.
    """
    if model is not None and not device_files:
        raise UserError("model: it goes with a device file; leave out --model")
    files = matching_files(folders, device_files)
    return [read_timed_front(folder, files.get(folder), model) for folder in folders]


def read_timed_front(
    folder: Path, device_file: str | Path | None, model: str | None = None
) -> Front:
    """Read the front of a run; its network is loaded if the device file lacks some child."""

    def network() -> SlimmableNet:
        try:
            return opened(folder, model).net
        except NotNamed as error:
            measure = f"joslim latency {shlex.quote(str(folder))} --model {error.again} -o FILE"
            raise UserError(
                f"device_file: it lacks children of {str(folder)!r}, whose {error.own!r} is not "
                f"imported because a file says so; type {measure}"
            ) from error

    front = read_front(folder)
    if device_file is None:
        return front
    return timed_front(front, input_shapes(facts_of_run(folder)), device_file, network)


def opened(path: str | Path, model: str | None) -> Run:
    """Open a run with its network: somebody's own network is named again, others need no name."""
    from joslim.runs.run import load  # with torch, which a front without a device file needs not

    run = load(path, model=model)
    own = run.config.model
    if model is None and (":" in own or own.startswith("<")):
        raise NotNamed(own)
    return run
