"""Prices as people type and read them: 20M, 120KB (1000), 64KiB (1024), 2e6, 8.5ms.

Which unit a price has, the table `COSTS` says. Counts and bytes take the prefixes K, M, G and T,
other units none: 3.2 ms.
"""

from __future__ import annotations

import re
import sys
from decimal import ROUND_CEILING, Context, Decimal

from joslim.costs import cost_info
from joslim.errors import UserError

PREFIXES = {"T": 1000**4, "G": 1000**3, "M": 1000**2, "K": 1000}
_BINARY = {"KI": 1024, "MI": 1024**2, "GI": 1024**3, "TI": 1024**4}
_FACTORS = {"": 1, **PREFIXES, **_BINARY}
_NUMBER = r"(?P<number>([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,3})?)"
_SIZE = re.compile(_NUMBER + r" ?(?P<prefix>[KMGT]i(?=B)|[KMGT]?)(?P<bytes>B?)", re.I)
_NEGATIVE = re.compile(r"-" + _NUMBER + r" ?[a-z]*", re.I)
# Significant digits of a number that is suggested.
_DIGITS = 4


def takes_prefixes(symbol: str) -> bool:
    """Whether a price with this unit symbol is written as 20M or 64 KB."""
    return symbol in ("", "B")


def parse_size(cost: str, text: str) -> float:
    """Convert a typed size to a number, exactly: 40.551M is 40551000, which floats would miss.

    The cost decides the unit. An error begins with its name: the text is no size, not positive, or
    in bytes where things are counted.
    """
    info = cost_info(cost)
    prefixed = takes_prefixes(info.symbol)
    plain = re.compile(_NUMBER + rf" ?({re.escape(info.symbol)})?", re.I)
    given = text.strip()
    match = (_SIZE if prefixed else plain).fullmatch(given)
    example = {"": "2000000, 2e6 or 2M", "B": "64KB or 64KiB"}.get(info.symbol, "8 or 8.5")
    if match is None:
        if _NEGATIVE.fullmatch(given):
            raise UserError(f"{cost}: {text!r} is not positive; type {example}")
        kind = "a size" if prefixed else f"a number of {info.unit}"
        raise UserError(f"{cost}: {text!r} is not {kind}; type {example}")
    prefix = match["prefix"].upper() if prefixed else ""
    if info.counts and match["bytes"]:
        count = match["number"] + prefix.rstrip("I")
        raise UserError(f"{cost}: {text!r} is in bytes, {cost} are counted; type {count}")
    number = Decimal(match["number"]) * _FACTORS[prefix]
    if not 0 < number <= Decimal(sys.float_info.max) or not float(number):
        raise UserError(f"{cost}: {text!r} is not a positive finite number; type {example}")
    return float(number)


def exact_size(cost: str, number: float) -> str:
    """Write exactly this number, as a person would type it: 20M and not 20000000.0."""
    return _to_type(cost, Decimal(repr(float(number))))


def sufficient_size(cost: str, number: float) -> str:
    """Write a short size that is never less than the number: 123.5K for 123456."""
    rounding = Context(prec=_DIGITS, rounding=ROUND_CEILING)
    return _to_type(cost, rounding.create_decimal(Decimal(float(number))))


def _to_type(cost: str, number: Decimal) -> str:
    symbol = cost_info(cost).symbol
    prefix = ""
    if takes_prefixes(symbol):
        prefix = next((p for p, size in PREFIXES.items() if number >= size), "")
        number /= _FACTORS[prefix]
    # Only very large and very small numbers are written with an exponent.
    text = f"{number:f}" if number == 0 or 1e-7 < abs(number) < 1e16 else f"{number:e}"
    if "." in text and "e" not in text:
        text = text.rstrip("0").rstrip(".")
    return f"{text}{prefix}{symbol}"


def format_size(cost: str, value: float) -> str:
    """Format a price for people to read: 40.6M, 205.8 KB (1000 bytes), 3.21 ms."""
    symbol = cost_info(cost).symbol
    if not takes_prefixes(symbol):
        return f"{_decimals(value)} {symbol}"
    # The number as it is printed decides: 999.99 thousand is a million.
    for prefix, size in PREFIXES.items():
        if float(f"{value / (size / 1000):.1f}") >= 1000:
            return f"{_decimals(value / size)}{' ' if symbol else ''}{prefix}{symbol}"
    number = f"{value:.0f}" if value == int(value) else _decimals(value)
    return f"{number} {symbol}".rstrip()


def _decimals(value: float) -> str:
    """Two decimals below ten, one above; a small number keeps three digits."""
    if 0 < value < 0.1:
        return f"{value:.3g}"
    return f"{value:.2f}" if float(f"{value:.2f}") < 10 else f"{value:.1f}"


def short_size(cost: str, value: float) -> str:
    """Format a price for the tick of an axis, as short as it gets: 20M, 200 KB, 3 ms."""
    symbol = cost_info(cost).symbol
    prefixes = PREFIXES if takes_prefixes(symbol) else {}
    prefix, size = next(((p, s) for p, s in prefixes.items() if abs(value) >= s), ("", 1))
    return f"{value / size:g}{' ' if symbol else ''}{prefix}{symbol}" if value else "0"
