"""Files that are written whole or not at all: beside their place first, then swapped in.

A link in their place is replaced, and what it points to stays as it is.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """Inside, a name to write to; afterwards what is there is the file.

    The name is one that nobody else has: others may write the same file, on other machines too.
    """
    beside = file.with_name(f".{file.stem}.{secrets.token_hex(8)}.new{file.suffix}")
    try:
        yield beside
        with beside.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)


def write_whole(file: Path, text: str) -> None:
    with whole(file) as beside:
        beside.write_text(text, encoding="utf-8")
