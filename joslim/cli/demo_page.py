"""`joslim demo-page`: the network of a run in the browser, with a slider over its sizes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from joslim.cli.flags import DeviceFile, OwnModel
from joslim.cli.latency import bar


def demo_page(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the page.", metavar="FOLDER")],
    device_file: DeviceFile = None,
    package: Annotated[
        Path | None,
        typer.Option(
            "--onnxruntime-web",
            help="Folder or .tgz file of the npm package onnxruntime-web; by default npm downloads "
            "it once.",
            metavar="PATH",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier page.")
    ] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="Store the shared weights in 8 bits.")
    ] = False,
    model: OwnModel = None,
) -> None:
    """Write a web page that runs the network in the browser.

    Visitors draw or drop an image, and move a slider over the children (subnets). All files are
    static; the page loads nothing from other places.
    """
    from joslim.deploy.demo_page import write_demo_page
    from joslim.runs.fronts import opened

    source = opened(run, model)
    source.front = source.timed(device_file) if device_file else source.front
    with bar("writing children") as progress:
        made = write_demo_page(source, out, package, overwrite, progress, int8)
    folder = shlex.quote(str(out))
    typer.echo(f"{out}: {made}")
    typer.echo(
        f"type python -m http.server --bind 127.0.0.1 -d {folder} 8000, "
        "and open http://127.0.0.1:8000"
    )
