"""Sizes on the command line: 20M, 1.5G, 120KB (1000), 64KiB (1024), 2e6."""

from __future__ import annotations

import re
import sys
from decimal import Decimal

from joslim.errors import UserError
from joslim.reports.tables import format_size

__all__ = ["format_size", "parse_size"]

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
SIZE = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,3})? ?([KMGT]?(i?B)?)", re.IGNORECASE)


def parse_size(field: str, text: str) -> float:
    """The number that is meant, exactly: 40.551M is 40551000, which floats would miss."""
    match = SIZE.fullmatch(text.strip())
    suffix = match[3].upper() if match else ""
    if match is None or suffix not in FACTORS:
        raise UserError(f"{field}: {text!r} is not a size; type 2000000, 2e6, 20M, 64KB or 64KiB")
    number = Decimal(match[1] + (match[2] or "")) * FACTORS[suffix]
    if not 0 < number <= Decimal(sys.float_info.max) or not float(number):
        raise UserError(f"{field}: {text!r} is not a positive finite size; type 20M")
    return float(number)
