"""The table of figures: all of the paper's, with its trainings and its seeds."""

import subprocess
import sys

import pytest

from joslim.comparing.plan import LISTS
from joslim.errors import UserError
from joslim.paper.figures import FIGURES, KS, ablation_of_k, find_figure
from joslim.runs.config import FIELDS, config_of
from joslim.runs.recipes import PAPER, RECIPES
from joslim.training.methods import METHODS


@pytest.mark.parametrize("name", FIGURES)
def test_what_a_figure_trains_is_there(name: str) -> None:
    figure = FIGURES[name]
    for trials in figure.trials:
        assert trials.recipe in RECIPES
        assert {*trials.methods} <= METHODS.keys()
        assert trials.cost in figure.costs
        assert trials.change.keys() <= FIELDS.keys() - LISTS.keys()


def test_every_training_of_the_paper_is_in_a_figure() -> None:
    used = {trials.recipe for figure in FIGURES.values() for trials in figure.trials}
    assert used == {name for name in RECIPES if name.startswith(PAPER)}


def test_figure_2_is_three_methods_three_times_on_twelve_networks() -> None:
    figure = FIGURES["cifar"]
    assert len(figure.seeds) * sum(len(trials.methods) for trials in figure.trials) == 108


def test_every_k_visits_as_many_children_as_the_paper_says() -> None:
    config = config_of({"recipe": "paper/cifar100-resnet20"})
    assert config.epochs is not None
    assert config.batch is not None
    steps = config.epochs * 50_000 / config.batch
    visited = [config.samples * steps / k for k in KS]
    assert visited == pytest.approx([2000, 1000, 500, 250, 100], rel=0.01)
    assert [trials.change for trials in ablation_of_k([2, 4])] == [{}, {"every": 2}, {"every": 4}]


def test_an_unknown_name_has_all_names() -> None:
    with pytest.raises(UserError, match="figure: unknown name 'cifra'; allowed: cifar, imagenet"):
        find_figure("cifra")


def test_the_list_needs_no_torch() -> None:
    code = "import sys, joslim.paper.figures; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
