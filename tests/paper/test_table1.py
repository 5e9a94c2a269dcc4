"""Published results: always drawn, and beside one's own runs if those are of the same network."""

import json
from collections.abc import Callable
from typing import Any

from joslim.paper.panels import panels_of
from joslim.paper.table1 import draw_imagenet, draw_table1
from joslim.reports.published import published_lines
from joslim.runs.run import Run

Made = Callable[..., Run]
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
