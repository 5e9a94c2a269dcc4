"""Files: bounded reading, checking of untrusted values, writing that never leaves half a file.

Anybody may have written a file that is read. A file is read only if it is a regular file within a
size limit, and a value that is not as expected is a UserError; `where` is the place of the value in
the file, for the message. A file is written beside its place and then swapped in, so that it is
there whole or not at all; a link in its place is replaced, and its target stays as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import reprlib
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import category

from joslim.errors import UserError, first_line

if TYPE_CHECKING:
    from torch import Tensor

# Size limit of a file with a front, a checkpoint's summary or measured children.
JSON_LIMIT = 64 * 10**6
LONGEST_NAME = 1_000
LARGEST_NUMBER = 1e18
STEPS_LIMIT = 10**12
# Zero-width characters that join or separate letters in many scripts.
JOINERS = "\u200c\u200d\u2060"


# Reading


def read_text(file: Path, limit: int, field: str) -> str:
    """Read a UTF-8 text file of at most `limit` bytes; messages of errors begin with the field."""
    try:
        return read_bytes(file, limit, field).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{field}: cannot read {str(file)!r}: it is no text: {error}") from error


def read_bytes(file: Path, limit: int, field: str) -> bytes:
    """Read a file of at most `limit` bytes; messages of errors begin with the field."""
    try:
        if file.exists() and not file.is_file():  # a pipe or a device would never end
            raise UserError(f"{field}: cannot read {str(file)!r}: it is not a file")
        with file.open("rb") as stream:
            # The size first: a sparse file of a terabyte takes no space, but minutes to read.
            size = os.fstat(stream.fileno()).st_size
            content = stream.read(limit + 1) if size <= limit else b""
        if max(size, len(content)) > limit:
            raise UserError(f"{field}: {str(file)!r} is larger than {limit} bytes")
        return content
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"{field}: cannot read {str(file)!r}: {why}") from error


def read_json(file: Path, limit: int, field: str) -> Any:
    """Read a JSON file. NaN and Infinity come through: the check of the value refuses them."""
    return parse_json(read_text(file, limit, field), f"{field}: {str(file)!r}")


def read_json_lines(file: Path, limit: int, field: str) -> list[dict[str, Any]]:
    """Read the objects of a JSON-lines file. A last line that a crash has cut is left out."""
    lines = read_text(file, limit, field).splitlines()
    objects = []
    for number, line in enumerate(lines, start=1):
        where = f"{field}: {str(file)!r}, line {number}"
        try:
            content = parse_json(line, where)
        except UserError:
            if number == len(lines):
                break
            raise
        objects.append(json_object(content, where))
    return objects


def parse_json(text: str, where: str) -> Any:
    """Parse JSON. Broken JSON is a UserError that begins with `where`."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise UserError(f"{where} is broken JSON: nested too deeply") from error
    except ValueError as error:
        raise UserError(f"{where} is broken JSON: {error}") from error


def stored_tensors(file: Path) -> dict[str, Tensor]:
    """Read a .safetensors file. Nothing in it is executed.

    Raises:
        OSError: The file is missing, may not be read, is no regular file, or is larger than the
            memory of this computer.
        SafetensorError: The file is damaged.
    """
    from safetensors.torch import load_file

    refuse_endless(file)
    file.open("rb").close()  # safetensors calls a file missing that may not be read
    return load_file(file)


def refuse_endless(file: Path) -> None:
    """Refuse a pipe or a device, which would never end, and a size that no memory can hold."""
    if file.exists() and not file.is_file():
        raise OSError(f"{str(file)!r} is not a file")
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system says
        return
    # A sparse file may claim any size.
    if file.exists() and (size := file.stat().st_size) > memory:
        raise OSError(f"{str(file)!r} has {size} bytes, more than the memory of this computer")


def checksum(file: Path) -> str:
    """SHA-256 of a regular file."""
    refuse_endless(file)
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# Checking


def json_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where} holds no JSON object")
    return value


def json_value(record: Any, key: str, where: str) -> Any:
    """Value of a key in a JSON object."""
    if not isinstance(record, dict):
        raise UserError(f"{where}: {shown(record)} is not a JSON object")
    if key not in record:
        raise UserError(f"{where}.{key}: missing")
    return record[key]


def json_rows(record: Any, key: str, where: str, most: int, least: int = 1) -> list[Any]:
    """List of a key in a JSON object, with `least` to `most` entries."""
    rows = json_value(record, key, where)
    if not isinstance(rows, list):
        raise UserError(f"{where}.{key}: {shown(rows)} is not a list")
    if not least <= len(rows) <= most:
        raise UserError(f"{where}.{key}: {len(rows)} entries, {least} to {most} are allowed")
    return rows


def json_name(value: Any, where: str) -> str:
    """A string that can be printed as it is: without line breaks and escape sequences."""
    if not is_name(value):
        raise UserError(f"{where}: {shown(value)} is not a name")
    return value


def is_name(value: Any) -> bool:
    """Whether a value is a short printable string.

    `str.isprintable` refuses all spaces but one, and the joiners of many scripts; names of classes
    have them.
    """
    return (
        isinstance(value, str)
        and len(value) <= LONGEST_NAME
        and all(c.isprintable() or c in JOINERS or category(c) == "Zs" for c in value)
    )


def json_count(value: Any, where: str, least: int, most: int) -> int:
    """Whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UserError(f"{where}: {shown(value)} is not a whole number from {least} to {most}")
    return value


def json_number(value: Any, where: str, most: float = LARGEST_NUMBER) -> float:
    """Finite number; an int stays an int."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    # A comparison instead of isfinite, which fails for integers that no float can hold.
    if not known or not -most <= value <= most:
        raise UserError(f"{where}: {shown(value)} is not a finite number")
    return value


def shown(value: Any) -> str:
    """Short repr of any value, on one line."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python prints no integer of more than 4300 digits
        return "a number of thousands of digits"


def printable(text: str) -> str:
    """The text with escape sequences and line breaks shown as code."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


# Writing

_RANDOM_BYTES = 8
# Bytes at the start of a file by which joslim knows its own.
HEAD = 4096


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """Yield a temporary name to write to; after the block it replaces the file.

    The name is unique, since others may write the same file, on other machines too.
    """
    beside = file.with_name(f".{file.stem}.{secrets.token_hex(_RANDOM_BYTES)}.new{file.suffix}")
    try:
        yield beside
        sync(beside)
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)


def write_tensors(tensors: dict[str, Tensor], file: Path) -> None:
    """Write a .safetensors file whose mode follows the umask, as that of every other file does."""
    from safetensors.torch import save_file

    file.open("wb").close()
    mode = file.stat().st_mode
    save_file(tensors, file)  # replaces the file by one that only its owner may read
    file.chmod(mode)


def refuse_foreign_file(file: Path, start: bytes, overwrite: bool) -> None:
    """Refuse to replace a file that joslim has not written.

    start: text within the first bytes of the files that joslim writes in this place.
    """
    if overwrite or not os.path.lexists(file):
        return
    try:
        if file.is_dir():
            return  # which cannot be replaced; the writing says so
        if file.is_file():
            with file.open("rb") as stream:
                if start in stream.read(HEAD):
                    return
    except OSError:
        pass
    raise UserError(
        f"out: {str(file)!r} exists and was not written by joslim; type another, or --overwrite "
        "(in Python overwrite=True) to replace it"
    )


@contextmanager
def writing(path: str | Path, field: str = "out") -> Iterator[None]:
    """Convert the errors of the disk in this block to a UserError that names the field and path."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"{field}: cannot write {str(path)!r}: {why}") from error


def write_whole(file: Path, text: str) -> None:
    with whole(file) as beside:
        beside.write_text(text, encoding="utf-8")


def left_over(file: Path) -> list[Path]:
    """Temporary files of this file that a killed process has left behind."""
    name = re.compile(
        rf"\.{re.escape(file.stem)}\.[0-9a-f]{{{2 * _RANDOM_BYTES}}}\.new{re.escape(file.suffix)}"
    )
    try:
        return [entry for entry in file.parent.iterdir() if name.fullmatch(entry.name)]
    except OSError:
        return []


@contextmanager
def moved_aside(folder: Path, aside: Path) -> Iterator[None]:
    """Move a folder away so that another can take its place; move it back if that fails."""
    os.rename(folder, aside)
    try:
        yield
    except BaseException:
        os.rename(aside, folder)
        raise


def remove(path: Path) -> None:
    """Remove a file, a link or a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def sync(file: Path) -> None:
    """Wait until the file is on the disk."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Convert the exceptions that torch and safetensors raise for a full disk to OSError."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, RuntimeError, OSError) as error:
        # Torch keeps writing and reports a later error; the first cause says more.
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__context__
        line = getattr(cause, "strerror", None) or first_line(cause or error)
        raise OSError(f"cannot write {str(path)!r}: {line}") from error


def unshared(weights: dict[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Tensors that share memory, once each: safetensors refuses to write them twice."""
    seen: set[tuple[int, int]] = set()
    kept = []
    for name, tensor in weights.items():
        place = (tensor.data_ptr(), tensor.numel())
        if tensor.numel() == 0 or place not in seen:
            seen.add(place)
            kept.append((name, tensor))
    return kept
