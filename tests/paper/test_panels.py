"""What is drawn together, in which order, under which name; and what is refused."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from joslim.errors import UserError
from joslim.front import Front
from joslim.paper.panels import (
    Panel,
    draw_curves,
    finite,
    grid,
    label_text,
    only_one,
    panels_of,
    shared_legend,
    spread_json,
)
from joslim.results.record import Record

Made = Callable[..., Record]


def refusal(*runs: Record, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        panels_of(runs, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_panel_for_each_network_and_data_set(made: Made) -> None:
    networks = [("resnet20_2x", "cifar100"), ("resnet8", "digits"), ("resnet32", "cifar10")]
    runs = [
        made(model=model, data=data, method=method, seed=seed)
        for model, data in networks
        for method in ("joslim", "ofa", "slim")
        for seed in (1, 0)
    ]
    panels = panels_of(runs)
    titles = [panel.title for panel in panels]
    assert titles == ["ResNet32, CIFAR-10", "2x ResNet20, CIFAR-100", "ResNet8, digits"]
    for panel in panels:
        assert list(panel.runs) == ["slim", "bignas", "joslim"]
        assert [[run.seed for run in line] for line in panel.runs.values()] == [[0, 1]] * 3
        assert panel.fronts["slim"][0] is panel.runs["slim"][0].front


@pytest.mark.parametrize(
    ("settings", "title"),
    [
        ({"data": "folder:/d/imagenet/", "model": "mobilenet_v3_large"}, "MobileNetV3, ImageNet"),
        ({"data": "folder:/some/$where$/", "model": "nets:my_net"}, "my_net, $where$"),
    ],
)
def test_titles(made: Made, settings: dict[str, str], title: str) -> None:
    assert panels_of([made("a", **settings)])[0].title == title


def test_names_that_would_be_obeyed_are_refused(made: Made) -> None:
    assert "model: 'x:\\x1b[31m' is not a name" in refusal(made("a", model="x:\x1b[31m"))


def test_data_are_told_apart_by_what_they_hold(made: Made) -> None:
    one = made("a", data="folder:x", identity="same", method="slim")
    moved = made("b", data="folder:y", identity="same")
    changed = made("c", data="folder:x", identity="other")
    assert [len(panel.runs) for panel in panels_of([one, moved, changed])] == [2, 1]


def test_costs_that_the_figure_is_not_of(made: Made) -> None:
    runs = [made("a"), made("b", cost="memory")]
    assert "'a'" not in (said := refusal(*runs))
    assert "b' has memory, this figure is of macs" in said
    assert len(panels_of(runs, costs=("macs", "memory"))) == 2


def test_the_same_run_twice(made: Made) -> None:
    run = made("a")
    assert "a' is given twice" in refusal(run, run)


def test_the_same_seed_twice(made: Made) -> None:
    said = refusal(made("a", seed=3), made("b", seed=3))
    assert said.startswith("seed: ")
    assert "a' and " in said
    assert "b' are both joslim with seed 3" in said


def test_no_runs() -> None:
    assert refusal() == "runs: none given; type the folders of runs"


@pytest.mark.parametrize("change", [{"steps": 9}, {"batch": 5}, {"size": 16}, {"lr": 0.5}])
def test_other_terms(made: Made, change: dict[str, Any]) -> None:
    said = refusal(made("a"), made("b", method="slim", **change))
    (key,) = change
    assert said.startswith(f"{key}: ")
    assert "draw them apart" in said


# A preset also decides about the weights, which have to be the same.
WEIGHTS = {"draw": 3, "full_weight": 3.0, "full_first": 0.0, "random_share": 0.6}
SEARCH_OF_THE_PAPER = {"preset": "paper", **WEIGHTS}


@pytest.mark.parametrize(
    "change", [{"every": 9}, SEARCH_OF_THE_PAPER, {"threads": 1}, {"low": 0.2}, {"log_every": 3}]
)
def test_what_may_differ(made: Made, change: dict[str, Any]) -> None:
    (panel,) = panels_of([made("a", **WEIGHTS), made("b", seed=1, **{**WEIGHTS, **change})])
    assert len(panel.runs["joslim"]) == 2


def test_figures_of_one_network(made: Made) -> None:
    panels = panels_of([made("a"), made("b", data="cifar10")])
    with pytest.raises(UserError, match=r"data: .*b' has cifar10, .*a' has cifar100;"):
        only_one(panels)
    assert only_one(panels[:1]) is panels[0]


def test_labels() -> None:
    assert [label_text(name) for name in ("bignas", "K = 3")] == ["BigNAS", "K = 3"]


# Curves: every number against `pick`, and what stands in the picture


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
    figure, (axes,) = grid(1)
    for letter in "abcde":
        axes.plot([0, 1], label=letter * 10)
    shared_legend(figure, [axes])
    words = [text.get_text()[0] for text in figure.legends[0].get_texts()]
    assert words == ["a", "d", "b", "e", "c"]


def test_figures_of_json() -> None:
    assert finite([1.0, np.nan, np.inf]) == [1.0, None, None]
    assert spread_json([1, 3])["deviation"] == pytest.approx(2**0.5)


def test_what_cannot_share_a_panel_is_refused_before(made: Made) -> None:
    with pytest.raises(UserError, match="cost: "):
        panels_of([made("a"), made("b", cost="memory")])
