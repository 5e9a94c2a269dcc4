"""The recipes: complete, valid, and those of the paper."""

import pytest

from joslim.data import DATASETS, Options
from joslim.runs.config import FIELDS, Config, config_of
from joslim.runs.recipes import RECIPES

KEYS = {
    "epochs",
    "batch",
    "lr",
    "momentum",
    "weight_decay",
    "schedule",
    "warmup",
    "label_smoothing",
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_complete_and_valid(name: str) -> None:
    assert KEYS <= RECIPES[name].keys() <= FIELDS.keys()
    config = config_of(RECIPES[name])
    assert Config().with_recipe(name) == config
    assert config.with_recipe(name) == config


def test_the_figures_of_the_paper() -> None:
    cifar, imagenet = RECIPES["cifar"], RECIPES["imagenet"]
    assert (cifar["lr"], cifar["batch"], cifar["schedule"]) == (0.1, 128, "cosine")
    assert (imagenet["lr"], imagenet["batch"], imagenet["schedule"]) == (0.5, 1024, "linear")
    assert imagenet["warmup"] * imagenet["epochs"] == 5
    short = RECIPES["imagenet-resnet18"]
    assert short["warmup"] * short["epochs"] == 5
    assert RECIPES["cifar-single"]["epochs"] * 2 == cifar["epochs"]


def test_the_data_name_recipes_that_are_there() -> None:
    assert DATASETS["digits"](Options()).recipe in RECIPES
