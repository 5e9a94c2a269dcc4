"""`joslim profile`: what can be slimmed, and what every size costs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from joslim.slimmable import SlimmableNet

COUNTED = ("macs", "params", "memory")


def profile(
    model: Annotated[str, typer.Argument(help="A built-in model, or package.module:function.")],
    shape: Annotated[
        str | None,
        typer.Option("--input", help="Shape of one input, such as 3x224x224.", metavar="CxHxW"),
    ] = None,
    low: Annotated[
        float | None, typer.Option(help="Smallest share of its channels that a layer may keep.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the knobs of a network, what is frozen and why, and what its sizes cost."""
    from joslim.runs.network import blank_input, default_shape, load_model, parse_shape

    given = parse_shape(shape) if shape is not None else None
    network = load_model(model)
    sizes = given or default_shape(network)

    from joslim.slimmable import slim

    net = slim(network, blank_input(sizes), low=low)
    facts = {"model": model, "input": list(sizes), **described(net)}
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        show(facts)


def described(net: SlimmableNet) -> dict[str, Any]:
    from joslim.costs import cost

    space = net.space
    knobs = []
    for knob in space.knobs:
        dims = [space.dims[position] for position in knob.dims]
        knobs.append(
            {
                "name": knob.name,
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
            for name in COUNTED
        },
    }


def show(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    shape = "x".join(map(str, facts["input"]))
    knobs = Table(
        title=f"{facts['model']} at {shape}: {len(facts['knobs'])} knobs", title_justify="left"
    )
    for column in ("knob", "layers"):
        knobs.add_column(column, overflow="fold")
    for column in ("channels", "lowest"):
        knobs.add_column(column, justify="right")
    for knob in facts["knobs"]:
        layers = shortened(knob["layers"])
        knobs.add_row(knob["name"], layers, distinct(knob["channels"]), distinct(knob["lowest"]))
    console.print(knobs)
    if facts["frozen"]:
        frozen = Table(title="Frozen", title_justify="left")
        for column in ("layer", "channels", "why"):
            frozen.add_column(column, overflow="fold")
        for row in facts["frozen"]:
            frozen.add_row(row["layer"], str(row["channels"]), row["why"])
        console.print(frozen)
    costs = Table(title="Costs for one input", title_justify="left")
    for column in ("", "smallest", "half", "full"):
        costs.add_column(column, justify="right" if column else "left")
    for name, prices in facts["costs"].items():
        costs.add_row(name, *(readable(name, price) for price in prices.values()))
    console.print(costs)


def shortened(layers: list[str], most: int = 3) -> str:
    more = f" and {len(layers) - most} more" if len(layers) > most else ""
    return ", ".join(layers[:most]) + more


def distinct(numbers: list[int]) -> str:
    return ", ".join(map(str, dict.fromkeys(numbers)))


def readable(name: str, value: float) -> str:
    if name == "memory":
        return f"{value / 1e6:.3f} MB"
    return f"{value / 1e6:.3f} M"
