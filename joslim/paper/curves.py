"""Error against cost, a panel for each network: the mean over seeds and a band of a deviation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from joslim.front import ERRORS
from joslim.paper.panels import Panel, label_in_words
from joslim.reports.bands import Look, budgets_of, curve, draw_line, looks_of
from joslim.reports.figures import DARK, dress_axes, new_figure, shared_measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches of a panel, and how many stand side by side.
WIDE, HIGH = 3.1, 2.9
MOST_ACROSS = 4
# Ticks of the axis of costs that fit into a panel.
TICKS = 5

Drawn = tuple["Figure", dict[str, Any]]


def draw_curves(panels: Sequence[Panel], cost: str | None = None) -> Drawn:
    """All panels in one figure; and its numbers."""
    figure, places = grid(len(panels))
    for axes, panel in zip(places, panels):
        draw_panel(axes, panel, looks_of(panel.fronts), cost)
    tidy(places, MOST_ACROSS)
    shared_legend(figure, places)
    return figure, {"panels": [numbers_of(panel, cost) for panel in panels]}


def grid(count: int) -> tuple[Figure, list[Axes]]:
    """So many panels, at most four side by side."""
    across = min(count, MOST_ACROSS)
    down = -(-count // across)
    figure = new_figure(max(WIDE * across, 2 * WIDE))
    figure.set_figheight(HIGH * down + 0.4 if count > 1 else 1.4 * HIGH)
    places = figure.subplots(down, across, squeeze=False).flatten()
    for axes in places[count:]:
        axes.remove()
    return figure, [*places[:count]]


def draw_panel(
    axes: Axes, panel: Panel, looks: Mapping[str, Look], cost: str | None = None
) -> None:
    fronts = [front for line in panel.fronts.values() for front in line]
    key, measure = cost or fronts[0].key, shared_measure(fronts)
    budgets = budgets_of(fronts, key)
    dress_axes(axes, key, measure, (budgets[0], budgets[-1]))
    fewer_ticks(axes)
    for label, line in panel.fronts.items():
        draw_line(axes, line, budgets, (key, measure), looks[label], label_in_words(label))
    small_title(axes, panel.title)


def fewer_ticks(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    if axes.get_xscale() == "linear":
        axes.xaxis.set_major_locator(MaxNLocator(TICKS, steps=[1, 2, 2.5, 5, 10]))
    axes.tick_params(labelsize=9)


def small_title(axes: Axes, words: str) -> None:
    axes.set_title(
        words, loc="left", color=DARK, fontsize=11, fontweight="bold", pad=5, parse_math=False
    )


def tidy(places: Sequence[Axes], across: int) -> None:
    """The names of axes once for all panels that share them."""
    for at, axes in enumerate(places):
        below = at + across < len(places)
        if below and places[at + across].get_xlabel() == axes.get_xlabel():
            axes.set_xlabel("")
        if at % across and places[at - 1].get_ylabel() in ("", axes.get_ylabel()):
            axes.set_ylabel("")


def shared_legend(figure: Figure, places: Sequence[Axes]) -> None:
    """Above all panels, each label once."""
    handles: dict[str, Any] = {}
    for axes in places:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    # Inches that the longest label takes, with its line.
    widest = 0.9 + 0.085 * max(map(len, handles))
    columns = max(1, min(len(handles), int(figure.get_figwidth() / widest)))
    order = row_by_row([*handles], columns)
    figure.set_figheight(figure.get_figheight() + 0.22 * ((len(order) - 1) // columns))
    legend = figure.legend(
        [handles[label] for label in order],
        order,
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        labelcolor=DARK,
        fontsize=10,
        handlelength=3.2,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def row_by_row(names: list[str], columns: int) -> list[str]:
    """In the order in which matplotlib, which fills column by column, gives rows in this one."""
    return [name for column in range(columns) for name in names[column::columns]]


# Numbers


def numbers_of(panel: Panel, cost: str | None = None) -> dict[str, Any]:
    """What the panel shows, as JSON."""
    fronts = [front for line in panel.fronts.values() for front in line]
    key, measure = cost or fronts[0].key, shared_measure(fronts)
    budgets = budgets_of(fronts, key)
    lines = {}
    for label, line in panel.fronts.items():
        curves = np.array([curve(front, budgets, key, measure) for front in line])
        lines[label] = {
            "seeds": [run.config.seed for run in panel.runs.get(label, [])],
            "runs": [str(run.path) for run in panel.runs.get(label, [])],
            "mean": finite(curves.mean(axis=0)),
            "deviation": finite(curves.std(axis=0, ddof=1)) if len(line) > 1 else None,
        }
        if cost is None and measure in ERRORS:
            lines[label]["area"] = mean_and_deviation([front.area(measure) for front in line])
    return {
        "title": panel.title,
        "model": panel.model,
        "data": panel.first.config.data,
        "cost": key,
        "measure": measure,
        "budgets": budgets.tolist(),
        "lines": lines,
    }


def mean_and_deviation(values: Sequence[Any]) -> dict[str, Any]:
    numbers = [float(value) for value in values]
    deviation = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
    return {"mean": float(np.mean(numbers)), "deviation": deviation, "each": numbers}


def finite(values: Any) -> list[float | None]:
    """JSON has no NaN: null is where no child fits."""
    return [float(value) if math.isfinite(value) else None for value in values]
