"""Figure 6: the effect of bisection, and how often widths should be chosen."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from joslim.errors import UserError
from joslim.paper.panels import (
    Drawn,
    Panel,
    draw_panel,
    finite,
    label_text,
    method_of,
    numbers_of,
    only_one,
    shared_legend,
    small_title,
    spread_json,
)
from joslim.results.comparison import BASELINE
from joslim.results.plots import GREY, LOOKS, OTHERS, Look, dress_axes, looks_of, new_figure
from joslim.results.record import Record
from joslim.runs.config import config_of
from joslim.training.methods import PRESETS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SEARCHES = {"mobo-ts2": "with bisection", "mobo-rs": "without bisection"}
BINS = 20


# Bisection


def search_of(run: Record) -> str:
    """The label of a run: with bisection or without, or the name of its method or searcher."""
    config, method = config_of(run.config), method_of(run)
    if method != "joslim":
        return method
    searcher = config.searcher or PRESETS[config.preset].searchers[method][0]
    return SEARCHES.get(searcher, searcher)


def draw_bisection(panels: Sequence[Panel]) -> Drawn:
    """Draw the curves of both searches, and the costs of all children that each visited."""
    panel = only_one(panels)
    looks = looks_of(panel.fronts)
    figure = new_figure(9)
    rows: list[Any] = [["curves", label] for label in panel.fronts]
    places = figure.subplot_mosaic(rows, width_ratios=[1.15, 1])
    draw_panel(places["curves"], panel, looks)
    shares = {label: _shares_of_costs(panel, label) for label in panel.fronts}
    most = max(values.mean(axis=0).max() for values in shares.values())
    for label in panel.fronts:
        _draw_histogram(places[label], panel, label, shares[label], looks[label])
        places[label].set_ylim(0, 1.1 * most)
        if label != rows[-1][1]:
            places[label].set_xlabel("")
    shared_legend(figure, [places["curves"]])
    histograms = {
        label: {
            "edges": _edges_of(panel).tolist(),
            "percent": finite(values.mean(axis=0)),
            "deviation": finite(values.std(axis=0, ddof=1)) if len(values) > 1 else None,
        }
        for label, values in shares.items()
    }
    return figure, {"panels": [numbers_of(panel)], "histograms": histograms}


def _edges_of(panel: Panel) -> Any:
    low, high = sorted(panel.front.span)
    return np.linspace(low, high, BINS + 1)


def _shares_of_costs(panel: Panel, label: str) -> Any:
    """[seeds, bins]: percent of the visited children whose cost lies in each bin."""
    rows = []
    for run in panel.runs[label]:
        costs = run.history.costs if run.history else []
        counts, _ = np.histogram(costs, _edges_of(panel))
        rows.append(100 * counts / max(1, len(costs)))
    return np.array(rows)


def _draw_histogram(axes: Axes, panel: Panel, label: str, shares: Any, look: Look) -> None:
    from matplotlib.patheffects import withStroke

    edges = _edges_of(panel)
    # The axis is never logarithmic: the targets of the search are spread evenly over the costs.
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
    small_title(axes, label_text(label))


# K


def every_of(run: Record) -> str:
    """The label of a run: its K, or the name of its method."""
    method = method_of(run)
    return f"K = {config_of(run.config).every}" if method == "joslim" else method


def draw_every(panels: Sequence[Panel]) -> Drawn:
    """Draw the curves of each K, Slim first, and the time that each needs beyond that of Slim."""
    panel = only_one(panels)
    names = sorted(panel.runs, key=lambda name: _k_of(panel, name))
    runs, fronts = ({name: by[name] for name in names} for by in (panel.runs, panel.fronts))
    panel = Panel(panel.title, runs, fronts)  # type: ignore[arg-type]
    over = _overheads(panel)
    figure = new_figure(9)
    left, right = figure.subplots(1, 2, width_ratios=[1.15, 1])
    looks = _looks_of_k(panel)
    draw_panel(left, panel, looks)
    _draw_overheads(right, over, looks)
    shared_legend(figure, [left])
    return figure, {"panels": [numbers_of(panel)], "overhead": over}


def _k_of(panel: Panel, label: str) -> int:
    """The K of a line; 0 for methods other than Joslim."""
    run = panel.runs[label][0]
    return config_of(run.config).every or 0 if method_of(run) == "joslim" else 0


def _overheads(panel: Panel) -> list[dict[str, Any]]:
    """Compute the time of each K beyond Slim's, in percent; seed by seed where both have it."""
    if BASELINE not in panel.runs:
        raise UserError("runs: none of method slim, and the overhead is that over slim; add one")
    base = {run.seed: _seconds(run) for run in panel.runs[BASELINE]}
    usual = float(np.mean([*base.values()]))
    rows = []
    for label, runs in panel.runs.items():
        if k := _k_of(panel, label):
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

    names = [label for label in panel.runs if _k_of(panel, label)]
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
