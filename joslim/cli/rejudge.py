"""`joslim rejudge`: the front of a finished run by another cost, without another training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from joslim.cli.flags import AsJson, DeviceFile, MovedData, OwnModel
from joslim.cli.train import Out, Overwrite
from joslim.costs import COSTS


def rejudge(
    run: Annotated[Path, typer.Argument(help="Folder of the finished run.")],
    cost: Annotated[str, typer.Option(help=f"Cost of the new front: {', '.join(COSTS)}.")],
    out: Out = None,
    overwrite: Overwrite = False,
    model: OwnModel = None,
    data: MovedData = None,
    data_root: Annotated[
        str | None, typer.Option(help="Folder with the official files of the data set.")
    ] = None,
    device_file: DeviceFile = None,
    device: Annotated[
        str | None, typer.Option(help="Device to judge on: auto, cpu, cuda, cuda:1 or mps.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Number of CPU threads.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the front of a finished run by another cost.

    Nothing is trained: the weights are those of the run. This is for methods slim, bignas and
    single, which do not look at the cost while they train. The new run folder is RUN-COST, unless
    --out is given.
    """
    from joslim.cli.front import described, show
    from joslim.cli.progress import watching
    from joslim.runs.rejudging import rejudge as judge_again

    with watching() as watch:
        found = judge_again(
            run,
            cost,
            out,
            overwrite=overwrite,
            model=model,
            data=data,
            watch=watch,
            device_file=None if device_file is None else str(device_file),
            data_root=data_root,
            device=device,
            threads=threads,
        )
    if as_json:
        typer.echo(json.dumps({"run": str(found.path), **described(found.front)}, indent=2))
        return
    show(found.front)
    typer.echo(f"run folder: {found.path}, with the weights of {run}")
