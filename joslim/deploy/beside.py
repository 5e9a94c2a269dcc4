"""Files and folders that are written whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from joslim.errors import RunFailed, UserError


@contextmanager
def beside(path: str | Path, folder: bool) -> Iterator[Path]:
    """Inside, a place to write to, next to the path; afterwards it is the path, or it is gone."""
    target = Path(path)
    try:
        refuse_taken(target, folder)
        place = Path(tempfile.mkdtemp(prefix=".joslim-", dir=target.parent))
    except OSError as error:
        raise UserError(f"out: cannot write {str(path)!r}: {error.strerror}") from error
    try:
        yield place / target.name
        os.replace(place / target.name, target)
    except OSError as error:
        raise RunFailed(f"cannot write {str(path)!r}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def refuse_taken(target: Path, folder: bool) -> None:
    """A file may be replaced by a file. A folder never is: it may hold what is somebody's own."""
    if target.name in ("", ".."):
        raise UserError(f"out: {str(target)!r} is no name for a file or a folder")
    if target.is_dir() and (not folder or any(target.iterdir())):
        raise UserError(f"out: {str(target)!r} is a folder that is in the way; type another")
    if folder and target.exists() and not target.is_dir():
        raise UserError(f"out: {str(target)!r} is a file, a folder is needed; type another")
