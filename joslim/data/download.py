"""The official files of data sets: found under a root or downloaded, and verified before use.

Whoever reads a verified file need not check its content: it is the one that the publisher wrote.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import zlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from joslim.errors import UserError, reason
from joslim.files import whole

ROOT_VARIABLE = "JOSLIM_DATA"
TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class OfficialFile:
    """A file as its publisher provides it; `path` is its place under the root."""

    path: str
    url: str
    md5: str


@dataclass(frozen=True)
class Archive:
    """A .tar.gz as its publisher provides it, and the md5 of the members that are used."""

    file: OfficialFile
    members: Mapping[str, str]


def data_root(root: str | Path | None) -> Path:
    """Return the folder of the files: the given one, else JOSLIM_DATA, else a cache."""
    import pooch  # type: ignore[import-untyped]

    chosen = root or os.environ.get(ROOT_VARIABLE) or pooch.os_cache("joslim")
    return Path(chosen).expanduser()


def official_file(file: OfficialFile, root: Path) -> Path:
    """Return the path of a verified file, which is downloaded if it is missing."""
    path = root / file.path
    if not path.exists():
        _download(file, root)
    return verified(path, file.md5)


def archive_member(archive: Archive, name: str, root: Path) -> Path:
    """Return the path of a verified member, which is unpacked if it is missing."""
    path = root / name
    if not path.exists():
        extract(official_file(archive.file, root), list(archive.members), root)
    if not path.exists():
        raise UserError(f"data: {archive.file.path} in {root} has no {name}; fetch it again")
    return verified(path, archive.members[name])


def verified(path: Path, md5: str) -> Path:
    """Return the path of a file with this checksum, and refuse any other file."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False))
    except OSError as error:
        raise UserError(f"data: cannot read {path}: {reason(error)}") from error
    if found.hexdigest() != md5:
        raise UserError(
            f"data: {path} is not the official file (md5 {found.hexdigest()}, not {md5}): "
            "cut off or changed; delete it, and it is fetched again"
        )
    return path


def extract(archive: Path, names: list[str], root: Path) -> None:
    """Unpack the regular files with these names; each is written completely or not at all.

    The names come from joslim and not from the archive, so that nothing is written outside `root`.
    """
    try:
        with tarfile.open(archive, "r:gz") as packed:
            for entry in packed:
                path = root / entry.name
                if entry.name not in names or not entry.isreg() or path.exists():
                    continue
                content = packed.extractfile(entry)
                assert content is not None, "a regular file has content"
                path.parent.mkdir(parents=True, exist_ok=True)
                with whole(path) as beside, beside.open("wb") as file:
                    shutil.copyfileobj(content, file)
    except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError) as error:
        raise UserError(f"data: cannot unpack {archive}: {reason(error)}") from error


def _download(file: OfficialFile, root: Path) -> None:
    import pooch  # type: ignore[import-untyped]

    target = root / file.path
    pooch.get_logger().setLevel("ERROR")  # The progress bar is enough.
    try:
        with closing(_DownloadBar(target.name)) as bar:
            download = pooch.HTTPDownloader(progressbar=bar, timeout=TIMEOUT_SECONDS)
            pooch.retrieve(
                file.url, f"md5:{file.md5}", target.name, target.parent, downloader=download
            )
    except (OSError, ValueError) as error:  # The errors of `requests` are OSErrors.
        raise UserError(
            f"data-root: no {file.path} in {root}, and fetching it failed "
            f"({type(error).__name__}); put {file.url} there, or name its folder by --data-root"
        ) from error


class _DownloadBar:
    """A progress bar of rich with the interface that pooch expects."""

    def __init__(self, name: str) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        self.progress = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
        self.task = self.progress.add_task(name, total=None)
        self.progress.start()

    @property
    def total(self) -> float | None:
        return self.progress.tasks[0].total

    @total.setter
    def total(self, count: float | None) -> None:
        self.progress.update(self.task, total=count)

    def update(self, count: float) -> None:
        self.progress.advance(self.task, count)

    def reset(self) -> None:
        self.progress.reset(self.task, start=True)

    def close(self) -> None:
        self.progress.stop()
