"""Values of strangers' files: each is what it should be, or one line says where it is not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joslim.errors import UserError
from joslim.untrusted import (
    json_count,
    json_name,
    json_number,
    json_rows,
    json_value,
    printable,
    shown,
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
        (lambda: json_name("x" * 1001, "file"), "is not a name"),
        (lambda: json_count(True, "file", 0, 9), "file: True is not a whole number from 0 to 9"),
        (lambda: json_count(1.0, "file", 0, 9), "is not a whole number"),
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
