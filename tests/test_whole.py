"""Files that are written whole or not at all."""

import os
from pathlib import Path

import pytest

from joslim.whole import whole, write_whole


def test_what_was_written_is_the_file(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    for text in ("first", "second, ü"):
        write_whole(file, text)
        assert file.read_text(encoding="utf-8") == text
        assert [*tmp_path.iterdir()] == [file]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file.json"
    write_whole(file, "old")

    def crash(*arguments: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(OSError, match="no space"):
        write_whole(file, "new")
    assert file.read_text() == "old"
    assert [*tmp_path.iterdir()] == [file]


def test_an_error_inside_leaves_what_was_there(tmp_path: Path) -> None:
    def write_half() -> None:
        with whole(tmp_path / "picture.svg") as beside:
            assert beside.suffix == ".svg", "which tells matplotlib what to write"
            beside.write_text("<svg")
            raise ValueError("half of it")

    with pytest.raises(ValueError, match="half"):
        write_half()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_replaced_and_not_followed(tmp_path: Path, there: bool) -> None:
    (tmp_path / "folder").mkdir()
    victim, link = tmp_path / "victim", tmp_path / "folder" / "front.png"
    if there:
        victim.write_text("mine")
    link.symlink_to(victim)
    write_whole(link, "ours")
    assert not link.is_symlink()
    assert victim.exists() == there
    assert not there or victim.read_text() == "mine"


def test_everybody_may_read_it_who_might_before(tmp_path: Path) -> None:
    """A temporary file of the system would be for its owner alone."""
    ordinary, file = tmp_path / "ordinary", tmp_path / "file"
    ordinary.write_text("")
    write_whole(file, "")
    assert file.stat().st_mode == ordinary.stat().st_mode
