"""Everything that joslim writes, given in place of something else: one line, and what opens it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import joslim
from joslim.deploy.children import export
from joslim.errors import UserError
from joslim.runs.opening import facts_of_child, facts_of_run
from joslim.runs.run import Run


@pytest.fixture(scope="module")
def child(finished: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("children") / "child"
    export(joslim.load(finished.path), finished.front[0], path)
    return path


def refusal(opening: Callable[[Path], object], path: Path) -> str:
    with pytest.raises(UserError) as refused:
        opening(path)
    line = str(refused.value)
    assert "\n" not in line
    assert str(path) in line
    return line.replace(str(path), "PATH")


def test_what_is_right_is_opened(finished: Run, child: Path) -> None:
    assert facts_of_run(finished.path) == json.loads((finished.path / "config.json").read_text())
    assert facts_of_child(child) == json.loads((child / "config.json").read_text())


def test_a_child_is_not_a_run(finished: Run, child: Path) -> None:
    line = "run: 'PATH' is an exported child; joslim.load_child('PATH') opens it"
    assert refusal(joslim.load, child) == line
    assert refusal(lambda path: joslim.export(path, finished.front[0], "x"), child) == line


def test_a_run_is_not_a_child(finished: Run) -> None:
    line = "child: 'PATH' is a run; joslim.load('PATH') opens it, "
    assert refusal(joslim.load_child, finished.path) == (
        f"{line}joslim export PATH -o NAME cuts one out"
    )


@pytest.mark.parametrize(
    ("name", "opener"),
    [("child.onnx", "onnxruntime.InferenceSession"), ("child.pt2", "torch.export.load")],
)
def test_a_child_in_one_file(name: str, opener: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"anything")
    what = f"'PATH' is an exported child, which {opener} opens"
    assert refusal(joslim.load, tmp_path / name).startswith(f"run: {what}; a run is a folder")
    assert refusal(joslim.load_child, tmp_path / name).startswith(f"child: {what}; a folder is")


def test_a_file_of_a_run(finished: Run) -> None:
    file = finished.path / "front.json"
    assert refusal(joslim.load, file).startswith("run: 'PATH' is a file; a run is a folder")
    assert refusal(joslim.load_child, file).startswith(
        "child: 'PATH' is a file; a folder is needed"
    )


def test_nothing_there(tmp_path: Path) -> None:
    assert "run: 'PATH' does not exist; joslim train" in refusal(joslim.load, tmp_path / "no")
    line = refusal(joslim.load_child, tmp_path / "no")
    assert line == "child: 'PATH' does not exist; joslim export RUN -o NAME makes one"


def test_an_empty_folder(tmp_path: Path) -> None:
    assert "run: 'PATH' has no config.json" in refusal(joslim.load, tmp_path)
    line = "child: 'PATH' is no exported child: it has no config.json; joslim export RUN"
    assert refusal(joslim.load_child, tmp_path).startswith(line)


@pytest.mark.parametrize("facts", [{}, {"made_by": "others"}, {"made_by": 3}, {"format": 1}])
def test_a_folder_of_another_program(facts: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(facts))
    assert refusal(joslim.load, tmp_path).endswith("its config.json is not joslim's")
    line = "child: 'PATH' is no exported child: its config.json is not joslim's"
    assert refusal(joslim.load_child, tmp_path).startswith(line)


@pytest.mark.parametrize("opening", [joslim.load, joslim.load_child])
def test_a_name_that_no_file_can_have(opening: Callable[[Path], object]) -> None:
    assert refusal(opening, Path("x" * 5000)).startswith("path: 'PATH' cannot be read: ")
