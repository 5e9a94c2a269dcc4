"""Curves over seeds: the mean error of each method against the budget, with a band around it.

A method looks the same in every figure: its colour, its line and its marker are stated here once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joslim.errors import UserError
from joslim.front import ERRORS, Front, best_so_far, bought
from joslim.reports.figures import (
    COLOURS,
    DARK,
    check_fronts,
    dress_axes,
    is_wide,
    new_figure,
    put_title,
    save,
    shared_measure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BUDGETS = 200
MOST_ACROSS = 3

# label -> the fronts of its seeds
Fronts = Mapping[str, Sequence[Front]]


@dataclass(frozen=True)
class Look:
    """How one label is drawn. Lines and markers differ too, for those who see no colours."""

    colour: str
    marker: str
    line: Any


LOOKS = {
    "joslim": Look(COLOURS[0], "o", "-"),
    "slim": Look(COLOURS[1], "s", (0, (5, 2))),
    "bignas": Look(COLOURS[2], "^", (0, (1, 1.2))),
    "autoslim": Look(COLOURS[3], "D", (0, (6, 1.5, 1, 1.5))),
    "single": Look(COLOURS[6], "X", (0, (3, 1, 1, 1, 1, 1))),
}
# For labels that are no method, in turn.
OTHERS = (
    Look(COLOURS[4], "v", "-"),
    Look(COLOURS[5], "P", (0, (5, 2))),
    Look(COLOURS[6], "X", (0, (1, 1.2))),
    *LOOKS.values(),
)


def draw_panels(panels: Mapping[str, Fronts], path: str | Path) -> None:
    """A panel for each title. Error against budget: for each label the mean over its fronts, and a
    band of a deviation.
    """
    across = min(MOST_ACROSS, len(panels))
    down = -(-len(panels) // across)
    figure = new_figure(8 if across == 1 else 5.6 * across)
    figure.set_figheight(4.5 * down)
    places = figure.subplots(down, across, squeeze=False).flatten()
    for axes, (title, fronts) in zip(places, panels.items()):
        draw_bands(axes, fronts)
        if title:
            put_title(axes, title)
    for axes in places[len(panels) :]:
        axes.remove()
    save(figure, path)


def draw_bands(axes: Axes, fronts: Fronts) -> None:
    """The curves of all labels on these axes, with their legend."""
    everyone = checked_fronts(fronts)
    key = everyone[0].key
    measure = shared_measure(everyone)
    budgets = budgets_of(everyone, key)
    dress_axes(axes, key, measure, (budgets[0], budgets[-1]))
    looks = looks_of(fronts)
    for label, seeds in fronts.items():
        words = label_of(label, seeds, measure)
        draw_line(axes, seeds, budgets, (key, measure), looks[label], words)
    if any(len(seeds) > 1 for seeds in fronts.values()):
        axes.set_ylabel(f"{axes.get_ylabel()}, mean ± deviation over seeds")
    add_legend(axes)


def draw_line(
    axes: Axes,
    fronts: Sequence[Front],
    budgets: NDArray[Any],
    axis: tuple[str, str],
    look: Look,
    words: str,
) -> None:
    """Of one run its children, with a mark for each; of several the mean, and a band around it.

    axis: the cost and the error. A mean over seeds is no child, and so it has no marks.
    """
    style: dict[str, Any] = {"drawstyle": "steps-post", "color": look.colour, "ls": look.line}
    style |= {"lw": 1.8, "label": words, "zorder": 3}
    if len(fronts) == 1:
        costs, errors = bought_children(fronts[0], *axis)
        end = max(budgets[-1], costs[-1])
        marks = {"marker": look.marker, "markevery": [*range(len(costs))], "ms": 6}
        style |= {**marks, "mec": "white", "mew": 0.8}
        axes.plot([*costs, end], [*errors, errors[-1]], **style)
        return
    curves = np.array([curve(front, budgets, *axis) for front in fronts])
    mean, spread = curves.mean(axis=0), curves.std(axis=0, ddof=1)
    low, high = mean - spread, mean + spread
    axes.fill_between(
        budgets, low, high, step="post", color=look.colour, alpha=0.16, lw=0, zorder=1
    )
    axes.plot(budgets, mean, **style)


def add_legend(axes: Axes) -> None:
    legend = axes.legend(frameon=False, labelcolor=DARK, fontsize=10, handlelength=3.2)
    for text in legend.get_texts():
        text.set_parse_math(False)


def label_of(label: str, fronts: Sequence[Front], measure: str) -> str:
    """`joslim  (area 12.3 ± 0.4 %, 3 seeds)`"""
    seeds = "1 seed" if len(fronts) == 1 else f"{len(fronts)} seeds"
    facts = [*area_in_words(fronts, measure), seeds]
    words = f"{label}  ({', '.join(facts)})"
    # Matplotlib leaves labels that begin with an underscore out of the legend.
    return f" {words}" if words.startswith("_") else words


def area_in_words(fronts: Sequence[Front], measure: str) -> list[str]:
    if measure not in ERRORS or all(len(front) == 1 for front in fronts):
        return []
    areas = [front.area(measure) for front in fronts]
    deviation = f" ± {np.std(areas, ddof=1):.1f}" if len(areas) > 1 else ""  # type: ignore[arg-type]
    return [f"area {np.mean(areas):.1f}{deviation} %"]  # type: ignore[arg-type]


def looks_of(labels: Mapping[str, Any]) -> dict[str, Look]:
    """Those of the methods are fixed; the other labels share what is left."""
    strangers = [label for label in labels if label not in LOOKS]
    taken = [LOOKS[label] for label in labels if label in LOOKS]
    free = [look for look in OTHERS if look not in taken]
    own = {label: free[at % len(free)] for at, label in enumerate(strangers)}
    return {label: LOOKS.get(label) or own[label] for label in labels}


# What is drawn


def budgets_of(fronts: Sequence[Front], key: str, count: int = BUDGETS) -> NDArray[np.float64]:
    """[count] from the least to the most that there is; evenly, as the axis shows it."""
    costs = [point.costs[key] for front in fronts for point in front]
    spans = [end for front in fronts if front.key == key for end in front.span]
    low, high = min([*costs, *spans]), max([*costs, *spans])
    spread = np.geomspace if is_wide((low, high)) else np.linspace
    budgets = spread(low, high, count)
    # Rounding must not take the full network out of its own budget.
    budgets[0], budgets[-1] = low, high
    return budgets


def curve(
    front: Front, budgets: ArrayLike, key: str | None = None, measure: str = "test_error"
) -> NDArray[np.float64]:
    """[n] budgets -> [n] errors of the child that `pick` would choose; NaN where none fits."""
    cost = key or front.key
    children = sorted(front, key=lambda point: point.costs[cost])
    costs, losses = [p.costs[cost] for p in children], [p.train_loss for p in children]
    return bought(costs, losses, [getattr(p, measure) for p in children], budgets)


def bought_children(front: Front, cost: str, measure: str) -> tuple[list[float], list[float]]:
    """Costs and errors of the children that some budget buys, by rising cost."""
    children = sorted(front, key=lambda point: point.costs[cost])
    best = best_so_far([point.train_loss for point in children])
    chosen = [children[at] for at in dict.fromkeys(best)]
    return [p.costs[cost] for p in chosen], [getattr(p, measure) for p in chosen]


def checked_fronts(fronts: Fronts) -> list[Front]:
    for label, seeds in fronts.items():
        if not seeds:
            raise UserError(f"fronts: none given for {label!r}; give one for each seed")
    everyone = {
        f"{label} {at}": front for label, seeds in fronts.items() for at, front in enumerate(seeds)
    }
    check_fronts(everyone)
    return list(everyone.values())
