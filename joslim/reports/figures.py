"""Pictures of fronts and of the search behind one, as .png or .svg.

Drawn on a `Figure` of their own: pyplot and its global state are never touched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joslim.allocation import Allocation
from joslim.errors import UserError
from joslim.front import ERRORS, Front, Point, best_so_far
from joslim.reports.tables import PREFIXES, UNITS, format_size
from joslim.whole import whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Visit = tuple[int, float, float, bool]  # step, cost, training loss, whether it is on the front

# Costs or losses that differ by more than this are drawn on a logarithmic scale.
WIDE = 20.0

SUFFIXES = (".png", ".svg")
DPI = 150
# Okabe and Ito: distinct for colour-blind readers. Markers tell fronts apart in print as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DARK, GREY, LIGHT = "#24292f", "#6e7781", "#d8dee4"

COST_LABELS = {
    "macs": "multiply-adds for one input",
    "params": "parameters",
    "memory": "memory",
    "latency_ms": "latency of a pass",
}
MEASURE_LABELS = {
    "test_error": "test error",
    "val_error": "validation error",
    "train_loss": "training loss",
}


def draw_front(fronts: Mapping[str, Front], path: str | Path, title: str | None = None) -> None:
    """Error against cost: for each budget, the error of the child that `pick` would choose.

    Of the test set if all fronts know it, else of validation, else the training loss.
    """
    check_fronts(fronts)
    figure = new_figure(8)
    axes = figure.add_subplot()
    dress(axes, next(iter(fronts.values())), shared_measure(fronts.values()))
    draw_fronts(axes, fronts)
    if title is not None or len(fronts) == 1:
        put_title(axes, next(iter(fronts)) if title is None else title)
    save(figure, path)


def draw_run(
    front: Front, visits: Sequence[Visit], path: str | Path, title: str | None = None
) -> None:
    """The front on the left; on the right every child that the search visited, and when."""
    figure = new_figure(11)
    left, right = figure.subplots(1, 2)
    dress(left, front, shared_measure([front]))
    draw_fronts(left, {"": front})
    put_title(left, title if title is not None else "The front")
    dress(right, front, "train_loss")
    draw_visits(figure, right, visits)
    put_title(right, f"The search: {len(visits)} children visited")
    save(figure, path)


def draw_allocation(
    curve: Sequence[Allocation],
    chosen: Allocation,
    names: Sequence[str],
    path: str | Path,
    budget: float | None = None,
) -> None:
    """On the left the total error for each budget; on the right what each network gets of it.

    budget: what there is to spend; the dotted line is what the chosen children take of it.
    """
    figure = new_figure(11)
    left, right = figure.subplots(1, 2)
    (cost,), measure = curve[0].costs, curve[0].measure
    budgets = [allocation.costs[cost] for allocation in curve]
    for axes in (left, right):
        dress_axes(axes, cost, measure, (budgets[0], budgets[-1]))
        axes.set_xlabel(f"{COST_LABELS.get(cost, cost)}, all networks", color=GREY)
        axes.axvline(chosen.costs[cost], color=GREY, lw=1, ls=":")
    left.step(budgets, [a.error for a in curve], where="post", color=COLOURS[0], lw=2)
    left.plot(chosen.costs[cost], chosen.error, "o", color=DARK, ms=7, mec="white", zorder=3)
    left.set_ylabel(f"total weighted {MEASURE_LABELS[measure]}", color=GREY)
    put_title(left, f"All {len(names)} networks together")
    for at, name in enumerate(names):
        own = [getattr(allocation.points[at], measure) for allocation in curve]
        # A number in front: the same run may be there twice, and may begin with an underscore.
        label = f"{at + 1}  {name}"
        right.step(budgets, own, where="post", color=COLOURS[at % 7], lw=2, alpha=0.8, label=label)
    for text in right.legend(frameon=False, labelcolor=DARK, fontsize=9).get_texts():
        text.set_parse_math(False)
    put_title(right, "Each of them")
    if budget is not None and budget <= budgets[-1]:  # else it is beyond the picture
        mark_budget(left, cost, budget)
        mark_budget(right, cost, budget)
    save(figure, path)


def mark_budget(axes: Axes, cost: str, budget: float) -> None:
    """A line with its name, on the side where there is more room."""
    axes.axvline(budget, color=DARK, lw=1.2)
    middle = axes.transData.inverted().transform(axes.transAxes.transform((0.5, 0.5)))[0]
    axes.annotate(
        f"budget {tick(cost, budget)}",
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


def draw_fronts(axes: Axes, fronts: Mapping[str, Front]) -> None:
    measure = shared_measure(fronts.values())
    lines = [
        draw_staircase(axes, front, measure, COLOURS[at % 7], MARKERS[at % 7])
        for at, front in enumerate(fronts.values())
    ]
    if len(fronts) == 1:
        label_ends(axes, next(iter(fronts.values())), measure)
        return
    labels = [legend_label(name, front, measure) for name, front in fronts.items()]
    legend = axes.legend(lines, labels, frameon=False, labelcolor=DARK, fontsize=10)
    for text in legend.get_texts():
        text.set_parse_math(False)


def draw_staircase(axes: Axes, front: Front, measure: str, colour: str, marker: str) -> Any:
    """A budget between two children buys the cheaper one: hence steps, and no slanted lines."""
    costs = [point.costs[front.key] for point in front]
    values = [getattr(point, measure) for point in front]
    picked = [values[best] for best in best_so_far([point.train_loss for point in front])]
    end = max(*front.span, costs[-1])
    axes.step([*costs, end], [*picked, picked[-1]], where="post", color=colour, lw=2, alpha=0.45)
    (dots,) = axes.plot(
        costs, values, marker, color=colour, ms=5.5, mec="white", mew=0.8, clip_on=False, zorder=3
    )
    return dots


def draw_visits(figure: Figure, axes: Axes, visits: Sequence[Visit]) -> None:
    """Later visits are darker, and on top; children of the front have a ring."""
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


# Words in the picture


def label_ends(axes: Axes, front: Front, measure: str) -> None:
    """The figures of the cheapest child above all marks, of the dearest one at the foot."""
    from matplotlib.patheffects import withStroke

    look: dict[str, Any] = {
        "textcoords": "offset points",
        "color": DARK,
        "fontsize": 11,
        "fontweight": "bold",
        "path_effects": [withStroke(linewidth=3, foreground="white")],
    }
    first, last = front[0], front[-1]
    place = (first.costs[front.key], max(getattr(point, measure) for point in front))
    axes.annotate(in_words(first, front, measure), place, xytext=(9, 3), va="bottom", **look)
    if len(front) > 1:
        foot: Any = (last.costs[front.key], 0.0)
        axes.annotate(
            in_words(last, front, measure),
            foot,
            xycoords=("data", "axes fraction"),
            xytext=(5, 6),
            ha="right",
            **look,
        )


def in_words(point: Point, front: Front, measure: str) -> str:
    return f"{format_measure(point, measure)} at {format_size(front.key, point.costs[front.key])}"


def legend_label(name: str, front: Front, measure: str) -> str:
    area = front.area(measure) if measure in ERRORS else None
    label = name if area is None else f"{name}  (area {area:.1f} %)"
    # Matplotlib leaves labels that begin with an underscore out of the legend.
    return f" {label}" if label.startswith("_") else label


def format_measure(point: Point, measure: str) -> str:
    if measure in ERRORS:
        return f"{getattr(point, measure):.1f} % error"
    return f"loss {point.train_loss:.3f}"


def tick(cost: str, value: float) -> str:
    """20M, 200 KB, 3 ms: as short as it gets."""
    unit = UNITS.get(cost, "")
    prefixes = () if unit == "ms" else PREFIXES
    size, prefix = next(((s, p) for s, p in prefixes if abs(value) >= s), (1.0, ""))
    space = " " if unit else ""
    return f"{value / size:g}{space}{prefix}{unit}" if value else "0"


def put_title(axes: Axes, words: str) -> None:
    axes.set_title(
        words, loc="left", color=DARK, fontsize=13, fontweight="bold", pad=12, parse_math=False
    )


# The paper


def new_figure(width: float) -> Figure:
    """White on purpose: it then reads the same on a light and on a dark page."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, 4.5), dpi=DPI, facecolor="white", layout="constrained")


def dress(axes: Axes, front: Front, measure: str) -> None:
    dress_axes(axes, front.key, measure, front.span)
    # An invisible line, so that the axis reaches from the smallest network to the full one.
    axes.plot(front.span, [getattr(front[0], measure)] * 2, alpha=0)


def dress_axes(axes: Axes, cost: str, measure: str, span: tuple[float, float]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    percent = measure in ERRORS
    axes.set_xlabel(COST_LABELS.get(cost, cost), color=GREY, parse_math=False)
    axes.set_ylabel(MEASURE_LABELS[measure], color=GREY)
    if is_wide(span):
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(cost, value)))
    if percent:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LIGHT)
    axes.grid(axis="y", color=LIGHT, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=GREY, length=0, labelsize=10)
    axes.margins(x=0.04, y=0.14)


def is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) > WIDE


def save(figure: Figure, path: str | Path) -> None:
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise UserError(f"picture: {str(path)!r} ends in none of {', '.join(SUFFIXES)}")
    try:
        # Without a date, the same front gives the same file.
        metadata = {"Date": None} if target.suffix == ".svg" else None
        with whole(target) as beside:
            figure.savefig(beside, metadata=metadata)
    except OSError as error:
        raise UserError(f"picture: {str(path)!r} cannot be written: {error.strerror}") from error


# What can be drawn together


def shared_measure(fronts: Any) -> str:
    fronts = list(fronts)
    known = (name for name in ERRORS if all(front.errors(name) is not None for front in fronts))
    return next(known, "train_loss")


def check_fronts(fronts: Mapping[str, Front]) -> None:
    keys = {front.key for front in fronts.values()}
    if not fronts:
        raise UserError("fronts: none given; give at least one by its name")
    if len(keys) > 1:
        raise UserError(f"fronts: they have different costs: {', '.join(sorted(keys))}")
