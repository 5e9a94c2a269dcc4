"""Models and shapes from the command line."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

from joslim.cli.loading import imported, load_model, parse_shape
from joslim.errors import UserError
from joslim.models import MODELS


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
    imported("own:tiny")
    imported("own:solid")
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
