"""`joslim pick`: the child that fits a budget, from RUN/front.json alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from joslim.front import Front, Point


def pick(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    macs: Annotated[
        str | None, typer.Option(help="Most multiply-adds for one input: 20M.", metavar="SIZE")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Most memory: 64KiB, 1.5MB.", metavar="SIZE")
    ] = None,
    latency_ms: Annotated[
        str | None, typer.Option(help="Most milliseconds for one input: 3.", metavar="MS")
    ] = None,
    params: Annotated[
        str | None, typer.Option(help="Most parameters: 100K.", metavar="SIZE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the child with the least training loss that fits all budgets."""
    from joslim.cli.sizes import parse_size
    from joslim.front import Front

    texts = {"macs": macs, "memory": memory, "latency_ms": latency_ms, "params": params}
    budgets = {name: parse_size(name, text) for name, text in texts.items() if text is not None}
    front = Front.read(run)
    child = front.pick(**budgets)
    if as_json:
        typer.echo(json.dumps(child.to_json(), indent=2))
    else:
        show(front, child)


def show(front: Front, child: Point) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(summary_table(front, child))
    console.print(channels_table(child))


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
