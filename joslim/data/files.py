"""Official files of data sets: found under a root, or fetched; verified before they are read."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from joslim.errors import UserError
from joslim.whole import whole

ROOT_VARIABLE = "JOSLIM_DATA"
SECONDS_WITHOUT_ANSWER = 30

# What the standard library raises for files that are cut off or are something else.
BROKEN = (OSError, EOFError, zlib.error, tarfile.TarError, ValueError)


@dataclass(frozen=True)
class OfficialFile:
    """One file as its publisher ships it; `path` is where it lies under the root."""

    path: str
    url: str
    md5: str


@dataclass(frozen=True)
class Archive:
    """A .tar.gz as its publisher ships it, and the md5 of those of its files that are wanted."""

    file: OfficialFile
    members: Mapping[str, str]


def data_root(root: str | Path | None) -> Path:
    """The folder that holds or receives the files: as given, else JOSLIM_DATA, else a cache."""
    import pooch  # type: ignore[import-untyped]

    chosen = root or os.environ.get(ROOT_VARIABLE) or pooch.os_cache("joslim")
    return Path(chosen).expanduser()


def official_file(file: OfficialFile, root: Path) -> Path:
    """Its path, after it was fetched if it is not there, and verified."""
    path = root / file.path
    if not path.exists():
        fetch(file, root)
    return verified(path, file.md5)


def member(archive: Archive, name: str, root: Path) -> Path:
    """A file of an archive: unpacked earlier, or now."""
    path = root / name
    if not path.exists():
        extract(official_file(archive.file, root), list(archive.members), root)
    if not path.exists():
        raise UserError(f"data: {archive.file.path} in {root} has no {name}; fetch it again")
    return verified(path, archive.members[name])


def verified(path: Path, md5: str) -> Path:
    try:
        with path.open("rb") as file:
            found = md5_of(file)
    except OSError as error:
        raise UserError(f"data: cannot read {path}: {one_line(error)}") from error
    if found != md5:
        raise UserError(
            f"data: {path} is not the official file (md5 {found}, not {md5}): cut off or changed; "
            "delete it, and it is fetched again"
        )
    return path


def md5_of(file: IO[bytes]) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def extract(archive: Path, names: list[str], root: Path) -> None:
    """Unpacks those names that are regular files of the archive, each whole or not at all.

    Names are ours and not the archive's, so that nothing is written outside the root.
    """
    try:
        with tarfile.open(archive, "r:gz") as packed:
            for entry in packed:
                if entry.name in names and entry.isreg() and not (root / entry.name).exists():
                    content = packed.extractfile(entry)
                    assert content is not None, "a regular file has content"
                    copy_whole(content, root / entry.name)
    except BROKEN as error:
        raise UserError(f"data: cannot unpack {archive}: {one_line(error)}") from error


def copy_whole(content: IO[bytes], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as beside, beside.open("wb") as file:
        shutil.copyfileobj(content, file)


def fetch(file: OfficialFile, root: Path) -> None:
    """Downloads it to its place under the root."""
    import pooch  # type: ignore[import-untyped]

    target = root / file.path
    pooch.get_logger().setLevel("ERROR")  # The bar says it all.
    try:
        with DownloadBar(target.name) as bar:
            download = pooch.HTTPDownloader(progressbar=bar, timeout=SECONDS_WITHOUT_ANSWER)
            pooch.retrieve(
                file.url, f"md5:{file.md5}", target.name, target.parent, downloader=download
            )
    except (OSError, ValueError) as error:  # The errors of `requests` are OSErrors.
        raise UserError(
            f"data-root: no {file.path} in {root}, and fetching it failed "
            f"({type(error).__name__}); put {file.url} there, or name its folder by --data-root"
        ) from error


class DownloadBar:
    """A progress bar of rich with the four methods that pooch calls."""

    def __init__(self, name: str) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        self.progress = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
        self.task = self.progress.add_task(name, total=None)

    def __enter__(self) -> DownloadBar:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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


def one_line(error: BaseException) -> str:
    """The kind of an error, and the first line of what it says."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
