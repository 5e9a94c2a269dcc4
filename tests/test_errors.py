"""Messages for users: one line, with the value received and what is allowed."""

import pytest

from joslim.errors import UserError, first_line, reason, unknown


def test_bad_input_is_a_value_error() -> None:
    assert issubclass(UserError, ValueError)


def test_a_short_list_is_shown_whole() -> None:
    error = unknown("cost", "flops", ["macs", "params"])
    assert isinstance(error, UserError)
    assert str(error) == "cost: unknown name 'flops'; allowed: macs, params"


def test_of_a_long_list_the_nearest_names_are_shown() -> None:
    names = [f"layer{stage}.{block}.conv1" for stage in range(4) for block in range(10)]
    message = str(unknown("keep", "layer3.7.convl", names))
    assert "'layer3.7.convl'" in message
    assert "nearest of 40: layer3.7.conv1, " in message
    assert message.count("layer") == 4


def test_how_long_a_short_list_may_be_is_an_argument() -> None:
    names = [f"model{number}" for number in range(20)]
    assert "nearest of 20" in str(unknown("model", "x", names))
    assert str(unknown("model", "x", names, most=20)).endswith(", ".join(names))


def test_names_may_come_from_any_iterable() -> None:
    assert "allowed: a, b" in str(unknown("field", "x", {"a": 1, "b": 2}))
    assert "allowed: a, b" in str(unknown("field", "x", iter("ab")))


@pytest.mark.parametrize("count", [0, 1, 8, 9, 100])
def test_a_message_is_one_line_whatever_was_typed(count: int) -> None:
    message = str(unknown("model", "two\nlines", [f"name{i}" for i in range(count)]))
    assert "\n" not in message
    assert "two" in message


def test_reasons_are_one_line() -> None:
    assert reason(ValueError("first\nsecond")) == "ValueError: first second"
    assert reason(EOFError()) == "EOFError"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("\n  two\nlines"), "two"),
        (MemoryError(), "MemoryError"),
        (OSError(" "), "OSError"),
    ],
)
def test_the_first_line_of_an_error(error: Exception, line: str) -> None:
    assert first_line(error) == line
