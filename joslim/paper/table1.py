"""Table 1: one's own runs on ImageNet beside what the paper, and US-Nets, have published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from joslim.paper.curves import (
    Drawn,
    draw_panel,
    fewer_ticks,
    grid,
    numbers_of,
    shared_legend,
    small_title,
    tidy,
)
from joslim.paper.panels import MODELS, Panel, label_in_words
from joslim.reports.bands import LOOKS, Look, looks_of
from joslim.reports.figures import COLOURS, dress_axes
from joslim.reports.published import CLASSES, TABLE_1, US_NETS, published_lines
from joslim.runs.folder import CONFIG
from joslim.untrusted import json_rows, json_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_CLASSES = 10**6
ACROSS = 4


def draw_table1(panels: Sequence[Panel]) -> Drawn:
    """A panel for each published network, with own runs in it; other runs have their own panel."""
    own = {panel.model: panel for panel in panels if is_published(panel)}
    others = [panel for panel in panels if not is_published(panel)]
    figure, places = grid(len(TABLE_1) + len(others))
    for axes, model in zip(places, TABLE_1):
        draw_published_panel(axes, model, own.get(model))
    for axes, panel in zip(places[len(TABLE_1) :], others):
        draw_panel(axes, panel, looks_of(panel.fronts))
    tidy(places, ACROSS)
    shared_legend(figure, places)
    numbers = [numbers_of(panel) for panel in panels]
    published = {model: published_lines(model) for model in TABLE_1}
    return figure, {"panels": numbers, "published": published}


def draw_imagenet(panels: Sequence[Panel]) -> Drawn:
    """Figure 3: the runs; and US-Nets, with which the paper checked its own Slim."""
    figure, places = grid(len(panels))
    for axes, panel in zip(places, panels):
        draw_panel(axes, panel, looks_of(panel.fronts))
        lines = published_lines(panel.model) if is_published(panel) else {}
        if US_NETS in lines:
            draw_published(axes, US_NETS, lines[US_NETS])
    tidy(places, ACROSS)
    shared_legend(figure, places)
    return figure, {"panels": [numbers_of(panel) for panel in panels]}


def is_published(panel: Panel) -> bool:
    """A network of Table 1 by multiply-adds, on data that may be ImageNet."""
    data = json_value(panel.first.facts, "data", CONFIG)
    classes = json_rows(data, "classes", f"{CONFIG}.data", MOST_CLASSES)
    known = panel.model in TABLE_1 and panel.front.key == "macs"
    return known and len(classes) == CLASSES


def draw_published_panel(axes: Axes, model: str, panel: Panel | None) -> None:
    lines = published_lines(model)
    if panel is not None:
        draw_panel(axes, panel, looks_of(panel.fronts))
    else:
        costs = [cost for line in lines.values() for cost, _ in line]
        dress_axes(axes, "macs", "test_error", (min(costs), max(costs)))
        fewer_ticks(axes)
        small_title(axes, f"{MODELS[model]}, ImageNet")
    for name, line in lines.items():
        draw_published(axes, name, line)


def draw_published(axes: Axes, name: str, line: Sequence[tuple[float, float]]) -> None:
    """Hollow markers and thin lines: these are somebody else's numbers."""
    look = LOOKS.get(name, Look(COLOURS[6], "*", (0, (1, 3))))
    label = "US-Nets" if name == US_NETS else label_in_words(name)
    axes.plot(
        [cost for cost, _ in line],
        [error for _, error in line],
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
