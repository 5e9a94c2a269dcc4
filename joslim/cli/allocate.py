"""`joslim allocate`: one budget for many networks, from their front.json and device files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joslim.cli.budgets import (
    DeviceFiles,
    LatencyMs,
    Macs,
    Memory,
    Params,
    budgets_of,
    tell_device,
)
from joslim.errors import UserError
from joslim.untrusted import printable

if TYPE_CHECKING:
    from joslim.allocation import Allocation


def allocate(
    runs: Annotated[list[Path], typer.Argument(help="The folders of runs.", metavar="RUN...")],
    macs: Macs = None,
    memory: Memory = None,
    latency_ms: LatencyMs = None,
    params: Params = None,
    device_file: DeviceFiles = None,
    memory_as: Annotated[
        str, typer.Option(help="Memory of all networks: their sum, or max, the largest.")
    ] = "sum",
    weight: Annotated[
        list[float] | None, typer.Option(help="Weight of an error; once for each run, in order.")
    ] = None,
    curve: Annotated[bool, typer.Option("--curve", help="The best for every budget.")] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the curve: .png or .svg.", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the children of several networks with the least total error within shared budgets.

    The error is that of validation: errors of different networks can be added, training losses,
    which joslim pick goes by, cannot.
    """
    from joslim import allocation
    from joslim.runs.fronts import timed_fronts

    budgets = budgets_of(macs=macs, memory=memory, latency_ms=latency_ms, params=params)
    if not budgets:
        raise UserError("budget: none given; type --macs, --memory, --latency-ms or --params")
    if memory_as == "max" and "memory" not in budgets:
        raise UserError("memory_as: 'max' is for a budget of memory; type --memory SIZE as well")
    fronts = timed_fronts(runs, device_file or [])
    options: dict[str, Any] = {"weights": weight or None, "memory_as": memory_as}
    found = allocation.allocate(fronts, **{**options, **budgets})
    steps: list[Allocation] = []
    if curve or picture is not None:
        steps = allocation.curve(fronts, only_one(budgets), **options)
    names = [str(run) for run in runs]
    if picture is not None:
        from joslim.reports.figures import draw_allocation

        (budget,) = budgets.values()
        draw_allocation(steps, found, [*map(printable, names)], picture, budget)
    shown = steps if curve else []
    if as_json:
        typer.echo(json.dumps(described(names, found, budgets, shown), indent=2))
    else:
        show([*map(printable, names)], found, budgets, shown)
        for path in device_file or []:
            tell_device(path)


def only_one(budgets: dict[str, float]) -> str:
    if len(budgets) > 1:
        raise UserError(f"curve: it is over one budget, {', '.join(budgets)} given; leave one")
    return next(iter(budgets))


def described(
    names: list[str], found: Allocation, budgets: dict[str, float], curve: list[Allocation]
) -> dict[str, Any]:
    record = {
        **figures(found),
        "margin": {name: most - found.costs[name] for name, most in budgets.items()},
        "networks": [
            {"run": name, "weight": weight, "child": point.to_json()}
            for name, weight, point in zip(names, found.weights, found.points)
        ],
    }
    return {**record, "curve": [figures(step) for step in curve]} if curve else record


def figures(found: Allocation) -> dict[str, Any]:
    return {
        "measure": found.measure,
        "error": found.error,
        "test_error": found.test_error,
        "costs": found.costs,
        "channels": [list(point.widths.counts) for point in found.points],
    }


def show(
    names: list[str], found: Allocation, budgets: dict[str, float], curve: list[Allocation]
) -> None:
    from rich.console import Console

    from joslim.reports.tables import allocation_table, curve_table, format_size, title

    console = Console(highlight=False)
    console.print(allocation_table(names, found))
    for name, most in budgets.items():
        # A total that equals the budget but for rounding leaves nothing, and not less.
        left = format_size(name, max(0.0, most - found.costs[name]))
        console.print(f"left: {left} of {format_size(name, most)} {title(name)}", soft_wrap=True)
    if curve:
        console.print(curve_table(curve))
