"""Models by name, shapes, and trained weights to start from."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from joslim.errors import UserError
from joslim.models import MODELS, resnet8
from joslim.runs.driver import train
from joslim.runs.networks import (
    are_inputs,
    blank_input,
    default_shape,
    import_maker,
    load_blank,
    load_model,
    make_net,
    parse_shape,
)
from tests.runs.test_trained_weights import trained


@pytest.mark.parametrize("name", ["resnet8", "mobilenet_v2"])
def test_built_in_models(name: str) -> None:
    assert type(load_model(name)) is type(MODELS[name]())


def test_a_model_of_ones_own(own: Path) -> None:
    model = load_model("own:tiny")
    assert isinstance(model, nn.Sequential)
    assert len(model) == 3


def test_a_class_is_a_maker_too(own: Path) -> None:
    assert isinstance(load_model("torch.nn:Identity"), nn.Identity)


def test_modules_in_packages(own: Path) -> None:
    (own / "sub").mkdir()
    (own / "sub" / "nets.py").write_text("from own import tiny as small\n")
    assert isinstance(load_model("sub.nets:small"), nn.Sequential)


def test_the_current_folder_is_searched_once(own: Path) -> None:
    import_maker("own:tiny")
    import_maker("own:solid")
    assert sys.path.count(str(own)) == 1


@pytest.mark.parametrize(
    ("text", "shape"),
    [("3x224x224", (3, 224, 224)), ("1x28x28", (1, 28, 28)), ("16", (16,)), ("3x100", (3, 100))],
)
def test_shapes(text: str, shape: tuple[int, ...]) -> None:
    assert parse_shape(text) == shape


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "3x",
        "x3",
        "3xx3",
        "3x0x3",
        "-3x3",
        "3x2.5",
        "3,32,32",
        "3 x 3",
        "3X3",
        "3x3\n",
        "a",
    ],
)
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"input: {text!r} is not a shape; type")) as e:
        parse_shape(text)
    assert "\n" not in str(e.value)
    assert "3x224x224" in str(e.value)


@pytest.mark.parametrize(("file", "module"), [("mine.py", "mine"), ("./a/mine.py", "a.mine")])
def test_a_file_is_told_from_a_module(file: str, module: str) -> None:
    with pytest.raises(UserError, match=f"is a file and not a module; type {module}:net$"):
        load_model(f"{file}:net")


def test_an_unknown_model_lists_all_of_them() -> None:
    with pytest.raises(UserError) as caught:
        load_model("resnet21")
    message = str(caught.value)
    assert message.startswith("model: unknown name 'resnet21'; allowed: ")
    assert all(name in message for name in MODELS)
    assert message.endswith("or your own as package.module:function")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own:raising", "own:raising() failed: RuntimeError: first line"),
        ("own:needing", "own:needing() failed: TypeError: "),
        ("own:list_of_layers", "own:list_of_layers() returned list, a torch.nn.Module is needed"),
        ("own:tinny", "unknown name 'tinny'; allowed: tiny, solid, "),
        ("own:number", "unknown name 'number'; allowed: tiny, solid, "),
        ("own:", "unknown name ''; allowed: tiny, solid, "),
        ("nowhere:tiny", "cannot import 'nowhere': ModuleNotFoundError: No module named 'nowhere'"),
        ("own.more:tiny", "cannot import 'own.more': "),
        ("broken:tiny", "cannot import 'broken': ZeroDivisionError: division by zero"),
        (":tiny", "cannot import '': "),
        (".own:tiny", "cannot import '.own': "),
    ],
)
def test_makers_that_do_not_work(
    name: str, words: str, own: Path, refused: Callable[..., str]
) -> None:
    (own / "broken.py").write_text("1 / 0\n")
    with pytest.raises(UserError, match=re.escape(f"model: {words}")):
        load_model(name)
    assert "model: " in refused("profile", name)


def test_a_module_that_exits_is_bad_input(own: Path) -> None:
    (own / "broken.py").write_text("import sys\nsys.exit(7)\n")
    with pytest.raises(UserError, match="cannot import 'broken'"):
        load_model("broken:tiny")


def test_the_number_of_classes_is_passed_on(own: Path) -> None:
    assert load_model("nets:digits", 7)[-1].out_features == 7  # type: ignore[index]
    assert load_model("nets:digits")[-1].out_features == 10  # type: ignore[index]
    assert isinstance(load_model("own:tiny", 7), nn.Sequential)
    assert load_model("resnet8", 7)(torch.zeros(1, 3, 8, 8)).shape == (1, 7)


def test_the_shape_that_a_model_asks_for() -> None:
    assert default_shape(resnet8()) == (3, 32, 32)
    model = nn.Conv2d(1, 2, 3)
    assert default_shape(model) == (3, 224, 224)
    model.slim_defaults = {"input": [1, 8, 8]}  # type: ignore[assignment]
    assert default_shape(model) == (1, 8, 8)
    model.slim_defaults = {"input": "8x8"}  # type: ignore[assignment]
    with pytest.raises(UserError, match="is not a shape"):
        default_shape(model)


@pytest.mark.parametrize(
    "text", ["99999999999999999999", "3x99999x99999", "9" * 5000, "10000000000", "2x1000000000"]
)
def test_shapes_that_are_too_large_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"^input: [0-9x]+ is more than 1073741824 values; type"):
        parse_shape(text)


@pytest.mark.parametrize("name", ["resnet8", "mobilenet_v3_large"])
def test_a_blank_network_has_the_same_knobs(name: str) -> None:
    blank = make_net(load_blank(name, 10, 3), blank_input((3, 4700, 4700), "meta"))[0]
    assert blank.example[0].is_meta
    assert blank.space == make_net(load_model(name, 10), blank_input((3, 32, 32)))[0].space


def test_a_network_of_ones_own_is_not_blank(own: Path) -> None:
    assert not next(load_blank("own:tiny", 4, 3).parameters()).is_meta


def test_an_input_that_fits_no_memory() -> None:
    with pytest.raises(UserError, match="does not fit into memory"):
        blank_input((3, 10**8, 10**8))


# Trained weights


def test_sorted_channels_keep_the_function_at_full_width() -> None:
    weights = trained()
    model = resnet8(num_classes=10)
    model.load_state_dict(weights)
    x = torch.randn(4, 3, 8, 8)
    net, start = make_net(resnet8(num_classes=10), blank_input((3, 8, 8)), init=weights)
    assert start is not None
    assert start.fresh == []
    with torch.no_grad():
        expected, found = model.eval()(x), net.eval()(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    moved = [n for n, t in net.state_dict().items() if not torch.equal(t, weights[n])]
    assert moved, "channels were sorted"


def test_without_weights_nothing_is_sorted() -> None:
    model = resnet8()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    net, start = make_net(model, blank_input((3, 8, 8)))
    assert start is None
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_a_function_is_no_network(tmp_path: Path) -> None:
    """Also with weights, which are loaded into a network before it is made slimmable."""
    with pytest.raises(UserError, match=r"^model: function given; give an nn.Module, or 'package"):
        train(resnet8, "digits", init=trained(), steps=2, out=tmp_path / "run")


IMAGES, WORDS = torch.zeros(3, 2, 4), torch.zeros(3, 5, dtype=torch.int64)


@pytest.mark.parametrize(
    ("values", "batched", "right"),
    [
        ((IMAGES, WORDS), True, True),
        ((IMAGES[:1], WORDS[:1]), False, True),
        ((IMAGES, WORDS), False, False),
        ((IMAGES[:2], WORDS), True, False),
        ((IMAGES[:0], WORDS[:0]), True, False),
        ((IMAGES,), True, False),
        ((IMAGES, WORDS.float()), True, False),
        ((IMAGES, WORDS[:, :4]), True, False),
        ((IMAGES, torch.tensor(1)), True, False),
        ((IMAGES, "words"), True, False),
    ],
)
def test_samples_that_are_inputs(values: tuple[Any, ...], batched: bool, right: bool) -> None:
    assert are_inputs(values, [((1, 2, 4), "float32"), ((1, 5), "int64")], batched) == right


def test_samples_without_sizes_are_no_batch() -> None:
    assert not are_inputs([torch.tensor(1.0)], [((1,), "float32")], True)
