"""One trained network, every size: slimmable neural networks for PyTorch.

    net = joslim.slim(model, example_input)      make an ordinary network slimmable
    with net.at(widths): net(x)                  run it as one of its children (subnets)
    joslim.cost("macs", net)(widths)             price a child without running it
    net.child(widths)                            cut a child out as an ordinary module
    joslim.train("resnet20", "cifar100")         train weights and widths jointly
    joslim.Slimming(net, ...)                    the same in your own training loop
    joslim.save(net, front, "runs/a")            keep what your own loop has trained
    joslim.load("runs/a").front.pick(macs=20e6)  choose from the Pareto front for a budget
    joslim.allocate(fronts, latency_ms=30)       share one budget among many networks
    joslim.compare(["slim", "joslim"], out="c")  compare methods over seeds in one table
    joslim.export(run, point, "a.onnx")          write a child to a file, and check the file
    joslim.report("runs/a", "a.html")            show everything about a run on one page

Names are imported when they are first used, so that the command line answers without loading
PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joslim import models
    from joslim.allocation import Allocation, allocate
    from joslim.comparing import Comparison, compare
    from joslim.costs import COSTS, Cost, cost
    from joslim.data import DATASETS, Data, load_data
    from joslim.deploy import export, load_child, round_channels
    from joslim.errors import RunFailed, UserError
    from joslim.front import Front, Point
    from joslim.runs.driver import train
    from joslim.runs.rejudging import rejudge
    from joslim.runs.report import report
    from joslim.runs.run import Run, load
    from joslim.runs.saving import save
    from joslim.search import SEARCHERS, History, Searcher
    from joslim.slimmable import SlimmableNet, batch_statistics, recalibrate, slim, sort_channels
    from joslim.space import Dim, Knob, Widths, WidthSpace
    from joslim.training.exploring import explore
    from joslim.training.methods import METHODS, PRESETS
    from joslim.training.metrics import Metric
    from joslim.training.optimizers import parameter_groups
    from joslim.training.slimming import Slimming
    from joslim.training.tasks import TASKS, Task

__version__ = "0.2.0"

_NAMES = {
    "joslim.allocation": "Allocation allocate",
    "joslim.comparing": "Comparison compare",
    "joslim.costs": "COSTS Cost cost",
    "joslim.data": "DATASETS Data load_data",
    "joslim.deploy": "export load_child round_channels",
    "joslim.errors": "RunFailed UserError",
    "joslim.front": "Front Point",
    "joslim.runs.driver": "train",
    "joslim.runs.rejudging": "rejudge",
    "joslim.runs.report": "report",
    "joslim.runs.run": "Run load",
    "joslim.runs.saving": "save",
    "joslim.search": "SEARCHERS History Searcher",
    "joslim.slimmable": "SlimmableNet batch_statistics recalibrate slim sort_channels",
    "joslim.space": "Dim Knob WidthSpace Widths",
    "joslim.training.exploring": "explore",
    "joslim.training.methods": "METHODS PRESETS",
    "joslim.training.metrics": "Metric",
    "joslim.training.optimizers": "parameter_groups",
    "joslim.training.slimming": "Slimming",
    "joslim.training.tasks": "TASKS Task",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "COSTS",
    "DATASETS",
    "METHODS",
    "PRESETS",
    "SEARCHERS",
    "TASKS",
    "Allocation",
    "Comparison",
    "Cost",
    "Data",
    "Dim",
    "Front",
    "History",
    "Knob",
    "Metric",
    "Point",
    "Run",
    "RunFailed",
    "Searcher",
    "SlimmableNet",
    "Slimming",
    "Task",
    "UserError",
    "WidthSpace",
    "Widths",
    "allocate",
    "batch_statistics",
    "compare",
    "cost",
    "explore",
    "export",
    "load",
    "load_child",
    "load_data",
    "models",
    "parameter_groups",
    "recalibrate",
    "rejudge",
    "report",
    "round_channels",
    "save",
    "slim",
    "sort_channels",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "models":
        return import_module("joslim.models")
    if name not in _HOME:
        raise AttributeError(f"module 'joslim' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
