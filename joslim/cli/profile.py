"""`joslim profile`: the search space of a network, its frozen layers and its costs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joslim.cli.flags import AsJson, Depth, Low, Resolutions, Shape
from joslim.runs.config import sizes_of

if TYPE_CHECKING:
    from joslim.slimmable import SlimmableNet


def profile(
    model: Annotated[str, typer.Argument(help="Built-in model, or package.module:function.")],
    shape: Shape = None,
    low: Low = None,
    resolutions: Resolutions = None,
    depth: Depth = False,
    as_json: AsJson = False,
) -> None:
    """Show the search space of a network and the cost of its sizes.

    Lists the knobs (search dimensions) with their layers, and the layers that keep their width with
    the reasons.
    """
    from joslim.runs.networks import net_of

    net = net_of(model, shape, low, sizes_of(resolutions), depth)
    facts = {"model": model, "input": list(net.example[0].shape[1:]), **described(net)}
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        show(facts)


def described(net: SlimmableNet) -> dict[str, Any]:
    from joslim.costs import COSTS, cost

    space = net.space
    knobs = []
    for knob in space.knobs:
        dims = [space.dims[position] for position in knob.dims]
        knobs.append(
            {
                "name": knob.name,
                "kind": "heads" if dims[0].heads else dims[0].kind,
                "low": knob.low,
                "layers": [layer for dim in dims for layer in dim.layers],
                "channels": [dim.full for dim in dims],
                "lowest": [space.smallest.channels[dim.name] for dim in dims],
                "step": [dim.step for dim in dims],
            }
        )
    children = {"smallest": space.smallest, "half": space.uniform(0.5), "full": space.full}
    return {
        "knobs": knobs,
        "frozen": [vars(frozen) for frozen in net.frozen],
        "costs": {
            name: {size: cost(name, net)(widths) for size, widths in children.items()}
            for name, info in COSTS.items()
            if info.on_every_front
        },
        "uncounted": [vars(uncounted) for uncounted in net.uncounted],
    }


def show(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from joslim.results.tables import print_table
    from joslim.units import format_size

    def table(title: str, wrapped: Sequence[str], right: Sequence[str] = ()) -> Table:
        made = Table(title=title, title_justify="left")
        for column in wrapped:
            made.add_column(column, overflow="fold")
        for column in right:
            made.add_column(column, justify="right")
        return made

    console = Console()
    shape = "x".join(map(str, facts["input"]))
    kinds = Counter(knob["kind"] for knob in facts["knobs"])
    words = ", ".join(f"{count} of {kind}" for kind, count in kinds.items())
    several = f": {words}" if len(kinds) > 1 else ""
    heading = f"{facts['model']} at {shape}: {len(facts['knobs'])} knobs{several}"
    knobs = table(heading, ("knob", "layers"), ("full" if several else "channels", "lowest"))
    for knob in facts["knobs"]:
        layers = ", ".join(knob["layers"][:3])
        if len(knob["layers"]) > 3:
            layers += f" and {len(knob['layers']) - 3} more"
        each = knob["step"] if knob["kind"] == "heads" else [1] * len(knob["step"])
        counts = (
            dict.fromkeys(n // size for n, size in zip(knob[key], each))
            for key in ("channels", "lowest")
        )
        full, lowest = (", ".join(map(str, numbers)) for numbers in counts)
        knobs.add_row(knob["name"], layers, f"{full} {knob['kind']}" if several else full, lowest)
    print_table(console, knobs)
    if facts["frozen"]:
        frozen = table("Frozen", ("layer", "channels", "why"))
        for row in facts["frozen"]:
            frozen.add_row(row["layer"], str(row["channels"] or "a block"), row["why"])
        print_table(console, frozen)
    costs = table("Costs for one input", ("",), ("smallest", "half", "full"))
    for name, prices in facts["costs"].items():
        costs.add_row(name, *(format_size(name, price) for price in prices.values()))
    print_table(console, costs)
    if facts["uncounted"]:
        missing = table("Not in these costs, which are too low", ("cost", "layer", "what"))
        for row in facts["uncounted"]:
            cost = "macs, memory" if row["cost"] == "macs" else row["cost"]
            missing.add_row(cost, row["layer"], row["what"])
        print_table(console, missing)
