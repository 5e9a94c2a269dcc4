"""Curves over seeds: what is drawn is what `pick` finds, and methods look alike everywhere."""

import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joslim.errors import UserError
from joslim.front import Front, Point
from joslim.methods import METHODS
from joslim.reports.bands import (
    LOOKS,
    OTHERS,
    bought_children,
    budgets_of,
    curve,
    draw_bands,
    draw_panels,
    label_of,
    looks_of,
)
from joslim.reports.figures import new_figure
from joslim.widths import Dim, Knob, WidthSpace

SPACE = WidthSpace((Dim("stem", 16),), (Knob("stem", (0,), 0.25),))
SPAN = (4e6, 40e6)


def made(shift: float = 0, count: int = 8, test: bool = True, cost: str = "macs") -> Front:
    points = [
        Point(
            SPACE.full,
            {"macs": 40e6 * share, "params": 9, "memory": 2e5 * share, "latency_ms": 9 - 8 * share},
            2 - share,
            61 - 40 * share + shift,
            60 - 40 * share + shift if test else None,
        )
        for share in np.linspace(0.1, 1, count)
    ]
    return Front(points, cost, SPAN if cost == "macs" else (2e4, 2e5))


def axes_of(fronts: dict[str, list[Front]]) -> Any:
    axes = new_figure(8).add_subplot()
    draw_bands(axes, fronts)
    return axes


def words(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    return [line.strip()[5:-4] for line in lines if line.strip().startswith("<!-- ")]


# The figures


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.floats(0, 3), st.floats(0, 100)), min_size=1, max_size=8
    ),
    st.lists(st.integers(0, 50), min_size=1, max_size=6),
)
def test_a_curve_is_what_pick_finds(children: list[Any], budgets: list[int]) -> None:
    points = [
        Point(SPACE.full, {"macs": macs, "params": 100 - macs, "memory": 9}, loss, test_error=error)
        for macs, loss, error in children
    ]
    front = Front(points, "macs", (1, 40))
    for key, other in ((None, budgets), ("params", [100 - budget for budget in budgets])):
        found = curve(front, other, key)
        for budget, error in zip(other, found):
            try:
                best = min(
                    (p.train_loss for p in points if p.costs[key or "macs"] <= budget),
                )
            except ValueError:
                assert math.isnan(error)
                continue
            # Of children with equal losses, either may be meant.
            equals = [
                p.test_error
                for p in points
                if p.train_loss == best and p.costs[key or "macs"] <= budget
            ]
            assert error in equals
            if key is None and budget > 0:
                assert front.pick(macs=budget).train_loss == best


def test_the_line_is_the_mean_and_the_band_a_deviation() -> None:
    fronts = [made(0), made(2), made(7)]
    axes = axes_of({"joslim": fronts})
    (line,) = axes.get_lines()
    assert len(line.get_xdata()) == 200
    (band,) = axes.collections
    edges = band.get_paths()[0].vertices
    for budget, mean in list(zip(*line.get_data()))[::37]:
        picked = [front.pick(macs=float(budget)).test_error or 0 for front in fronts]
        assert mean == pytest.approx(statistics.mean(picked))
        here = edges[np.isclose(edges[:, 0], budget)][:, 1]
        assert max(here) >= statistics.mean(picked) + statistics.stdev(picked) - 1e-9
        assert min(here) <= statistics.mean(picked) - statistics.stdev(picked) + 1e-9
    assert line.get_ydata()[-1] == pytest.approx(20 + 3), "the full network is in its own budget"
    assert axes.get_ylabel() == "test error, mean ± deviation over seeds"


def test_one_seed_has_no_band() -> None:
    axes = axes_of({"joslim": [made()]})
    assert not axes.collections
    assert axes.get_ylabel() == "test error"


def test_where_a_seed_has_no_child_there_is_no_mean() -> None:
    dear = Front(list(made())[3:], "macs", SPAN)
    (line,) = axes_of({"joslim": [made(), dear]}).get_lines()
    below = line.get_xdata() < dear[0].costs["macs"]
    assert below.any()
    assert np.isnan(line.get_ydata()[below]).all()
    assert np.isfinite(line.get_ydata()[~below]).all()


def test_budgets_reach_from_end_to_end() -> None:
    even = budgets_of([made()], "macs")
    assert (even[0], even[-1], len(even)) == (4e6, 40e6, 200)
    assert np.allclose(np.diff(even), even[1] - even[0])
    wide = budgets_of([Front(list(made()), "macs", (1e3, 40e6))], "macs")
    assert (wide[0], wide[-1]) == (1e3, 40e6)
    assert np.allclose(np.diff(np.log(wide)), np.log(wide[1] / wide[0]))


# How they look


def test_every_method_has_a_look_of_its_own() -> None:
    assert set(LOOKS) == set(METHODS)
    for part in ("colour", "marker", "line"):
        assert len({str(getattr(look, part)) for look in LOOKS.values()}) == len(LOOKS), part


def test_a_method_looks_the_same_in_every_figure() -> None:
    alone = looks_of({"slim": 0})
    among = looks_of({"mine": 0, "joslim": 0, "slim": 0, "yours": 0})
    assert alone["slim"] == among["slim"] == LOOKS["slim"]
    assert len(set(among.values())) == 4
    many = looks_of({str(number): 0 for number in range(20)})
    assert len(set(many.values())) == len(OTHERS)


def test_colour_marker_and_line_are_drawn() -> None:
    for line, look in zip(
        axes_of({"slim": [made()], "joslim": [made(1)]}).get_lines(),
        (LOOKS["slim"], LOOKS["joslim"]),
    ):
        assert (line.get_color(), line.get_marker()) == (look.colour, look.marker)


def marks_of(line: Any) -> list[tuple[float, float]]:
    if line.get_marker() in ("None", None):
        return []
    return [*zip(line.get_xdata()[line.get_markevery()], line.get_ydata()[line.get_markevery()])]


def test_marks_are_children_and_a_mean_has_none() -> None:
    one, several = axes_of({"slim": [made()], "joslim": [made(1), made(3)]}).get_lines()
    assert marks_of(one) == [(point.costs["macs"], point.test_error) for point in made()]
    assert marks_of(several) == []
    # The line of one run is what its budgets buy, up to the end of the axis.
    budgets = np.array(one.get_xdata())
    assert list(one.get_ydata()) == list(curve(made(), budgets))
    assert budgets[-1] == SPAN[1]


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.sampled_from([1.0, 2.0, 3.0]), st.floats(0, 100)),
        min_size=1,
        max_size=8,
    )
)
def test_the_children_that_are_marked_are_those_that_some_budget_buys(children: list[Any]) -> None:
    points = [
        Point(SPACE.full, {"macs": macs, "params": 9, "memory": 9}, loss, test_error=error)
        for macs, loss, error in children
    ]
    front = Front(points, "macs", (1, 40))
    budgets = range(int(front[0].costs["macs"]), 41)
    picked = {id(point): point for point in (front.pick(macs=most) for most in budgets)}
    expected = [(point.costs["macs"], point.test_error) for point in picked.values()]
    assert [*zip(*bought_children(front, "macs", "test_error"))] == expected


def test_the_words_of_the_legend(tmp_path: Path) -> None:
    fronts = {"joslim": [made(), made(2)], "$x$ <b>": [made()], "_x": [made(4)]}
    draw_panels({"One & all": fronts}, tmp_path / "a.svg")
    text = words(tmp_path / "a.svg")
    areas = [made().area(), made(2).area()]
    deviation = statistics.stdev(areas)  # type: ignore[type-var]
    assert f"joslim  (area {statistics.mean(areas):.1f} ± {deviation:.1f} %, 2 seeds)" in text  # type: ignore[type-var]
    assert any("$x$" in line for line in text), "no formula is made of a name"
    assert any("_x  (area" in line for line in text)


def test_no_area_where_there_is_none() -> None:
    assert label_of("slim", [made()], "train_loss") == "slim  (1 seed)"
    assert label_of("single", [made(count=1)], "test_error") == "single  (1 seed)"


def test_validation_where_test_errors_are_missing() -> None:
    axes = axes_of({"joslim": [made(), made(test=False)]})
    assert axes.get_ylabel().startswith("validation error")


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_panel_for_each_title(count: int, tmp_path: Path) -> None:
    panels = {f"panel {at}": {"slim": [made()], "joslim": [made(1)]} for at in range(count)}
    draw_panels(panels, tmp_path / "a.svg")
    text = words(tmp_path / "a.svg")
    assert {title for title in text if title.startswith("panel")} == set(panels)


# What cannot be drawn


@pytest.mark.parametrize(
    ("fronts", "match"),
    [
        ({}, "fronts: none given"),
        ({"slim": []}, "fronts: none given for 'slim'"),
        ({"slim": [made()], "joslim": [made(cost="memory")]}, "different costs: macs, memory"),
    ],
)
def test_what_does_not_go_together(
    fronts: dict[str, list[Front]], match: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=match):
        draw_panels({"": fronts}, tmp_path / "a.png")
