"""`joslim pick`: the child of a run that fits a budget.

The flags of budgets and device files are shared with `joslim front`, `export`, `allocate` and
`report`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joslim.cli.train import AsJson, with_flags
from joslim.costs import COSTS, cost_info
from joslim.errors import UserError

if TYPE_CHECKING:
    from joslim.front import Front, Point

DeviceFile = Annotated[
    Path | None,
    typer.Option(
        help="Latencies on a device, as joslim latency RUN -o FILE writes them.", metavar="FILE"
    ),
]
DeviceFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--device-file",
        help="Latencies on a device, for the runs of its network; may be given several times.",
        metavar="FILE",
    ),
]
ModelOfDevice = Annotated[
    str | None,
    typer.Option(
        help="Your own model, package.module:function, needed if --device-file lacks children."
    ),
]


def with_budgets(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag for each cost in `COSTS`, which it gets as keyword arguments.

    The values are lists, so that a budget that was given twice can be seen: typer would keep the
    last one.
    """
    flags = {}
    for info in COSTS.values():
        unit = "SIZE" if info.symbol in ("", "B") else info.symbol.upper()
        option = typer.Option(info.flag, help=info.budget_help, metavar=unit)
        flags[info.key] = Annotated[list[str] | None, option]
    return with_flags(command, flags)


def budgets_of(**texts: Sequence[str] | None) -> dict[str, float]:
    """Convert budgets to numbers; each may be given once."""
    for name, values in texts.items():
        if values and len(values) > 1:
            flag = cost_info(name).flag
            raise UserError(f"{name}: given {len(values)} times; type {flag} only once")
    return sets_of(**texts)[0]


def sets_of(**texts: Sequence[str] | None) -> list[dict[str, float]]:
    """One set of budgets for each child: a budget with a single value holds for all of them."""
    from joslim.units import parse_size

    given = {
        name: [parse_size(name, text) for text in values]
        for name, values in texts.items()
        if values
    }
    count = max((len(values) for values in given.values()), default=1)
    for name, values in given.items():
        if len(values) not in (1, count):
            most = next(other for other, found in given.items() if len(found) == count)
            raise UserError(
                f"{name}: {len(values)} values for the {count} of {cost_info(most).flag}; "
                f"type {cost_info(name).flag} once, or {count} times"
            )
    return [
        {name: values[min(place, len(values) - 1)] for name, values in given.items()}
        for place in range(count)
    ]


def print_device(path: Path) -> None:
    """Print on which device the latencies were measured."""
    from joslim.costs.device_file import DeviceFile

    typer.echo(f"latency on {DeviceFile.read(path).conditions}")


@with_budgets
def pick(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    device_file: DeviceFile = None,
    model: ModelOfDevice = None,
    as_json: AsJson = False,
    **texts: list[str] | None,
) -> None:
    """Show the child (subnet) that fits your budgets.

    It is the child of the Pareto front with the least training loss that fits all budgets.
    """
    from joslim.runs.fronts import timed_fronts

    budgets = budgets_of(**texts)
    (front,) = timed_fronts([run], [device_file] if device_file else [], model)
    child = front.pick(**budgets)
    if as_json:
        typer.echo(json.dumps(to_json(front, child, budgets), indent=2))
    else:
        show(front, child, budgets)
        if device_file:
            print_device(device_file)


def to_json(front: Front, child: Point, budgets: dict[str, float]) -> dict[str, Any]:
    """The child as in front.json, the rest of the budgets, and the next better child."""
    from joslim.front import exceeded, margins

    record = {**child.to_json(), "margin": margins(child, budgets), "next_better": None}
    if (better := front.next_better(**budgets)) is not None:
        record["next_better"] = {**better.to_json(), "exceeds": exceeded(better, budgets)}
    return record


def show(front: Front, child: Point, budgets: dict[str, float]) -> None:
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
    for name, here, there in zip(names, cells(child, names), cells(front[-1], names)):
        summary.add_row(title(name), here, there)
    print_table(console, summary)
    left = [
        f"{format_size(name, rest)} of {format_size(name, budgets[name])} {title(name)}"
        for name, rest in margins(child, budgets).items()
    ]
    console.print(f"left: {', '.join(left)}", soft_wrap=True)
    better = next_better(front, budgets)
    console.print(f"next better child by training loss: {better}", soft_wrap=True)
    channels = Table(title="Channels", title_justify="left")
    channels.add_column("dim", overflow="fold")
    for column in ("channels", "of"):
        channels.add_column(column, justify="right")
    for dim, count in zip(child.widths.space.dims, child.widths.counts):
        channels.add_row(escape(dim.name), str(count), str(dim.full))
    print_table(console, channels)


def next_better(front: Front, budgets: dict[str, float]) -> str:
    """The next better child in words: "macs 40.6M (20.6M over) for train loss 0.1234"."""
    from joslim.front import exceeded
    from joslim.results.tables import cells, title
    from joslim.units import format_size

    better = front.next_better(**budgets)
    if better is None:
        return "none, this is the best one"
    costs = [
        f"{title(name)} {format_size(name, better.costs[name])} ({format_size(name, over)} over)"
        for name, over in exceeded(better, budgets).items()
    ]
    known = [name for name in ("val_error", "test_error") if getattr(better, name) is not None]
    names = ("train_loss", *known)
    worth = [f"{title(name)} {text}" for name, text in zip(names, cells(better, names))]
    return f"{', '.join(costs)} for {', '.join(worth)}"
