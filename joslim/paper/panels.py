"""Panels of the paper's figures: which runs are drawn together, and their curves.

A panel shows error against cost: for each label the mean over seeds and a band of a deviation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joslim.errors import UserError
from joslim.front import ERRORS, Front
from joslim.results.groups import (
    Spread,
    band,
    refuse_repetitions,
    shared_measure,
    terms_of,
    value_text,
)
from joslim.results.plots import (
    DARK,
    Look,
    budgets_of,
    draw_lines,
    looks_of,
    new_figure,
    plain_text,
)
from joslim.results.record import Record
from joslim.runs.recipes import PAPER, RECIPES
from joslim.training.methods import ALIASES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODELS = {
    "mobilenet_v2": "MobileNetV2",
    "mobilenet_v3_large": "MobileNetV3",
    **{f"resnet{depth}": f"ResNet{depth}" for depth in (8, 18, 20, 32, 34, 44, 50, 56)},
    **{f"resnet20_{n}x": f"{n}x ResNet20" for n in (2, 3, 4, 5)},
}
DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet"}
# In the order of the paper's legends.
LABELS = {"slim": "Slim", "bignas": "BigNAS", "autoslim": "AutoSlim", "joslim": "Joslim"}
# Inches of a panel, and how many stand side by side.
WIDE, HIGH = 3.1, 2.9
MOST_ACROSS = 4
# Ticks of the axis of costs that fit into a panel.
TICKS = 5

Labelled = Callable[[Record], str]
Drawn = tuple["Figure", dict[str, Any]]  # a figure and its numbers


@dataclass(frozen=True)
class Panel:
    """Finished runs of one network on the same data, by label; within a label the seed differs."""

    title: str
    runs: Mapping[str, Sequence[Record]]
    fronts: Mapping[str, Sequence[Front]]

    @property
    def first(self) -> Record:
        return next(iter(self.runs.values()))[0]

    @property
    def model(self) -> str:
        return self.first.model

    @property
    def front(self) -> Front:
        return next(iter(self.fronts.values()))[0]


# Runs that are drawn together


def method_of(run: Record) -> str:
    return ALIASES.get(run.method, run.method)


def panels_of(
    runs: Iterable[Record], label: Labelled = method_of, costs: Sequence[str] = ("macs",)
) -> list[Panel]:
    """Make a panel for each network, data set and cost, in the order of the paper.

    label: names the line of a run. costs: those that the figure is of.
    """
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for run in runs:
        cost = _front_of(run).cost
        if cost not in costs:
            raise UserError(
                f"cost: {str(run.path)!r} has {cost}, this figure is of "
                f"{' and '.join(costs)}; leave it out"
            )
        groups.setdefault((run.data_identity, run.model, cost), []).append(run)
    if not groups:
        raise UserError("runs: none given; type the folders of runs")
    recipes = [recipe for name, recipe in RECIPES.items() if name.startswith(PAPER)]
    order = [(data_name(recipe["data"]), recipe["model"]) for recipe in recipes]

    def place_in_paper(panel: Panel) -> int:
        place = (data_name(panel.first.data), panel.model)
        return order.index(place) if place in order else len(order)

    return sorted((_panel_of(group, label) for group in groups.values()), key=place_in_paper)


def _panel_of(runs: Sequence[Record], label: Labelled) -> Panel:
    refuse_repetitions((label(run), run.seed, run.path) for run in runs)
    for run in runs[1:]:
        _refuse_other_terms(runs[0], run)
    lines: dict[str, list[Record]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        lines.setdefault(label(run), []).append(run)
    # Methods are always in the same order; other labels in the order in which they were given.
    given = dict.fromkeys(label(run) for run in runs)
    order = [*(name for name in LABELS if name in given), *(n for n in given if n not in LABELS)]
    model, data = runs[0].model, data_name(runs[0].data)
    title = f"{MODELS.get(model, model.rpartition(':')[2])}, {DATA.get(data, data)}"
    fronts = {name: [_front_of(run) for run in lines[name]] for name in order}
    return Panel(title, {name: lines[name] for name in order}, fronts)


def _front_of(run: Record) -> Front:
    assert run.front is not None  # figures are drawn of finished runs
    return run.front


def _refuse_other_terms(one: Record, other: Record) -> None:
    """Refuse runs that differ in more than a figure compares."""
    ours, theirs = terms_of(one), terms_of(other)
    for key in ours:
        if ours[key] != theirs.get(key):
            raise _differ(key, one, ours[key], other, theirs.get(key))
    if one.space != other.space:
        raise UserError(
            f"model: {str(one.path)!r} and {str(other.path)!r} have other widths to choose from; "
            "draw them apart"
        )


def _differ(key: str, one: Record, ours: Any, other: Record, theirs: Any) -> UserError:
    return UserError(
        f"{key}: {str(one.path)!r} has {value_text(ours)}, {str(other.path)!r} has "
        f"{value_text(theirs)}; draw them apart"
    )


def only_one(panels: Sequence[Panel]) -> Panel:
    """Refuse several panels, for figures of one network on one data set."""
    if len(panels) > 1:
        one, other = panels[0].first, panels[1].first
        for key in ("data", "model", "cost"):
            ours, theirs = (run.config.get(key) for run in (one, other))
            if ours != theirs:
                raise _differ(key, one, ours, other, theirs)
        raise _differ("data", one, one.data_identity, other, other.data_identity)
    return panels[0]


def data_name(data: str) -> str:
    """cifar10, folder:/data/imagenet/ -> cifar10, imagenet"""
    return data.rstrip("/").rpartition("/")[2].rpartition(":")[2]


def label_text(label: str) -> str:
    """The name of a method as the paper writes it; other labels stay as they are."""
    return LABELS.get(label, label)


# Curves


def draw_curves(panels: Sequence[Panel], cost: str | None = None) -> Drawn:
    """Draw all panels in one figure. cost: that of the axis, if not the panel's own."""
    figure, places = grid(len(panels))
    for axes, panel in zip(places, panels):
        draw_panel(axes, panel, looks_of(panel.fronts), cost)
    share_axes(places)
    shared_legend(figure, places)
    return figure, {"panels": [numbers_of(panel, cost) for panel in panels]}


def grid(count: int) -> tuple[Figure, list[Axes]]:
    """Make a figure with so many panels, at most four side by side."""
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
    words = {label: label_text(label) for label in panel.fronts}
    draw_lines(axes, panel.fronts, words, looks, cost)
    fewer_ticks(axes)
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


def share_axes(places: Sequence[Axes]) -> None:
    """Write the name of an axis once for neighbouring panels that share it."""
    for at, axes in enumerate(places):
        below = at + MOST_ACROSS
        if below < len(places) and places[below].get_xlabel() == axes.get_xlabel():
            axes.set_xlabel("")
        if at % MOST_ACROSS and places[at - 1].get_ylabel() in ("", axes.get_ylabel()):
            axes.set_ylabel("")


def shared_legend(figure: Figure, places: Sequence[Axes]) -> None:
    """Draw one legend above all panels, each label once."""
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
    plain_text(legend)


def row_by_row(names: list[str], columns: int) -> list[str]:
    """Reorder names so that matplotlib, which fills column by column, shows them row by row."""
    return [name for column in range(columns) for name in names[column::columns]]


# Numbers


def numbers_of(panel: Panel, cost: str | None = None) -> dict[str, Any]:
    """The numbers that a panel shows, as JSON."""
    fronts = [front for line in panel.fronts.values() for front in line]
    key, measure = cost or fronts[0].key, shared_measure(fronts)
    budgets = budgets_of(fronts, key)
    lines = {}
    for label, line in panel.fronts.items():
        mean, deviation = band(line, budgets, key, measure)
        lines[label] = {
            "seeds": [run.seed for run in panel.runs.get(label, [])],
            "runs": [str(run.path) for run in panel.runs.get(label, [])],
            "mean": finite(mean),
            "deviation": None if deviation is None else finite(deviation),
        }
        if cost is None and measure in ERRORS:
            lines[label]["area"] = spread_json([front.area(measure) for front in line])
    return {
        "title": panel.title,
        "model": panel.model,
        "data": panel.first.data,
        "cost": key,
        "measure": measure,
        "budgets": budgets.tolist(),
        "lines": lines,
    }


def spread_json(values: Iterable[Any]) -> dict[str, Any]:
    """Mean, deviation and each value over the seeds."""
    numbers = [float(value) for value in values]
    spread = Spread.of(numbers)
    return {"mean": spread.mean, "deviation": spread.deviation, "each": numbers}


def finite(values: Any) -> list[float | None]:
    """JSON has no NaN: null stands where no child fits."""
    return [float(value) if math.isfinite(value) else None for value in values]
