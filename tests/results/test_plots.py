"""Pictures: they are written, say what they should, and leave no global state behind."""

import math
import re
import statistics
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joslim.allocation import allocate, curve
from joslim.errors import UserError
from joslim.front import Front, Point
from joslim.results.groups import curve as curve_of
from joslim.results.plots import (
    LOOKS,
    OTHERS,
    bought_children,
    budgets_of,
    draw_allocation,
    draw_bands,
    draw_front,
    draw_fronts,
    draw_panels,
    draw_run,
    dress_axes,
    label_of,
    looks_of,
    new_figure,
)
from joslim.space import Dim, Knob, WidthSpace
from joslim.training.methods import METHODS
from joslim.units import short_size

pytest.importorskip("matplotlib")

SPACE = WidthSpace((Dim("stem", 16),), (Knob("stem", (0,), 0.25),))
SPAN = (4e6, 40e6)


def made(
    count: int = 5, test: bool = True, val: bool = True, cost: str = "macs", shift: float = 0
) -> Front:
    points = []
    for share in np.linspace(0.1, 1, count):
        costs = {"macs": 40e6 * share, "params": 1000.0, "memory": 2e5 * share}
        costs["latency_ms"] = 8 * share
        error = 60 - 40 * share + shift
        points.append(
            Point(SPACE.full, costs, 2 - share, error + 1 if val else None, error if test else None)
        )
    return Front(points, cost, {"macs": SPAN, "memory": (2e4, 2e5), "latency": (0.8, 8)}[cost])


def words(path: Path) -> list[str]:
    """The texts of an SVG: matplotlib leaves each as a comment beside its outlines."""
    lines = path.read_text().splitlines()
    return [line.strip()[5:-4] for line in lines if line.strip().startswith("<!-- ")]


def size_of_png(path: Path) -> tuple[int, ...]:
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    return struct.unpack(">II", content[16:24])


def test_a_png_for_the_first_screen(tmp_path: Path) -> None:
    draw_front({"joslim": made()}, tmp_path / "front.png", "A title")
    assert size_of_png(tmp_path / "front.png") == (1200, 675)


def test_one_front_is_labelled_directly(tmp_path: Path) -> None:
    path = tmp_path / "front.svg"
    draw_front({"joslim": made()}, path)
    told = words(path)
    assert "joslim" in told
    assert "multiply-adds for one input" in told
    assert "test error" in told
    assert {"10M", "20M", "40 %"} <= set(told)


@pytest.mark.parametrize(
    ("front", "labels"),
    [
        (made(), ["56.0 % error at 4.00M", "20.0 % error at 40.0M"]),
        (made(1), ["56.0 % error at 4.00M"]),
        (made(2, cost="memory"), ["56.0 % error at 20.0 KB", "20.0 % error at 200.0 KB"]),
        (made(2, test=False, val=False), ["loss 1.900 at 4.00M", "loss 1.000 at 40.0M"]),
    ],
)
def test_the_ends_of_a_front_are_labelled(front: Front, labels: list[str]) -> None:
    axes = new_figure(8).add_subplot()
    draw_fronts(axes, {"a": front})
    assert [text.get_text() for text in axes.texts] == labels


def test_the_label_of_the_cheapest_child_covers_no_other() -> None:
    rows = [(1e6, 3.0, 50.0), (1.1e6, 2.5, 53.0), (3e6, 2.0, 40.0)]
    rest = {"params": 1.0, "memory": 1.0}
    points = [Point(SPACE.full, {"macs": m, **rest}, loss, None, e) for m, loss, e in rows]
    axes = new_figure(8).add_subplot()
    draw_fronts(axes, {"a": Front(points, "macs", (1e6, 4e6))})
    axes.figure.draw_without_rendering()
    label = axes.texts[0].get_window_extent()
    dots = axes.transData.transform([(m, error) for m, _, error in rows])
    assert label.y0 > dots[:, 1].max()


def test_steps_are_what_would_be_picked() -> None:
    """A child that is worse in training than a cheaper one is a dot beside the line."""
    costs = {"params": 1.0, "memory": 1.0}
    rows = [(1, 3.0, 50.0), (2, 4.0, 10.0), (3, 2.0, 40.0)]
    points = [Point(SPACE.full, {"macs": m, **costs}, loss, None, e) for m, loss, e in rows]
    axes = new_figure(8).add_subplot()
    draw_fronts(axes, {"a": Front(points, "macs", (1, 4))})
    line, dots = axes.get_lines()
    assert np.asarray(line.get_xydata()).tolist() == [[1, 50], [2, 50], [3, 40], [4, 40]]
    assert np.asarray(dots.get_xydata()).tolist() == [[1, 50], [2, 10], [3, 40]]


def test_several_fronts_have_a_legend(tmp_path: Path) -> None:
    path = tmp_path / "fronts.svg"
    fronts = {f"method {n}": made(shift=n) for n in range(9)} | {"_hidden": made()}
    draw_front(fronts, path, "Methods")
    told = words(path)
    assert "Methods" in told
    for name, front in fronts.items():
        assert any(f"{name}  (area {front.area():.1f} %)" in text for text in told)


@pytest.mark.parametrize(
    ("known", "measure"),
    [
        ([(True, True), (True, False)], "test error"),
        ([(True, True), (False, True)], "validation error"),
        ([(True, False), (False, True)], "training loss"),
        ([(False, False)], "training loss"),
    ],
)
def test_the_best_measure_that_all_fronts_know(
    known: Sequence[tuple[bool, bool]], measure: str, tmp_path: Path
) -> None:
    fronts = {str(n): made(test=test, val=val) for n, (test, val) in enumerate(known)}
    draw_front(fronts, tmp_path / "a.svg")
    assert measure in words(tmp_path / "a.svg")


@pytest.mark.parametrize("count", [1, 2, 60])
@pytest.mark.parametrize("cost", ["macs", "memory", "latency"])
def test_every_size_and_cost(count: int, cost: str, tmp_path: Path) -> None:
    draw_front({"a": made(count, cost=cost)}, tmp_path / "a.svg")
    unit = {"macs": "M", "memory": " KB", "latency": " ms"}[cost]
    assert any(text.endswith(unit) for text in words(tmp_path / "a.svg"))
    assert not re.search(r"\bnan\b", (tmp_path / "a.svg").read_text())


def test_names_are_no_formulas(tmp_path: Path) -> None:
    name = r"own $\frac{ $ model_1 & <b>"
    draw_front({name: made()}, tmp_path / "a.png", name)
    draw_front({name: made(), name * 2: made()}, tmp_path / "b.png")
    draw_run(made(), [], tmp_path / "c.png", name)


def test_the_search_at_work(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    visits = [
        (step, rng.uniform(4e6, 40e6), rng.uniform(1, 3), step % 9 == 0) for step in range(200)
    ]
    draw_run(made(), visits, tmp_path / "run.png")
    assert size_of_png(tmp_path / "run.png") == (1650, 675)
    draw_run(made(), visits, tmp_path / "run.svg")
    told = words(tmp_path / "run.svg")
    assert {"The search: 200 children visited", "visited at step", "training loss"} <= set(told)


@pytest.mark.parametrize(
    "visits",
    [
        [],
        [(0, 5e6, 2.0, True)],
        [(0, 5e6, math.nan, True), (1, math.inf, 2.0, False)],
        [(3, 5e6, 2.0, False), (3, 6e6, 2.0, False)],
        [(3, 5e6, 0.001, False), (3, 6e6, 2.0, True)],
    ],
)
def test_few_visits_and_odd_ones(visits: Any, tmp_path: Path) -> None:
    draw_run(made(1), visits, tmp_path / "run.svg")
    assert not re.search(r"\bnan\b", (tmp_path / "run.svg").read_text())


def test_the_same_front_gives_the_same_png(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        draw_front({"a": made()}, tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize(
    ("cost", "value", "text"),
    [
        ("macs", 0, "0"),
        ("macs", 2e7, "20M"),
        ("macs", 2.5e6, "2.5M"),
        ("params", 500, "500"),
        ("memory", 2e5, "200 KB"),
        ("memory", 500, "500 B"),
        ("latency_ms", 2500, "2500 ms"),
        ("joules", 1500, "1.5K"),
    ],
)
def test_ticks(cost: str, value: float, text: str) -> None:
    assert short_size(cost, value) == text


def test_a_logarithmic_axis_has_several_labels() -> None:
    axes = new_figure(8).add_subplot()
    dress_axes(axes, "params", "test_error", (31_072, 803_968))
    axes.plot((31_072, 803_968), (1, 2))
    shown = [tick for tick in axes.get_xticks() if 31_072 <= tick <= 803_968]
    assert shown == [50e3, 100e3, 200e3, 500e3]


def test_what_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="fronts: none given"):
        draw_front({}, tmp_path / "a.png")
    with pytest.raises(UserError, match="fronts: they have different costs: macs, memory"):
        draw_front({"a": made(), "b": made(cost="memory")}, tmp_path / "a.png")
    for name in ("a.jpg", "a", "png"):
        with pytest.raises(UserError, match=r"picture: .* ends in none of \.png, \.svg"):
            draw_front({"a": made()}, tmp_path / name)
    with pytest.raises(UserError, match=r"picture: cannot write .*: No such file"):
        draw_front({"a": made()}, tmp_path / "nowhere" / "a.png")
    assert not list(tmp_path.iterdir())


def test_pyplot_is_never_loaded(tmp_path: Path) -> None:
    code = f"""
import sys
from joslim.front import Front, Point
from joslim.results.plots import draw_front
from joslim.space import Dim, Knob, WidthSpace
assert "matplotlib" not in sys.modules
space = WidthSpace((Dim("a", 4),), (Knob("a", (0,), 0.5),))
costs = {{"macs": 1, "params": 1, "memory": 1}}
front = Front([Point(space.full, costs, 1.0)], "macs", (1, 2))
draw_front({{"a": front}}, {str(tmp_path / "a.png")!r})
sys.exit("matplotlib.pyplot" in sys.modules or "torch" in sys.modules)
"""
    house = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=house, check=False).returncode == 0


@pytest.mark.parametrize("count", [1, 6])
def test_an_allocation_and_its_curve(count: int, tmp_path: Path) -> None:
    fronts, path = [made(count), made(count, shift=5), made(count)], tmp_path / "a.svg"
    chosen = allocate(fronts, latency_ms=16)
    draw_allocation(curve(fronts, "latency_ms"), chosen, ["_signs", "$x", "_signs"], path)
    told = words(path)
    assert {"All 3 networks together", "weighted mean validation error"} <= set(told)
    assert {"1  _signs", "2  $x", "3  _signs"} <= set(told)
    assert "budget 16 ms" not in told


@pytest.mark.parametrize(("budget", "marks"), [(16, 2), (1e9, 0)])
def test_the_budget_of_an_allocation(budget: float, marks: int, tmp_path: Path) -> None:
    """In both halves; one that is beyond the picture is not in it."""
    fronts, path = [made(6), made(6, shift=5), made(6)], tmp_path / "a.svg"
    chosen = allocate(fronts, latency_ms=budget)
    draw_allocation(curve(fronts, "latency_ms"), chosen, ["a", "b", "c"], path, budget)
    assert len([word for word in words(path) if word.startswith("budget")]) == marks


# Curves over seeds


def seeded(shift: float = 0, count: int = 8, test: bool = True, cost: str = "macs") -> Front:
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


# The figures


def test_the_line_is_the_mean_and_the_band_a_deviation() -> None:
    fronts = [seeded(0), seeded(2), seeded(7)]
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
    axes = axes_of({"joslim": [seeded()]})
    assert not axes.collections
    assert axes.get_ylabel() == "test error"


def test_where_a_seed_has_no_child_there_is_no_mean() -> None:
    dear = Front(list(seeded())[3:], "macs", SPAN)
    (line,) = axes_of({"joslim": [seeded(), dear]}).get_lines()
    below = line.get_xdata() < dear[0].costs["macs"]
    assert below.any()
    assert np.isnan(line.get_ydata()[below]).all()
    assert np.isfinite(line.get_ydata()[~below]).all()


def test_budgets_reach_from_end_to_end() -> None:
    even = budgets_of([seeded()], "macs")
    assert (even[0], even[-1], len(even)) == (4e6, 40e6, 200)
    assert np.allclose(np.diff(even), even[1] - even[0])
    wide = budgets_of([Front(list(seeded()), "macs", (1e3, 40e6))], "macs")
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
        axes_of({"slim": [seeded()], "joslim": [seeded(1)]}).get_lines(),
        (LOOKS["slim"], LOOKS["joslim"]),
    ):
        assert (line.get_color(), line.get_marker()) == (look.colour, look.marker)


def marks_of(line: Any) -> list[tuple[float, float]]:
    if line.get_marker() in ("None", None):
        return []
    return [*zip(line.get_xdata()[line.get_markevery()], line.get_ydata()[line.get_markevery()])]


def test_marks_are_children_and_a_mean_has_none() -> None:
    one, several = axes_of({"slim": [seeded()], "joslim": [seeded(1), seeded(3)]}).get_lines()
    assert marks_of(one) == [(point.costs["macs"], point.test_error) for point in seeded()]
    assert marks_of(several) == []
    # The line of one run is what its budgets buy, up to the end of the axis.
    budgets = np.array(one.get_xdata())
    assert list(one.get_ydata()) == list(curve_of(seeded(), budgets))
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
    fronts = {"joslim": [seeded(), seeded(2)], "$x$ <b>": [seeded()], "_x": [seeded(4)]}
    draw_panels({"One & all": fronts}, tmp_path / "a.svg")
    text = words(tmp_path / "a.svg")
    areas = [seeded().area(), seeded(2).area()]
    deviation = statistics.stdev(areas)  # type: ignore[type-var]
    assert f"joslim  (area {statistics.mean(areas):.1f} ± {deviation:.1f} %, 2 seeds)" in text  # type: ignore[type-var]
    assert any("$x$" in line for line in text), "no formula is made of a name"
    assert any("_x  (area" in line for line in text)


def test_no_area_where_there_is_none() -> None:
    assert label_of("slim", [seeded()], "train_loss") == "slim  (1 seed)"
    assert label_of("single", [seeded(count=1)], "test_error") == "single  (1 seed)"


def test_validation_where_test_errors_are_missing() -> None:
    axes = axes_of({"joslim": [seeded(), seeded(test=False)]})
    assert axes.get_ylabel().startswith("validation error")


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_panel_for_each_title(count: int, tmp_path: Path) -> None:
    panels = {f"panel {at}": {"slim": [seeded()], "joslim": [seeded(1)]} for at in range(count)}
    draw_panels(panels, tmp_path / "a.svg")
    text = words(tmp_path / "a.svg")
    assert {title for title in text if title.startswith("panel")} == set(panels)


# What cannot be drawn


@pytest.mark.parametrize(
    ("fronts", "match"),
    [
        ({}, "fronts: none given"),
        ({"slim": []}, "fronts: none given for 'slim'"),
        ({"slim": [seeded()], "joslim": [seeded(cost="memory")]}, "different costs: macs, memory"),
    ],
)
def test_what_does_not_go_together(
    fronts: dict[str, list[Front]], match: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=match):
        draw_panels({"": fronts}, tmp_path / "a.png")
