"""What is drawn together, in which order, under which name; and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest

from joslim.errors import UserError
from joslim.paper.panels import label_in_words, only_one, panels_of
from joslim.runs.run import Run

Made = Callable[..., Run]


def refusal(*runs: Run, **options: Any) -> str:
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
        assert [[run.config.seed for run in line] for line in panel.runs.values()] == [[0, 1]] * 3
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


@pytest.mark.parametrize(
    "change", [{"every": 9}, {"preset": "paper"}, {"threads": 1}, {"low": 0.2}, {"log_every": 3}]
)
def test_what_may_differ(made: Made, change: dict[str, Any]) -> None:
    (panel,) = panels_of([made("a"), made("b", seed=1, **change)])
    assert len(panel.runs["joslim"]) == 2


def test_figures_of_one_network(made: Made) -> None:
    panels = panels_of([made("a"), made("b", data="cifar10")])
    with pytest.raises(UserError, match=r"data: .*b' has cifar10, .*a' has cifar100;"):
        only_one(panels)
    assert only_one(panels[:1]) is panels[0]


def test_labels() -> None:
    assert [label_in_words(name) for name in ("bignas", "K = 3")] == ["BigNAS", "K = 3"]
