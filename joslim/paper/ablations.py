"""Figure 6: what bisection is good for, and how often widths should be chosen."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from joslim.errors import UserError
from joslim.methods import PRESETS
from joslim.paper.curves import (
    Drawn,
    draw_panel,
    finite,
    mean_and_deviation,
    numbers_of,
    shared_legend,
    small_title,
)
from joslim.paper.panels import Panel, label_in_words, method_of, only_one
from joslim.reports.bands import LOOKS, OTHERS, Look, looks_of
from joslim.reports.figures import GREY, dress_axes, new_figure
from joslim.runs.run import Run
from joslim.runs.whereabouts import seconds_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SEARCHES = {"mobo-ts2": "with bisection", "mobo-rs": "without bisection"}
BINS = 20
BASELINE = "slim"


# Bisection


def search_of(run: Run) -> str:
    """With bisection or without; other methods and searches by their own names."""
    config, method = run.config, method_of(run)
    if method != "joslim":
        return method
    searcher = config.searcher or PRESETS[config.preset].searchers[method][0]
    return SEARCHES.get(searcher, searcher)


def draw_bisection(panels: Sequence[Panel]) -> Drawn:
    """The curves of both searches; beside them, the costs of all children that each visited."""
    panel = only_one(panels)
    looks = looks_of(panel.fronts)
    figure = new_figure(9)
    rows: list[Any] = [["curves", label] for label in panel.fronts]
    places = figure.subplot_mosaic(rows, width_ratios=[1.15, 1])
    draw_panel(places["curves"], panel, looks)
    shares = {label: shares_of_costs(panel, label) for label in panel.fronts}
    most = max(values.mean(axis=0).max() for values in shares.values())
    for label in panel.fronts:
        draw_histogram(places[label], panel, label, shares[label], looks[label])
        places[label].set_ylim(0, 1.1 * most)
        if label != rows[-1][1]:
            places[label].set_xlabel("")
    shared_legend(figure, [places["curves"]])
    edges = edges_of(panel).tolist()
    histograms = {label: histogram_numbers(edges, shares[label]) for label in panel.fronts}
    return figure, {"panels": [numbers_of(panel)], "histograms": histograms}


def edges_of(panel: Panel) -> Any:
    low, high = sorted(panel.front.span)
    return np.linspace(low, high, BINS + 1)


def shares_of_costs(panel: Panel, label: str) -> Any:
    """[seeds, bins]: percent of the visited children whose cost lies in each bin."""
    rows = []
    for run in panel.runs[label]:
        costs = [visit.cost for visit in run.history.visits]
        counts, _ = np.histogram(costs, edges_of(panel))
        rows.append(100 * counts / max(1, len(costs)))
    return np.array(rows)


def draw_histogram(axes: Axes, panel: Panel, label: str, shares: Any, look: Look) -> None:
    from matplotlib.patheffects import withStroke

    edges = edges_of(panel)
    # Never logarithmic, however wide the span: targets are drawn evenly over the costs.
    dress_axes(axes, panel.front.key, "test_error", (edges[-1], edges[-1]))
    axes.bar(
        edges[:-1],
        shares.mean(axis=0),
        np.diff(edges),
        align="edge",
        color=look.colour,
        edgecolor="white",
        lw=0.6,
    )
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
    axes.set_ylabel("children visited", color=GREY)
    axes.tick_params(labelsize=9)
    small_title(axes, label_in_words(label))


def histogram_numbers(edges: list[float], shares: Any) -> dict[str, Any]:
    deviation = finite(shares.std(axis=0, ddof=1)) if len(shares) > 1 else None
    return {"edges": edges, "percent": finite(shares.mean(axis=0)), "deviation": deviation}


# K


def every_of(run: Run) -> str:
    method = method_of(run)
    return f"K = {run.config.every}" if method == "joslim" else method


def draw_every(panels: Sequence[Panel]) -> Drawn:
    """The curves of each K; beside them, the time that each needs beyond that of Slim."""
    panel = in_order_of_k(only_one(panels))
    over = overheads(panel)
    figure = new_figure(9)
    left, right = figure.subplots(1, 2, width_ratios=[1.15, 1])
    looks = looks_of_k(panel)
    draw_panel(left, panel, looks)
    draw_overheads(right, over, looks)
    shared_legend(figure, [left])
    return figure, {"panels": [numbers_of(panel)], "overhead": over}


def in_order_of_k(panel: Panel) -> Panel:
    """Slim first, then the smallest K."""
    names = sorted(panel.runs, key=lambda name: k_of(panel, name))
    return Panel(
        panel.title,
        {name: panel.runs[name] for name in names},
        {name: panel.fronts[name] for name in names},
    )


def k_of(panel: Panel, label: str) -> int:
    run = panel.runs[label][0]
    return run.config.every or 0 if method_of(run) == "joslim" else 0


def overheads(panel: Panel) -> list[dict[str, Any]]:
    """For each K the time beyond Slim's, in percent of that; seed by seed where both have it."""
    if BASELINE not in panel.runs:
        raise UserError("runs: none of method slim, and the overhead is that over slim; add one")
    base = {run.config.seed: seconds(run) for run in panel.runs[BASELINE]}
    usual = float(np.mean([*base.values()]))
    rows = []
    for label, runs in panel.runs.items():
        if k := k_of(panel, label):
            ratios = [seconds(run) / base.get(run.config.seed, usual) for run in runs]
            percent = mean_and_deviation([100 * (ratio - 1) for ratio in ratios])
            rows.append({"label": label, "every": k, **percent})
    return rows


def seconds(run: Run) -> float:
    found = seconds_of(run.path)
    if not found:
        raise UserError(f"run: {str(run.path)!r} has no wall time in its metrics.jsonl")
    return found


def looks_of_k(panel: Panel) -> dict[str, Look]:
    """From dark for a small K to light for a large one."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    names = [label for label in panel.runs if k_of(panel, label)]
    shapes = cycle(look for look in OTHERS if look != LOOKS[BASELINE])
    shades = np.linspace(0, 0.85, len(names))
    looks = {
        name: Look(to_hex(colormaps["viridis"](shade)), shape.marker, shape.line)
        for name, shade, shape in zip(names, shades, shapes)
    }
    return {**looks_of({label: 0 for label in panel.runs if label not in looks}), **looks}


def draw_overheads(axes: Axes, rows: Sequence[dict[str, Any]], looks: dict[str, Look]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    every = [row["every"] for row in rows]
    dress_axes(axes, "every", "test_error", (min(every), max(every)))
    axes.plot(every, [row["mean"] for row in rows], color=GREY, lw=1.2, zorder=1)
    for row in rows:
        look = looks[row["label"]]
        axes.errorbar(
            row["every"], row["mean"], row["deviation"] or 0, color=look.colour, capsize=3, lw=1.2
        )
        axes.plot(row["every"], row["mean"], look.marker, color=look.colour, ms=8, mec="white")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(every))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.axhline(0, color=GREY, lw=1, ls=":")
    axes.set_xlabel("K, steps between two choices of widths", color=GREY)
    axes.set_ylabel("time beyond that of Slim", color=GREY)
    axes.tick_params(labelsize=9)
    small_title(axes, "Overhead over Slim")
