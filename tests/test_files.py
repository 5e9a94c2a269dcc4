"""Values of strangers' files are what they should be, and files are written whole."""

import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joslim.errors import UserError
from joslim.files import (
    json_count,
    json_name,
    json_number,
    json_rows,
    json_value,
    printable,
    read_text,
    shown,
    whole,
    write_whole,
)

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def test_what_is_right_comes_back() -> None:
    record = {"rows": [1, 2], "name": "conv1"}
    assert json_value(record, "name", "file") == "conv1"
    assert json_rows(record, "rows", "file", most=2) == [1, 2]
    assert json_name("layer1.0.conv1", "file") == "layer1.0.conv1"
    for name in ("no\u00a0break", "ab\u200ccd", "👩\u200d🔬", "全\u3000角"):
        assert json_name(name, "file") == name
    assert json_count(3, "file", 1, 3) == 3
    assert json_number(0.5, "file") == 0.5


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: json_value([], "a", "file"), r"file: \[\] is not a JSON object"),
        (lambda: json_value({}, "a", "file"), "file.a: missing"),
        (lambda: json_rows({"a": 1}, "a", "file", 3), "file.a: 1 is not a list"),
        (lambda: json_rows({"a": []}, "a", "file", 3), "file.a: 0 entries, 1 to 3 are allowed"),
        (lambda: json_name("two\nlines", "file"), "file: 'two.*lines' is not a name"),
        (lambda: json_name("\x1b[31m", "file"), "is not a name"),
        (lambda: json_name("right\u202eleft", "file"), "is not a name"),
        (lambda: json_name("line\u2028line", "file"), "is not a name"),
        (lambda: json_name("x" * 1001, "file"), "is not a name"),
        (lambda: json_count(True, "file", 0, 9), "file: True is not a whole number from 0 to 9"),
        (lambda: json_count(1.0, "file", 0, 9), "is not a whole number"),
        (lambda: json_count(4, "file", 1, 3), "file: 4 is not a whole number from 1 to 3"),
        (lambda: json_number(float("nan"), "file"), "file: nan is not a finite number"),
        (lambda: json_number(10**5000, "file"), "a number of thousands of digits"),
    ],
)
def test_what_is_wrong_is_named(read: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read()


@given(ANYTHING)
def test_anything_is_shown_on_one_short_line(value: Any) -> None:
    assert "\n" not in shown(value)
    assert len(shown(value)) < 500


def test_escape_sequences_are_shown() -> None:
    assert printable("a\x1b[31m\nb é") == "a\\x1b[31m\\nb é"


# Written whole


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


def test_a_sparse_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    tracemalloc.start()
    with pytest.raises(UserError, match=r"config\.json' is larger than 1000000000 bytes"):
        read_text(file, 10**9, "run")
    assert tracemalloc.get_traced_memory()[1] < 10**8
    tracemalloc.stop()
