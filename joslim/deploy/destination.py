"""The place of an export: written whole or not at all, and never over files of other origin."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from joslim import __version__
from joslim.errors import RunFailed, UserError
from joslim.files import JSON_LIMIT, checksum, moved_aside, read_json, write_whole, writing

# Lists the files that an export has written into a folder, with their checksums.
MANIFEST = "manifest.json"


@contextmanager
def destination(path: str | Path, folder: bool, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary path to write to; after the block it becomes the path, or is removed.

    An existing file or folder stays unless it is to be overwritten.
    """
    target = Path(path)
    with writing(path):
        refuse_taken(target, folder, overwrite)
        place = Path(tempfile.mkdtemp(prefix=".joslim-", dir=target.parent))
    try:
        yield place / target.name
        if folder:
            new = place / target.name
            files = {
                str(file.relative_to(new)): {"bytes": file.stat().st_size, "sha256": checksum(file)}
                for file in files_in(new)
            }
            manifest = {"made_by": f"joslim {__version__}", "files": files}
            write_whole(new / MANIFEST, json.dumps(manifest, indent=2) + "\n")
        if target.is_dir():
            aside = Path(tempfile.mkdtemp(dir=place), "old")
            with moved_aside(target, aside):
                refuse_foreign(aside, target)  # again, since an export takes minutes
                os.replace(place / target.name, target)
        else:
            os.replace(place / target.name, target)
    except OSError as error:
        raise RunFailed(f"cannot write {str(path)!r}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def refuse_taken(target: Path, folder: bool, overwrite: bool) -> None:
    """Refuse a target that cannot be written, or that exists. An empty folder may be replaced."""
    if target.name in ("", ".."):
        raise UserError(f"out: {str(target)!r} is no name for a file or a folder")
    if not target.parent.exists():
        where = shlex.quote(str(target.parent))
        raise UserError(f"out: there is no folder {where} for {target.name!r}; type mkdir {where}")
    if folder and target.is_symlink():
        raise UserError(f"out: {str(target)!r} is a link, a folder is needed; type another")
    if not target.exists() or (folder and target.is_dir() and not any(target.iterdir())):
        return
    if target.is_dir() != folder:
        is_there, needed = ("a file", "a folder") if folder else ("a folder", "a file")
        raise UserError(f"out: {str(target)!r} is {is_there}, {needed} is needed; type another")
    if folder:
        refuse_foreign(target, target)
    if not overwrite:
        raise UserError(f"out: {str(target)!r} exists; type another, or --overwrite to replace it")


def refuse_foreign(folder: Path, name: Path) -> None:
    """Refuse a folder with files that no export has written, or that were changed since.

    The message calls the folder `name`.
    """
    if not any(folder.iterdir()):
        return
    try:
        known = read_json(folder / MANIFEST, JSON_LIMIT, "out")
        known = known.get("files") if isinstance(known, dict) else None
    except UserError:
        known = None
    if not isinstance(known, dict):
        raise UserError(
            f"out: {str(name)!r} is a folder with other things in it (no {MANIFEST} of an export); "
            "type another, or remove it"
        )
    for file in files_in(folder):
        inside = str(file.relative_to(folder))
        facts = known.get(inside)
        if inside != MANIFEST and not (
            isinstance(facts, dict)
            and file.is_file()
            and not file.is_symlink()
            and file.stat().st_size == facts.get("bytes")  # a file of another size is not read
            and checksum(file) == facts.get("sha256")
        ):
            raise UserError(
                f"out: {inside!r} in {str(name)!r} is not as an export has written it; "
                "type another, or remove it"
            )


def files_in(folder: Path) -> list[Path]:
    """All files and links at any depth, and the folders that are empty."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir() or not any(path.iterdir())
    )
