"""The budgets of `joslim pick` and of all that picks a child, and the device that they are for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from joslim.errors import UserError

# Lists, so that a budget that was given twice can be seen: typer would keep the last one.
Macs = Annotated[
    list[str] | None, typer.Option(help="Most multiply-adds for one input: 20M.", metavar="SIZE")
]
Memory = Annotated[
    list[str] | None, typer.Option(help="Most memory: 64KiB, 1.5MB.", metavar="SIZE")
]
LatencyMs = Annotated[
    list[str] | None,
    typer.Option(help="Most milliseconds: 3. Of a --device-file, if given.", metavar="MS"),
]
Params = Annotated[list[str] | None, typer.Option(help="Most parameters: 100K.", metavar="SIZE")]

DeviceFile = Annotated[
    Path | None,
    typer.Option(
        help="Latency on a device: what joslim latency RUN -o FILE wrote.", metavar="FILE"
    ),
]
DeviceFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--device-file",
        help="Latency on a device, for the runs of its network; may be given several times.",
        metavar="FILE",
    ),
]
OwnModel = Annotated[
    str | None,
    typer.Option(help="Your own model again, if --device-file lacks children of the run."),
]


def budgets_of(**texts: Sequence[str] | None) -> dict[str, float]:
    """The numbers of those that were given, each once."""
    for name, values in texts.items():
        if values and len(values) > 1:
            raise UserError(f"{name}: given {len(values)} times; type {flag(name)} only once")
    return sets_of(**texts)[0]


def sets_of(**texts: Sequence[str] | None) -> list[dict[str, float]]:
    """One set of budgets for each child: a budget with a single value holds for all of them."""
    from joslim.sizes import parse_size

    given = {
        name: [parse_size(name, text) for text in values]
        for name, values in texts.items()
        if values
    }
    count = max((len(values) for values in given.values()), default=1)
    for name, values in given.items():
        if len(values) not in (1, count):
            most = next(other for other, found in given.items() if len(found) == count)
            raise UserError(
                f"{name}: {len(values)} values for the {count} of {flag(most)}; "
                f"type {flag(name)} once, or {count} times"
            )
    return [
        {name: values[min(place, len(values) - 1)] for name, values in given.items()}
        for place in range(count)
    ]


def tell_device(path: Path) -> None:
    """Whose milliseconds were shown."""
    from joslim.costs.device_file import DeviceFile

    typer.echo(f"latency on {DeviceFile.read(path).conditions}")


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")
