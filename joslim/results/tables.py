"""Tables for people: a front, an allocation, a comparison of methods.

Rich is imported late, torch never.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from joslim.costs import cost_info
from joslim.front import ERRORS, IN_PERCENT, MEASURES, MetricName
from joslim.units import format_size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from joslim.allocation import Allocation
    from joslim.front import Front, Point

# Characters of a cell that a narrow terminal leaves on one line: of names that fold, and of others.
FOLDED, LONG_CELL = 10, 20
UNKNOWN = "-"

Row = dict[str, Any]  # of `Comparison.table`


def print_table(console: Console, table: Table) -> None:
    """Print a table whose lines go beyond a narrow terminal: cut columns would say nothing."""
    from rich.text import Text

    width = console.width
    for column in table.columns:
        # Wide enough for the words of its title, and for its cells unless they fold or are long.
        most = FOLDED if column.overflow == "fold" else LONG_CELL
        cells = [min(Text.from_markup(str(cell)).cell_len, most) for cell in column.cells]
        column.min_width = max([*map(len, str(column.header).split()), *cells], default=1)
    # Of each column two blanks and a line, and one line more.
    console.width = max(width, 1 + sum(3 + (c.min_width or 0) for c in table.columns))
    console.print(table, crop=False)
    console.width = width


def front_table(front: Front) -> Table:
    """Make a row for each child, its cost first; errors that are not known are left out."""
    from rich.table import Table

    children = "1 child" if len(front) == 1 else f"{len(front)} children"
    table = Table(title=f"{children} by {title(front.key)}", title_justify="left")
    errors = [name for name in ("val_error", "test_error") if any_known(front, name)]
    columns = (*front.costs, "train_loss", *errors)
    for name in columns:
        table.add_column(title(name, front.metric), justify="right")
    for point in front:
        table.add_row(*cells(point, columns, front.metric))
    return table


def allocation_table(names: Sequence[str], allocation: Allocation) -> Table:
    """Make a row for each network, and one for all of them together."""
    from rich.markup import escape
    from rich.table import Table

    measures = list(dict.fromkeys([allocation.measure, "test_error"]))
    columns = [*allocation.costs, *measures]
    table = Table(title="One child of each network", title_justify="left")
    table.add_column("network", overflow="fold")
    for column in ("weight", *(title(name, allocation.metric) for name in columns)):
        table.add_column(column, justify="right")
    for name, weight, point in zip(names, allocation.weights, allocation.points):
        figures = cells(point, tuple(columns), allocation.metric)
        table.add_row(escape(name), f"{weight:g}", *figures)
    table.add_section()
    table.add_row("total cost, mean error", "", *_totals(allocation))
    return table


def _totals(allocation: Allocation) -> list[str]:
    """Total costs, and weighted means of the errors, which a sum would lift above 100 %."""
    mean = allocation.mean(allocation.measure)
    return [
        *(format_size(name, value) for name, value in allocation.costs.items()),
        f"{mean:.4f}" if allocation.measure == "train_loss" else allocation.metric.text(mean),
        allocation.metric.text(allocation.mean("test_error")),
    ]


def curve_table(curve: Sequence[Allocation], most: int = 20) -> Table:
    """Show what each budget buys, the cheapest first; of a long curve evenly spread steps."""
    from rich.table import Table

    count = min(most, len(curve))
    shown = [curve[round(at * (len(curve) - 1) / max(1, count - 1))] for at in range(count)]
    steps = f"{count} of its {len(curve)} steps" if count < len(curve) else f"{count} steps"
    table = Table(title=f"The curve: {steps}", title_justify="left")
    for column in (*curve[0].costs, curve[0].measure, "test_error"):
        table.add_column(title(column, curve[0].metric), justify="right")
    for allocation in shown:
        table.add_row(*_totals(allocation))
    return table


def any_known(front: Front, error: str) -> bool:
    return any(getattr(point, error) is not None for point in front)


def cells(point: Point, names: tuple[str, ...], metric: MetricName = IN_PERCENT) -> list[str]:
    """Format the costs, the loss and the errors of these names."""
    texts = {name: format_size(name, value) for name, value in point.costs.items()}
    texts["train_loss"] = f"{point.train_loss:.4f}"
    texts |= {name: metric.text(getattr(point, name)) for name in ERRORS}
    return [texts[name] for name in names]


def title(name: str, metric: MetricName = IN_PERCENT) -> str:
    """Title of a column: a measure in short words, or the name of the cost with this key."""
    if name not in MEASURES:
        return cost_info(name).name
    return metric.words(name).replace("training", "train").replace("validation", "val")


# A comparison of methods


def comparison_tables(rows: Sequence[Row]) -> list[Table]:
    """Make a table for each model and cost of a comparison, with a column for each method."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["cost"]), []).append(row)
    return [_comparison_table(model, cost, group) for (model, cost), group in groups.items()]


def _comparison_table(model: str, cost: str, rows: Sequence[Row]) -> Table:
    """Put the methods side by side, which fits a terminal of 80 columns."""
    from rich.markup import escape
    from rich.table import Table

    metric = MetricName(**rows[0]["metric"])
    in_percent = rows[0]["measure"] in ERRORS and metric.unit
    measure = title(rows[0]["measure"], metric) + (", %" if in_percent else "")
    table = Table(title=f"{escape(model)} by {escape(cost)}: {measure}", title_justify="left")
    table.add_column("", overflow="fold")
    for row in rows:
        table.add_column(escape(row["method"]), justify="right", overflow="fold")
    reference = next((row["against"]["method"] for row in rows if row["against"]), "")
    names = [
        "seeds",
        "area under the curve",
        f"  against {escape(reference)}",
        "  paired test",
        "  by training loss",
        *(_budget_name(cost, places) for places in zip(*(row["errors"] for row in rows))),
        "hypervolume",
        "wall time",
        "  over slim",
    ]
    for name, cells in zip(names, zip(*map(_comparison_cells, rows))):
        # A further figure is left out where no method has it: one method alone, or no slim.
        if not name.startswith("  ") or {*cells} != {UNKNOWN}:
            table.add_row(name, *cells)
    return table


def _budget_name(cost: str, places: Sequence[dict[str, Any]]) -> str:
    """`at 25% of full 10.0M`, `at 59.0M`"""
    share = places[0]["share"]
    known = next((place["budget"] for place in places if place["budget"] is not None), None)
    size = "" if known is None else format_size(cost, known)
    return f"at {size}" if share is None else f"at {share * 100:g}% of full {size}".rstrip()


def _comparison_cells(row: Row) -> list[str]:
    """The cells of one method. A star marks a mean that some seeds are missing from."""
    count, missing, against = len(row["seeds"]), len(row["missing"]), row["against"]
    difference = test = UNKNOWN
    if against is not None:
        difference = f"{against['difference']:+.2f}"
        p_value = against["p_value"]
        chance = "none" if p_value is None else f"p = {p_value:.2g}"
        test = f"{chance}, n = {against['pairs']}"
    return [
        f"{count} of {count + missing} *" if missing else str(count),
        _with_deviation(row["area"], row["area_deviation"], 2),
        difference,
        test,
        _with_deviation(row["loss_area"], row["loss_area_deviation"], 3),
        *(_with_deviation(e["error"], e["error_deviation"], 2) for e in row["errors"]),
        _with_deviation(row["hypervolume"], row["hypervolume_deviation"], 3),
        duration(row["seconds"]),
        UNKNOWN if row["overhead"] is None else f"{row['overhead']:+.0%}",
    ]


def _with_deviation(mean: float | None, deviation: float | None, digits: int) -> str:
    """12.34 ± 0.56"""
    if mean is None:
        return UNKNOWN
    return f"{mean:.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}")


def duration(seconds: float | None) -> str:
    """145 s, 12 min, 3.4 h"""
    if seconds is None:
        return UNKNOWN
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def comparison_notes(rows: Sequence[Row], runs: Sequence[dict[str, Any]]) -> list[str]:
    """Explain the tables of a comparison in a few lines."""
    lines = ["mean ± deviation over seeds; lower is better, but for the hypervolume"]
    tests = [row["against"] for row in rows if row["against"]]
    if tests:
        lines.append("paired test: two-sided t-test of the areas, seed by seed")
    if any(test["p_value"] is None for test in tests):
        lines.append("no test where fewer than 3 seeds are shared, or where nothing varies")
    if any(row["missing"] for row in rows):
        lines.append("* not all seeds have a front: means are of those that have")
    counts = {run["at_once"] for run in runs if run["seconds"] is not None}
    if not counts:
        time = "not known"
    elif None in counts:
        time = "how many ran at once is not known"
    elif max(counts) == 1:
        time = "one run at a time"
    else:
        time = f"up to {max(counts)} runs at once, which slow each other down"
    return [*lines, f"wall time: {time}"]
