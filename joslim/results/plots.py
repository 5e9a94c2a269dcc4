"""Pictures of fronts, of curves over seeds and of a search, as .png or .svg.

Each is drawn on a `Figure` of its own: pyplot and its global state are never touched. A method
looks the same in every figure: its colour, line and marker are in LOOKS.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from joslim.allocation import Allocation
from joslim.costs import cost_info
from joslim.errors import UserError
from joslim.files import whole, writing
from joslim.front import ERRORS, IN_PERCENT, Front, MetricName, Point, best_so_far
from joslim.results.groups import Spread, band, is_wide, shared_measure, spread_budgets
from joslim.results.record import Visit
from joslim.units import format_size, short_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

# The fronts of all seeds, by label.
Fronts = Mapping[str, Sequence[Front]]

SUFFIXES = (".png", ".svg")
DPI = 150
# Okabe and Ito: distinct for colour-blind readers. Markers tell fronts apart in print as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DARK, GREY, LIGHT = "#24292f", "#6e7781", "#d8dee4"

# Budgets of a curve, and panels side by side.
BUDGETS = 200
MOST_ACROSS = 3


@dataclass(frozen=True)
class Look:
    """How one label is drawn. Lines and markers differ too, for readers who see no colours."""

    colour: str
    marker: str
    line: Any


LOOKS = {
    "joslim": Look(COLOURS[0], "o", "-"),
    "slim": Look(COLOURS[1], "s", (0, (5, 2))),
    "bignas": Look(COLOURS[2], "^", (0, (1, 1.2))),
    "autoslim": Look(COLOURS[3], "D", (0, (6, 1.5, 1, 1.5))),
    "sensitivity": Look(COLOURS[4], "v", (0, (8, 2))),
    "single": Look(COLOURS[6], "X", (0, (3, 1, 1, 1, 1, 1))),
}
# For labels that are no method, in turn.
OTHERS = (
    Look(COLOURS[4], "v", "-"),
    Look(COLOURS[5], "P", (0, (5, 2))),
    Look(COLOURS[6], "X", (0, (1, 1.2))),
    *LOOKS.values(),
)


# Fronts, the search and an allocation


def draw_front(
    fronts: Mapping[str, Front], path: str | Path, title: str | None = None, areas: bool = True
) -> None:
    """Draw error against cost: for each budget, the error of the child that `pick` would choose.

    It is the error of the test set if all fronts know it, else of validation, else the loss.
    areas: Whether the legend of several fronts has their areas.
    """
    _check_fronts(fronts)
    figure = new_figure(8)
    axes = figure.add_subplot()
    _dress_for(axes, next(iter(fronts.values())), shared_measure(fronts.values()))
    draw_fronts(axes, fronts, areas)
    if title is not None or len(fronts) == 1:
        put_title(axes, next(iter(fronts)) if title is None else title)
    save(figure, path)


def draw_run(
    front: Front, visits: Sequence[Visit], path: str | Path, title: str | None = None
) -> None:
    """Draw the front, and beside it every child that the search visited, and when."""
    figure = new_figure(11)
    left, right = figure.subplots(1, 2)
    _dress_for(left, front, shared_measure([front]))
    draw_fronts(left, {"": front})
    put_title(left, title if title is not None else "The front")
    _dress_for(right, front, "train_loss")
    _draw_visits(figure, right, visits)
    put_title(right, f"The search: {len(visits)} children visited")
    save(figure, path)


def draw_quantized(
    by_cost: Mapping[str, Front], by_latency: Mapping[str, Front], path: str | Path
) -> None:
    """Draw error against the cost of the run, and against the measured latency of the files."""
    figure = new_figure(11)
    titles = ("Before and after quantization", "By latency measured here")
    for axes, fronts, title in zip(figure.subplots(1, 2), (by_cost, by_latency), titles):
        _dress_for(axes, next(iter(fronts.values())), shared_measure(fronts.values()))
        # Areas count budgets that buy none of the exported children: they would say little here.
        draw_fronts(axes, fronts, areas=False)
        put_title(axes, title)
    save(figure, path)


def draw_allocation(
    curve: Sequence[Allocation],
    chosen: Allocation,
    names: Sequence[str],
    path: str | Path,
    budget: float | None = None,
) -> None:
    """Draw the mean error for each budget on the left, and that of each network on the right.

    budget: a solid line; the dotted line is the cost of the chosen children.
    """
    figure = new_figure(11)
    left, right = figure.subplots(1, 2)
    (cost,), measure = curve[0].costs, curve[0].measure
    budgets = [allocation.costs[cost] for allocation in curve]
    for axes in (left, right):
        dress_axes(axes, cost, measure, (budgets[0], budgets[-1]), chosen.metric)
        axes.set_xlabel(f"{cost_info(cost).axis_label}, all networks", color=GREY)
        axes.axvline(chosen.costs[cost], color=GREY, lw=1, ls=":")
    means = [allocation.mean(measure) for allocation in (*curve, chosen)]
    left.step(budgets, means[:-1], where="post", color=COLOURS[0], lw=2)
    left.plot(chosen.costs[cost], means[-1], "o", color=DARK, ms=7, mec="white", zorder=3)
    left.set_ylabel(f"weighted mean {chosen.metric.words(measure)}", color=GREY)
    put_title(left, f"All {len(names)} networks together")
    for at, name in enumerate(names):
        own = [getattr(allocation.points[at], measure) for allocation in curve]
        # A number in front: the same run may be there twice, and may begin with an underscore.
        label = f"{at + 1}  {name}"
        right.step(budgets, own, where="post", color=COLOURS[at % 7], lw=2, alpha=0.8, label=label)
    plain_text(right.legend(frameon=False, labelcolor=DARK, fontsize=9))
    put_title(right, "Each of them")
    if budget is not None and budget <= budgets[-1]:  # else it is beyond the picture
        _mark_budget(left, cost, budget)
        _mark_budget(right, cost, budget)
    save(figure, path)


def _mark_budget(axes: Axes, cost: str, budget: float) -> None:
    """Draw a line with its name, on the side that has more room."""
    axes.axvline(budget, color=DARK, lw=1.2)
    middle = axes.transData.inverted().transform(axes.transAxes.transform((0.5, 0.5)))[0]
    axes.annotate(
        f"budget {short_size(cost, budget)}",
        (budget, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(-4, -3) if budget > middle else (4, -3),
        textcoords="offset points",
        ha="right" if budget > middle else "left",
        va="top",
        color=DARK,
        fontsize=9,
        bbox={"fc": "white", "ec": "none", "pad": 1},
    )


def draw_fronts(axes: Axes, fronts: Mapping[str, Front], areas: bool = True) -> None:
    measure = shared_measure(fronts.values())
    lines = [
        _draw_staircase(axes, front, measure, COLOURS[at % 7], MARKERS[at % 7])
        for at, front in enumerate(fronts.values())
    ]
    if len(fronts) == 1:
        _label_ends(axes, next(iter(fronts.values())), measure)
        return
    areas = areas and measure in ERRORS
    found = [front.area(measure) if areas else None for front in fronts.values()]
    metric = next(iter(fronts.values())).metric
    labels = [
        _in_legend(name if area is None else f"{name}  (area {metric.text(area, 1)})")
        for name, area in zip(fronts, found)
    ]
    plain_text(axes.legend(lines, labels, frameon=False, labelcolor=DARK, fontsize=10))


def _draw_staircase(axes: Axes, front: Front, measure: str, colour: str, marker: str) -> Any:
    """Draw the children and the steps between them: a budget in between buys the cheaper child."""
    costs = [point.costs[front.key] for point in front]
    values = [getattr(point, measure) for point in front]
    picked = [values[best] for best in best_so_far(front.ranks())]
    end = max(*front.span, costs[-1])
    axes.step([*costs, end], [*picked, picked[-1]], where="post", color=colour, lw=2, alpha=0.45)
    (dots,) = axes.plot(
        costs, values, marker, color=colour, ms=5.5, mec="white", mew=0.8, clip_on=False, zorder=3
    )
    return dots


def _draw_visits(figure: Figure, axes: Axes, visits: Sequence[Visit]) -> None:
    """Draw later visits darker, and on top; children of the front have a ring."""
    finite = sorted(visit for visit in visits if all(map(math.isfinite, visit)))
    if not finite:
        return
    steps, costs, losses, _ = zip(*finite)
    dots = axes.scatter(costs, losses, c=steps, cmap="viridis_r", s=16, lw=0, alpha=0.85)
    rings = [visit for visit in finite if visit[3]]
    axes.plot(
        [cost for _, cost, _, _ in rings],
        [loss for _, _, loss, _ in rings],
        "o",
        ms=6.5,
        mfc="none",
        mec=DARK,
        mew=0.9,
        label="on the front",
    )
    axes.legend(frameon=False, labelcolor=DARK, fontsize=10, loc="upper right")
    if is_wide(losses):
        axes.set_yscale("log")
        axes.tick_params(which="minor", length=0)
    bar = figure.colorbar(dots, ax=axes, pad=0.02, aspect=30)
    bar.set_label("visited at step", color=GREY)
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.ax.tick_params(colors=GREY, length=0, labelsize=9)


def _label_ends(axes: Axes, front: Front, measure: str) -> None:
    """Write the figures of the cheapest child above all marks, of the dearest one at the foot."""
    from matplotlib.patheffects import withStroke

    look: dict[str, Any] = {
        "textcoords": "offset points",
        "color": DARK,
        "fontsize": 11,
        "fontweight": "bold",
        "path_effects": [withStroke(linewidth=3, foreground="white")],
    }

    def words(point: Point) -> str:
        error = front.metric.text(getattr(point, measure), 1)
        value = f"{error} {front.metric.label}"
        value = value if measure in ERRORS else f"loss {point.train_loss:.3f}"
        return f"{value} at {format_size(front.key, point.costs[front.key])}"

    first, last = front[0], front[-1]
    place = (first.costs[front.key], max(getattr(point, measure) for point in front))
    axes.annotate(words(first), place, xytext=(9, 3), va="bottom", **look)
    if len(front) > 1:
        foot: Any = (last.costs[front.key], 0.0)
        axes.annotate(
            words(last),
            foot,
            xycoords=("data", "axes fraction"),
            xytext=(5, 6),
            ha="right",
            **look,
        )


# Curves over seeds


def draw_panels(panels: Mapping[str, Fronts], path: str | Path) -> None:
    """Draw error against budget, a panel for each title: a mean and a band for each label."""
    across = min(MOST_ACROSS, len(panels))
    width, height = 8 if across == 1 else 5.6 * across, 4.5 * -(-len(panels) // across)
    figure, places = panel_grid(len(panels), across, width, height)
    for axes, (title, fronts) in zip(places, panels.items()):
        draw_bands(axes, fronts)
        if title:
            put_title(axes, title)
    save(figure, path)


def draw_bands(axes: Axes, fronts: Fronts) -> None:
    """Draw the curves of all labels on these axes, with their legend."""
    for label, seeds in fronts.items():
        if not seeds:
            raise UserError(f"fronts: none given for {label!r}; give one for each seed")
    everyone = [front for seeds in fronts.values() for front in seeds]
    _check_fronts({str(at): front for at, front in enumerate(everyone)})
    measure = shared_measure(everyone)
    words = {label: label_of(label, seeds, measure) for label, seeds in fronts.items()}
    draw_lines(axes, fronts, words, looks_of(fronts))
    if any(len(seeds) > 1 for seeds in fronts.values()):
        axes.set_ylabel(f"{axes.get_ylabel()}, mean ± deviation over seeds")
    plain_text(axes.legend(frameon=False, labelcolor=DARK, fontsize=10, handlelength=3.2))


def draw_lines(
    axes: Axes,
    fronts: Fronts,
    words: Mapping[str, str],
    looks: Mapping[str, Look],
    cost: str | None = None,
) -> None:
    """Dress the axes, and draw the children of one run or the mean of several and a band.

    words: of the legend, by label. cost: of the axis. A mean over seeds is no child, and so it has
    no marks.
    """
    everyone = [front for seeds in fronts.values() for front in seeds]
    key, measure = cost or everyone[0].key, shared_measure(everyone)
    budgets = budgets_of(everyone, key)
    dress_axes(axes, key, measure, (budgets[0], budgets[-1]), everyone[0].metric)
    for label, seeds in fronts.items():
        look = looks[label]
        style: dict[str, Any] = {"drawstyle": "steps-post", "color": look.colour, "ls": look.line}
        style |= {"lw": 1.8, "label": words[label], "zorder": 3}
        if len(seeds) == 1:
            costs, errors = bought_children(seeds[0], key, measure)
            end = max(budgets[-1], costs[-1])
            marks = {"marker": look.marker, "markevery": [*range(len(costs))], "ms": 6}
            style |= {**marks, "mec": "white", "mew": 0.8}
            axes.plot([*costs, end], [*errors, errors[-1]], **style)
            continue
        mean, spread = band(seeds, budgets, key, measure)
        assert spread is not None
        shade: dict[str, Any] = {"color": look.colour, "alpha": 0.16, "lw": 0, "zorder": 1}
        axes.fill_between(budgets, mean - spread, mean + spread, step="post", **shade)
        axes.plot(budgets, mean, **style)


def label_of(label: str, fronts: Sequence[Front], measure: str) -> str:
    """`joslim  (area 12.3 ± 0.4 %, 3 seeds)`"""
    facts = ["1 seed" if len(fronts) == 1 else f"{len(fronts)} seeds"]
    if measure in ERRORS and any(len(front) > 1 for front in fronts):
        found = [front.area(measure) for front in fronts]
        area = Spread.of([area for area in found if area is not None])
        deviation = "" if area.deviation is None else f" ± {area.deviation:.1f}"
        facts.insert(0, f"area {area.mean:.1f}{deviation} {fronts[0].metric.unit}".rstrip())
    return _in_legend(f"{label}  ({', '.join(facts)})")


def _in_legend(label: str) -> str:
    """Matplotlib leaves labels that begin with an underscore out of the legend."""
    return f" {label}" if label.startswith("_") else label


def plain_text(legend: Legend) -> None:
    """Keep matplotlib from reading names as formulas."""
    for text in legend.get_texts():
        text.set_parse_math(False)


def looks_of(labels: Iterable[str]) -> dict[str, Look]:
    """Choose a look for each label: that of a method is fixed, other labels share the rest."""
    labels = list(labels)
    strangers = [label for label in labels if label not in LOOKS]
    taken = [LOOKS[label] for label in labels if label in LOOKS]
    free = [look for look in OTHERS if look not in taken]
    own = {label: free[at % len(free)] for at, label in enumerate(strangers)}
    return {label: LOOKS.get(label) or own[label] for label in labels}


def budgets_of(fronts: Sequence[Front], key: str) -> NDArray[np.float64]:
    """[BUDGETS] from the least cost to the largest one that there is."""
    costs = [point.costs[key] for front in fronts for point in front]
    spans = [end for front in fronts if front.key == key for end in front.span]
    return spread_budgets(min([*costs, *spans]), max([*costs, *spans]), BUDGETS)


def bought_children(front: Front, cost: str, measure: str) -> tuple[list[float], list[float]]:
    """Return the costs and errors of the children that some budget buys, sorted by cost."""
    children = sorted(front, key=lambda point: point.costs[cost])
    best = best_so_far([point.train_loss for point in children])
    chosen = [children[at] for at in dict.fromkeys(best)]
    return [p.costs[cost] for p in chosen], [getattr(p, measure) for p in chosen]


# Axes, words and files


def put_title(axes: Axes, words: str) -> None:
    axes.set_title(
        words, loc="left", color=DARK, fontsize=13, fontweight="bold", pad=12, parse_math=False
    )


def new_figure(width: float) -> Figure:
    """A figure on white, which reads the same on a light and on a dark page."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, 4.5), dpi=DPI, facecolor="white", layout="constrained")


def panel_grid(count: int, across: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Make a figure with so many axes, row by row."""
    figure = new_figure(width)
    figure.set_figheight(height)
    places = figure.subplots(-(-count // across), across, squeeze=False).flatten()
    for axes in places[count:]:
        axes.remove()
    return figure, [*places[:count]]


def _dress_for(axes: Axes, front: Front, measure: str) -> None:
    dress_axes(axes, front.key, measure, front.span, front.metric)
    # An invisible line, so that the axis reaches from the smallest network to the full one.
    axes.plot(front.span, [getattr(front[0], measure)] * 2, alpha=0)


def dress_axes(
    axes: Axes,
    cost: str,
    measure: str,
    span: tuple[float, float],
    metric: MetricName = IN_PERCENT,
) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    percent = measure in ERRORS and metric.unit
    axes.set_xlabel(cost_info(cost).axis_label, color=GREY, parse_math=False)
    axes.set_ylabel(metric.words(measure), color=GREY, parse_math=False)
    if is_wide(span):
        axes.set_xscale("log")
        # Powers of ten alone would be one or two labels.
        few = max(span) < 1000 * min(span)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_size(cost, value)))
    if percent:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    plain_axes(axes)
    axes.margins(x=0.04, y=0.14)


def plain_axes(axes: Axes) -> None:
    """Leave only the axis at the bottom, and thin lines across."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LIGHT)
    axes.grid(axis="y", color=LIGHT, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=GREY, length=0, labelsize=10)


def save(figure: Figure, path: str | Path) -> None:
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise UserError(f"picture: {str(path)!r} ends in none of {', '.join(SUFFIXES)}")
    # By its maker a picture may be replaced. Without a date, a front gives the same file again.
    is_svg = target.suffix.lower() == ".svg"
    metadata = {"Date": None, "Creator": "joslim"} if is_svg else {"Software": "joslim"}
    with writing(path, "picture"), whole(target) as beside:
        figure.savefig(beside, metadata=metadata)


def _check_fronts(fronts: Mapping[str, Front]) -> None:
    keys = {front.key for front in fronts.values()}
    if not fronts:
        raise UserError("fronts: none given; give at least one by its name")
    if len(keys) > 1:
        raise UserError(f"fronts: they have different costs: {', '.join(sorted(keys))}")
    if len(labels := {front.metric.label for front in fronts.values()}) > 1:
        raise UserError(f"fronts: they have different errors: {', '.join(sorted(labels))}")
