"""Appendix C: the widths that Joslim chose, layer by layer, beside those of Slim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from joslim.errors import UserError
from joslim.front import ERRORS, Front, Point
from joslim.paper.panels import Drawn, Panel, label_text, shared_legend, small_title
from joslim.results.groups import shared_measure
from joslim.results.plots import DARK, GREY, LIGHT, LOOKS, new_figure
from joslim.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, THEIRS = "joslim", "slim"
# Three places on the trade-off curve, as shares of the cost of the full network.
SHARES = (0.3, 0.5, 0.7)
LAYERS = "layer, from the input on; those that share a width are one"


def draw_widths(panels: Sequence[Panel], shares: Sequence[float] = SHARES) -> Drawn:
    """Draw a column for each network and a row for each budget, of the first seed that both have.

    Budgets that buy the same children are one row: its title names all of them.
    """
    pairs = [_pair_of(panel) for panel in panels]
    columns = [_rows_of(panel, fronts, shares) for panel, (fronts, _) in zip(panels, pairs)]
    most = max(map(len, columns))
    figure = new_figure(5.2 * max(len(panels), 1.4))
    figure.set_figheight(1.9 * most + 0.8)
    places = figure.subplots(most, len(panels), squeeze=False)
    for column, (panel, rows) in enumerate(zip(panels, columns)):
        for axes, record in zip(places[:, column], rows):
            _draw_row(axes, record)
            axes.set_ylabel("width multiplier" if column == 0 else "", color=GREY)
        for axes in places[len(rows) :, column]:
            axes.remove()
        places[0, column].annotate(
            panel.title,
            (0, 1),
            xycoords="axes fraction",
            xytext=(0, 34),
            textcoords="offset points",
            color=DARK,
            fontsize=13,
            fontweight="bold",
            parse_math=False,
        )
        places[len(rows) - 1, column].set_xlabel(LAYERS, color=GREY)
    shared_legend(figure, [places[0, 0]])
    records = [
        {"title": panel.title, "seed": seed, "budgets": rows}
        for panel, rows, (_, seed) in zip(panels, columns, pairs)
    ]
    return figure, {"panels": records}


def _rows_of(
    panel: Panel, fronts: dict[str, Front], shares: Sequence[float]
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for share in shares:
        row = _budget_row(panel, fronts, share)
        same = next((known for known in rows if known["children"] == row["children"]), None)
        if same is None:
            rows.append(row)
        else:
            same["shares"].append(share)
    return rows


def _pair_of(panel: Panel) -> tuple[dict[str, Front], int]:
    """Return the fronts of both methods with the same seed, and that seed."""
    for method in (OURS, THEIRS):
        if method not in panel.runs:
            raise UserError(
                f"runs: {panel.title} has no run of method {method}; this figure compares "
                f"{OURS} with {THEIRS}"
            )
    seeds = {m: [run.seed for run in panel.runs[m]] for m in (OURS, THEIRS)}
    common = [seed for seed in seeds[OURS] if seed in seeds[THEIRS]]
    if not common:
        raise UserError(f"seed: {OURS} and {THEIRS} of {panel.title} have no seed in common")
    fronts = {m: panel.fronts[m][seeds[m].index(common[0])] for m in (OURS, THEIRS)}
    return fronts, common[0]


def _budget_row(panel: Panel, fronts: dict[str, Front], share: float) -> dict[str, Any]:
    """Pick a child of both methods within a share of the full cost, and say how they differ.

    A budget below the smallest child picks that child. Differences are (Joslim - Slim) / Slim in
    percent.
    """
    first, measure = panel.front, shared_measure(fronts.values())
    key, budget = first.key, share * first.span[1]
    picked = {
        method: front.pick(**{key: max(budget, front[0].costs[key])})
        for method, front in fronts.items()
    }
    differences = {}
    for name in (measure, key):
        ours, theirs = (_value_of(picked[method], name) for method in (OURS, THEIRS))
        differences[name] = 100 * (ours - theirs) / theirs if theirs else None
    return {
        "shares": [share],
        "budget": budget,
        "measure": measure,
        "cost": key,
        "relative_difference": differences,
        "layers": [dim.name for dim in first.space.dims],
        "children": {
            method: {
                "cost": point.costs[key],
                "value": _value_of(point, measure),
                "multipliers": [
                    count / dim.full for count, dim in zip(point.widths.counts, first.space.dims)
                ],
            }
            for method, point in picked.items()
        },
    }


def _value_of(point: Point, name: str) -> float:
    return point.costs[name] if name in point.costs else getattr(point, name)


def title_of_row(record: dict[str, Any]) -> str:
    """`at 30 %: error -4.2 % (35.4 %), MACs +0.3 % (84.1M)`"""
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
    """A percentage with its sign, which is a true minus sign."""
    if percent is None:
        return "n/a"
    return f"{percent:+.1f} %".replace("-", "\N{MINUS SIGN}")


def _draw_row(axes: Axes, record: dict[str, Any]) -> None:
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
            label=label_text(method),
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
