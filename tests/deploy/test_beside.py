"""Written whole or not at all."""

from pathlib import Path

import pytest

from joslim.deploy.beside import beside
from joslim.errors import RunFailed, UserError


def test_a_file_takes_its_place_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    with beside(tmp_path / "a.txt", folder=False) as new:
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


def test_places_that_are_taken(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "own").write_text("somebody's own")
    (tmp_path / "file").write_text("")
    for path, folder, message in (
        ("full", True, "is a folder that is in the way"),
        ("full", False, "is a folder that is in the way"),
        ("file", True, "is a file, a folder is needed"),
        ("none/a", False, "No such file"),
        ("file/a", False, "Not a directory"),
        ("..", True, "is no name"),
        ("a" * 300, False, "File name too long"),
    ):
        with pytest.raises(UserError, match=message), beside(tmp_path / path, folder):
            pass
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "full"]
