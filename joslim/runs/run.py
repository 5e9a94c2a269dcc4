"""A finished run: its configuration, its front, its history and its network."""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from joslim.costs import Cost
from joslim.errors import UserError
from joslim.front import Front
from joslim.runs import checkpoint
from joslim.runs.config import Config, as_begun, config_of
from joslim.runs.folder import CONFIG, HISTORY, RunFolder, read_lines
from joslim.runs.network import check_model, load_model, make_net
from joslim.runs.opening import facts_of_run
from joslim.runs.timed import shapes_in, timed_front
from joslim.runs.whereabouts import read_front
from joslim.search.history import History
from joslim.slimmable import SlimmableNet
from joslim.untrusted import json_count, json_name, json_number, json_rows, json_value
from joslim.widths import WidthSpace

MOST_CLASSES = 10**6
MOST_NAMES = 10**6
MOST_PIXELS = 10_000
MOST_VALUES = 2**26
MOST_CHANNELS = 10**6
MOST_CHILDREN = 10**7
MOST_STEPS = 10**12


class Run:
    """What `joslim.train` returns and `joslim.load` opens. Files are read when they are needed."""

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
        return self.folder.path

    @cached_property
    def facts(self) -> dict[str, Any]:
        """All of config.json: the configuration, and what is known of the data."""
        return facts_of_run(self.path)

    @cached_property
    def config(self) -> Config:
        values = self.facts.get("config")
        if not isinstance(values, dict):
            raise UserError(f"run: {str(self.path / CONFIG)!r} holds no configuration")
        return config_of(as_begun(values))

    @cached_property
    def fresh(self) -> list[str]:
        """The weights that did not come from --init, and so were learned anew."""
        names = json_rows(self.facts, "fresh", CONFIG, MOST_NAMES, least=0)
        return [json_name(name, f"{CONFIG}.fresh") for name in names]

    @cached_property
    def front(self) -> Front:
        return read_front(self.path)

    def timed(self, device_file: str | Path) -> Front:
        """The front with the milliseconds of a device: a file that `joslim latency` has written."""
        return timed_front(self.front, shapes_in(self.facts), device_file, lambda: self.net)

    @cached_property
    def net(self) -> SlimmableNet:
        """The trained network at full width, in eval mode, with its children's statistics."""
        path = checkpoint.find(self.folder)
        if path is None:
            raise UserError(f"run: {str(self.path)!r} has no checkpoint yet")
        checkpoint.verify(path)
        data = json_value(self.facts, "data", CONFIG)
        classes = json_rows(data, "classes", f"{CONFIG}.data", MOST_CLASSES)
        sizes = json_rows(data, "shape", f"{CONFIG}.data", most=3, least=3)
        shape = tuple(json_count(size, f"{CONFIG}.data.shape", 1, MOST_PIXELS) for size in sizes)
        if math.prod(shape) > MOST_VALUES:
            raise UserError(f"{CONFIG}.data.shape: {shape} is more than {MOST_VALUES} values")
        net, _ = make_net(self._network(len(classes)), shape, self.config.low)
        checkpoint.load_weights(path, net)
        return net.eval()

    @cached_property
    def history(self) -> History:
        """Every child that was visited, and its losses over time."""
        file = self.folder.file(HISTORY)
        header, *lines = read_lines(file) or [{}]
        history = History(StoredCost(header))
        try:
            history.load_state_dict(
                {
                    "visits": [stored_visit(line) for line in lines if "id" in line],
                    "scorings": [stored_scoring(line) for line in lines if "ids" in line],
                }
            )
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise UserError(f"run: {str(file)!r} is broken: {error}") from error
        return history

    def _network(self, classes: int) -> nn.Module:
        """Code named by a file is not imported: a model of one's own is given again."""
        if isinstance(self._model, nn.Module):
            return self._model
        name = self._model or self.config.model
        if self._model is None and (":" in name or name.startswith("<")):
            raise UserError(
                f"model: the run is of {name!r}, which is not imported because a file says so; "
                f"give it again: joslim.load({str(self.path)!r}, model=...)"
            )
        with torch.random.fork_rng(devices=[]):
            return load_model(name, classes)

    def __repr__(self) -> str:
        return f"<Run {str(self.path)!r}>"


def stored_visit(line: dict[str, Any]) -> list[Any]:
    widths = json_rows(line, "widths", HISTORY, MOST_CHANNELS)
    return [widths, number_or_nan(line["cost"]), json_count(line["step"], "step", 0, MOST_STEPS)]


def stored_scoring(line: dict[str, Any]) -> list[Any]:
    ids = json_rows(line, "ids", HISTORY, MOST_CHILDREN)
    losses = json_rows(line, "losses", HISTORY, MOST_CHILDREN)
    step = json_count(line["step"], "step", 0, MOST_STEPS)
    return [
        step,
        [json_count(child, "id", 0, MOST_CHILDREN) for child in ids],
        [number_or_nan(loss) for loss in losses],
    ]


def number_or_nan(value: Any) -> float:
    """JSON has no NaN: null stands for it."""
    return math.nan if value is None else float(json_number(value, HISTORY))


class StoredCost(Cost):
    """The cost of a history that is read from its file, where all prices are."""

    def __init__(self, header: dict[str, Any]) -> None:
        self.name = json_name(json_value(header, "cost", HISTORY), f"{HISTORY}.cost")
        self.space = WidthSpace.of_json(json_value(header, "space", HISTORY))

    def _price(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        raise UserError(f"cost: a run's history knows the {self.name} of visited children only")


def load(path: str | Path, model: str | nn.Module | None = None) -> Run:
    """Open a run folder. Nothing in it is executed; `model` is needed for networks of one's own."""
    check_model(model)
    folder = RunFolder(path)
    run = Run(folder, model=model)
    _ = run.facts
    return run
