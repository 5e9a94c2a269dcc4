"""Written whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from joslim.deploy.destination import destination
from joslim.errors import RunFailed, UserError


def test_a_file_takes_its_place_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    with destination(tmp_path / "a.txt", folder=False, overwrite=True) as new:
        new.write_text("new")
        assert (tmp_path / "a.txt").read_text() == "old"
    assert (tmp_path / "a.txt").read_text() == "new"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("exists", [False, True])
def test_a_folder_takes_its_place_at_the_end(exists: bool, tmp_path: Path) -> None:
    if exists:
        (tmp_path / "a").mkdir()
    with destination(f"{tmp_path}/a/", folder=True) as new:
        new.mkdir()
        (new / "b").write_text("b")
    assert (tmp_path / "a" / "b").read_text() == "b"
    assert len(list(tmp_path.iterdir())) == 1


def test_nothing_is_left_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), destination(tmp_path / "a", folder=False) as new:
        raise ZeroDivisionError(new.write_text("half"))
    with pytest.raises(RunFailed, match="No space left"), destination(tmp_path / "a", False):
        raise OSError(28, "No space left on device")
    assert not list(tmp_path.iterdir())


def exported(folder: Path, *names: str) -> Path:
    """A folder as an export leaves it."""
    with destination(folder, folder=True) as new:
        for name in names or ("child-01.onnx", "child-02/config.json"):
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).write_text(name)
    return folder


def content_of(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() and path.stat().st_size < 10**6 else None


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): content_of(path) for path in folder.rglob("*")}


def test_an_earlier_export_is_replaced_if_asked_for(tmp_path: Path) -> None:
    folder = exported(tmp_path / "old")
    before = contents(folder)
    with pytest.raises(UserError, match="exists; type another, or --overwrite to replace it"):
        enter(folder, folder=True)
    with destination(folder, folder=True, overwrite=True) as new:
        new.mkdir()
        (new / "b").write_text("b")
        assert contents(folder) == before
    assert sorted(contents(folder)) == ["b", "manifest.json"]
    assert len(list(tmp_path.iterdir())) == 1


def add_file(folder: Path) -> None:
    (folder / "child-02" / "notes.txt").write_text("somebody's own")


def add_child(folder: Path) -> None:
    (folder / "child-03").mkdir()
    (folder / "child-03" / "photo.jpg").write_text("of somebody's child")


def add_empty_folder(folder: Path) -> None:
    (folder / "child-02" / "kept").mkdir()


def add_link(folder: Path) -> None:
    (folder / "child-03").symlink_to(folder.parent)


def add_pipe(folder: Path) -> None:
    os.mkfifo(folder / "child-03")


def edit(folder: Path) -> None:
    (folder / "child-02" / "config.json").write_text("edited")


def put_a_link_in_its_place(folder: Path) -> None:
    (folder / "child-01.onnx").rename(folder.parent / "elsewhere")
    (folder / "child-01.onnx").symlink_to(folder.parent / "elsewhere")


def add_a_terabyte(folder: Path) -> None:
    (folder / "child-03").touch()
    os.truncate(folder / "child-03", 2**40)


def grow(folder: Path) -> None:
    os.truncate(folder / "child-01.onnx", 2**40)


OWN = (
    add_file,
    add_a_terabyte,
    grow,
    add_child,
    add_empty_folder,
    add_link,
    add_pipe,
    edit,
    put_a_link_in_its_place,
)


@pytest.mark.parametrize("change", OWN)
def test_what_no_export_has_written_is_never_replaced(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    folder = exported(tmp_path / "own")
    change(folder)
    before = contents(folder)
    for overwrite in (False, True):
        with pytest.raises(UserError, match="is not as an export has written it; type another"):
            enter(folder, folder=True, overwrite=overwrite)
    assert contents(folder) == before


@pytest.mark.parametrize("change", OWN)
def test_nor_what_came_during_the_export(change: Callable[[Path], None], tmp_path: Path) -> None:
    folder = exported(tmp_path / "own")

    seen: list[dict[str, bytes | None]] = []

    def export() -> None:
        with destination(folder, folder=True, overwrite=True) as new:
            new.mkdir()
            change(folder)
            seen.append(contents(folder))

    with pytest.raises(UserError, match="is not as an export has written it; type another"):
        export()
    assert seen == [contents(folder)]
    assert not [*tmp_path.glob(".joslim-*")]


@pytest.mark.parametrize(
    "files",
    [
        {"child-01.onnx": ""},
        {"config.json": '{"made_by": "joslim"}', "model.safetensors": ""},
        {"config.json": '{"joslim": "0.2", "format": 4}', "front.json": ""},
        {"manifest.json": "{"},
        {"manifest.json": "[]"},
        {"manifest.json": '{"files": ["child-01.onnx"]}', "child-01.onnx": ""},
    ],
)
def test_a_folder_without_a_manifest_of_ours_is_never_replaced(
    files: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    with pytest.raises(UserError, match="is a folder with other things in it"):
        enter(folder, folder=True, overwrite=True)
    assert len(list(folder.iterdir())) == len(files)


@pytest.mark.parametrize("there", [True, False])
def test_a_link_in_place_of_a_folder_is_refused(there: bool, tmp_path: Path) -> None:
    if there:
        (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    with pytest.raises(UserError, match="is a link, a folder is needed; type another"):
        enter(tmp_path / "link", folder=True, overwrite=True)


def test_a_failure_leaves_an_earlier_export_alone(tmp_path: Path) -> None:
    folder = exported(tmp_path / "old")
    before = contents(folder)
    with pytest.raises(ZeroDivisionError), destination(folder, folder=True, overwrite=True):
        raise ZeroDivisionError
    assert contents(folder) == before


def test_a_swap_that_fails_leaves_an_earlier_export_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, calls, replace = exported(tmp_path / "old"), [], os.replace
    before = contents(folder)

    def replace_but_the_second(one: Path, other: Path) -> None:
        calls.append(other)
        if len(calls) == 2:  # the manifest, then the new folder in the place of the old one
            raise OSError(28, "No space left on device")
        replace(one, other)

    monkeypatch.setattr(os, "replace", replace_but_the_second)

    def export() -> None:
        with destination(folder, folder=True, overwrite=True) as new:
            new.mkdir()

    with pytest.raises(RunFailed, match=r"cannot write '.*old': No space left"):
        export()
    assert contents(folder) == before
    assert [*tmp_path.iterdir()] == [folder]


def test_a_file_stays_unless_it_is_to_be_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_text("old")
    with pytest.raises(UserError, match="exists; type another, or --overwrite to replace it"):
        enter(tmp_path / "a.onnx", folder=False)
    assert (tmp_path / "a.onnx").read_text() == "old"


def enter(path: Path, folder: bool, overwrite: bool = False) -> None:
    with destination(path, folder, overwrite):
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
