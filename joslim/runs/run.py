"""A run that is read from its folder: configuration, front, history and network."""

from __future__ import annotations

from functools import cached_property
from os.path import exists
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor, nn

from joslim.costs import Cost
from joslim.errors import UserError
from joslim.files import json_name, json_rows, json_value, stored_tensors
from joslim.front import Front
from joslim.results.device_times import input_shapes, inputs_of, timed_front
from joslim.results.record import VisitedChildren
from joslim.results.run_files import CONFIG, HISTORY, facts_of_run, read_front, read_lines
from joslim.runs import checkpoint
from joslim.runs.config import Config, config_of
from joslim.runs.folder import SAMPLES, RunFolder, sample_names
from joslim.runs.networks import (
    are_inputs,
    blank_inputs,
    channels_in,
    check_model,
    classes_in,
    load_blank,
    slim_again,
    slim_options,
)
from joslim.search.history import History
from joslim.slimmable import SlimmableNet
from joslim.space import WidthSpace

MOST_CLASSES = 10**6
MOST_NAMES = 10**6
MOST_CHANNELS = 10**6


class Run:
    """One training (experiment) and the folder that holds everything about it.

    `joslim.train` returns a run, `joslim.load` opens one. Files are read when they are needed.

    Examples:
        >>> run = joslim.load("runs/digits")
        >>> run.config.model, run.config.data
        ('resnet8', 'digits')
        >>> point = run.front.pick(macs="600K")
        >>> run.net.use(point)  # with the child's own BatchNorm statistics
        >>> run.net.active == point.widths
        True
    """

    def __init__(
        self,
        folder: RunFolder,
        net: SlimmableNet | None = None,
        front: Front | None = None,
        model: str | nn.Module | None = None,
    ) -> None:
        self.folder = folder
        self._model = model
        if net is not None:
            self.net = net
        if front is not None:
            self.front = front

    @property
    def path(self) -> Path:
        """Path of the run folder."""
        return self.folder.path

    @cached_property
    def facts(self) -> dict[str, Any]:
        """All of config.json: the configuration, the cost and the data."""
        return facts_of_run(self.path)

    @cached_property
    def config(self) -> Config:
        """Configuration of the training, with every value resolved; None means off."""
        values = self.facts.get("config")
        if not isinstance(values, dict):
            raise UserError(f"run: {str(self.path / CONFIG)!r} holds no configuration")
        return config_of(values)

    @property
    def data_name(self) -> str:
        """Data of the run as `joslim.load_data` takes them; a folder is where it was, if it is."""
        path = json_value(self.facts, "data", CONFIG).get("path")
        kind = self.config.data.partition(":")[0]
        return f"{kind}:{path}" if isinstance(path, str) and exists(path) else self.config.data

    @cached_property
    def fresh(self) -> list[str]:
        """Names of the weights that did not come from --init and were trained from scratch."""
        names = json_rows(self.facts, "fresh", CONFIG, MOST_NAMES, least=0)
        return [json_name(name, f"{CONFIG}.fresh") for name in names]

    @cached_property
    def front(self) -> Front:
        """Pareto front of the run.

        Raises:
            UserError: The training has not finished, or the file is damaged.
        """
        return read_front(self.path)

    def timed(self, device_file: str | Path) -> Front:
        """Return the front with the latency of its children on a device.

        Args:
            device_file: A file that `joslim latency` has written.

        Raises:
            UserError: The file is of another network, or is damaged.
        """
        return timed_front(self.front, input_shapes(self.facts), device_file, lambda: self.net)

    @cached_property
    def net(self) -> SlimmableNet:
        """The trained network at full width, in eval mode, with the BatchNorm statistics of its
        children.

        Raises:
            UserError: There is no checkpoint yet, or the network is your own and was not given to
                `joslim.load`.
        """
        path = checkpoint.find(self.folder)
        if path is None:
            raise UserError(f"run: {str(self.path)!r} has no checkpoint yet")
        checkpoint.verify(path)
        if self.in_own_loop:
            record, where = self.facts["network"], f"{CONFIG}.network"
            example = tuple(x[:1] if self.batched else x for x in self.samples)
            classes, options = classes_in(record, where), slim_options(record, where)
        else:
            data = json_value(self.facts, "data", CONFIG)
            classes = len(json_rows(data, "classes", f"{CONFIG}.data", MOST_CLASSES))
            example, options = blank_inputs(inputs_of(self.facts)), self.config.slim_options
        model = self._network(classes, channels_in(inputs_of(self.facts)))
        net = slim_again(model, example, options)
        if self.in_own_loop and net.space != self.front.space:
            raise UserError(
                f"model: {len(net.space)} knobs and {len(net.space.dims)} groups of channels, "
                f"which are not those of the run in {str(self.path)!r}; give the network that was "
                "saved there"
            )
        checkpoint.load_weights(path, net)
        return net.eval()

    @property
    def in_own_loop(self) -> bool:
        """Whether `joslim.save` has written the run, after a training loop of somebody's own."""
        return "network" in self.facts

    @property
    def batched(self) -> bool:
        """Whether the first axis of all inputs is the batch, for which the example has size 1."""
        return all(shape[:1] == (1,) for shape, _ in inputs_of(self.facts))

    @cached_property
    def samples(self) -> tuple[Tensor, ...]:
        """Inputs that exports are checked with: one tensor for each input of the network.

        Raises:
            UserError: The file is damaged, or the training has not finished.
        """
        file = self.folder.file(SAMPLES)
        try:
            stored = stored_tensors(file) if file.is_file() else None
        except (OSError, SafetensorError) as error:
            raise UserError(f"run: cannot read {str(file)!r}: {error}") from error
        if stored is None:
            raise UserError(
                f"run: {str(self.path)!r} has no {SAMPLES}, its training has not finished"
            )
        wanted = inputs_of(self.facts)
        found = tuple(stored[name] for name in sample_names(len(wanted)) if name in stored)
        if not are_inputs(found, wanted, self.batched):
            shapes = ", ".join(f"{shape} {kind}" for shape, kind in wanted)
            raise UserError(f"run: {str(file)!r} holds no samples of inputs {shapes}")
        return found

    @cached_property
    def history(self) -> History:
        """Every child that the search visited, with its losses over time."""
        file = self.folder.file(HISTORY)
        lines = read_lines(file) or [{}]
        seen = VisitedChildren.of_lines(lines)
        history = History(StoredCost(lines[0]["cost"], seen.space))
        scorings = [(step, [*losses], [*losses.values()]) for step, losses in seen.scorings]
        visits = [*zip(seen.counts, seen.costs, seen.steps)]
        try:
            history.load_state_dict({"visits": visits, "scorings": scorings})
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise UserError(f"run: {str(file)!r} is broken: {error}") from error
        return history

    def _network(self, classes: int | None, channels: int | None) -> nn.Module:
        """Make the network. Code that only a file names is not imported."""
        if isinstance(self._model, nn.Module):
            return self._model
        name = self._model or self.config.model
        if self._model is None and (":" in name or name.startswith("<")):
            raise UserError(
                f"model: the run is of {name!r}, which is not imported because a file says so; "
                f"give it again: joslim.load({str(self.path)!r}, model=...)"
            )
        with torch.random.fork_rng(devices=[]):
            return load_blank(name, classes, channels)

    def __repr__(self) -> str:
        return f"<Run {str(self.path)!r}>"


class StoredCost(Cost):
    """The cost of a history that is read from its file, which has the costs of all children."""

    def __init__(self, name: str, space: WidthSpace) -> None:
        self.name, self.space = name, space

    def _price(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        raise UserError(f"cost: a run's history knows the {self.name} of visited children only")


def load(path: str | Path, model: str | nn.Module | None = None) -> Run:
    """Open a run folder.

    Nothing in the folder is executed, so it may come from anybody.

    Args:
        path: The run folder.
        model: The network, if it is your own: a module, or "package.module:function". Code is not
            imported because a file names it.

    Returns:
        The run. Its front, network and history are read when they are needed.

    Raises:
        UserError: The folder is not a run folder, or the name is that of another network.

    Examples:
        >>> run = joslim.load("runs/digits")
        >>> len(run.front) >= 1
        True
    """
    check_model(model)
    run = Run(RunFolder(path), model=model)
    _ = run.facts  # a folder that is no run folder is refused now
    if isinstance(model, str) and model != (own := run.config.model) and own[0] != "<":
        raise UserError(f"model: {model!r} given, the run has {own!r}; type --model {own}")
    return run
