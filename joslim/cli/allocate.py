"""`joslim allocate`: one budget for the networks of several runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joslim.cli.pick import DeviceFiles, budgets_of, print_device, with_budgets
from joslim.cli.train import AsJson
from joslim.costs import COSTS
from joslim.errors import UserError
from joslim.files import printable

if TYPE_CHECKING:
    from joslim.allocation import Allocation


@with_budgets
def allocate(
    runs: Annotated[list[Path], typer.Argument(help="The folders of runs.", metavar="RUN...")],
    device_file: DeviceFiles = None,
    memory_as: Annotated[
        str, typer.Option(help="Memory of all networks: sum, or max for the largest of them.")
    ] = "sum",
    weight: Annotated[
        list[float] | None,
        typer.Option(help="Weight of an error; give one for each run, in order."),
    ] = None,
    curve: Annotated[
        bool, typer.Option("--curve", help="Show the best children for every budget.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the curve to a .png or .svg file.", metavar="FILE")
    ] = None,
    as_json: AsJson = False,
    **texts: list[str] | None,
) -> None:
    """Choose children of several networks within a shared budget.

    Shows the children (subnets), one of each network, with the least total validation error. Unlike
    joslim pick, it does not go by training losses, because those of different networks cannot be
    added.
    """
    from joslim import allocation
    from joslim.runs.fronts import timed_fronts

    budgets = budgets_of(**texts)
    if not budgets:
        *flags, last = (info.flag for info in COSTS.values())
        raise UserError(f"budget: none given; type {', '.join(flags)} or {last}")
    if memory_as == "max" and "memory" not in budgets:
        raise UserError("memory_as: 'max' is for a budget of memory; type --memory SIZE as well")
    if (curve or picture is not None) and len(budgets) > 1:
        raise UserError(f"curve: it is over one budget, {', '.join(budgets)} given; leave one")
    fronts = timed_fronts(runs, device_file or [])
    options: dict[str, Any] = {"weights": weight or None, "memory_as": memory_as}
    found = allocation.allocate(fronts, **{**options, **budgets})
    steps: list[Allocation] = []
    if curve or picture is not None:
        steps = allocation.curve(fronts, next(iter(budgets)), **options)
    names = [str(run) for run in runs]
    if picture is not None:
        from joslim.results.plots import draw_allocation

        (budget,) = budgets.values()
        draw_allocation(steps, found, [*map(printable, names)], picture, budget)
    shown = steps if curve else []
    if as_json:
        typer.echo(json.dumps(to_json(names, found, budgets, shown), indent=2))
    else:
        show([*map(printable, names)], found, budgets, shown)
        for path in device_file or []:
            print_device(path)


def to_json(
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

    from joslim.results.tables import allocation_table, curve_table, print_table, title
    from joslim.units import format_size

    console = Console(highlight=False)
    print_table(console, allocation_table(names, found))
    for name, most in budgets.items():
        # A total that exceeds the budget by rounding only leaves 0.
        left = format_size(name, max(0.0, most - found.costs[name]))
        console.print(f"left: {left} of {format_size(name, most)} {title(name)}", soft_wrap=True)
    if curve:
        print_table(console, curve_table(curve))
