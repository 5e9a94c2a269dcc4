"""`joslim report`: a page about runs that opens offline, or a picture of their fronts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from joslim.cli.flags import DeviceFiles
from joslim.errors import UserError


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs or comparisons.", metavar="RUN...")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Page NAME.html, or picture NAME.svg or NAME.png [default: RUN/report.html].",
            metavar="FILE",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep the page up to date while the run trains.")
    ] = False,
    device_file: DeviceFiles = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that joslim has not written.")
    ] = False,
) -> None:
    """Write a web page about one run, or about several side by side."""
    from joslim.comparing.plan import is_comparison, run_folders
    from joslim.results.record import targets_of
    from joslim.results.run_files import last_metrics
    from joslim.runs import report as reporting
    from joslim.units import format_size

    if watch and device_file:
        raise UserError("device_file: it is for runs that have finished; leave out --watch")
    timed = partial(reporting.report, device_files=device_file or [])
    write = partial(reporting.watch, tell=typer.echo) if watch else timed
    if out is None and len(runs) == 1 and is_comparison(runs[0]):
        out = runs[0] / reporting.PAGE
    folders = run_folders(runs)
    target = write(folders, out, overwrite=overwrite)
    for folder in folders:
        if targets := targets_of(last_metrics(folder)):
            typer.echo(f"{folder}: {targets.words}")
    typer.echo(f"{target}: {format_size('memory', target.stat().st_size)}")
