"""`joslim demo-page`: a web page on which a bundle runs in the browser.

The page is a folder of static files that any web server can serve: the bundle, the scripts in
live/, and onnxruntime-web from its npm package, which is no part of joslim.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from pathlib import Path

from joslim.data.download import data_root
from joslim.deploy.bundle import BundleCheck, Progress, export_bundle
from joslim.deploy.destination import destination
from joslim.errors import UserError
from joslim.files import whole
from joslim.results.page import content
from joslim.runs.run import Run

HERE = Path(__file__).parent / "live"
# The page has the colours of the page of a run.
STATIC = (
    *(HERE / name for name in ("index.html", "page.css", "bundle.js", "page.js")),
    Path(content.__file__).parent / "colours.css",
)
BUNDLE = "net.joslim"

VERSION = "1.30.0"
ARCHIVE = f"onnxruntime-web-{VERSION}.tgz"
SHA256 = "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71"
# The build for the processor; the files for GPUs are twice as large.
RUNTIME = ("ort.wasm.min.js", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
FILE_LIMIT = 128 * 10**6
NPM_SECONDS = 600
GIVE_IT = "type --onnxruntime-web PATH, its folder or .tgz file"


def write_demo_page(
    run: Run,
    path: str | Path,
    package: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    int8: bool = False,
) -> BundleCheck:
    """Write a folder with a page that runs all children of the front in a browser.

    Args:
        run: A run.
        path: The folder.
        package: The npm package onnxruntime-web, as a folder or a .tgz file. By default npm
            downloads it once into the cache of joslim.
        overwrite: Replace an earlier page.
        progress: Called with the number of children that are ready, and that of all.
        int8: Store the shared weights in 8 bits, so that visitors download less.

    Raises:
        UserError: The folder exists, or onnxruntime-web cannot be had.
        RunFailed: A child in the browser's file computes something else than the network.
    """
    with destination(path, folder=True, overwrite=overwrite) as new:
        new.mkdir()
        source = Path(package).expanduser() if package is not None else downloaded()
        copy_runtime(source, new / "ort")
        for file in STATIC:
            shutil.copyfile(file, new / file.name)
        return export_bundle(run, new / BUNDLE, progress=progress, int8=int8)


def downloaded() -> Path:
    """Return the npm package in the cache; npm downloads it if it is missing."""
    archive = data_root(None) / ARCHIVE
    if not archive.is_file():
        npm = shutil.which("npm")
        if npm is None:
            raise UserError(
                f"onnxruntime-web: npm is needed to download it and is not installed; {GIVE_IT}"
            )
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            command = [npm, "pack", f"onnxruntime-web@{VERSION}", "--ignore-scripts", "--silent"]
            try:
                result = subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, timeout=NPM_SECONDS
                )
                failed = result.returncode != 0 or not Path(folder, ARCHIVE).is_file()
            except (OSError, subprocess.TimeoutExpired):
                failed = True
            if failed:
                raise UserError(
                    f"onnxruntime-web: npm pack onnxruntime-web@{VERSION} failed; is there a "
                    f"network? Else {GIVE_IT}"
                )
            with whole(archive) as beside:
                shutil.copyfile(Path(folder, ARCHIVE), beside)
    with archive.open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != SHA256:
            raise UserError(
                f"onnxruntime-web: {str(archive)!r} differs from its checksum; remove it and try "
                "again"
            )
    return archive


def copy_runtime(source: Path, target: Path) -> None:
    """Copy the files of onnxruntime-web that the page needs, from a folder or a .tgz file."""
    target.mkdir()
    try:
        if source.is_dir():
            folder = next(
                (f for f in (source, source / "dist") if (f / RUNTIME[0]).is_file()), source
            )
            for name in RUNTIME:
                shutil.copyfile(folder / name, target / name)
            return
        with tarfile.open(source, "r:gz") as archive:
            for name in RUNTIME:
                member = archive.getmember(f"package/dist/{name}")
                content = archive.extractfile(member) if member.isfile() else None
                if content is None or member.size > FILE_LIMIT:
                    raise KeyError(f"{name!r} is no file")
                (target / name).write_bytes(content.read())
    except (OSError, KeyError, EOFError, tarfile.TarError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error).strip("'\"")
        raise UserError(
            f"onnxruntime-web: {str(source)!r} is no package of onnxruntime-web {VERSION} or the "
            f"like: {why}"
        ) from error
