"""Flags that several commands share: inputs, models, device files and budgets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from joslim.costs import COSTS, cost_info
from joslim.errors import UserError
from joslim.runs.config import FIELDS

Shape = Annotated[
    str | None,
    typer.Option("--input", help="Shape of one input, such as 3x224x224.", metavar="CxHxW"),
]
Low = Annotated[
    float | None,
    typer.Option(
        help="Lowest width multiplier: the least share of its channels that a layer keeps."
    ),
]
Resolutions = Annotated[str | None, typer.Option(help=FIELDS["resolutions"].metadata["help"])]
Depth = Annotated[bool, typer.Option("--depth", help=FIELDS["depth"].metadata["help"])]
OwnModel = Annotated[
    str | None,
    typer.Option(help="Your own model as package.module:function, if the run has one."),
]
MovedData = Annotated[
    str | None,
    typer.Option("--data", help="The data of the run, if they were moved: folder:PATH."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
DeviceFile = Annotated[
    Path | None,
    typer.Option(
        help="Latencies on a device, as joslim latency RUN -o FILE writes them.", metavar="FILE"
    ),
]
By = Annotated[
    str | None,
    typer.Option(
        help="Choose by val_error or train_loss. By default val_error, if the run has one.",
        metavar="MEASURE",
    ),
]
DeviceFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--device-file",
        help="Latencies on a device, for the runs of its network; may be given several times.",
        metavar="FILE",
    ),
]
ModelOfDevice = Annotated[
    str | None,
    typer.Option(
        help="Your own model, package.module:function, needed if --device-file lacks children."
    ),
]


def with_flags(command: Callable[..., None], flags: dict[str, Any]) -> Callable[..., None]:
    """Give a command flags of these names and annotations, before its own parameters."""
    only_by_name = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(name, only_by_name, default=None, annotation=annotation)
        for name, annotation in flags.items()
    ]
    for own in inspect.signature(command, eval_str=True).parameters.values():
        if own.kind is not inspect.Parameter.VAR_KEYWORD:
            parameters.append(own.replace(kind=only_by_name))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def with_budgets(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag for each cost in `COSTS`, which it gets as keyword arguments.

    The values are lists, so that a budget that was given twice can be seen: typer would keep the
    last one.
    """
    flags = {}
    for info in COSTS.values():
        unit = "SIZE" if info.symbol in ("", "B") else info.unit
        option = typer.Option(info.flag, help=info.budget_help, metavar=unit)
        flags[info.key] = Annotated[list[str] | None, option]
    return with_flags(command, flags)


def budgets_of(**texts: Sequence[str] | None) -> dict[str, float]:
    """Convert budgets to numbers; each may be given once."""
    for name, values in texts.items():
        if values and len(values) > 1:
            flag = cost_info(name).flag
            raise UserError(f"{name}: given {len(values)} times; type {flag} only once")
    return sets_of(**texts)[0]


def sets_of(**texts: Sequence[str] | None) -> list[dict[str, float]]:
    """One set of budgets for each child: a budget with a single value holds for all of them."""
    from joslim.units import parse_size

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
                f"{name}: {len(values)} values for the {count} of {cost_info(most).flag}; "
                f"type {cost_info(name).flag} once, or {count} times"
            )
    return [
        {name: values[min(place, len(values) - 1)] for name, values in given.items()}
        for place in range(count)
    ]


def print_device(path: Path) -> None:
    """Print on which device the latencies were measured."""
    from joslim.costs.device_file import DeviceFile

    typer.echo(f"latency on {DeviceFile.read(path).conditions}")
