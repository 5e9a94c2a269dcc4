"""Published results: always drawn, and beside one's own runs if those are of the same network."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from joslim.paper.panels import panels_of
from joslim.paper.table1 import (
    TABLE_1,
    US_NETS,
    US_NETS_ACCURACY,
    draw_imagenet,
    draw_table1,
    published_lines,
)
from joslim.results.record import Record

Made = Callable[..., Record]
IMAGENET = {"model": "mobilenet_v2", "data": "folder:imagenet", "classes": 1000}


def labels(axes: Any) -> list[str]:
    return [line.get_label() for line in axes.get_lines() if not line.get_label().startswith("_")]


def test_runs_of_a_published_network_share_its_panel(made: Made) -> None:
    runs = [made("a", **IMAGENET), made("b", method="slim", **IMAGENET)]
    figure, numbers = draw_table1(panels_of(runs))
    first, second, third = figure.axes
    published = ["Slim, published", "BigNAS, published", "Joslim, published"]
    assert labels(first) == ["Slim", "Joslim", *published, "US-Nets, published"]
    assert labels(second) == labels(third) == published
    assert json.loads(json.dumps(numbers["published"]))["resnet18"]["slim"][0] == [339e6, 38.5]


def test_what_is_drawn_is_what_was_published(made: Made) -> None:
    figure, _ = draw_table1(panels_of([made("a", **IMAGENET)]))
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    for name, label in (("joslim", "Joslim, published"), ("us-nets", "US-Nets, published")):
        drawn = [tuple(xy) for xy in lines[label].get_xydata().tolist()]  # type: ignore[union-attr]
        assert drawn == published_lines("mobilenet_v2")[name]


def test_other_runs_have_a_panel_of_their_own(made: Made) -> None:
    small = {**IMAGENET, "classes": 100}
    runs = [made("a"), made("b", **small)]
    figure, _ = draw_table1(panels_of(runs))
    titles = [axes.get_title("left") for axes in figure.axes]
    assert titles[:3] == ["MobileNetV2, ImageNet", "MobileNetV3, ImageNet", "ResNet18, ImageNet"]
    assert titles[3:] == ["ResNet20, CIFAR-100", "MobileNetV2, ImageNet"]
    assert "Joslim" not in labels(figure.axes[0])


def test_us_nets_stand_beside_mobilenet_v2_in_figure_3(made: Made) -> None:
    resnet = {**IMAGENET, "model": "resnet18"}
    figure, _ = draw_imagenet(panels_of([made("a", **IMAGENET), made("b", **resnet)]))
    assert labels(figure.axes[0]) == ["Joslim", "US-Nets, published"]
    assert labels(figure.axes[1]) == ["Joslim"]


# What the paper says of its own Table 1 holds of ours


# Multiply-adds of the smallest and the full network, as `tests/costs` counts them, in millions.
ENDS = {
    "mobilenet_v2": (59.56, 300.77),
    "mobilenet_v3_large": (43.40, 216.59),
    "resnet18": (338.87, 1814.07),
}
METHODS = ("slim", "bignas", "joslim")


def test_the_table_has_three_networks_of_eight_rows() -> None:
    assert TABLE_1.keys() == ENDS.keys()
    for table in TABLE_1.values():
        assert list(table) == ["macs", *METHODS]
        assert {len(values) for values in table.values()} == {8}


@pytest.mark.parametrize("model", ENDS)
def test_its_ends_are_the_smallest_and_the_full_network(model: str) -> None:
    macs = TABLE_1[model]["macs"]
    assert macs[0] == pytest.approx(ENDS[model][0], abs=1)
    assert macs[-1] == pytest.approx(ENDS[model][1], abs=1)


@pytest.mark.parametrize("model", ENDS)
@pytest.mark.parametrize("method", METHODS)
def test_more_multiply_adds_are_never_worse(model: str, method: str) -> None:
    accuracies = TABLE_1[model][method]
    assert list(accuracies) == sorted(accuracies)


def test_what_is_bold_is_the_highest() -> None:
    """Joslim is, everywhere but for MobileNetV3 at 43 million."""
    for model, table in TABLE_1.items():
        rows = list(zip(table["macs"], *(table[method] for method in METHODS)))
        beaten = [macs for macs, slim, bignas, joslim in rows if joslim < max(slim, bignas)]
        assert beaten == ([43] if model == "mobilenet_v3_large" else [])


def test_the_gain_that_the_abstract_names() -> None:
    table = TABLE_1["mobilenet_v2"]
    gains = [ours - theirs for ours, theirs in zip(table["joslim"], table["slim"])]
    assert max(gains) == pytest.approx(1.7)


def test_lines_are_errors_at_multiply_adds() -> None:
    lines = published_lines("mobilenet_v2")
    assert lines["joslim"][0] == (59e6, 38.5)
    assert lines["slim"][-1] == (300e6, 28.2)
    assert lines[US_NETS] == [
        (59e6, 37.7), (97e6, 34.9), (151e6, 32.4), (209e6, 30.4), (300e6, 28.5)
    ]  # fmt: skip


def test_slim_of_the_paper_follows_us_nets() -> None:
    """That is how the paper checked it: at the ends, which both have, within a percent."""
    slim = TABLE_1["mobilenet_v2"]["slim"]
    assert abs(slim[0] - US_NETS_ACCURACY[0]) < 1
    assert abs(slim[-1] - US_NETS_ACCURACY[-1]) < 1


def test_other_networks_have_nothing() -> None:
    assert published_lines("resnet20") == {}
    assert US_NETS not in published_lines("resnet18")
