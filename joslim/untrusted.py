"""Values and files that anybody may have written.

What a value of JSON is not is a UserError; `where` is its place in the file, for the message.
"""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joslim.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

LONGEST_NAME = 1_000


def json_value(record: Any, key: str, where: str) -> Any:
    if not isinstance(record, dict):
        raise UserError(f"{where}: {shown(record)} is not a JSON object")
    if key not in record:
        raise UserError(f"{where}.{key}: missing")
    return record[key]


def json_rows(record: Any, key: str, where: str, most: int, least: int = 1) -> list[Any]:
    rows = json_value(record, key, where)
    if not isinstance(rows, list):
        raise UserError(f"{where}.{key}: {shown(rows)} is not a list")
    if not least <= len(rows) <= most:
        raise UserError(f"{where}.{key}: {len(rows)} entries, {least} to {most} are allowed")
    return rows


def json_name(value: Any, where: str) -> str:
    """A name is printed as it is: a line break or an escape sequence has no place in it."""
    if not isinstance(value, str) or len(value) > LONGEST_NAME or not value.isprintable():
        raise UserError(f"{where}: {shown(value)} is not a name")
    return value


def printable(text: str) -> str:
    """An escape sequence is shown and not obeyed."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def json_count(value: Any, where: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UserError(f"{where}: {shown(value)} is not a whole number from {least} to {most}")
    return value


def json_number(value: Any, where: str, most: float = 1e18) -> float:
    """A finite number, whole or not: it stays what it is."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    # A comparison, and not isfinite: that one fails for integers that no float can hold.
    if not known or not -most <= value <= most:
        raise UserError(f"{where}: {shown(value)} is not a finite number")
    return value


def stored_tensors(file: Path) -> dict[str, Tensor]:
    """Of a .safetensors file. Nothing in it is executed; its faults are those of safetensors."""
    from safetensors.torch import load_file

    if file.exists() and not file.is_file():  # a pipe or a device would never end
        raise OSError(f"{str(file)!r} is not a file")
    return load_file(file)


def shown(value: Any) -> str:
    """A short repr of anything, on one line."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python prints no integer of more than 4300 digits
        return "a number of thousands of digits"
