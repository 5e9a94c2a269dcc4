"""A comparison of methods as tables for people. Rich is imported late, torch never."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from joslim.front import ERRORS
from joslim.reports.tables import format_size, title

if TYPE_CHECKING:
    from rich.table import Table

Row = dict[str, Any]
UNKNOWN = "-"


def comparison_tables(rows: Sequence[Row]) -> list[Table]:
    """Rows of `Comparison.table`: a table for each model and cost, a row for each method."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["cost"]), []).append(row)
    return [table_of(model, cost, group) for (model, cost), group in groups.items()]


def table_of(model: str, cost: str, rows: Sequence[Row]) -> Table:
    """The methods side by side: so it fits a terminal of 80 columns."""
    from rich.markup import escape
    from rich.table import Table

    measure = title(rows[0]["measure"]) + (", %" if rows[0]["measure"] in ERRORS else "")
    table = Table(title=f"{escape(model)} by {escape(cost)}: {measure}", title_justify="left")
    table.add_column("", overflow="fold")
    for row in rows:
        table.add_column(escape(row["method"]), justify="right", overflow="fold")
    for name, cells in zip(names_of(cost, rows), zip(*map(cells_of, rows))):
        # A figure beside another one is left out where nobody has it: one method alone, no slim.
        if not name.startswith("  ") or {*cells} != {UNKNOWN}:
            table.add_row(name, *cells)
    return table


def names_of(cost: str, rows: Sequence[Row]) -> list[str]:
    """What stands at the left; the cells of a method are in the same order."""
    from rich.markup import escape

    reference = next((row["against"]["method"] for row in rows if row["against"]), "")
    return [
        "seeds",
        "area under the curve",
        f"  against {escape(reference)}",
        "  paired test",
        *(place_of(cost, rows, at) for at in range(len(rows[0]["errors"]))),
        "hypervolume",
        "wall time",
        "  over slim",
    ]


def place_of(cost: str, rows: Sequence[Row], at: int) -> str:
    """The cost at which an error is given: its share of the full network's, and its size."""
    places = [row["errors"][at] for row in rows]
    share = places[0]["share"]
    known = next((place["budget"] for place in places if place["budget"] is not None), None)
    size = "" if known is None else format_size(cost, known)
    return f"at {size}" if share is None else f"at {share * 100:g}% of full {size}".rstrip()


def cells_of(row: Row) -> list[str]:
    against = row["against"]
    return [
        seeds_cell(row),
        with_deviation(row["area"], row["area_deviation"], 2),
        UNKNOWN if against is None else f"{against['difference']:+.2f}",
        test_cell(against),
        *(with_deviation(e["error"], e["error_deviation"], 2) for e in row["errors"]),
        with_deviation(row["hypervolume"], row["hypervolume_deviation"], 3),
        duration(row["seconds"]),
        UNKNOWN if row["overhead"] is None else f"{row['overhead']:+.0%}",
    ]


def seeds_cell(row: Row) -> str:
    """A star where some are missing: such a mean is of fewer seeds."""
    count, missing = len(row["seeds"]), len(row["missing"])
    return f"{count} of {count + missing} *" if missing else str(count)


def test_cell(against: dict[str, Any] | None) -> str:
    if against is None:
        return UNKNOWN
    if against["p_value"] is None:
        return f"none, n = {against['pairs']}"
    return f"p = {against['p_value']:.2g}, n = {against['pairs']}"


def with_deviation(mean: float | None, deviation: float | None, digits: int) -> str:
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


def notes(rows: Sequence[Row], runs: Sequence[dict[str, Any]]) -> list[str]:
    """What a reader must know to read the tables."""
    lines = ["mean ± deviation over seeds; lower is better, but for the hypervolume"]
    tests = [row["against"] for row in rows if row["against"]]
    if tests:
        lines.append("paired test: two-sided t-test of the areas, seed by seed")
    if any(test["p_value"] is None for test in tests):
        lines.append("no test where fewer than 3 seeds are shared, or where nothing varies")
    if any(row["missing"] for row in rows):
        lines.append("* not all seeds have a front: means are of those that have")
    return [*lines, time_note([run for run in runs if run["seconds"] is not None])]


def time_note(runs: Sequence[dict[str, Any]]) -> str:
    if not runs:
        return "wall time: not known"
    counts = {run["at_once"] for run in runs}
    if None in counts:
        return "wall time: how many ran at once is not known"
    most = max(counts)
    if most == 1:
        return "wall time: one run at a time"
    return f"wall time: up to {most} runs at once, which slow each other down"
