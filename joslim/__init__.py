"""Joslim: one trained network, every size.

    net = joslim.slim(model, example_input)      make an ordinary network slimmable
    with net.at(widths): net(x)                  run it as any of its children
    joslim.cost("macs", net)(widths)             price a child without running it
    net.child(widths)                            cut a child out as an ordinary module

Names are imported when they are first used, so that the command line answers without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joslim import models
    from joslim.costs import COSTS, Cost, cost
    from joslim.errors import UserError
    from joslim.slimmable import SlimmableNet, batch_statistics, recalibrate, slim
    from joslim.widths import Dim, Knob, Widths, WidthSpace

__version__ = "0.1.0"

_HOME = {
    "models": "joslim.models",
    "COSTS": "joslim.costs",
    "Cost": "joslim.costs",
    "cost": "joslim.costs",
    "UserError": "joslim.errors",
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
    "Cost",
    "Dim",
    "Knob",
    "SlimmableNet",
    "UserError",
    "WidthSpace",
    "Widths",
    "batch_statistics",
    "cost",
    "models",
    "recalibrate",
    "slim",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'joslim' has no attribute {name!r}")
    module = import_module(_HOME[name])
    return module if name == "models" else getattr(module, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
