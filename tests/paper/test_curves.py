"""Panels of curves: every number against `pick`, and what stands in the picture."""

import json
from collections.abc import Callable

import numpy as np
import pytest

from joslim.errors import UserError
from joslim.front import Front
from joslim.paper.curves import draw_curves, finite, grid, mean_and_deviation, row_by_row
from joslim.paper.panels import Panel, panels_of
from joslim.runs.run import Run

Made = Callable[..., Run]


@pytest.fixture
def panel(made: Made) -> Panel:
    runs = [
        made(method=method, seed=seed, shift=shift + seed)
        for method, shift in (("slim", 0), ("joslim", 3))
        for seed in (0, 1)
    ]
    return panels_of(runs)[0]


def picked(front: Front, budget: float) -> float:
    error = front.pick(macs=budget).test_error
    assert error is not None
    return error


def test_numbers_are_means_over_what_is_picked(panel: Panel) -> None:
    _, numbers = draw_curves([panel])
    (record,) = json.loads(json.dumps(numbers))["panels"]
    assert (record["budgets"][0], record["budgets"][-1]) == (20e6, 100e6)
    for label, line in record["lines"].items():
        for budget, mean, deviation in zip(record["budgets"], line["mean"], line["deviation"]):
            errors = [picked(front, budget) for front in panel.fronts[label]]
            assert mean == pytest.approx(np.mean(errors))
            assert deviation == pytest.approx(np.std(errors, ddof=1))
        areas = [front.area() for front in panel.fronts[label]]
        assert line["area"]["each"] == areas
        assert line["seeds"] == [0, 1]
        assert line["runs"] == [str(run.path) for run in panel.runs[label]]


def test_one_seed_has_no_deviation(made: Made) -> None:
    _, numbers = draw_curves(panels_of([made()]))
    line = numbers["panels"][0]["lines"]["joslim"]
    assert line["deviation"] is None
    assert line["area"]["deviation"] is None


def test_another_cost_has_no_area(panel: Panel) -> None:
    figure, numbers = draw_curves([panel], "memory")
    (record,) = numbers["panels"]
    assert record["cost"] == "memory"
    assert "area" not in record["lines"]["slim"]
    assert figure.axes[0].get_xlabel() == "memory"


def test_each_label_is_in_the_legend_once(made: Made) -> None:
    runs = [
        made(data=data, method=m) for data in ("cifar10", "cifar100") for m in ("slim", "joslim")
    ]
    figure, _ = draw_curves(panels_of(runs))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["Slim", "Joslim"]
    assert [axes.get_title("left") for axes in figure.axes] == [
        "ResNet20, CIFAR-10",
        "ResNet20, CIFAR-100",
    ]
    assert [axes.get_ylabel() for axes in figure.axes] == ["test error", ""]


def test_an_axis_that_another_panel_has_not_keeps_its_name(made: Made) -> None:
    runs = [made(cost=cost) for cost in ("macs", "memory")]
    figure, _ = draw_curves(panels_of(runs, costs=("macs", "memory")))
    assert [axes.get_xlabel() for axes in figure.axes] == ["multiply-adds for one input", "memory"]


@pytest.mark.parametrize(("count", "shape"), [(1, (1, 1)), (3, (1, 3)), (5, (2, 4)), (12, (3, 4))])
def test_the_grid(count: int, shape: tuple[int, int]) -> None:
    figure, places = grid(count)
    assert len(places) == len(figure.axes) == count
    first = places[0].get_subplotspec()
    assert first is not None
    assert first.get_gridspec().get_geometry() == shape


def test_the_legend_reads_row_by_row() -> None:
    """Matplotlib puts five labels in three columns as 2, 2 and 1."""
    assert row_by_row(list("abcde"), 3) == ["a", "d", "b", "e", "c"]


def test_figures_of_json() -> None:
    assert finite([1.0, np.nan, np.inf]) == [1.0, None, None]
    assert mean_and_deviation([1, 3])["deviation"] == pytest.approx(2**0.5)


def test_what_cannot_share_a_panel_is_refused_before(made: Made) -> None:
    with pytest.raises(UserError, match="cost: "):
        panels_of([made("a"), made("b", cost="memory")])
