"""Sizes: what people type, and what is printed for them."""

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joslim.errors import UserError
from joslim.units import exact_size, format_size, parse_size, sufficient_size


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("20M", 20e6),
        ("1.5G", 1.5e9),
        ("300K", 300e3),
        ("300k", 300e3),
        ("2T", 2e12),
        ("2e6", 2e6),
        ("2.5e-1", 0.25),
        ("2E6", 2e6),
        ("20000000", 2e7),
        ("3", 3),
        ("3.", 3),
        (".5M", 5e5),
        (" 20M ", 2e7),
        ("40.551M", 40551000),
        ("1.001K", 1001),
    ],
)
@pytest.mark.parametrize("cost", ["macs", "params", "memory", "joules"])
def test_sizes(text: str, value: float, cost: str) -> None:
    assert parse_size(cost, text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("120KB", 120e3),
        ("64KiB", 65536),
        ("64kib", 65536),
        ("1MB", 1e6),
        ("1MiB", 2**20),
        ("0.5GB", 5e8),
        ("0.5GiB", 2**29),
        ("512B", 512),
        ("205.8 KB", 205800),
    ],
)
def test_bytes(text: str, value: float) -> None:
    assert parse_size("memory", text) == parse_size("own", text) == value
    for cost in ("macs", "params"):
        with pytest.raises(UserError, match=f"^{cost}: '{text}' is in bytes, .*; type [.0-9]+.?$"):
            parse_size(cost, text)


@pytest.mark.parametrize(("text", "value"), [("8", 8), ("8.5", 8.5), ("8.5ms", 8.5), ("8 MS", 8)])
def test_milliseconds(text: str, value: float) -> None:
    assert parse_size("latency_ms", text) == value


@pytest.mark.parametrize("text", ["8s", "8K", "8KB", "8us", "ms", "", "nan", "1e", "fast"])
def test_what_is_no_latency(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_size("latency_ms", text)
    assert str(caught.value) == f"latency_ms: {text!r} is not a number of ms; type 8 or 8.5"


@given(st.integers(1, 10**9), st.sampled_from([("K", 3), ("M", 6), ("G", 9), ("MB", 6)]))
def test_decimal_sizes_are_exact(number: int, suffix: tuple[str, int]) -> None:
    """A budget that is typed as it was printed must fit, to the last unit."""
    name, digits = suffix
    whole, rest = divmod(number, 10**digits)
    assert parse_size("memory", f"{whole}.{rest:0{digits}}{name}") == number


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "M", "KiB", "x", "20X", "20MM", "20iB", "20Mi", "20 M B", "2O", "20%", "1,5M"),
        *("+20M", "--5", "nan", "inf", "-inf", "Infinity", "1e", "e6", "1e6e6", "0x10", "-"),
        *("1_000", "20M\n5", "²", "٣", "1e9999", "1e999999999"),
    ],
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"memory: {text!r} is not a size; type ")) as e:
        parse_size("memory", text)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("cost", ["macs", "memory", "latency_ms"])
@pytest.mark.parametrize("text", ["-3", "-20M", "-0.5 KB", "-8ms", "-2e6"])
def test_what_is_below_zero(cost: str, text: str) -> None:
    with pytest.raises(UserError, match=f"^{cost}: '{text}' is not positive; type [1-9]"):
        parse_size(cost, text)


@pytest.mark.parametrize("text", ["0", "0M", "0.000K", "1e400", "1e308K", "1e-400", "9" * 400])
def test_sizes_that_no_number_holds(text: str) -> None:
    with pytest.raises(UserError, match="is not a positive finite number; type 2000000"):
        parse_size("macs", text)


COSTS = ["macs", "params", "memory", "latency_ms", "joules"]


@given(st.text(max_size=12), st.sampled_from(COSTS))
def test_whatever_is_typed(text: str, cost: str) -> None:
    with contextlib.suppress(UserError):
        assert 0 < parse_size(cost, text) < float("inf")


@pytest.mark.parametrize(
    ("cost", "value", "exact", "short"),
    [
        ("macs", 4_055_240, "4.05524M", "4.056M"),
        ("macs", 999_999, "999.999K", "1M"),
        ("macs", 123_456, "123.456K", "123.5K"),
        ("macs", 2e7, "20M", "20M"),
        ("params", 950, "950", "950"),
        ("memory", 65536, "65.536KB", "65.54KB"),
        ("memory", 512, "512B", "512B"),
        ("latency_ms", 1.23456, "1.23456ms", "1.235ms"),
        ("latency_ms", 3.0, "3ms", "3ms"),
        ("latency_ms", 12345.6, "12345.6ms", "12350ms"),
        ("joules", 0, "0", "0"),
        ("joules", 1e-9, "1e-9", "1.001e-9"),
    ],
)
def test_numbers_to_type(cost: str, value: float, exact: str, short: str) -> None:
    assert (exact_size(cost, value), sufficient_size(cost, value)) == (exact, short)


@given(st.floats(1e-6, 1e18), st.sampled_from(COSTS))
def test_what_is_told_can_be_typed(value: float, cost: str) -> None:
    assert parse_size(cost, exact_size(cost, value)) == value
    assert value <= parse_size(cost, sufficient_size(cost, value)) <= value * 1.0011


@pytest.mark.parametrize(
    ("cost", "value", "text"),
    [
        ("macs", 40551000, "40.6M"),
        ("macs", 4055240, "4.06M"),
        ("macs", 300774272, "300.8M"),
        ("macs", 1.5e9, "1.50G"),
        ("macs", 2e12, "2.00T"),
        ("params", 950, "950"),
        ("params", 1000, "1.00K"),
        ("params", 999_960, "1.00M"),
        ("params", 999_940, "999.9K"),
        ("params", 9_996, "10.0K"),
        ("params", 0, "0"),
        ("memory", 205824, "205.8 KB"),
        ("memory", 512, "512 B"),
        ("memory", 6025000, "6.03 MB"),
        ("latency_ms", 3.2104, "3.21 ms"),
        ("latency", 12.34, "12.3 ms"),
        ("latency_ms", 1234.5, "1234.5 ms"),
        ("latency_ms", 0.01234, "0.0123 ms"),
        ("joules", 2.5, "2.50"),
        ("joules", 2500, "2.50K"),
    ],
)
def test_printed_sizes(cost: str, value: float, text: str) -> None:
    assert format_size(cost, value) == text


@given(st.floats(1, 1e14), st.sampled_from(["macs", "memory", "latency_ms"]))
def test_what_is_printed_can_be_typed(value: float, cost: str) -> None:
    assert parse_size(cost, format_size(cost, value)) == pytest.approx(value, rel=0.0051)
