"""Written whole or not at all."""

import os
from pathlib import Path

import pytest

from joslim.deploy.beside import beside
from joslim.errors import RunFailed, UserError


def test_a_file_takes_its_place_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    with beside(tmp_path / "a.txt", folder=False, overwrite=True) as new:
        new.write_text("new")
        assert (tmp_path / "a.txt").read_text() == "old"
    assert (tmp_path / "a.txt").read_text() == "new"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("exists", [False, True])
def test_a_folder_takes_its_place_at_the_end(exists: bool, tmp_path: Path) -> None:
    if exists:
        (tmp_path / "a").mkdir()
    with beside(f"{tmp_path}/a/", folder=True) as new:
        new.mkdir()
        (new / "b").write_text("b")
    assert (tmp_path / "a" / "b").read_text() == "b"
    assert len(list(tmp_path.iterdir())) == 1


def test_nothing_is_left_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), beside(tmp_path / "a", folder=False) as new:
        raise ZeroDivisionError(new.write_text("half"))
    with pytest.raises(RunFailed, match="No space left"), beside(tmp_path / "a", False):
        raise OSError(28, "No space left on device")
    assert not list(tmp_path.iterdir())


# What exports leave: children, one child, the whole network.
EXPORTS = [
    {"child-01.onnx": "", "child-02.onnx": "", "child-100.onnx": ""},
    {"config.json": '{"made_by": "joslim"}', "model.safetensors": "", "graph.pt2": ""},
    {"config.json": '{"joslim": "0.2"}', "front.json": "", "samples.safetensors": ""},
]
OWN = [
    {"child-01.onnx": "", "notes.txt": ""},
    {"child-01.onnx.bak": ""},
    {"config.json": '{"made_by": "joslim"}', "mine.txt": ""},
    {"config.json": '{"joslim": "0.2"}', "metrics.jsonl": ""},
    {"config.json": '{"architectures": ["Bert"]}', "model.safetensors": ""},
    {"config.json": "[]"},
    {"config.json": "{"},
]


def filled(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("files", EXPORTS)
def test_an_earlier_export_is_replaced_if_asked_for(files: dict[str, str], tmp_path: Path) -> None:
    folder = filled(tmp_path / "old", files)
    with pytest.raises(UserError, match="exists; type another, or --overwrite to replace it"):
        enter(folder, folder=True)
    with beside(folder, folder=True, overwrite=True) as new:
        new.mkdir()
        (new / "b").write_text("b")
        assert sorted(file.name for file in folder.iterdir()) == sorted(files)
    assert [file.name for file in folder.iterdir()] == ["b"]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("files", OWN)
def test_what_is_somebodys_own_is_never_replaced(files: dict[str, str], tmp_path: Path) -> None:
    folder = filled(tmp_path / "own", files)
    for overwrite in (False, True):
        with pytest.raises(UserError, match="is a folder with other things in it; type another"):
            enter(folder, folder=True, overwrite=overwrite)
    assert len(list(folder.iterdir())) == len(files)


def test_a_failure_leaves_an_earlier_export_alone(tmp_path: Path) -> None:
    folder = filled(tmp_path / "old", EXPORTS[0])
    with pytest.raises(ZeroDivisionError), beside(folder, folder=True, overwrite=True):
        raise ZeroDivisionError
    assert len(list(folder.iterdir())) == 3


def test_a_swap_that_fails_leaves_an_earlier_export_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, calls, replace = filled(tmp_path / "old", EXPORTS[0]), [], os.replace

    def replace_but_the_second(one: Path, other: Path) -> None:
        calls.append(other)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        replace(one, other)

    monkeypatch.setattr(os, "replace", replace_but_the_second)

    def export() -> None:
        with beside(folder, folder=True, overwrite=True) as new:
            new.mkdir()

    with pytest.raises(RunFailed, match=r"cannot write '.*old': No space left"):
        export()
    assert len(list(folder.iterdir())) == 3
    assert [*tmp_path.iterdir()] == [folder]


def test_a_file_stays_unless_it_is_to_be_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_text("old")
    with pytest.raises(UserError, match="exists; type another, or --overwrite to replace it"):
        enter(tmp_path / "a.onnx", folder=False)
    assert (tmp_path / "a.onnx").read_text() == "old"


def enter(path: Path, folder: bool, overwrite: bool = False) -> None:
    with beside(path, folder, overwrite):
        raise AssertionError("it is refused before that")


def test_places_that_are_taken(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "own").write_text("somebody's own")
    (tmp_path / "file").write_text("")
    for path, folder, message in (
        ("full", True, "is a folder with other things in it"),
        ("full", False, "is a folder, a file is needed"),
        ("file", True, "is a file, a folder is needed"),
        ("none/a", False, "there is no folder .*/none for 'a'; type mkdir .*/none$"),
        ("file/a", False, "Not a directory"),
        ("..", True, "is no name"),
        ("a" * 300, False, "File name too long"),
    ):
        with pytest.raises(UserError, match=message):
            enter(tmp_path / path, folder)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "full"]
