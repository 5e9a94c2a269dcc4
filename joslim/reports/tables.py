"""A front as a table, and sizes as people write them. Rich is imported late, torch never."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from joslim.allocation import Allocation
    from joslim.front import Front, Point

TITLES = {
    "latency_ms": "latency",
    "train_loss": "train loss",
    "val_error": "val error",
    "test_error": "test error",
}
# Costs that have a unit; others are bare numbers.
UNITS = {"memory": "B", "latency": "ms", "latency_ms": "ms"}
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"))


def front_table(front: Front) -> Table:
    """A row for each child, the cost of the front first; errors that are not known are left out."""
    from rich.table import Table

    children = "1 child" if len(front) == 1 else f"{len(front)} children"
    table = Table(title=f"{children} by {title(front.key)}", title_justify="left")
    errors = [name for name in ("val_error", "test_error") if any_known(front, name)]
    for name in (*front.costs, "train_loss", *errors):
        table.add_column(title(name), justify="right")
    for point in front:
        table.add_row(*cells(point, (*front.costs, "train_loss", *errors)))
    return table


def allocation_table(names: Sequence[str], allocation: Allocation) -> Table:
    """A row for each network, and one for all of them together."""
    from rich.markup import escape
    from rich.table import Table

    measures = list(dict.fromkeys([allocation.measure, "test_error"]))
    columns = [*allocation.costs, *measures]
    table = Table(title="One child of each network", title_justify="left")
    table.add_column("network", overflow="fold")
    for column in ("weight", *map(title, columns)):
        table.add_column(column, justify="right")
    for name, weight, point in zip(names, allocation.weights, allocation.points):
        table.add_row(escape(name), f"{weight:g}", *cells(point, tuple(columns)))
    table.add_section()
    table.add_row("together, weighted", "", *totals(allocation))
    return table


def totals(allocation: Allocation) -> list[str]:
    error = allocation.error
    return [
        *(format_size(name, value) for name, value in allocation.costs.items()),
        f"{error:.4f}" if allocation.measure == "train_loss" else format_error(error),
        format_error(allocation.test_error),
    ]


def curve_table(curve: Sequence[Allocation], most: int = 20) -> Table:
    """What each budget buys, the cheapest first; of a long curve steps that lie evenly on it."""
    from rich.table import Table

    count = min(most, len(curve))
    shown = [curve[round(at * (len(curve) - 1) / max(1, count - 1))] for at in range(count)]
    steps = f"{count} of its {len(curve)} steps" if count < len(curve) else f"{count} steps"
    table = Table(title=f"The curve: {steps}", title_justify="left")
    for column in (*curve[0].costs, curve[0].measure, "test_error"):
        table.add_column(title(column), justify="right")
    for allocation in shown:
        table.add_row(*totals(allocation))
    return table


def any_known(front: Front, error: str) -> bool:
    return any(getattr(point, error) is not None for point in front)


def cells(point: Point, names: tuple[str, ...]) -> list[str]:
    """The costs, loss and errors of these names, as people read them."""
    texts = {name: format_size(name, value) for name, value in point.costs.items()}
    texts["train_loss"] = f"{point.train_loss:.4f}"
    texts["val_error"] = format_error(point.val_error)
    texts["test_error"] = format_error(point.test_error)
    return [texts[name] for name in names]


def title(name: str) -> str:
    return TITLES.get(name, name)


def format_error(percent: float | None) -> str:
    return "-" if percent is None else f"{percent:.2f} %"


def format_size(cost: str, value: float) -> str:
    """40.6M multiply-adds, 205.8 KB (1000 bytes), 3.21 ms."""
    unit = UNITS.get(cost, "")
    if unit == "ms":
        return f"{decimals(value)} ms"
    # The number as it is printed decides: 999.99 thousand is a million.
    for size, prefix in PREFIXES:
        if float(f"{value / (size / 1000):.1f}") >= 1000:
            return f"{decimals(value / size)}{' ' if unit else ''}{prefix}{unit}"
    number = f"{value:.0f}" if value == int(value) else decimals(value)
    return f"{number} {unit}".rstrip()


def decimals(value: float) -> str:
    """Two below ten, one above; a small number keeps three digits."""
    if 0 < value < 0.1:
        return f"{value:.3g}"
    return f"{value:.2f}" if float(f"{value:.2f}") < 10 else f"{value:.1f}"
