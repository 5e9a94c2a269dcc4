"""What every benchmark prints: a table for people, and one line of JSON at the end."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table


def report(
    title: str, rows: list[dict[str, object]], figures: dict[str, dict[str, object]]
) -> None:
    """figures: {name: {"value": ..., "target": ..., "ok": bool}}."""
    table = Table(title=title, title_justify="left")
    for column in rows[0]:
        table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
    for row in rows:
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()))
    Console().print(table)
    print(json.dumps(figures))


def at_most(value: float, target: float) -> dict[str, object]:
    return {"value": round(value, 4), "target": target, "ok": value <= target}


def at_least(value: float, target: float) -> dict[str, object]:
    return {"value": round(value, 4), "target": target, "ok": value >= target}
