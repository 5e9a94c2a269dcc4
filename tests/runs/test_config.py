"""The configuration: what is refused, and with which words, before anything is computed."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joslim.errors import UserError
from joslim.runs.config import DEFAULTS, FIELDS, MOST_BYTES, Config, config_of, read_config_file
from joslim.runs.recipes import RECIPES
from joslim.runs.run import Run
from joslim.training.settings import kind_of

NUMBERS = [name for name, item in FIELDS.items() if kind_of(item)[0] in (int, float)]
WHOLE = [name for name, item in FIELDS.items() if kind_of(item)[0] is int]
TEXTS = [name for name, item in FIELDS.items() if kind_of(item)[0] is str]


def refusal(**values: Any) -> str:
    with pytest.raises(UserError) as caught:
        config_of(values)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_defaults_are_a_configuration() -> None:
    assert config_of({}) == Config() == Config(**DEFAULTS)


def test_it_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Config().lr = 1.0  # type: ignore[misc]


def test_every_field_has_a_default_and_help() -> None:
    for item in fields(Config):
        assert item.name in DEFAULTS
        assert item.metadata["help"].endswith((".", "1,0.5")), item.name


def test_help_names_all_that_is_allowed() -> None:
    for item in fields(Config):
        names = item.metadata["names"]
        for name in names() if names else ():
            assert name in item.metadata["help"], item.name


def test_there_and_back() -> None:
    config = Config(steps=3, lr=0.1, method="single", widths="0.5", tensorboard=True)
    assert config_of(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    ("key", "near"), [("step", "steps"), ("learning_rate", "nearest of"), ("modle", "model")]
)
def test_an_unknown_key_has_the_nearest_names(key: str, near: str) -> None:
    message = refusal(**{key: 1})
    assert message.startswith(f"configuration: unknown name {key!r}")
    assert near in message


@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_number(name: str) -> None:
    huge = [float("nan"), float("inf"), -float("inf"), 10**400, -(10**400), 10**5000]
    for value in ["1", True, [], {}, [1] * 1000, *huge]:
        message = refusal(**{name: value})
        assert message.startswith(f"{name}: ")
        assert "allowed: a " in message
        assert len(message) < 250


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_no_whole_number(name: str) -> None:
    assert "a whole number" in refusal(**{name: 1.5})


def test_a_whole_number_may_be_written_as_a_float() -> None:
    config = Config(steps=3.0)  # type: ignore[arg-type]
    assert (config.steps, type(config.steps)) == (3, int)
    assert type(Config(lr=1).lr) is float


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("value", [1, True, 1.5, [], {"a": 1}, ["x" * 10_000]])
def test_what_is_no_text(name: str, value: Any) -> None:
    message = refusal(**{name: value})
    assert message.startswith(f"{name}: ")
    assert message.endswith("allowed: text")
    assert len(message) < 250


@pytest.mark.parametrize("value", [0, 1, "yes", "true", [], 0.5])
def test_what_is_no_truth_value(value: Any) -> None:
    assert refusal(tensorboard=value).endswith("allowed: true or false")


@pytest.mark.parametrize("name", [n for n, item in FIELDS.items() if not kind_of(item)[1]])
def test_what_cannot_be_left_open(name: str) -> None:
    assert refusal(**{name: None}).startswith(f"{name}: nothing given; allowed: ")


@pytest.mark.parametrize("name", [n for n, item in FIELDS.items() if kind_of(item)[1]])
def test_what_can_be_left_open(name: str) -> None:
    assert getattr(config_of({name: None}), name) is None


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("steps", 0, 1),
        ("steps", 10**9 + 1, 10**9),
        ("epochs", 0, 0.01),
        ("epochs", 1e308, 1e6),
        ("batch", 0, 1),
        ("every", 0, 1),
        ("samples", 0, 64),
        ("samples", 65, 1),
        ("seed", -1, 0),
        ("seed", 2**31, 2**31 - 1),
        ("low", 0, 1),
        ("low", 1.01, 0.1),
        ("size", 0, 1),
        ("size", 10**6, 224),
        ("threads", 0, 1),
        ("threads", 10**11, 8),
        ("workers", -1, 0),
        ("lr", 0, 1e20),
        ("lr", 1e308, 0.1),
        ("momentum", 1, 0),
        ("weight_decay", -1, 0),
        ("warmup", -0.1, 0),
        ("label_smoothing", 1, 0),
        ("clip", 0, 1),
        ("val", -0.1, 0),
        ("score_images", 1, 2),
        ("front_images", 1, 2),
        ("log_every", 0, 1),
        ("save_every", 0, 1),
    ],
)
def test_limits(name: str, wrong: float, right: float) -> None:
    assert refusal(**{name: wrong}).startswith(f"{name}: ")
    assert getattr(config_of({name: right}), name) == right


@pytest.mark.parametrize(
    ("name", "some"),
    [
        ("method", "joslim"),
        ("cost", "macs"),
        ("preset", "paper"),
        ("searcher", "targeted"),
        ("amp", "bf16"),
        ("schedule", "cosine"),
        ("distill", "soft"),
        ("recipe", "digits"),
    ],
)
def test_unknown_names_come_with_the_list(name: str, some: str) -> None:
    message = refusal(**{name: "nonsense"})
    assert message.startswith(f"{name}: unknown name 'nonsense'; allowed: ")
    assert some in message
    assert getattr(config_of({name: some}), name) == some


def test_aliases_are_methods() -> None:
    assert Config(method="ofa").method == "ofa"


def test_steps_and_epochs_exclude_each_other() -> None:
    assert refusal(steps=3, epochs=1) == "steps: 3 and epochs: 1.0 given; type only one"


def test_widths_are_for_single_alone() -> None:
    assert "widths: it is for method single, not 'joslim'; leave it out" in refusal(widths="0.5")
    assert Config(method="single", widths="0.5").widths == "0.5"


def test_changing_a_field_checks_it_too() -> None:
    with pytest.raises(UserError, match="every: 0 given"):
        replace(Config(), every=0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
KEYS = st.sampled_from([*FIELDS]) | st.text(max_size=10)


@given(st.dictionaries(KEYS, JSON, max_size=3))
def test_anything_is_a_configuration_or_one_line(values: dict[str, Any]) -> None:
    message = ""
    try:
        assert isinstance(config_of(values), Config)
    except UserError as error:
        message = str(error)
    assert len(message.splitlines()) <= 1
    assert message.isprintable()


# Recipes


def test_a_recipe_fills_what_is_open() -> None:
    config = Config(batch=7, lr=0.5).with_recipe("cifar")
    assert (config.batch, config.lr) == (7, 0.5)
    assert (config.epochs, config.momentum) == (400.0, 0.9)
    assert not [name for name in RECIPES["cifar"] if getattr(config, name) is None]


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ({"epochs": 8.0}, "sensitivity"),
        ({"epochs": 8.0, "cost": "macs"}, "sensitivity"),
        ({"steps": 100}, "joslim"),
        ({"epochs": 20.0}, "joslim"),
        ({}, "joslim"),
        ({"epochs": 8.0, "cost": "memory"}, "joslim"),
        ({"epochs": 8.0, "every": 20}, "joslim"),
        ({"epochs": 8.0, "depth": True}, "joslim"),
        ({"epochs": 8.0, "method": "bignas"}, "bignas"),
    ],
)
def test_a_short_fine_tuning_has_one_multiplier(given: dict[str, Any], method: str) -> None:
    assert config_of({"init": "w.safetensors", **given}).method == method
    assert config_of(given, trained=True).method == method
    assert config_of(given).method == given.get("method", "joslim")


def test_a_recipe_does_not_add_epochs_to_steps() -> None:
    config = Config(steps=3).with_recipe("digits")
    assert (config.steps, config.epochs) == (3, None)


def test_the_recipe_that_was_asked_for_wins() -> None:
    assert Config(recipe="imagenet").with_recipe("digits").batch == 1024


# Files


def written(folder: Path, text: str | bytes, name: str = "c.toml") -> Path:
    file = folder / name
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def test_toml_and_json(tmp_path: Path) -> None:
    toml = written(tmp_path, 'model = "resnet8"\nfront-images = 9\ndata_root = "x"\n')
    same = {"model": "resnet8", "front-images": 9, "data_root": "x"}
    as_json = written(tmp_path, json.dumps(same), "c.json")
    read = {"model": "resnet8", "front_images": 9, "data_root": "x"}
    assert read_config_file(toml) == read_config_file(as_json) == read


def test_a_written_configuration_can_be_read(tmp_path: Path) -> None:
    config = Config(steps=7, amp="bf16")
    file = written(tmp_path, json.dumps(config.to_json()), "c.json")
    assert config_of(read_config_file(file)) == config


def test_the_record_of_a_run_repeats_it(finished: Run) -> None:
    assert config_of(read_config_file(finished.path / "config.json")) == finished.config


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("a = ", "c.toml", "is broken"),
        ("{", "c.json", "is broken"),
        ("", "c.json", "is broken"),
        ("[" * 100_000, "c.json", "is broken"),
        ("a = " + "[" * 100_000, "c.toml", "is broken"),
        ('{"steps": ' + "9" * 5000 + "}", "c.json", "is broken"),
        ("[1, 2]", "c.json", "holds no table"),
        ("3", "c.json", "holds no table"),
        (b"\xff\xfe\x00model", "c.toml", "cannot read"),
        (b"\x80", "c.json", "cannot read"),
        ("a = 1", "c.yaml", "is not a .toml or .json file"),
        ("a = 1", "c", "is not a .toml or .json file"),
        ("{}" + " " * MOST_BYTES, "c.json", f"is larger than {MOST_BYTES} bytes"),
        ("#" * (MOST_BYTES + 1), "c.toml", f"is larger than {MOST_BYTES} bytes"),
    ],
    ids=range(14),
)
def test_files_that_do_not_work(text: str | bytes, name: str, words: str, tmp_path: Path) -> None:
    file = written(tmp_path, text, name)
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        read_config_file(file)
    assert str(caught.value).startswith(f"config: {str(file)!r}" if words[0] == "i" else "config: ")
    assert str(caught.value).count("config:") == 1


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    for name in ("nowhere.toml", "folder.toml"):
        with pytest.raises(UserError, match="config: cannot read"):
            read_config_file(tmp_path / name)
