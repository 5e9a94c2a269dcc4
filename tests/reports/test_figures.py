"""Pictures: they are written, say what they should, and leave no global state behind."""

import math
import re
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joslim.allocation import allocate, curve
from joslim.errors import UserError
from joslim.front import Front, Point
from joslim.reports.figures import (
    draw_allocation,
    draw_front,
    draw_fronts,
    draw_run,
    new_figure,
    tick,
)
from joslim.widths import Dim, Knob, WidthSpace

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
        ("energy", 1500, "1.5K"),
    ],
)
def test_ticks(cost: str, value: float, text: str) -> None:
    assert tick(cost, value) == text


def test_what_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="fronts: none given"):
        draw_front({}, tmp_path / "a.png")
    with pytest.raises(UserError, match="fronts: they have different costs: macs, memory"):
        draw_front({"a": made(), "b": made(cost="memory")}, tmp_path / "a.png")
    for name in ("a.jpg", "a", "png"):
        with pytest.raises(UserError, match=r"picture: .* ends in none of \.png, \.svg"):
            draw_front({"a": made()}, tmp_path / name)
    with pytest.raises(UserError, match=r"picture: .* cannot be written"):
        draw_front({"a": made()}, tmp_path / "nowhere" / "a.png")
    assert not list(tmp_path.iterdir())


def test_pyplot_is_never_loaded(tmp_path: Path) -> None:
    code = f"""
import sys
from joslim.front import Front, Point
from joslim.reports.figures import draw_front
from joslim.widths import Dim, Knob, WidthSpace
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
    assert {"All 3 networks together", "total weighted validation error"} <= set(told)
    assert {"1  _signs", "2  $x", "3  _signs"} <= set(told)
    assert "budget 16 ms" not in told


@pytest.mark.parametrize(("budget", "marks"), [(16, 2), (1e9, 0)])
def test_the_budget_of_an_allocation(budget: float, marks: int, tmp_path: Path) -> None:
    """In both halves; one that is beyond the picture is not in it."""
    fronts, path = [made(6), made(6, shift=5), made(6)], tmp_path / "a.svg"
    chosen = allocate(fronts, latency_ms=budget)
    draw_allocation(curve(fronts, "latency_ms"), chosen, ["a", "b", "c"], path, budget)
    assert len([word for word in words(path) if word.startswith("budget")]) == marks
