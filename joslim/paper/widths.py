"""Appendix C: the widths that Joslim chose, layer by layer, beside those of Slim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from joslim.errors import UserError
from joslim.front import ERRORS, Front, Point
from joslim.paper.curves import Drawn, shared_legend, small_title
from joslim.paper.panels import Panel, label_in_words
from joslim.reports.bands import LOOKS
from joslim.reports.figures import DARK, GREY, LIGHT, new_figure, shared_measure
from joslim.reports.tables import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, THEIRS = "joslim", "slim"
# Three places on the trade-off curve, as shares of the cost of the full network.
SHARES = (0.3, 0.5, 0.7)
LAYERS = "layer, from the input on; those that share a width are one"


def draw_widths(panels: Sequence[Panel], shares: Sequence[float] = SHARES) -> Drawn:
    """A column for each network, a row for each budget. The first seed that both have is shown.

    Budgets that buy the same children are one row: its title names all of them.
    """
    pairs = [pair_of(panel) for panel in panels]
    columns = [rows_of(panel, fronts, shares) for panel, (fronts, _) in zip(panels, pairs)]
    most = max(map(len, columns))
    figure = new_figure(5.2 * max(len(panels), 1.4))
    figure.set_figheight(1.9 * most + 0.8)
    places = figure.subplots(most, len(panels), squeeze=False)
    for column, (panel, rows) in enumerate(zip(panels, columns)):
        for axes, record in zip(places[:, column], rows):
            draw_row(axes, record)
            axes.set_ylabel("width multiplier" if column == 0 else "", color=GREY)
        for axes in places[len(rows) :, column]:
            axes.remove()
        heading(places[0, column], panel.title)
        places[len(rows) - 1, column].set_xlabel(LAYERS, color=GREY)
    shared_legend(figure, [places[0, 0]])
    records = [
        {"title": panel.title, "seed": seed, "budgets": rows}
        for panel, rows, (_, seed) in zip(panels, columns, pairs)
    ]
    return figure, {"panels": records}


def rows_of(
    panel: Panel, fronts: dict[str, Front], shares: Sequence[float]
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for share in shares:
        row = budget_row(panel, fronts, share)
        same = next((known for known in rows if known["children"] == row["children"]), None)
        if same is None:
            rows.append(row)
        else:
            same["shares"].append(share)
    return rows


def pair_of(panel: Panel) -> tuple[dict[str, Front], int]:
    """The fronts of both methods with the same seed, and that seed."""
    for method in (OURS, THEIRS):
        if method not in panel.runs:
            raise UserError(
                f"runs: {panel.title} has no run of method {method}; this figure compares "
                f"{OURS} with {THEIRS}"
            )
    seeds = {m: [run.config.seed for run in panel.runs[m]] for m in (OURS, THEIRS)}
    common = [seed for seed in seeds[OURS] if seed in seeds[THEIRS]]
    if not common:
        raise UserError(f"seed: {OURS} and {THEIRS} of {panel.title} have no seed in common")
    fronts = {m: panel.fronts[m][seeds[m].index(common[0])] for m in (OURS, THEIRS)}
    return fronts, common[0]


def budget_row(panel: Panel, fronts: dict[str, Front], share: float) -> dict[str, Any]:
    """What both methods pick within a share of the full cost, and how Joslim differs."""
    key, measure = panel.front.key, shared_measure(fronts.values())
    budget = share * panel.front.span[1]
    picked = {method: picked_within(fronts[method], key, budget) for method in fronts}
    differences = {
        name: relative(value_of(picked[OURS], name), value_of(picked[THEIRS], name))
        for name in (measure, key)
    }
    return {
        "shares": [share],
        "budget": budget,
        "measure": measure,
        "cost": key,
        "relative_difference": differences,
        "layers": [dim.name for dim in panel.front.space.dims],
        "children": {
            method: {
                "cost": point.costs[key],
                "value": value_of(point, measure),
                "multipliers": multipliers(point),
            }
            for method, point in picked.items()
        },
    }


def picked_within(front: Front, key: str, budget: float) -> Point:
    """Of a budget below the smallest child, that child."""
    return front.pick(**{key: max(budget, front[0].costs[key])})


def value_of(point: Point, name: str) -> float:
    return point.costs[name] if name in point.costs else getattr(point, name)


def relative(ours: float, theirs: float) -> float | None:
    """(Joslim - Slim) / Slim, in percent."""
    return 100 * (ours - theirs) / theirs if theirs else None


def multipliers(point: Point) -> list[float]:
    """[dims]: the channels that are kept, as a share."""
    dims = point.widths.space.dims
    return [count / dim.full for count, dim in zip(point.widths.counts, dims)]


def title_of_row(record: dict[str, Any]) -> str:
    """At 30 %: error -4.2 % (35.4 %), MACs +0.3 % (84.1M)"""
    shares = " and ".join(f"{100 * share:g}" for share in record["shares"])
    measure, key = record["measure"], record["cost"]
    ours = record["children"][OURS]
    value = f"{ours['value']:.1f} %" if measure in ERRORS else f"{ours['value']:.3f}"
    name = "error" if measure in ERRORS else "loss"
    cost = {"macs": "MACs", "latency_ms": "latency"}.get(key, key)
    change = record["relative_difference"]
    return (
        f"at {shares} %: {name} {signed(change[measure])} ({value}), "
        f"{cost} {signed(change[key])} ({format_size(key, ours['cost'])})"
    )


def signed(percent: float | None) -> str:
    """With a true minus sign."""
    if percent is None:
        return "n/a"
    return f"{percent:+.1f} %".replace("-", "\N{MINUS SIGN}")


def draw_row(axes: Axes, record: dict[str, Any]) -> None:
    count = len(record["layers"])
    for method in (THEIRS, OURS):
        look = LOOKS[method]
        axes.plot(
            range(1, count + 1),
            record["children"][method]["multipliers"],
            color=look.colour,
            ls=look.line,
            marker=look.marker,
            lw=1.6,
            ms=4.5,
            mec="white",
            mew=0.6,
            label=label_in_words(method),
            clip_on=False,
        )
    axes.set_ylim(0, 1.04)
    axes.set_xlim(0.5, count + 0.5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LIGHT)
    axes.grid(axis="y", color=LIGHT, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=GREY, length=0, labelsize=9)
    small_title(axes, title_of_row(record))


def heading(axes: Axes, words: str) -> None:
    """The network, above the column."""
    axes.annotate(
        words,
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 34),
        textcoords="offset points",
        color=DARK,
        fontsize=13,
        fontweight="bold",
        parse_math=False,
    )
