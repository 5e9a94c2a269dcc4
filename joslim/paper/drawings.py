"""The figures of the paper that are more than curves, each drawn from panels of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joslim.costs.device_file import Conditions, DeviceFile
from joslim.costs.latency import measure_device
from joslim.costs.timing import Setting, Watch
from joslim.errors import UserError
from joslim.files import json_rows, json_value
from joslim.front import ERRORS, LATENCY, Front, Point
from joslim.paper.panels import (
    MODELS,
    Drawn,
    Panel,
    draw_curves,
    draw_panel,
    dress_panel,
    finite,
    grid,
    label_text,
    method_of,
    numbers_of,
    only_one,
    share_axes,
    shared_legend,
    small_title,
    spread_json,
)
from joslim.results.comparison import BASELINE
from joslim.results.device_times import children_to_time, repriced, times_on
from joslim.results.groups import band, shared_measure
from joslim.results.plots import (
    COLOURS,
    DARK,
    GREY,
    LOOKS,
    OTHERS,
    Look,
    dress_axes,
    looks_of,
    new_figure,
    plain_axes,
)
from joslim.results.record import Record
from joslim.results.run_files import CONFIG
from joslim.runs.config import config_of
from joslim.runs.run import load
from joslim.runs.setup import find_device
from joslim.slimmable import SlimmableNet
from joslim.space import Widths
from joslim.training.methods import PRESETS
from joslim.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Figure 3 and table 1: own runs on ImageNet beside published ones

# Table 1 of the paper: top-1 accuracy in percent on ImageNet, at these millions of multiply-adds.
TABLE_1: dict[str, dict[str, tuple[float, ...]]] = {
    "mobilenet_v2": {
        "macs": (59, 84, 102, 136, 149, 169, 212, 300),
        "slim": (61.4, 63.0, 64.7, 67.1, 67.6, 68.2, 69.7, 71.8),
        "bignas": (61.3, 63.1, 65.5, 67.5, 68.2, 68.8, 69.6, 71.5),
        "joslim": (61.5, 64.6, 65.5, 68.2, 69.1, 69.9, 70.6, 72.1),
    },
    "mobilenet_v3_large": {
        "macs": (43, 74, 85, 118, 135, 169, 184, 217),
        "slim": (65.8, 68.1, 69.1, 71.0, 71.5, 72.7, 73.0, 73.5),
        "bignas": (66.3, 68.1, 70.0, 71.4, 71.5, 72.0, 72.5, 73.1),
        "joslim": (65.9, 68.8, 70.0, 71.4, 72.1, 72.8, 73.2, 73.7),
    },
    "resnet18": {
        "macs": (339, 513, 650, 718, 939, 1231, 1659, 1814),
        "slim": (61.5, 63.4, 64.7, 65.1, 66.5, 68.0, 69.3, 69.6),
        "bignas": (61.5, 64.2, 65.6, 66.1, 67.3, 68.4, 69.3, 69.7),
        "joslim": (61.8, 64.5, 66.5, 67.5, 68.5, 69.4, 69.9, 70.0),
    },
}
# Universally slimmable networks (Yu and Huang, 2019), MobileNetV2: the paper checked its `slim`
# against them.
US_NETS = "us-nets"
US_NETS_MACS = (59, 97, 151, 209, 300)
US_NETS_ACCURACY = (62.3, 65.1, 67.6, 69.6, 71.5)


CLASSES, MOST_CLASSES = 1000, 10**6

# [(multiply-adds, error in percent)], the cheapest first.
Line = list[tuple[float, float]]


def published_lines(model: str) -> dict[str, Line]:
    """Return the published errors of a network on ImageNet by method; most networks have none."""
    table = TABLE_1.get(model, {})
    found = {name: (table["macs"], table[name]) for name in table if name != "macs"}
    if model == "mobilenet_v2":
        found[US_NETS] = (US_NETS_MACS, US_NETS_ACCURACY)
    return {
        method: [(m * 1e6, round(100 - accuracy, 6)) for m, accuracy in zip(*line)]
        for method, line in found.items()
    }


def draw_imagenet(panels: Sequence[Panel]) -> Drawn:
    """Draw figure 3: the runs, and US-Nets, with which the paper checked its own Slim."""

    def add_us_nets(axes: Axes, panel: Panel) -> None:
        lines = published_lines(panel.first.model) if _is_published(panel) else {}
        if US_NETS in lines:
            _draw_published(axes, US_NETS, lines[US_NETS])

    return draw_curves(panels, add=add_us_nets)


def draw_table1(panels: Sequence[Panel]) -> Drawn:
    """Draw a panel for each published network, with own runs in it, and panels for other runs."""
    own = {panel.first.model: panel for panel in panels if _is_published(panel)}
    others = [panel for panel in panels if not _is_published(panel)]
    published = {model: published_lines(model) for model in TABLE_1}
    figure, places = grid(len(TABLE_1) + len(others))
    for axes, (model, lines) in zip(places, published.items()):
        if model in own:
            draw_panel(axes, own[model])
        else:
            costs = [cost for line in lines.values() for cost, _ in line]
            dress_axes(axes, "macs", "test_error", (min(costs), max(costs)))
            dress_panel(axes, f"{MODELS[model]}, ImageNet")
        for name, line in lines.items():
            _draw_published(axes, name, line)
    for axes, panel in zip(places[len(TABLE_1) :], others):
        draw_panel(axes, panel)
    share_axes(places)
    shared_legend(figure, places)
    tables = [_table(own.get(model), model) for model in TABLE_1]
    tables += [_table(panel) for panel in others if panel.front.key == "macs"]
    numbers = {"panels": [numbers_of(panel) for panel in panels], "published": published}
    return figure, {**numbers, "tables": tables}


def _table(panel: Panel | None, model: str = "") -> dict[str, Any]:
    """Top-1 accuracies in percent, published ones and those of own runs, at the paper's budgets.

    A network that is not in the paper has eight budgets, spread evenly up to the full network.
    """
    published = {name: row for name, row in TABLE_1.get(model, {}).items() if name != "macs"}
    if model:
        budgets = 1e6 * np.array(TABLE_1[model]["macs"])
    else:
        assert panel is not None
        budgets = np.linspace(*panel.front.span, 9)[1:]
    runs = {}
    for label, fronts in panel.fronts.items() if panel else ():
        if (measure := shared_measure(fronts)) in ERRORS:
            mean, deviation = band(fronts, budgets, "macs", measure)
            spread = None if deviation is None else finite(deviation)
            runs[label] = {"mean": finite(100 - mean), "deviation": spread}
    title = panel.title if panel else f"{MODELS[model]}, ImageNet"
    return {"title": title, "macs": budgets.tolist(), "published": published, "runs": runs}


def table_texts(table: Mapping[str, Any]) -> list[list[str]]:
    """Return a table of figure table1 as texts, its head first. A dash: no child fits."""
    published, runs = table["published"], table["runs"]
    head = [f"{label_text(name)}, published" for name in published] + [*map(label_text, runs)]
    rows = [["MFLOPs", *head]]
    for at, macs in enumerate(table["macs"]):
        cells = [f"{accuracies[at]:.1f}" for accuracies in published.values()]
        for line in runs.values():
            mean, deviation = line["mean"][at], line["deviation"]
            spread = "" if deviation is None or mean is None else f" ± {deviation[at]:.1f}"
            cells.append("-" if mean is None else f"{mean:.1f}{spread}")
        rows.append([f"{macs / 1e6:.4g}", *cells])
    return rows


def _is_published(panel: Panel) -> bool:
    """Whether a panel is of a network of Table 1 by multiply-adds, on data with 1000 classes."""
    data = json_value(panel.first.facts, "data", CONFIG)
    classes = json_rows(data, "classes", f"{CONFIG}.data", MOST_CLASSES)
    known = panel.first.model in TABLE_1 and panel.front.key == "macs"
    return known and len(classes) == CLASSES


def _draw_published(axes: Axes, name: str, line: Line) -> None:
    """Draw somebody else's numbers with hollow markers and thin lines."""
    look = LOOKS.get(name, Look(COLOURS[6], "*", (0, (1, 3))))
    label = "US-Nets" if name == US_NETS else label_text(name)
    axes.plot(
        *zip(*line),
        color=look.colour,
        ls=look.line,
        lw=0.8,
        marker=look.marker,
        ms=8 if name == US_NETS else 5.5,
        mfc="white",
        mew=1.1,
        label=f"{label}, published",
        zorder=2,
    )


# Figure 4: fronts that were trained for multiply-adds, against measured milliseconds


@dataclass(frozen=True)
class Clock:
    """How children are timed: on a device here, or by a device file.

    batch: as the paper measured, on one GPU. model: a network of somebody's own, as
    package.module:function. kept: a file for the measured times; times that are in it already are
    not measured again.
    """

    device: str = "auto"
    batch: int = 128
    threads: int | None = None
    device_file: str | None = None
    model: str | None = None
    kept: Path | None = None
    watch: Watch | None = None


def draw_latency(panels: Sequence[Panel], clock: Clock) -> Drawn:
    if len(panels) > 1 and (clock.device_file or clock.kept):
        names = ", ".join(panel.title for panel in panels)
        raise UserError(f"runs: one network at a time can be timed here, {names} given")
    timed = [_timed_panel(panel, clock) for panel in panels]
    figure, numbers = draw_curves([panel for panel, _ in timed], LATENCY)
    for axes, (_, conditions) in zip(figure.axes, timed):
        words = f"latency of a batch of {conditions.batch}\n{conditions.device}"
        axes.set_xlabel(words, color=GREY, parse_math=False)
    return figure, {**numbers, "conditions": [conditions.to_json() for _, conditions in timed]}


def _timed_panel(panel: Panel, clock: Clock) -> tuple[Panel, Conditions]:
    """Give each child its milliseconds; and return the conditions under which they hold."""
    net = load(panel.first.path, clock.model).net
    fronts = [front for line in panel.fronts.values() for front in line]
    children = [child for front in fronts for child in children_to_time(front)]
    if clock.device_file is not None:
        file = DeviceFile.read(clock.device_file)
        file.check_fits(net, clock.device_file)
    else:
        file = _measured_once(net, list(dict.fromkeys(children)), clock)
    times = times_on(file, children, lambda: net)
    runs = {
        label: [replace(run, front=repriced(run.front, times)) for run in line if run.front]
        for label, line in panel.runs.items()
    }
    return replace(panel, runs=runs), file.conditions


def _measured_once(net: SlimmableNet, children: Sequence[Widths], clock: Clock) -> DeviceFile:
    """Measure children, or reuse the times of an earlier drawing on the same device."""
    net.to(find_device(clock.device))
    setting = Setting(clock.threads, clock.batch)
    if clock.kept is not None and clock.kept.exists():
        known = DeviceFile.read(clock.kept)
        alike = known.conditions == Conditions.here(net, setting)
        if alike and {*children} <= {*known.children}:
            return known
    measured = measure_device(net, children, setting, watch=clock.watch)
    if clock.kept is not None:
        measured.write(clock.kept)
    return measured


# Figure 6, a and b: with and without bisection

SEARCHES = {"mobo-ts2": "with bisection", "mobo-rs": "without bisection"}
BINS = 20


def search_of(run: Record) -> str:
    """The label of a run: with bisection or without, or the name of its method or searcher."""
    config, method = config_of(run.config), method_of(run)
    if method != "joslim":
        return method
    searcher = config.searcher or PRESETS[config.preset].searchers[method][0]
    return SEARCHES.get(searcher, searcher)


def _proposed_costs(run: Record) -> list[float]:
    """Return the costs of the children that the search proposed, without the initial design.

    The initial design is scored before the first proposals, or the first part of it. At the first
    step of a joint search there are no more than M others.
    """
    if (history := run.history) is None:
        return []
    start = 1 + max(history.scorings[0][1], default=-1) if history.scorings else 0
    if method_of(run) == "joslim":
        at_first = history.steps.count(history.steps[0]) if history.steps else 0
        start = max(start, at_first - config_of(run.config).samples)
    return history.costs[start:]


def draw_bisection(panels: Sequence[Panel]) -> Drawn:
    """Draw the curves of both searches, and the costs of all children that each proposed."""
    from matplotlib.patheffects import withStroke

    panel = only_one(panels)
    edges = np.linspace(min(panel.front.span), max(panel.front.span), BINS + 1)
    shares = {}  # [seeds, bins]: percent of the proposed children whose cost lies in each bin
    for label, runs in panel.runs.items():
        visited = [_proposed_costs(run) for run in runs]
        counts = [np.histogram(costs, edges)[0] for costs in visited]
        shares[label] = np.array([100 * n / max(1, len(c)) for n, c in zip(counts, visited)])
    most = max(values.mean(axis=0).max() for values in shares.values())
    looks = looks_of(panel.runs)
    figure = new_figure(9)
    rows: Any = [["curves", label] for label in panel.runs]
    places = figure.subplot_mosaic(rows, width_ratios=[1.15, 1])
    draw_panel(places["curves"], panel, looks)
    for label, values in shares.items():
        axes = places[label]
        # The axis is never logarithmic: the targets of the search are spread evenly over the costs.
        dress_axes(axes, panel.front.key, "test_error", (edges[-1], edges[-1]))
        heights, colour = values.mean(axis=0), looks[label].colour
        bars = {"align": "edge", "color": colour, "edgecolor": "white", "lw": 0.6}
        axes.bar(edges[:-1], heights, np.diff(edges), **bars)
        axes.axhline(100 / BINS, color=GREY, lw=1, ls=":")
        axes.annotate(
            "evenly spread",
            (1, 100 / BINS),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="right",
            color=GREY,
            fontsize=8,
            path_effects=[withStroke(linewidth=3, foreground="white")],
        )
        axes.set_ylabel("children proposed", color=GREY)
        axes.set_ylim(0, 1.1 * most)
        if label != rows[-1][1]:
            axes.set_xlabel("")
        small_title(axes, label_text(label))
    shared_legend(figure, [places["curves"]])
    histograms = {
        label: {
            "edges": edges.tolist(),
            "percent": finite(values.mean(axis=0)),
            "deviation": finite(values.std(axis=0, ddof=1)) if len(values) > 1 else None,
        }
        for label, values in shares.items()
    }
    return figure, {"panels": [numbers_of(panel)], "histograms": histograms}


# Figure 6, c and d: how often widths should be chosen


def every_of(run: Record) -> str:
    """The label of a run: its K, or the name of its method."""
    return f"K = {k}" if (k := _k_of(run)) else method_of(run)


def _k_of(run: Record) -> int:
    """The K of a run; 0 for methods other than Joslim."""
    return (config_of(run.config).every or 0) if method_of(run) == "joslim" else 0


def draw_every(panels: Sequence[Panel]) -> Drawn:
    """Draw the curves of each K, Slim first, and the time that each needs beyond that of Slim."""
    panel = only_one(panels)
    by_k = sorted(panel.runs.items(), key=lambda line: _k_of(line[1][0]))
    panel = replace(panel, runs=dict(by_k))
    over = _overheads(panel)
    looks = _looks_of_k(panel)
    figure = new_figure(9)
    left, right = figure.subplots(1, 2, width_ratios=[1.15, 1])
    draw_panel(left, panel, looks)
    _draw_overheads(right, over, looks)
    shared_legend(figure, [left])
    return figure, {"panels": [numbers_of(panel)], "overhead": over}


def _overheads(panel: Panel) -> list[dict[str, Any]]:
    """Compute the time of each K beyond Slim's, in percent; seed by seed where both have it."""
    if BASELINE not in panel.runs:
        raise UserError("runs: none of method slim, and the overhead is that over slim; add one")
    base = {run.seed: _seconds(run) for run in panel.runs[BASELINE]}
    usual = float(np.mean([*base.values()]))
    rows = []
    for label, runs in panel.runs.items():
        if k := _k_of(runs[0]):
            ratios = [_seconds(run) / base.get(run.seed, usual) for run in runs]
            percent = spread_json([100 * (ratio - 1) for ratio in ratios])
            rows.append({"label": label, "every": k, **percent})
    return rows


def _seconds(run: Record) -> float:
    if not run.seconds:
        raise UserError(f"run: {str(run.path)!r} has no wall time in its metrics.jsonl")
    return run.seconds


def _looks_of_k(panel: Panel) -> dict[str, Look]:
    """Colours from dark for a small K to light for a large one."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    names = [label for label, runs in panel.runs.items() if _k_of(runs[0])]
    shapes = cycle(look for look in OTHERS if look != LOOKS[BASELINE])
    shades = np.linspace(0, 0.85, len(names))
    looks = {
        name: Look(to_hex(colormaps["viridis"](shade)), shape.marker, shape.line)
        for name, shade, shape in zip(names, shades, shapes)
    }
    return {**looks_of(label for label in panel.runs if label not in looks), **looks}


def _draw_overheads(axes: Axes, rows: Sequence[dict[str, Any]], looks: dict[str, Look]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    every = [row["every"] for row in rows]
    dress_axes(axes, "every", "test_error", (min(every), max(every)))
    axes.plot(every, [row["mean"] for row in rows], color=GREY, lw=1.2, zorder=1)
    for row in rows:
        look, place = looks[row["label"]], (row["every"], row["mean"])
        axes.errorbar(*place, row["deviation"] or 0, color=look.colour, capsize=3, lw=1.2)
        axes.plot(*place, look.marker, color=look.colour, ms=8, mec="white")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(every))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.axhline(0, color=GREY, lw=1, ls=":")
    axes.set_xlabel("K, steps between two choices of widths", color=GREY)
    axes.set_ylabel("time beyond that of Slim", color=GREY)
    small_title(axes, "Overhead over Slim")


# Appendix: the widths that Joslim chose, layer by layer, beside those of Slim

OURS, THEIRS = "joslim", "slim"
# Three places on the trade-off curve, as shares of the cost of the full network.
SHARES = (0.3, 0.5, 0.7)
LAYERS = "layer, from the input on; those that share a width are one"


def draw_widths(panels: Sequence[Panel], shares: Sequence[float] = SHARES) -> Drawn:
    """Draw a column for each network and a row for each budget, of the first seed that both have.

    Budgets that buy the same children are one row: its title names all of them.
    """
    pairs = [_pair_of(panel) for panel in panels]
    columns: list[list[dict[str, Any]]] = []
    for fronts, _ in pairs:
        rows: list[dict[str, Any]] = []
        for row in (_budget_row(fronts, share) for share in shares):
            same = [known for known in rows if known["children"] == row["children"]]
            if same:
                same[0]["shares"] += row["shares"]
            else:
                rows.append(row)
        columns.append(rows)
    most = max(map(len, columns))
    figure = new_figure(5.2 * max(len(panels), 1.4))
    figure.set_figheight(1.9 * most + 0.8)
    places = figure.subplots(most, len(panels), squeeze=False)
    for column, (panel, rows) in enumerate(zip(panels, columns)):
        for axes, record in zip(places[:, column], rows):
            _draw_row(axes, record)
            axes.set_ylabel("width multiplier" if column == 0 else "", color=GREY)
        for axes in places[len(rows) :, column]:
            axes.remove()
        places[0, column].annotate(
            panel.title,
            (0, 1),
            xycoords="axes fraction",
            xytext=(0, 34),
            textcoords="offset points",
            color=DARK,
            fontsize=13,
            fontweight="bold",
            parse_math=False,
        )
        places[len(rows) - 1, column].set_xlabel(LAYERS, color=GREY)
    shared_legend(figure, [places[0, 0]])
    records = [
        {"title": panel.title, "seed": seed, "budgets": rows}
        for panel, rows, (_, seed) in zip(panels, columns, pairs)
    ]
    return figure, {"panels": records}


def _pair_of(panel: Panel) -> tuple[dict[str, Front], int]:
    """Return the fronts of both methods with the same seed, and that seed."""
    for method in (OURS, THEIRS):
        if method not in panel.runs:
            raise UserError(
                f"runs: {panel.title} has no run of method {method}; this figure compares "
                f"{OURS} with {THEIRS}"
            )
    ours, theirs = ({r.seed: r.front for r in panel.runs[m] if r.front} for m in (OURS, THEIRS))
    for seed, front in ours.items():
        if seed in theirs:
            return {OURS: front, THEIRS: theirs[seed]}, seed
    raise UserError(f"seed: {OURS} and {THEIRS} of {panel.title} have no seed in common")


def _budget_row(fronts: dict[str, Front], share: float) -> dict[str, Any]:
    """Pick a child of both methods within a share of the full cost, and say how they differ.

    A budget below the smallest child picks that child. Differences are (Joslim - Slim) / Slim in
    percent.
    """
    first, measure = fronts[THEIRS], shared_measure(fronts.values())
    key, budget = first.key, share * first.span[1]
    picked = {
        method: front.pick(**{key: max(budget, front[0].costs[key])})
        for method, front in fronts.items()
    }
    differences = {}
    for name in (measure, key):
        ours, theirs = (_value_of(picked[method], name) for method in (OURS, THEIRS))
        differences[name] = 100 * (ours - theirs) / theirs if theirs else None
    return {
        "shares": [share],
        "budget": budget,
        "measure": measure,
        "cost": key,
        "relative_difference": differences,
        "layers": [dim.name for dim in first.space.dims],
        "children": {
            method: {
                "cost": point.costs[key],
                "value": _value_of(point, measure),
                "multipliers": [
                    count / dim.full for count, dim in zip(point.widths.counts, first.space.dims)
                ],
            }
            for method, point in picked.items()
        },
    }


def _value_of(point: Point, name: str) -> float:
    return point.costs[name] if name in point.costs else getattr(point, name)


def title_of_row(record: dict[str, Any]) -> str:
    """`at 30 %: error -4.2 % (35.4 %), MACs +0.3 % (84.1M)`"""
    shares = " and ".join(f"{100 * share:g}" for share in record["shares"])
    measure, key = record["measure"], record["cost"]
    ours = record["children"][OURS]
    value = f"{ours['value']:.1f} %" if measure in ERRORS else f"{ours['value']:.3f}"
    name = "error" if measure in ERRORS else "loss"
    cost = {"macs": "MACs", "latency_ms": "latency"}.get(key, key)
    change = record["relative_difference"]
    return (
        f"at {shares} %: {name} {signed(change[measure])} ({value}), "
        f"{cost} {signed(change[key])} ({format_size(key, ours['cost'])})"
    )


def signed(percent: float | None) -> str:
    """A percentage with its sign, which is a true minus sign."""
    if percent is None:
        return "n/a"
    return f"{percent:+.1f} %".replace("-", "\N{MINUS SIGN}")


def _draw_row(axes: Axes, record: dict[str, Any]) -> None:
    count = len(record["layers"])
    for method in (THEIRS, OURS):
        look = LOOKS[method]
        axes.plot(
            range(1, count + 1),
            record["children"][method]["multipliers"],
            color=look.colour,
            ls=look.line,
            marker=look.marker,
            lw=1.6,
            ms=4.5,
            mec="white",
            mew=0.6,
            label=label_text(method),
            clip_on=False,
        )
    axes.set_ylim(0, 1.04)
    axes.set_xlim(0.5, count + 0.5)
    plain_axes(axes)
    small_title(axes, title_of_row(record))
