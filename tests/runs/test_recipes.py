"""The recipes: complete, valid, and those of the paper."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from joslim.data import DATASETS, Options
from joslim.errors import UserError
from joslim.models import MODELS
from joslim.runs.config import FIELDS, Config, config_of
from joslim.runs.driver import train
from joslim.runs.recipes import PAPER, RECIPES, check_data, rate_for, settings_of
from joslim.runs.run import load
from joslim.runs.setup import load_images

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
OF_THE_PAPER = [name for name in RECIPES if name.startswith(PAPER)]
# Training images, epochs and batch of the paper, and the K that it prints.
LENGTHS = {"cifar": (50_000, 400, 128, 313), "imagenet": (1_281_167, 250, 1024, 625)}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_complete_and_valid(name: str) -> None:
    assert KEYS <= RECIPES[name].keys() <= FIELDS.keys()
    config = config_of(RECIPES[name])
    assert config.with_recipe(name) == config
    assert config_of({"recipe": name}) == config_of({**RECIPES[name], "recipe": name})


@pytest.mark.parametrize("name", ["digits", "cifar", "imagenet"])
def test_a_recipe_of_data_only_fills_what_is_open(name: str) -> None:
    assert Config().with_recipe(name) == config_of(RECIPES[name])


def test_the_figures_of_the_paper() -> None:
    cifar, imagenet = RECIPES["cifar"], RECIPES["imagenet"]
    assert (cifar["lr"], cifar["batch"], cifar["schedule"]) == (0.1, 128, "cosine")
    assert (imagenet["lr"], imagenet["batch"], imagenet["schedule"]) == (0.5, 1024, "linear")
    assert imagenet["warmup"] * imagenet["epochs"] == 5
    short = RECIPES["imagenet-resnet18"]
    assert short["warmup"] * short["epochs"] == 5
    assert RECIPES["cifar-single"]["epochs"] * 2 == cifar["epochs"]


def test_every_network_of_the_paper_has_its_recipe() -> None:
    depths = ["resnet20", "resnet32", "resnet44", "resnet56"]
    wider = [f"resnet20-{n}x" for n in (2, 3, 4, 5)]
    wanted = [
        *(f"paper/cifar10-{name}" for name in depths),
        *(f"paper/cifar100-{name}" for name in [*depths, *wider]),
        *(f"paper/imagenet-{name}" for name in ("mobilenet-v2", "mobilenet-v3", "resnet18")),
    ]
    assert wanted == OF_THE_PAPER


@pytest.mark.parametrize("name", OF_THE_PAPER)
def test_a_recipe_of_the_paper_names_everything(name: str) -> None:
    config = config_of({"recipe": name})
    data, _, model = name.removeprefix(PAPER).partition("-")
    assert config.model in MODELS
    assert config.model.startswith(model.partition("-")[0])
    assert config.data in (data, f"folder:{data}")
    assert (config.preset, config.samples, config.val) == ("paper", 2, 0)
    assert config.low == (0.42 if data == "imagenet" else 0.316)


@pytest.mark.parametrize("name", OF_THE_PAPER)
def test_a_thousand_children_are_visited(name: str) -> None:
    """K, epochs and batch are all in the paper: they must agree with each other."""
    config = config_of({"recipe": name})
    images, epochs, batch, every = LENGTHS["imagenet" if "imagenet" in name else "cifar"]
    if config.model == "resnet18":
        epochs, every = 100, 250
    assert (config.epochs, config.batch, config.every) == (epochs, batch, every)
    assert config.samples * images * epochs / batch / every == pytest.approx(1000, rel=0.005)


def test_crops_of_imagenet() -> None:
    scales = {name: config_of({"recipe": name}).crop_scale for name in OF_THE_PAPER[-3:]}
    assert [*scales.values()] == [0.25, 0.08, 0.25]


def test_imagenet_has_the_colours_and_the_dropout_of_us_nets() -> None:
    """In the paper's words its hyper-parameters follow theirs, and so do its augmentations."""
    for name in OF_THE_PAPER:
        config = config_of({"recipe": name})
        ours = "imagenet" not in name
        assert (config.clip_colours, config.dropout) == (not ours, None if ours else 0.0)
    assert not config_of({"recipe": "imagenet"}).clip_colours


# What is given wins


@given(st.sampled_from(OF_THE_PAPER), st.data())
def test_what_is_given_wins(name: str, data: st.DataObject) -> None:
    choices: dict[str, st.SearchStrategy[Any]] = {
        "model": st.sampled_from(["resnet8", "nets:own"]),
        "data": st.sampled_from(["digits", "folder:x"]),
        "preset": st.just("default"),
        "val": st.floats(0, 0.5),
        "low": st.one_of(st.none(), st.floats(0.1, 1)),
        "lr": st.floats(0.01, 1),
        "batch": st.integers(1, 512),
        "every": st.integers(1, 99),
    }
    chosen = data.draw(st.sets(st.sampled_from(sorted(choices))))
    values = {key: data.draw(choices[key], label=key) for key in sorted(chosen)}
    found = asdict(config_of({"recipe": name, **values}))
    batch = values.get("batch", RECIPES[name]["batch"])
    expected = {**RECIPES[name], "lr": rate_for(name, batch), **values}
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize("name", RECIPES)
def test_the_rate_follows_the_batch(name: str) -> None:
    batch, rate = RECIPES[name]["batch"], RECIPES[name]["lr"]
    faster = 3 if RECIPES[name].get("optimizer", "sgd") == "sgd" else 1  # AdamW's stays
    assert settings_of(name, {"batch": 3 * batch})["lr"] == pytest.approx(faster * rate)
    assert settings_of(name, {"batch": batch})["lr"] == settings_of(name, {})["lr"] == rate
    assert "lr" not in settings_of(name, {"batch": 3 * batch, "lr": 0.7})


def test_recipes_of_folders_have_the_rate_of_cifar_for_an_image() -> None:
    cifar = RECIPES["cifar"]["lr"] / RECIPES["cifar"]["batch"]
    for name in ("small-data", "medium-data", "large-data"):
        assert RECIPES[name]["lr"] / RECIPES[name]["batch"] == pytest.approx(cifar)


@pytest.mark.parametrize("length", [{"steps": 60}, {"epochs": 2.0}])
def test_another_length_has_another_k(length: dict[str, Any]) -> None:
    name = OF_THE_PAPER[0]
    config = config_of({"recipe": name, **length}).with_recipe("digits")
    assert config.every is None
    assert (config.steps, config.epochs) == (length.get("steps"), length.get("epochs"))
    assert config_of({"recipe": name, **length, "every": 7}).with_recipe("digits").every == 7


def test_once_complete_a_configuration_stays_as_it_is() -> None:
    """The command line checks it before `train` does, and a resumed run reads it from its file."""
    for values in ({}, {"steps": 5}, {"epochs": 1.0, "model": "resnet8"}, {"low": None}):
        config = config_of({"recipe": OF_THE_PAPER[-1], **values})
        assert config_of(config.to_json()) == config


def test_settings_leave_the_table_alone() -> None:
    before = dict(RECIPES[OF_THE_PAPER[0]])
    settings_of(OF_THE_PAPER[0], {"steps": 1, "model": "x"}).clear()
    assert RECIPES[OF_THE_PAPER[0]] == before


# Data


def test_the_data_name_recipes_that_are_there() -> None:
    assert DATASETS["digits"](Options()).recipe in RECIPES


def test_a_recipe_says_what_to_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = config_of({"recipe": "paper/imagenet-mobilenet-v2"})
    with pytest.raises(UserError, match=r"ILSVRC2012_img_train\.tar.*--data folder:PATH") as caught:
        load_images(config, None, torch.device("cpu"), None)
    assert "\n" not in str(caught.value)
    (tmp_path / "imagenet").mkdir()
    check_data(config.recipe, config.data)
    with pytest.raises(UserError, match="has no folder train/"):
        load_images(config, None, torch.device("cpu"), None)


def test_data_of_ones_own_are_not_looked_for_by_the_recipe() -> None:
    check_data("paper/imagenet-resnet18", "folder:mine")
    check_data("paper/cifar10-resnet20", "cifar10")
    check_data(None, "folder:imagenet")


def test_a_recipe_is_enough_in_python_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`joslim.train` takes network and data from it: hence these two complaints."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="recipe 'paper/imagenet-resnet18' needs ImageNet"):
        train(recipe="paper/imagenet-resnet18")
    with pytest.raises(UserError, match=r"batch: 9999 is more than the 1437 training images"):
        train(recipe="paper/cifar10-resnet56", data="digits", batch=9999)


def test_a_short_training_by_a_recipe_of_the_paper(tmp_path: Path, tiny: dict[str, Any]) -> None:
    own = {**tiny, "model": "resnet8", "data": "digits", "preset": "default"}
    run = train(recipe="paper/cifar10-resnet20", out=tmp_path / "run", **own)
    config = load(run.path).config
    assert config == run.config
    assert (config.model, config.preset, config.every) == ("resnet8", "default", tiny["every"])
    assert (config.low, config.val, config.schedule) == (0.316, 0, "cosine")
    assert run.front.space.knobs[0].low == 0.316
