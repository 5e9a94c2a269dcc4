"""What a child costs. A new cost is a class in a file here and a line in `COSTS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from joslim.costs.base import Cost
from joslim.costs.counting import Macs, Memory, Params
from joslim.costs.function import FunctionCost
from joslim.costs.latency import Latency
from joslim.errors import UserError, unknown
from joslim.slimmable.net import SlimmableNet
from joslim.widths import Widths

COSTS: dict[str, Callable[..., Cost]] = {
    "macs": Macs,
    "params": Params,
    "memory": Memory,
    "latency": Latency,
}

__all__ = ["COSTS", "Cost", "cost"]


def cost(which: str | Callable[[Widths], float], net: SlimmableNet, **options: Any) -> Cost:
    """The cost of this name, or one made of a function from Widths to a number.

    Options: `memory` takes bytes_per_element (4). `latency` takes children (64) and repeats (5) of
    its measurement, threads, batch, precision and backend, or a device_file: docs/own-device.md.
    """
    if not isinstance(net, SlimmableNet):
        raise UserError(f"net: {type(net).__name__} is not slimmable; type joslim.slim(...) first")
    if callable(which):
        if options:
            raise UserError(f"cost: a function takes no options, {', '.join(options)} given")
        own = FunctionCost(which, net)
        if own.name in COSTS:
            raise UserError(f"cost: {own.name} is built in; give your function another name")
        return own
    if not isinstance(which, str) or which not in COSTS:
        raise unknown("cost", str(which), COSTS)
    try:
        return COSTS[which](which, net, **options)
    except TypeError as error:
        raise UserError(f"cost: {which} does not take these options: {options}") from error
