"""`joslim pick`: the child that fits a budget, from RUN/front.json and perhaps a device file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joslim.cli.budgets import (
    DeviceFile,
    LatencyMs,
    Macs,
    Memory,
    OwnModel,
    Params,
    budgets_of,
    tell_device,
)

if TYPE_CHECKING:
    from rich.table import Table

    from joslim.front import Front, Point


def pick(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    macs: Macs = None,
    memory: Memory = None,
    latency_ms: LatencyMs = None,
    params: Params = None,
    device_file: DeviceFile = None,
    model: OwnModel = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the child with the least training loss that fits all budgets."""
    from joslim.runs.fronts import timed_fronts

    budgets = budgets_of(macs=macs, memory=memory, latency_ms=latency_ms, params=params)
    (front,) = timed_fronts([run], [device_file] if device_file else [], model)
    child = front.pick(**budgets)
    if as_json:
        typer.echo(json.dumps(described(front, child, budgets), indent=2))
    else:
        show(front, child, budgets)
        if device_file:
            tell_device(device_file)


def described(front: Front, child: Point, budgets: dict[str, float]) -> dict[str, Any]:
    """The child as in the file, what it leaves of the budgets, and the child it is short of."""
    from joslim.front import exceeded, margins

    record = {**child.to_json(), "margin": margins(child, budgets), "next_better": None}
    if (better := front.next_better(**budgets)) is not None:
        record["next_better"] = {**better.to_json(), "exceeds": exceeded(better, budgets)}
    return record


def show(front: Front, child: Point, budgets: dict[str, float]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(summary_table(front, child))
    for line in (budget_line(child, budgets), next_line(front, budgets)):
        console.print(line, soft_wrap=True)
    console.print(channels_table(child))


def budget_line(child: Point, budgets: dict[str, float]) -> str:
    """Left: 1.2M of 20.0M macs, 0.30 ms of 8.00 ms latency."""
    from joslim.front import margins
    from joslim.reports.tables import format_size, title

    left = margins(child, budgets)
    parts = [
        f"{format_size(name, left[name])} of {format_size(name, most)} {title(name)}"
        for name, most in budgets.items()
    ]
    return f"left: {', '.join(parts)}"


def next_line(front: Front, budgets: dict[str, float]) -> str:
    from joslim.front import exceeded
    from joslim.reports.tables import cells, format_size, title

    better = front.next_better(**budgets)
    if better is None:
        return "next better child by training loss: none, this is the best one"
    costs = [
        f"{title(name)} {format_size(name, better.costs[name])} ({format_size(name, over)} over)"
        for name, over in exceeded(better, budgets).items()
    ]
    known = [name for name in ("val_error", "test_error") if getattr(better, name) is not None]
    names = ("train_loss", *known)
    worth = [f"{title(name)} {text}" for name, text in zip(names, cells(better, names))]
    return f"next better child by training loss: {', '.join(costs)} for {', '.join(worth)}"


def summary_table(front: Front, child: Point) -> Table:
    """Costs and errors, beside those of the front's most expensive child."""
    from rich.table import Table

    from joslim.reports.tables import any_known, cells, title

    position = list(front).index(child) + 1
    table = Table(title=f"Child {position} of {len(front)}", title_justify="left")
    errors = [name for name in ("val_error", "test_error") if any_known(front, name)]
    names = (*front.costs, "train_loss", *errors)
    for column in ("", "this child", "largest child"):
        table.add_column(column, justify="right" if column else "left")
    for name, here, there in zip(names, cells(child, names), cells(front[-1], names)):
        table.add_row(title(name), here, there)
    return table


def channels_table(child: Point) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="Channels", title_justify="left")
    table.add_column("dim", overflow="fold")
    for column in ("channels", "of"):
        table.add_column(column, justify="right")
    for dim, count in zip(child.widths.space.dims, child.widths.counts):
        table.add_row(escape(dim.name), str(count), str(dim.full))
    return table
