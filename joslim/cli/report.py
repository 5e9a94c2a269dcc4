"""`joslim report`: one page about some runs that opens offline, or a picture for a paper."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(help="The folders of runs.", metavar="RUN...")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="NAME.html, or a picture: NAME.svg, NAME.png [default: RUN/report.html].",
            metavar="FILE",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Write it again while a run trains, until it ends.")
    ] = False,
) -> None:
    """Write one page that shows everything about a run, or about several side by side."""
    from joslim.reports.tables import format_size
    from joslim.runs import report as reporting

    write = partial(reporting.watch, tell=typer.echo) if watch else reporting.report
    target = write(runs, out)
    typer.echo(f"{target}: {format_size('memory', target.stat().st_size)}")
