"""Joslim: one trained network, every size.

    net = joslim.slim(model, example_input)      make an ordinary network slimmable
    with net.at(widths): net(x)                  run it as any of its children
    joslim.cost("macs", net)(widths)             price a child without running it
    net.child(widths)                            cut a child out as an ordinary module
    joslim.train("resnet20", "cifar100")         train weights and widths jointly
    joslim.Slimming(net, ...)                    the same in a loop of one's own
    joslim.load("runs/a").front.pick(macs=20e6)  the child that fits a budget
    joslim.allocate(fronts, latency_ms=30)       one budget for many networks
    joslim.compare(["slim", "joslim"], out="c")  methods over seeds, in one table
    joslim.export(run, point, "a.onnx")          the child as a file that has been checked
    joslim.report("runs/a", "a.html")            everything about a run, on one page

Names are imported when they are first used, so that the command line answers without torch.
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
    from joslim.deploy import export, load_child
    from joslim.errors import RunFailed, UserError
    from joslim.front import Front, Point
    from joslim.loop import Slimming, explore
    from joslim.methods import METHODS, PRESETS
    from joslim.runs.report import report
    from joslim.runs.run import Run, load
    from joslim.runs.training import train
    from joslim.search import SEARCHERS, History, Searcher
    from joslim.slimmable import SlimmableNet, batch_statistics, recalibrate, slim, sort_channels
    from joslim.widths import Dim, Knob, Widths, WidthSpace

__version__ = "0.2.0"

_HOME = {
    "models": "joslim.models",
    "Allocation": "joslim.allocation",
    "allocate": "joslim.allocation",
    "Comparison": "joslim.comparing",
    "compare": "joslim.comparing",
    "COSTS": "joslim.costs",
    "Cost": "joslim.costs",
    "cost": "joslim.costs",
    "DATASETS": "joslim.data",
    "Data": "joslim.data",
    "load_data": "joslim.data",
    "RunFailed": "joslim.errors",
    "UserError": "joslim.errors",
    "export": "joslim.deploy",
    "load_child": "joslim.deploy",
    "Front": "joslim.front",
    "Point": "joslim.front",
    "Slimming": "joslim.loop",
    "explore": "joslim.loop",
    "METHODS": "joslim.methods",
    "PRESETS": "joslim.methods",
    "Run": "joslim.runs.run",
    "load": "joslim.runs.run",
    "report": "joslim.runs.report",
    "train": "joslim.runs.training",
    "SEARCHERS": "joslim.search",
    "History": "joslim.search",
    "Searcher": "joslim.search",
    "sort_channels": "joslim.slimmable",
    "SlimmableNet": "joslim.slimmable",
    "batch_statistics": "joslim.slimmable",
    "recalibrate": "joslim.slimmable",
    "slim": "joslim.slimmable",
    "Dim": "joslim.widths",
    "Knob": "joslim.widths",
    "Widths": "joslim.widths",
    "WidthSpace": "joslim.widths",
}

__all__ = [
    "COSTS",
    "DATASETS",
    "METHODS",
    "PRESETS",
    "SEARCHERS",
    "Allocation",
    "Comparison",
    "Cost",
    "Data",
    "Dim",
    "Front",
    "History",
    "Knob",
    "Point",
    "Run",
    "RunFailed",
    "Searcher",
    "SlimmableNet",
    "Slimming",
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
    "recalibrate",
    "report",
    "slim",
    "sort_channels",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'joslim' has no attribute {name!r}")
    module = import_module(_HOME[name])
    return module if name == "models" else getattr(module, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
