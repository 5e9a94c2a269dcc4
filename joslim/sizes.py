"""Sizes as people type them: 20M, 1.5G, 120KB (1000), 64KiB (1024), 2e6; 8 or 8.5ms for latency."""

from __future__ import annotations

import re
import sys
from decimal import ROUND_CEILING, Context, Decimal

from joslim.errors import UserError

FACTORS = {
    "": 1,
    "K": 1000,
    "M": 1000**2,
    "G": 1000**3,
    "T": 1000**4,
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KIB": 1024,
    "MIB": 1024**2,
    "GIB": 1024**3,
    "TIB": 1024**4,
}
NUMBER = r"(?P<number>([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,3})?)"
SIZE = re.compile(NUMBER + r" ?(?P<unit>[KMGT]?(i?B)?)", re.IGNORECASE)
MILLISECONDS = re.compile(NUMBER + r" ?(ms)?", re.IGNORECASE)
NEGATIVE = re.compile(r"-" + NUMBER + r" ?[a-z]*", re.IGNORECASE)

BYTES, TIME, COUNTED = "memory", "latency_ms", ("macs", "params")
# What to type instead of what is wrong.
EXAMPLES = {BYTES: "64KB or 64KiB", TIME: "8 or 8.5"}
EXAMPLE = "2000000, 2e6 or 2M"
# Of a number that is suggested.
DIGITS = 4


def parse_size(cost: str, text: str) -> float:
    """The number that is meant, exactly: 40.551M is 40551000, which floats would miss.

    cost: what it is a size of. Multiply-adds and parameters are no bytes, latency_ms is a time.
    """
    example = EXAMPLES.get(cost, EXAMPLE)
    given = text.strip()
    match = (MILLISECONDS if cost == TIME else SIZE).fullmatch(given)
    unit = match["unit"].upper() if match and cost != TIME else ""
    if match is None or unit not in FACTORS:
        if NEGATIVE.fullmatch(given):
            raise UserError(f"{cost}: {text!r} is not positive; type {example}")
        kind = "milliseconds" if cost == TIME else "a size"
        raise UserError(f"{cost}: {text!r} is not {kind}; type {example}")
    if unit.endswith("B") and cost in COUNTED:
        count = match["number"] + unit.rstrip("IB")
        raise UserError(f"{cost}: {text!r} is in bytes, {cost} are counted; type {count}")
    number = Decimal(match["number"]) * FACTORS[unit]
    if not 0 < number <= Decimal(sys.float_info.max) or not float(number):
        raise UserError(f"{cost}: {text!r} is not a positive finite number; type {example}")
    return float(number)


def typed(cost: str, number: float) -> str:
    """Exactly this number, as a person would type it: 20M and not 20000000.0."""
    return written(cost, Decimal(repr(float(number))))


def enough(cost: str, number: float) -> str:
    """Short, and if typed never less than the number: 123456 multiply-adds are 123.5K."""
    rounding = Context(prec=DIGITS, rounding=ROUND_CEILING)
    return written(cost, rounding.create_decimal(Decimal(float(number))))


def written(cost: str, number: Decimal) -> str:
    if cost == TIME:
        return f"{plain(number)}ms"
    prefix = next((p for p in "TGMK" if number >= FACTORS[p]), "")
    return f"{plain(number / FACTORS[prefix])}{prefix}{'B' if cost == BYTES else ''}"


def plain(number: Decimal) -> str:
    """Without an exponent, unless it is very large or small, and without zeros at the end."""
    text = f"{number:f}" if number == 0 or 1e-7 < abs(number) < 1e16 else f"{number:e}"
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
