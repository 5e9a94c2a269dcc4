"""`joslim pick`: the child of a run that fits a budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joslim.cli.flags import (
    AsJson,
    By,
    DeviceFile,
    ModelOfDevice,
    budgets_of,
    print_device,
    with_budgets,
)

if TYPE_CHECKING:
    from joslim.front import Front, Point


@with_budgets
def pick(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    device_file: DeviceFile = None,
    model: ModelOfDevice = None,
    by: By = None,
    as_json: AsJson = False,
    **texts: list[str] | None,
) -> None:
    """Show the child (subnet) that fits your budgets.

    It is the best child of the Pareto front that fits all budgets: by validation error, where
    differences within one standard error are settled by the training loss.
    """
    from joslim.runs.fronts import timed_fronts

    budgets = budgets_of(**texts)
    (front,) = timed_fronts([run], [device_file] if device_file else [], model)
    child = front.pick(by=by, **budgets)
    better = front.next_better(by=by, **budgets)
    if as_json:
        typer.echo(json.dumps(to_json(child, better, budgets, by or front.by), indent=2))
    else:
        show(front, child, better, budgets, by or front.by)
        if device_file:
            print_device(device_file)


def to_json(
    child: Point, better: Point | None, budgets: dict[str, float], by: str
) -> dict[str, Any]:
    """The child as in front.json, the rest of the budgets, and the next better child."""
    from joslim.front import exceeded, margins

    record = {**child.to_json(), "by": by, "margin": margins(child, budgets), "next_better": None}
    if better is not None:
        record["next_better"] = {**better.to_json(), "exceeds": exceeded(better, budgets)}
    return record


def show(
    front: Front, child: Point, better: Point | None, budgets: dict[str, float], by: str
) -> None:
    """Print the child beside the largest one, the rest of the budgets, and its channels."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from joslim.front import margins
    from joslim.results.tables import any_known, cells, print_table, title
    from joslim.units import format_size

    console = Console(highlight=False)
    position = list(front).index(child) + 1
    summary = Table(title=f"Child {position} of {len(front)}", title_justify="left")
    for column in ("", "this child", "largest child"):
        summary.add_column(column, justify="right" if column else "left")
    errors = [name for name in ("val_error", "test_error") if any_known(front, name)]
    names = (*front.costs, "train_loss", *errors)
    columns = (cells(point, names, front.metric) for point in (child, front[-1]))
    for name, here, there in zip(names, *columns):
        summary.add_row(title(name, front.metric), here, there)
    print_table(console, summary)
    left = [
        f"{format_size(name, rest)} of {format_size(name, budgets[name])} {title(name)}"
        for name, rest in margins(child, budgets).items()
    ]
    console.print(f"left: {', '.join(left)}", soft_wrap=True)
    words = "none, this is the best one" if better is None else worth(front, better, budgets)
    by_what = title(by, front.metric)
    console.print(f"next better child by {by_what}: {words}", soft_wrap=True)
    chosen = [*zip(child.widths.space.dims, child.widths.counts)]
    for kind in dict.fromkeys(dim.kind for dim, _ in chosen):
        table = Table(title=kind.capitalize(), title_justify="left")
        table.add_column("layers" if kind == "channels" else "", overflow="fold")
        for column in (kind, "of"):
            table.add_column(column, justify="right")
        for dim, count in chosen:
            if dim.kind == kind:
                text = "left out" if dim.name in child.widths.left_out else str(count)
                table.add_row(escape(dim.name), text, str(dim.full))
        print_table(console, table)


def worth(front: Front, better: Point, budgets: dict[str, float]) -> str:
    """The next better child in words: "macs 40.6M (20.6M over) for train loss 0.1234"."""
    from joslim.front import exceeded
    from joslim.results.tables import cells, title
    from joslim.units import format_size

    costs = [
        f"{title(name)} {format_size(name, better.costs[name])} ({format_size(name, over)} over)"
        for name, over in exceeded(better, budgets).items()
    ]
    known = [name for name in ("val_error", "test_error") if getattr(better, name) is not None]
    names = ("train_loss", *known)
    texts = cells(better, names, front.metric)
    figures = [f"{title(name, front.metric)} {text}" for name, text in zip(names, texts)]
    return f"{', '.join(costs)} for {', '.join(figures)}"
