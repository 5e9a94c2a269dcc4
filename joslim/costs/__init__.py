"""The table of costs. A new cost is a class in a file of this folder and a row in `COSTS`.

The row says how the cost is called, printed and typed; tables, plots, the page, budgets and flags
take it from there. This module imports neither torch nor numpy, since the command line makes its
flags from the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from joslim.errors import UserError, unknown

if TYPE_CHECKING:
    from joslim.costs.base import Cost
    from joslim.slimmable.net import SlimmableNet
    from joslim.space import Widths

__all__ = ["COSTS", "Cost", "CostInfo", "cost", "cost_info"]


@dataclass(frozen=True)
class CostInfo:
    """How a cost is made, called, printed and typed.

    Attributes:
        name: Name of the cost, as in `--cost latency`.
        implementation: The `Cost` class, or "module:class" if it is to be imported when needed.
        unit: Unit for people to read: "multiply-adds", "bytes", "ms".
        counts: Whether the cost counts things. Counts are printed without their unit: 20M.
        key: Name of the price in `Point.costs` and front.json, and of the budget; by default the
            name of the cost.
        label: Label in a sentence or a list; by default the name.
        axis_label: Label of an axis; by default the label.
        budget_help: Help of the flag that takes a budget.
        on_every_front: Whether every child of a front has this price, whatever the cost of the run.
        remedy: How to get the price for a front that lacks it.
    """

    name: str
    implementation: str | Callable[..., Cost] = ""
    unit: str = ""
    counts: bool = False
    key: str = ""
    label: str = ""
    axis_label: str = ""
    budget_help: str = ""
    on_every_front: bool = False
    remedy: str = ""

    def __post_init__(self) -> None:
        label = self.label or self.name
        defaults = {
            "key": self.name,
            "label": label,
            "axis_label": label,
            "budget_help": f"Largest {label}" + (f" in {self.unit}." if self.unit else "."),
            "remedy": f"type joslim train --cost {self.name}",
        }
        for field, default in defaults.items():
            object.__setattr__(self, field, getattr(self, field) or default)

    @property
    def flag(self) -> str:
        """Flag of the budget on the command line."""
        return "--" + self.key.replace("_", "-")

    @property
    def symbol(self) -> str:
        """Unit as it is printed after a number; empty for counts and for unknown units."""
        return "" if self.counts else {"bytes": "B"}.get(self.unit, self.unit)

    def make(self, net: SlimmableNet, **options: Any) -> Cost:
        """Make the cost for the children of a network."""
        implementation = self.implementation
        if isinstance(implementation, str):
            module, _, name = implementation.partition(":")
            implementation = getattr(import_module(module), name)
        made: Cost = implementation(self.name, net, **options)
        made.unit = self.unit
        return made


_ROWS = (
    CostInfo(
        "macs",
        "joslim.costs.counted:Macs",
        unit="multiply-adds",
        counts=True,
        label="multiply-adds",
        axis_label="multiply-adds for one input",
        budget_help="Largest number of multiply-adds for one input, such as 20M.",
        on_every_front=True,
    ),
    CostInfo(
        "params",
        "joslim.costs.counted:Params",
        unit="parameters",
        counts=True,
        label="parameters",
        budget_help="Largest number of parameters, such as 100K.",
        on_every_front=True,
    ),
    CostInfo(
        "memory",
        "joslim.costs.counted:Memory",
        unit="bytes",
        budget_help="Largest memory footprint, such as 64KiB or 1.5MB.",
        on_every_front=True,
    ),
    CostInfo(
        "latency",
        "joslim.costs.latency:Latency",
        unit="ms",
        key="latency_ms",
        axis_label="latency of a pass",
        budget_help="Largest latency in milliseconds, on the device of --device-file if given.",
        remedy="type joslim latency RUN -o device.json, then --device-file device.json; "
        "in Python run.timed('device.json')",
    ),
)

COSTS: dict[str, CostInfo] = {row.name: row for row in _ROWS}
"""The table of built-in costs: name -> description. `joslim.cost` looks names up here.

Examples:
    >>> sorted(joslim.COSTS)
    ['latency', 'macs', 'memory', 'params']
    >>> joslim.COSTS["latency"].unit
    'ms'
"""


def cost_info(name: str) -> CostInfo:
    """Look up a cost by its name or key; a cost of the user's own is described by its name only."""
    if name in COSTS:
        return COSTS[name]
    return next((info for info in COSTS.values() if info.key == name), CostInfo(name))


def cost(which: str | Callable[[Widths], float], net: SlimmableNet, **options: Any) -> Cost:
    """Make a cost for the children (subnets) of a network.

    Args:
        which: A name in `joslim.COSTS`, or a function of your own from `Widths` to a number.
        net: The slimmable network.
        options: Options of the cost. "memory" takes `bytes_per_element` (4). "latency" takes
            `children` (64) and `repeats` (5) of its measurement, `threads`, `batch`, `precision`
            and `backend`, or a `device_file` that `joslim latency` has written.

    Returns:
        The cost: a function of one child, or of many at once.

    Raises:
        UserError: The name or an option is unknown, or the network is not slimmable.

    Examples:
        >>> net = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 32, 32))
        >>> macs = joslim.cost("macs", net)
        >>> macs(net.space.full)
        12239488
        >>> macs(net.space.uniform(0.5)) < macs(net.space.full) / 3
        True
        >>> def channels(widths):
        ...     return sum(widths.counts)
        >>> joslim.cost(channels, net)(net.space.full)
        224.0
    """
    from joslim.costs.base import FunctionCost
    from joslim.slimmable.net import SlimmableNet

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
        return COSTS[which].make(net, **options)
    except TypeError as error:
        raise UserError(f"cost: {which} does not take these options: {options}") from error


def __getattr__(name: str) -> Any:
    if name == "Cost":  # imported when asked for: it needs numpy
        from joslim.costs.base import Cost

        return Cost
    raise AttributeError(f"module 'joslim.costs' has no attribute {name!r}")
