"""Makes docs/results.md and its pictures from what the study left in experiments/results.

    python experiments/results.py

The words are those of experiments/results_template.md. In it {{table NAME}} and {{picture NAME}}
stand for the tables below, and {{commits}} for where the figures come from. Sections without any
results yet are left out.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study import RESULTS, ROWS, SIZES, kept

from joslim.comparing.comparison import Comparison
from joslim.comparing.entries import Entry
from joslim.reports.bands import curve, draw_panels

DOCS = Path(__file__).parent.parent / "docs"
TEMPLATE = Path(__file__).with_name("results_template.md")
SHARES = (0.15, 0.25, 0.5, 0.75, 1.0)
PLACE = re.compile(r"{{(\w+) ?(\w*)}}")


@dataclass(frozen=True)
class Table:
    """Rows of the study under the names that they have in the table; the first is the reference."""

    title: str
    rows: dict[str, str]

    @property
    def entries(self) -> list[Entry]:
        there = {name: label for name, label in self.rows.items() if is_kept(name)}
        return [entry for name, label in there.items() for entry in kept(name, label)]


def methods(suffix: str = "") -> dict[str, str]:
    return {f"{name}{suffix}": name for name in ("slim", "bignas", "autoslim", "joslim")}


def changes(method: str) -> dict[str, str]:
    """The rows that change settings of a method on ResNet8, each named by what it changes."""
    base = ROWS[method]
    rows = {method: method}
    for name, row in ROWS.items():
        changed = {key: value for key, value in row.items() if base.get(key) != value}
        if changed and not {"method", "cost", "model"} & {*changed}:
            rows[name] = ", ".join(f"{key} {value}" for key, value in changed.items())
    return rows


TABLES = {
    "macs": Table("ResNet8, multiply-adds", methods()),
    "memory": Table("ResNet8, memory", methods("-memory")),
    "latency": Table("ResNet8, latency", methods("-latency")),
    "recipe": Table("ResNet8, multiply-adds, settings of slim changed", changes("slim")),
    "ideas": Table("ResNet8, multiply-adds, settings of joslim changed", changes("joslim")),
    "resnet20": Table("ResNet20, multiply-adds", methods("-resnet20")),
    "mobilenet": Table("MobileNetV2, memory", methods("-mobilenet")),
}


def main() -> None:
    sections = re.split(r"(?m)^(?=## )", TEMPLATE.read_text())
    text = "".join(filled(section) for section in sections)
    (DOCS / "results.md").write_text(re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n")
    print(f"{DOCS / 'results.md'}: {sum(map(is_kept, ROWS))} of {len(ROWS)} rows")


def filled(section: str) -> str:
    """Nothing, if all that it should show is missing."""
    makers = {"table": table_of, "picture": picture_of, "single": single_table, "commits": commits}
    shown = {place[0]: makers[place[1]](place[2]) for place in PLACE.finditer(section)}
    if shown and not any(shown.values()):
        return ""
    return PLACE.sub(lambda place: shown[place[0]], section)


def is_kept(name: str) -> bool:
    return (RESULTS / f"{name}.json").is_file()


def table_of(name: str) -> str:
    entries = TABLES[name].entries
    if len({entry.method for entry in entries}) < 2:  # there is nothing to compare
        return ""
    reference = entries[0].method
    rows = Comparison(entries).table(against=reference, shares=SHARES)
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "": lambda row: row["method"],
        "seeds": lambda row: str(len(row["seeds"])),
        "area, %": lambda row: spread(row["area"], row["area_deviation"]),
        f"against {reference}": difference,
        **{
            f"error at {share:g}": lambda row, at=at: spread(
                row["errors"][at]["error"], row["errors"][at]["error_deviation"], 1
            )
            for at, share in enumerate(SHARES)
        },
        "minutes": lambda row: f"{row['seconds'] / 60:.1f}",
    }
    lines = [[column(row) for column in columns.values()] for row in rows]
    return markdown([*columns], lines)


def markdown(head: list[str], lines: list[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *lines))


def spread(mean: float | None, deviation: float | None, digits: int = 2) -> str:
    if mean is None:
        return ""
    return f"{mean:.{digits}f}" + (f" ± {deviation:.{digits}f}" if deviation is not None else "")


def difference(row: dict[str, Any]) -> str:
    if (against := row["against"]) is None:
        return ""
    chance = "" if against["p_value"] is None else f" (p {against['p_value']:.2f})"
    return f"{against['difference']:+.2f}{chance}"


def picture_of(name: str) -> str:
    table = TABLES[name]
    comparison = Comparison(table.entries)
    if not comparison.entries:
        return ""
    file = DOCS / f"results-{name}.png"
    (panel,) = comparison.groups()
    draw_panels({table.title: comparison.fronts(*panel)}, file)
    return f"![{table.title}]({file.name})"


def single_table(_: str) -> str:
    """Networks trained one by one, and what the joint trainings have at the same cost."""
    names = [name for name in ("slim", "bignas", "joslim") if is_kept(name)]
    sizes = [size for size in SIZES if is_kept(f"single-{size:g}")]
    if not names or not sizes:
        return ""
    lines = []
    for size in sizes:
        alone = kept(f"single-{size:g}")
        point = alone[0].front[0]  # type: ignore[index]
        budget, full = point.costs["macs"], kept(names[0])[0].front.span[1]  # type: ignore[union-attr]
        errors = [[entry.front[0].test_error for entry in alone]]  # type: ignore[index]
        errors += [[float(curve(e.front, budget)) for e in kept(name)] for name in names]  # type: ignore[arg-type]
        seconds = sum(entry.seconds or 0 for entry in alone) / len(alone)
        cells = [mean_and_spread(values) for values in errors]
        lines.append([f"{size:g}", f"{budget / full:.2f}", *cells, f"{seconds / 60:.1f}"])
    head = ["width", "share of the macs", "alone", *names, "minutes alone"]
    return markdown(head, lines)


def mean_and_spread(values: list[Any]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return spread(statistics.fmean(values), deviation, 1)


def commits(_: str) -> str:
    found = {json.loads((RESULTS / f"{n}.json").read_text())["commit"] for n in ROWS if is_kept(n)}
    return ", ".join(f"`{commit}`" for commit in sorted(found)) or "none"


if __name__ == "__main__":
    main()
