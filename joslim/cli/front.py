"""`joslim front`: the Pareto front of a run, from RUN/front.json and perhaps a device file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joslim.cli.flags import AsJson, DeviceFile, ModelOfDevice, print_device

if TYPE_CHECKING:
    from joslim.front import Front


def front(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    device_file: DeviceFile = None,
    model: ModelOfDevice = None,
    as_json: AsJson = False,
) -> None:
    """Show the Pareto front of a run: its children, costs and errors."""
    from joslim.runs.fronts import timed_fronts

    (found,) = timed_fronts([run], [device_file] if device_file else [], model)
    if as_json:
        typer.echo(json.dumps(described(found), indent=2))
    else:
        show(found)
        if device_file:
            print_device(device_file)


def described(front: Front) -> dict[str, Any]:
    """The content of front.json without the space, with its area and its hypervolume."""
    error = front.error
    return {
        "cost": front.cost,
        "span": list(front.span),
        "error": error,
        "metric": asdict(front.metric),
        "area": front.area(error) if error else None,
        "loss_area": front.area("train_loss"),
        "hypervolume": front.hypervolume(error) if error else None,
        "children": [point.to_json() for point in front],
    }


def show(front: Front) -> None:
    from rich.console import Console

    from joslim.results.tables import front_table, print_table, title
    from joslim.units import format_size

    console = Console(highlight=False)
    print_table(console, front_table(front))
    low, full = (format_size(front.key, end) for end in front.span)
    console.print(f"smallest {low}, full {full}")
    if len(front) == 1:  # a curve takes two children
        return
    console.print(f"area under the curve of training losses {front.area('train_loss'):.4g}")
    if front.error is None:
        console.print("no error is known for all children: no area, no hypervolume")
        return
    name, area = title(front.error, front.metric), front.metric.text(front.area(front.error))
    console.print(f"area under the curve {area} {name} (lower is better)")
    if (volume := front.hypervolume(front.error)) is not None:
        console.print(f"hypervolume {volume:.4f} (higher is better)")
