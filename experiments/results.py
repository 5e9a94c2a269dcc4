"""Makes docs/results.md, docs/short-trainings.md and their pictures from experiments/results.

    python experiments/results.py

The words are those of the templates beside this file. In them {{table NAME}} and {{picture NAME}}
stand for the tables below, {{summary}} for the methods in all of them, {{widths ROW}} for what a
row has found, {{rates}} for the learning rates, {{single}}, {{single_picture}} and {{longer}} for
the networks trained one by one, {{alone EPOCHS}} for those of the long trainings, and {{commits}}
for where the figures come from.
Sections without any results yet are left out.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from study import AS_LONG, KNOBS, LENGTHS, RESULTS, ROWS, SIZES, kept, latency_file, latency_of

from joslim.comparing import Comparison, Entry
from joslim.front import LATENCY, Front
from joslim.results.groups import curve
from joslim.results.plots import draw_panels

DOCS = Path(__file__).parent.parent / "docs"
# Each page and the template of its words.
PAGES = {"results.md": "results_template.md", "short-trainings.md": "short_template.md"}
SHARES = (0.15, 0.25, 0.5, 0.75, 1.0)
METHODS = ("slim", "bignas", "autoslim", "joslim")
# The first round: networks trained one by one, the rows whose learning rate was tuned, and rates.
SHORT_SIZES = (1.0, 0.85, 0.7, 0.5, 0.316)
TUNED = ("slim", "bignas", "joslim", "single-1", "single-0.5")
RATES = (0.15, 0.4)
# Networks that were trained one by one, by what their rows end with; and joint trainings.
ALONE = {"": "alone", "-lr-0.8": "alone, rate 0.8"}
JOINT = {
    "joslim": "joint, all widths in a step",
    "joslim-drawn-2000": "joint, 2,000 steps",
    "joslim-drawn": "joint, 3,000 steps",
}
PLACE = re.compile(r"{{(\w+) ?([\w-]*)}}")


@dataclass(frozen=True)
class Table:
    """Rows of the study under the names that they have in the table; the first is the reference.

    timed: The network of `study.TIMED` by whose measured times the same children are compared,
        instead of the cost of the trainings.
    """

    title: str
    rows: dict[str, str]
    timed: str | None = None

    @property
    def entries(self) -> list[Entry]:
        there = {name: label for name, label in self.rows.items() if is_kept(name)}
        found = [entry for name, label in there.items() for entry in kept(name, label)]
        if self.timed is not None:
            if not latency_file(self.timed).is_file():
                return []
            found = with_times(found, self.timed)
        return on_one_axis(found)


def with_times(entries: list[Entry], network: str) -> list[Entry]:
    """Fronts by latency: children are priced by the model of the times that were measured."""
    latency = latency_of(network, device_file=latency_file(network))
    space = latency.net.space
    full = {dim.name: dim.full for dim in space.dims}
    found = []
    for entry in entries:
        points = []
        for point in front_of(entry):
            # A child of a space with fewer knobs has all blocks, or all pixels.
            named = zip(point.widths.space.dims, point.widths.counts)
            counts = full | {dim.name: count for dim, count in named}
            ms = float(latency.of_counts(np.array([[counts[dim.name] for dim in space.dims]]))[0])
            points.append(replace(point, costs={**point.costs, LATENCY: ms}))
        least = min(point.costs[LATENCY] for point in points)
        front = Front.of(points, "latency", (least, latency(space.full)))
        found.append(replace(entry, cost="latency", front=front))
    return found


def on_one_axis(entries: list[Entry]) -> list[Entry]:
    """Let all fronts begin at the smallest cost that each of them reaches."""
    fronts = [front_of(entry) for entry in entries]
    low = max((front.span[0] for front in fronts), default=0.0)
    full = min((front.span[1] for front in fronts), default=0.0)
    return [
        replace(entry, front=Front(front, front.cost, (low, full)))
        for entry, front in zip(entries, fronts)
    ]


def methods(suffix: str = "") -> dict[str, str]:
    return {f"{name}{suffix}": name for name in METHODS}


def changes(reference: str) -> dict[str, str]:
    """The rows that change settings of this one, each named by what it changes."""
    base = ROWS[reference]
    rows = {reference: base["method"]}
    for name, row in ROWS.items():
        changed = {key: value for key, value in row.items() if base.get(key) != value}
        if changed and {*changed} != {"lr"} and not OTHER_CONTEST & {*changed}:
            words = ", ".join(f"{k} {value}" for k, value in changed.items() if k != FOLLOWS)
            rows[name] = NAMED.get(name, words)
    return rows


# Rows that change so much that a list of it would say little.
NAMED = {
    "slim-drawn": "draw 1, full_first 0.3, steps 3000",
    "joslim-drawn": "the default (draw 1, full_first 0.3), steps 3000",
    "joslim-drawn-2000": "the default (draw 1, full_first 0.3)",
    "joslim-digits-drawn": "the default (draw 1, full_first 0.3)",
    "joslim-digits-drawn-longer": "the default (draw 1, full_first 0.3), steps 1000",
}
# What follows from K.
FOLLOWS = "rescore"
# Rows that differ in one of these are not changes of each other.
OTHER_CONTEST = {"method", "cost", "model", "data"}
IN_A_STEP_LABELS = {
    "all": "all",
    "all-after-alone": "all, after the full network alone for 30%",
    "two": "two",
    "one": "one, after the full network alone for 30%",
    "one-alone-0.1": "one, after the full network alone for 10%",
    "one-never-alone": "one, never alone",
    "all-weight-1": "all, the full network counts once",
}
LONG = {
    **{
        f"methods-{epochs}": Table(
            f"{epochs} epochs, multiply-adds",
            {f"{name}-{epochs}": name for name in METHODS}
            | {f"joslim-{epochs}-even": "joslim, costs of random children spread evenly"},
        )
        for epochs in LENGTHS
    },
    "methods-memory": Table("30 epochs, memory", {f"{name}-30-memory": name for name in METHODS}),
    **{
        f"draw-{epochs}": Table(
            f"{epochs} epochs, children in a step",
            {f"joslim-{epochs}-{name}": label for name, label in IN_A_STEP_LABELS.items()}
            | {f"joslim-{AS_LONG[epochs]}-one": f"one, {AS_LONG[epochs]} epochs: as many passes"}
            | {f"joslim-{epochs}": "all, no warm-up"},
        )
        for epochs in LENGTHS
    },
    "draw-photos": Table(
        "100 epochs of photographs, children in a step",
        {f"photos-100-{name}": IN_A_STEP_LABELS[name] for name in ("all", "one")},
    ),
    "otherwise": Table(
        "30 epochs, settings of joslim changed",
        {
            "joslim-30": "joslim",
            "joslim-30-random-0": "no random children",
            "joslim-30-random-0.3": "30% of them random",
            "joslim-30-random-1": "all of them random",
            "joslim-30-alpha": "alpha-divergence",
            "joslim-30-ema": "a moving average of the full network teaches",
            "joslim-30-next": "the next larger child teaches",
        },
    ),
    "from-paper": Table(
        "30 epochs, from the paper to the default",
        {
            "paper-30": "`--preset paper`, K = 25",
            "paper-30-targeted": "with our search",
            "paper-30-log": "and half of the targets in the logarithm",
            "paper-30-often": "and K = 10",
            "joslim-30-random-0": "and the full network three times",
            "joslim-30": "and 60% random children",
            "joslim-30-all": "and a warm-up of 5%",
            "joslim-30-one": "and one child in a step",
        },
    ),
    "k": Table(
        "30 epochs, K and the search of `--preset paper`",
        {
            "paper-30": "K = 25",
            **{f"paper-30-k-{k}": f"K = {k}" for k in (12, 50, 100, 200)},
            "paper-30-rs": "K = 25, without bisection",
        },
    ),
    "resnet20-30": Table("ResNet20, 30 epochs", {f"{name}-resnet20-30": name for name in METHODS}),
    **{
        f"knobs{network}{'' if timed is None else '-latency'}": Table(
            f"{title}: widths, resolution, depth{'' if timed is None else ', latency'}",
            {f"knobs{network}-{name}": name for name in KNOBS},
            timed,
        )
        for network, title in (("", "ResNet20"), ("-mobilenet", "MobileNetV2"))
        for timed in (None, network)
    },
}
TABLES = {
    **LONG,
    "macs": Table("ResNet8, multiply-adds", methods("-drawn")),
    "memory": Table("ResNet8, memory", methods("-drawn-memory")),
    "latency": Table("ResNet8, latency", methods("-drawn-latency")),
    "all-macs": Table("ResNet8, multiply-adds, all widths in a step", methods()),
    "all-memory": Table("ResNet8, memory, all widths in a step", methods("-memory")),
    "all-latency": Table("ResNet8, latency, all widths in a step", methods("-latency")),
    "recipe": Table("ResNet8, multiply-adds, settings of slim changed", changes("slim")),
    "ideas": Table("ResNet8, multiply-adds, settings of joslim changed", changes("joslim")),
    "digits": Table("ResNet8 on digits, settings of joslim changed", changes("joslim-digits")),
    "resnet20": Table("ResNet20, multiply-adds", methods("-resnet20-drawn")),
    "all-resnet20": Table("ResNet20, multiply-adds, all widths in a step", methods("-resnet20")),
    "photos": Table("MobileNetV2, memory", methods("-photos")),
    "mobilenet": Table("MobileNetV2 on digits, memory, all widths", methods("-mobilenet")),
}


# Where methods meet, under equal conditions.
CONTESTS = tuple(
    name for name in TABLES if name not in LONG and name not in ("recipe", "ideas", "digits")
)


def main() -> None:
    for page, template in PAGES.items():
        sections = re.split(r"(?m)^(?=## )", Path(__file__).with_name(template).read_text())
        text = "".join(filled(section) for section in sections)
        (DOCS / page).write_text(re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n")
    print(f"{sum(map(is_kept, ROWS))} of {len(ROWS)} rows")


def filled(section: str) -> str:
    """Nothing, if all that it should show is missing."""
    makers = {
        "summary": summary,
        "alone": alone_table,
        "table": table_of,
        "picture": picture_of,
        "rates": rates_table,
        "single": single_table,
        "single_picture": single_picture,
        "widths": widths_table,
        "longer": longer_alone,
        "commits": commits,
    }
    shown = {place[0]: makers[place[1]](place[2]) for place in PLACE.finditer(section)}
    if shown and not any(shown.values()):
        return ""
    return PLACE.sub(lambda place: shown[place[0]], section)


def is_kept(name: str) -> bool:
    return (RESULTS / f"{name}.json").is_file()


def summary(_: str) -> str:
    """The areas of all methods, wherever two of them met."""
    lines = []
    for table in (TABLES[name] for name in CONTESTS):
        found = {label: areas(kept(name)) for name, label in table.rows.items() if is_kept(name)}
        if len(found) > 1:
            cells = [mean_and_spread(found[name], 2) if name in found else "" for name in METHODS]
            lines.append([table.title, *cells])
    return markdown(["area, %", *METHODS], lines) if lines else ""


def areas(entries: list[Entry], error: str = "test_error") -> list[float]:
    found = [front_of(entry).area(error) for entry in entries]
    return [area for area in found if area is not None]


def table_of(name: str) -> str:
    entries = TABLES[name].entries
    if len({entry.method for entry in entries}) < 2:  # there is nothing to compare
        return ""
    reference = entries[0].method
    rows = Comparison(entries).table(against=reference, shares=SHARES)
    by_label = {label: row for row, label in TABLES[name].rows.items()}
    for row in rows:
        of_row = [entry for entry in entries if entry.method == row["method"]]
        row.update(further_figures(by_label[row["method"]], of_row))
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
        "validation": lambda row: f"{row['validation']:.2f}",
        "minutes": lambda row: f"{row['minutes']:.1f}",
        "choosing": lambda row: f"{row['choosing']:.0%}",
    }
    lines = [[column(row) for column in columns.values()] for row in rows]
    return markdown([*columns], lines)


def further_figures(name: str, entries: list[Entry]) -> dict[str, float]:
    """The area by the validation images, and the time: all, and what choosing widths took of it."""
    runs = json.loads((RESULTS / f"{name}.json").read_text())["runs"]
    parts = [run["parts"].get(part, 0.0) for run in runs for part in ("search", "scoring")]
    return {
        "validation": statistics.fmean(areas(entries, "val_error")),
        "minutes": minutes_of(entries),
        "choosing": sum(parts) / sum(run["seconds"] for run in runs),
    }


def alone_table(epochs: str) -> str:
    """Networks trained one by one, and joint trainings of as many epochs at the same cost."""
    names = [f"single-{size:g}-{epochs}" for size in SIZES]
    rows = {f"joslim-{epochs}-{name}": IN_A_STEP_LABELS[name] for name in ("all", "one")}
    rows |= {f"joslim-{AS_LONG[int(epochs)]}-one": f"one, {AS_LONG[int(epochs)]} epochs"}
    joint = {label: name for name, label in rows.items() if is_kept(name)}
    if not all(map(is_kept, names)) or not joint:
        return ""
    lines = []
    alone = [kept(name) for name in names]
    budgets = [front_of(entries[0])[0].costs["macs"] for entries in alone]
    for size, budget, entries in zip(SIZES, budgets, alone):
        errors = [[front_of(entry)[0].test_error for entry in entries]]
        errors += [
            [float(curve(front_of(entry), budget)) for entry in kept(name)]
            for name in joint.values()
        ]
        cells = [mean_and_spread(values) for values in errors]
        lines.append([f"{size:g}", f"{budget / max(budgets):.2f}", *cells])
    minutes = [sum(map(minutes_of, alone)), *(minutes_of(kept(name)) for name in joint.values())]
    lines.append(["minutes", "", *(f"{value:.1f}" for value in minutes)])
    return markdown(["width", "share of the macs", "alone", *joint], lines)


def rates_table(_: str) -> str:
    """By validation and with the seed that all of them have: which learning rate each prefers."""
    rates = sorted({*RATES, ROWS["slim"]["lr"]})
    lines = []
    for tuned in TUNED:
        names = [tuned if rate == ROWS[tuned]["lr"] else f"{tuned}-lr-{rate:g}" for rate in rates]
        cells = [f"{validation(front_of(kept(n)[0])):.2f}" if is_kept(n) else "" for n in names]
        if sum(map(bool, cells)) > 1:
            lines.append([tuned, *cells])
    return markdown(["", *(f"{rate:g}" for rate in rates)], lines) if lines else ""


def validation(front: Front) -> float:
    """The area; of a network that was trained alone, its error."""
    error = front[0].val_error if len(front) == 1 else front.area("val_error")
    assert error is not None
    return error


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
    p = against["p_value"]
    chance = "" if p is None else f" (p {p:.2f})" if p >= 0.01 else " (p < 0.01)"
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


def alone_and_joint() -> tuple[dict[str, list[list[Entry]]], dict[str, list[Entry]]]:
    """The networks trained one by one, size after size, and the joint trainings, by label."""
    names = {
        label: [f"single-{size:g}{end}" for size in SHORT_SIZES] for end, label in ALONE.items()
    }
    alone = {label: [*map(kept, rows)] for label, rows in names.items() if all(map(is_kept, rows))}
    joint = {label: kept(name) for name, label in JOINT.items() if is_kept(name)}
    return alone, joint


def single_picture(epochs: str) -> str:
    """The networks trained one by one as if they were the front of one training."""
    if epochs:
        rows, chosen = [f"single-{size:g}-{epochs}" for size in SIZES], f"joslim-{epochs}-all"
    else:
        rows, chosen = [f"single-{size:g}" for size in SHORT_SIZES], [*JOINT][-1]
    if not all(map(is_kept, [*rows, chosen])):
        return ""
    by_seed = [[front_of(entry) for entry in entries] for entries in zip(*map(kept, rows))]
    together = [
        Front([point for front in fronts for point in front], fronts[0].cost, fronts[0].span)
        for fronts in by_seed
    ]
    title = "One joint training, and networks trained one by one"
    file = DOCS / f"results-single{epochs and '-'}{epochs}.png"
    curves = {"joslim": [front_of(entry) for entry in kept(chosen)], "single": together}
    draw_panels({title: curves}, file)
    return f"![{title}]({file.name})"


def single_table(_: str) -> str:
    """Networks trained one by one, and what the joint trainings have at the same cost."""
    alone, joint = alone_and_joint()
    if not alone or not joint:
        return ""
    budgets = [front_of(entries[0])[0].costs["macs"] for entries in alone["alone"]]
    lines = []
    for at, (size, budget) in enumerate(zip(SHORT_SIZES, budgets)):
        errors = [[front_of(e)[0].test_error for e in sizes[at]] for sizes in alone.values()]
        errors += [[float(curve(front_of(e), budget)) for e in found] for found in joint.values()]
        cells = [mean_and_spread(values) for values in errors]
        lines.append([f"{size:g}", f"{budget / max(budgets):.2f}", *cells])
    minutes = [sum(map(minutes_of, sizes)) for sizes in alone.values()]
    minutes += map(minutes_of, joint.values())
    lines.append(["minutes", "", *(f"{value:.1f}" for value in minutes)])
    return markdown(["width", "share of the macs", *alone, *joint], lines)


def longer_alone(_: str) -> str:
    """The networks that were trained alone for as long as the longer joint training."""
    found = {
        row["widths"]: [front_of(entry)[0].test_error for entry in kept(name)]
        for name, row in ROWS.items()
        if row["method"] == "single" and name.endswith("-longer") and is_kept(name)
    }
    return ", ".join(f"width {size}: {mean_and_spread(errors)} %" for size, errors in found.items())


def front_of(entry: Entry) -> Front:
    assert entry.front is not None
    return entry.front


def minutes_of(entries: list[Entry]) -> float:
    """Of the fastest: what else the machine did has only ever made a training longer."""
    return min(entry.seconds or 0.0 for entry in entries) / 60


def widths_table(name: str) -> str:
    """How much of their channels the layers keep in the children for some shares of the cost."""
    if not is_kept(name):
        return ""
    fronts = [front_of(entry) for entry in kept(name)]
    dims = fronts[0][0].widths.space.dims
    lines = []
    smallest = max(min(point.costs[front.key] for point in front) for front in fronts)
    for share in (0.25, 0.5, 0.75):
        if share * fronts[0].span[1] < smallest:
            continue
        picked = [front.pick(**{front.key: share * front.span[1]}) for front in fronts]
        counts = zip(*(point.widths.counts for point in picked))
        shares = [[count / dim.full for count in found] for dim, found in zip(dims, counts)]
        lines.append([f"{share:g}", *(mean_and_spread(found, 2) for found in shares)])
    return markdown(["cost", *(f"`{dim.name}`" for dim in dims)], lines)


def mean_and_spread(values: list[Any], digits: int = 1) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return spread(statistics.fmean(values), deviation, digits)


def commits(which: str) -> str:
    """Where the figures come from; `which` is "long" for the rows of the long trainings."""
    names = [
        name for name in ROWS if is_kept(name) and ("epochs" in ROWS[name]) == (which == "long")
    ]
    found = {json.loads((RESULTS / f"{name}.json").read_text())["commit"] for name in names}
    return ", ".join(f"`{commit}`" for commit in sorted(found)) or "none"


if __name__ == "__main__":
    main()
