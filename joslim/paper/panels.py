"""Panels of the paper's figures: which runs are drawn together, their curves and their numbers.

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
    panel_grid,
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

    @property
    def fronts(self) -> dict[str, list[Front]]:
        return {
            label: [run.front for run in runs if run.front is not None]
            for label, runs in self.runs.items()
        }

    @property
    def first(self) -> Record:
        return next(iter(self.runs.values()))[0]

    @property
    def front(self) -> Front:
        assert self.first.front is not None
        return self.first.front


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
        assert run.front is not None  # figures are drawn of finished runs
        cost = run.front.cost
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
        place = (data_name(panel.first.data), panel.first.model)
        return order.index(place) if place in order else len(order)

    return sorted((_panel_of(group, label) for group in groups.values()), key=place_in_paper)


def _panel_of(runs: Sequence[Record], label: Labelled) -> Panel:
    refuse_repetitions((label(run), run.seed, run.path) for run in runs)
    first = runs[0]
    terms = terms_of(first)
    for run in runs[1:]:
        others = terms_of(run)
        for key in terms:
            if terms[key] != others.get(key):
                raise _differ(key, first, terms[key], run, others.get(key))
        if first.space != run.space:
            raise UserError(
                f"model: {str(first.path)!r} and {str(run.path)!r} have other widths to choose "
                "from; draw them apart"
            )
    # Methods are always in the same order; other labels in the order in which they were given.
    given = dict.fromkeys(label(run) for run in runs)
    order = [*(name for name in LABELS if name in given), *(n for n in given if n not in LABELS)]
    lines: dict[str, list[Record]] = {name: [] for name in order}
    for run in sorted(runs, key=lambda run: run.seed):
        lines[label(run)].append(run)
    data = data_name(first.data)
    model = MODELS.get(first.model, first.model.rpartition(":")[2])
    return Panel(f"{model}, {DATA.get(data, data)}", lines)


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
            if one.config.get(key) != other.config.get(key):
                raise _differ(key, one, one.config.get(key), other, other.config.get(key))
        raise _differ("data", one, one.data_identity, other, other.data_identity)
    return panels[0]


def data_name(data: str) -> str:
    """cifar10, folder:/data/imagenet/ -> cifar10, imagenet"""
    return data.rstrip("/").rpartition("/")[2].rpartition(":")[2]


def label_text(label: str) -> str:
    """The name of a method as the paper writes it; other labels stay as they are."""
    return LABELS.get(label, label)


# Curves


def draw_curves(
    panels: Sequence[Panel],
    cost: str | None = None,
    add: Callable[[Axes, Panel], None] = lambda axes, panel: None,
) -> Drawn:
    """Draw all panels in one figure.

    cost: that of the axis, if not the panel's own. add: draws more into a panel.
    """
    figure, places = grid(len(panels))
    for axes, panel in zip(places, panels):
        draw_panel(axes, panel, cost=cost)
        add(axes, panel)
    share_axes(places)
    shared_legend(figure, places)
    return figure, {"panels": [numbers_of(panel, cost) for panel in panels]}


def grid(count: int) -> tuple[Figure, list[Axes]]:
    """Make a figure with so many panels, at most four side by side."""
    across = min(count, MOST_ACROSS)
    height = HIGH * -(-count // across) + 0.4 if count > 1 else 1.4 * HIGH
    return panel_grid(count, across, max(WIDE * across, 2 * WIDE), height)


def draw_panel(
    axes: Axes, panel: Panel, looks: Mapping[str, Look] | None = None, cost: str | None = None
) -> None:
    words = {label: label_text(label) for label in panel.runs}
    draw_lines(axes, panel.fronts, words, looks or looks_of(panel.runs), cost)
    dress_panel(axes, panel.title)


def dress_panel(axes: Axes, title: str) -> None:
    """Put a title on a panel, and only as many ticks as fit."""
    from matplotlib.ticker import MaxNLocator

    if axes.get_xscale() == "linear":
        axes.xaxis.set_major_locator(MaxNLocator(TICKS, steps=[1, 2, 2.5, 5, 10]))
    small_title(axes, title)


def small_title(axes: Axes, words: str) -> None:
    axes.tick_params(labelsize=9)
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
    # Matplotlib fills column by column; in this order the labels read row by row.
    order = [label for column in range(columns) for label in [*handles][column::columns]]
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
            "seeds": [run.seed for run in panel.runs[label]],
            "runs": [str(run.path) for run in panel.runs[label]],
            "mean": finite(mean),
            "deviation": None if deviation is None else finite(deviation),
        }
        if cost is None and measure in ERRORS:
            lines[label]["area"] = spread_json([front.area(measure) for front in line])
    return {
        "title": panel.title,
        "model": panel.first.model,
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
