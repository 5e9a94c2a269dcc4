"""Table 1 and figure 3: own runs on ImageNet beside the published figures of the paper and of
US-Nets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from joslim.files import json_rows, json_value
from joslim.paper.panels import (
    MODELS,
    Drawn,
    Panel,
    draw_panel,
    fewer_ticks,
    grid,
    label_text,
    numbers_of,
    share_axes,
    shared_legend,
    small_title,
)
from joslim.results.plots import COLOURS, LOOKS, Look, dress_axes, looks_of
from joslim.results.run_files import CONFIG

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_CLASSES = 10**6

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

MILLION = 1e6
CLASSES = 1000

# [(multiply-adds, error in percent)], the cheapest first.
Line = list[tuple[float, float]]


def published_lines(model: str) -> dict[str, Line]:
    """Return the published errors of a network on ImageNet by method; most networks have none."""
    table = TABLE_1.get(model, {})
    found = {method: (table["macs"], values) for method, values in table.items()}
    found.pop("macs", None)
    if model == "mobilenet_v2":
        found[US_NETS] = (US_NETS_MACS, US_NETS_ACCURACY)
    return {
        method: [(m * MILLION, round(100 - accuracy, 6)) for m, accuracy in zip(*line)]
        for method, line in found.items()
    }


def draw_table1(panels: Sequence[Panel]) -> Drawn:
    """Draw a panel for each published network, with own runs in it, and panels for other runs."""
    own = {panel.model: panel for panel in panels if _is_published(panel)}
    others = [panel for panel in panels if not _is_published(panel)]
    figure, places = grid(len(TABLE_1) + len(others))
    for axes, model in zip(places, TABLE_1):
        _draw_published_panel(axes, model, own.get(model))
    for axes, panel in zip(places[len(TABLE_1) :], others):
        draw_panel(axes, panel, looks_of(panel.fronts))
    share_axes(places)
    shared_legend(figure, places)
    numbers = [numbers_of(panel) for panel in panels]
    published = {model: published_lines(model) for model in TABLE_1}
    return figure, {"panels": numbers, "published": published}


def draw_imagenet(panels: Sequence[Panel]) -> Drawn:
    """Draw figure 3: the runs, and US-Nets, with which the paper checked its own Slim."""
    figure, places = grid(len(panels))
    for axes, panel in zip(places, panels):
        draw_panel(axes, panel, looks_of(panel.fronts))
        lines = published_lines(panel.model) if _is_published(panel) else {}
        if US_NETS in lines:
            _draw_published(axes, US_NETS, lines[US_NETS])
    share_axes(places)
    shared_legend(figure, places)
    return figure, {"panels": [numbers_of(panel) for panel in panels]}


def _is_published(panel: Panel) -> bool:
    """Whether a panel is of a network of Table 1 by multiply-adds, on data with 1000 classes."""
    data = json_value(panel.first.facts, "data", CONFIG)
    classes = json_rows(data, "classes", f"{CONFIG}.data", MOST_CLASSES)
    known = panel.model in TABLE_1 and panel.front.key == "macs"
    return known and len(classes) == CLASSES


def _draw_published_panel(axes: Axes, model: str, panel: Panel | None) -> None:
    lines = published_lines(model)
    if panel is not None:
        draw_panel(axes, panel, looks_of(panel.fronts))
    else:
        costs = [cost for line in lines.values() for cost, _ in line]
        dress_axes(axes, "macs", "test_error", (min(costs), max(costs)))
        fewer_ticks(axes)
        small_title(axes, f"{MODELS[model]}, ImageNet")
    for name, line in lines.items():
        _draw_published(axes, name, line)


def _draw_published(axes: Axes, name: str, line: Sequence[tuple[float, float]]) -> None:
    """Draw somebody else's numbers with hollow markers and thin lines."""
    look = LOOKS.get(name, Look(COLOURS[6], "*", (0, (1, 3))))
    label = "US-Nets" if name == US_NETS else label_text(name)
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
