"""Files and folders that are written whole or not at all, and never over what is in the way."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from joslim.deploy.formats import GRAPH
from joslim.errors import RunFailed, UserError
from joslim.runs.checkpoint import MODEL
from joslim.runs.folder import CHECKPOINT, CONFIG, FRONT, SAMPLES, RunFolder
from joslim.runs.opening import is_child, is_run

# What exports put into a folder: children, the parts of one child, those of the whole network.
CHILDREN = re.compile(r"child-\d{2,}(\.onnx|\.pt2)?")
PARTS = (CONFIG, MODEL, GRAPH, CHECKPOINT, FRONT, SAMPLES)


@contextmanager
def beside(path: str | Path, folder: bool, overwrite: bool = False) -> Iterator[Path]:
    """Inside, a place to write to, next to the path; afterwards it is the path, or it is gone.

    What is there already, a file or a folder, stays unless it is to be overwritten.
    """
    target = Path(path)
    try:
        refuse_taken(target, folder, overwrite)
        place = Path(tempfile.mkdtemp(prefix=".joslim-", dir=target.parent))
    except OSError as error:
        raise UserError(f"out: cannot write {str(path)!r}: {error.strerror}") from error
    try:
        yield place / target.name
        swap_in(place / target.name, target, Path(tempfile.mkdtemp(dir=place), "old"))
    except OSError as error:
        raise RunFailed(f"cannot write {str(path)!r}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def swap_in(new: Path, target: Path, old: Path) -> None:
    """A folder cannot take the place of a full one: that goes aside, and comes back on failure."""
    if not target.is_dir():
        os.replace(new, target)
        return
    os.replace(target, old)
    try:
        os.replace(new, target)
    except BaseException:
        os.replace(old, target)
        raise


def refuse_taken(target: Path, folder: bool, overwrite: bool) -> None:
    """An empty folder is not in the way of a folder."""
    if target.name in ("", ".."):
        raise UserError(f"out: {str(target)!r} is no name for a file or a folder")
    if not target.parent.exists():
        where = shlex.quote(str(target.parent))
        raise UserError(f"out: there is no folder {where} for {target.name!r}; type mkdir {where}")
    if not target.exists() or (folder and target.is_dir() and not any(target.iterdir())):
        return
    if target.is_dir() != folder:
        is_there, needed = ("a file", "a folder") if folder else ("a folder", "a file")
        raise UserError(f"out: {str(target)!r} is {is_there}, {needed} is needed; type another")
    if folder and not is_made_by_export(target):
        raise UserError(f"out: {str(target)!r} is a folder with other things in it; type another")
    if not overwrite:
        raise UserError(f"out: {str(target)!r} exists; type another, or --overwrite to replace it")


def is_made_by_export(folder: Path) -> bool:
    """Nothing is in there but what exports make: the rest would be somebody's own."""
    names = [entry.name for entry in folder.iterdir()]
    if CONFIG in names:
        return {*names} <= {*PARTS} and is_signed(folder)
    return all(CHILDREN.fullmatch(name) for name in names)


def is_signed(folder: Path) -> bool:
    """Other programs have files of these names too."""
    try:
        facts = RunFolder(folder).read(CONFIG)
    except UserError:
        return False
    return is_run(facts) or is_child(facts)
