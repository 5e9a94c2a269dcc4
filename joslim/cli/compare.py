"""`joslim compare`: methods x seeds (x costs, x networks) on equal terms, in one table."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joslim.cli.train import (
    AsJson,
    ConfigFile,
    read_folder,
    refuse_training_flags,
    settings_of,
    with_flags_of_config,
)
from joslim.errors import RunFailed, UserError
from joslim.runs.config import FIELDS
from joslim.sizes import parse_size

if TYPE_CHECKING:
    from joslim.comparing import Comparison, Entry

SINGLE = {"models": "model", "costs": "cost", "methods": "method", "seeds": "seed"}

Runs = Annotated[
    list[Path] | None,
    typer.Argument(help="Folders of runs or comparisons: only a table, nothing is trained."),
]
Methods = Annotated[str | None, typer.Option(help="Separated by commas. [slim,bignas,joslim]")]
Seeds = Annotated[str | None, typer.Option(help="Separated by commas. [0,1,2]")]
Costs = Annotated[str | None, typer.Option(help="Separated by commas. [macs]")]
Models = Annotated[str | None, typer.Option(help="Separated by commas. [resnet8]")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", help="The folder of the comparison.", parser=read_folder, metavar="FOLDER"
    ),
]
AtOnce = Annotated[
    int | None, typer.Option(min=1, help="Trainings at a time; as many as GPUs, or cores.")
]
EngineName = Annotated[
    str, typer.Option("--engine", help="local, or submitit:timeout_min=600,... for a cluster.")
]
Against = Annotated[str | None, typer.Option(help="The method that others are tested against.")]
At = Annotated[
    str, typer.Option(help="Costs at which to give the error: shares of the full one, or 59M.")
]
Anyway = Annotated[
    bool, typer.Option("--anyway", help="Compare runs of different data, steps or settings too.")
]


def without_lists_of_one(command: Any) -> Any:
    """A comparison has several models, costs, methods and seeds: no flags for one of them.

    What is its own comes first in the help, what each training is told comes after.
    """
    signature = command.__signature__
    flags = [p for p in signature.parameters.values() if p.name not in SINGLE.values()]
    flags.sort(key=lambda parameter: parameter.name in FIELDS)
    command.__signature__ = signature.replace(parameters=flags)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in flags}
    return command


@without_lists_of_one
@with_flags_of_config
def compare(
    *,
    runs: Runs = None,
    methods: Methods = None,
    seeds: Seeds = None,
    costs: Costs = None,
    models: Models = None,
    out: Out = None,
    at_once: AtOnce = None,
    engine: EngineName = "local",
    against: Against = None,
    at: At = "0.25,0.5,1",
    anyway: Anyway = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Compare methods over seeds: train what is missing, and show one table.

    The same command goes on where it was stopped, and may add seeds or methods later.
    """
    lists = {"methods": methods, "seeds": seeds, "costs": costs, "models": models}
    settings = settings_of(config, flags)
    shown_at = parse_places(at)
    if runs:
        refuse_training_flags({**lists, **settings})
        comparison = read_runs(runs, anyway, out, against=against, **shown_at)
    else:
        if out is None:
            raise UserError("out: no folder given; type --out comparisons/NAME, or folders of runs")
        chosen = {name: listed(name, text, settings) for name, text in lists.items()}
        comparison = trained(
            chosen, settings, out=out, at_once=at_once, engine=engine, against=against, **shown_at
        )
    show(comparison, as_json, out, against=against, **shown_at)
    refuse_failures(comparison)


def read_runs(runs: list[Path], anyway: bool, out: Path | None, **options: Any) -> Comparison:
    from joslim.comparing import read

    comparison = read(runs, anyway)
    if out is not None:
        comparison.write(out, **options)
    return comparison


def trained(lists: dict[str, Any], settings: dict[str, Any], **options: Any) -> Comparison:
    from joslim.cli.bars import watching_several
    from joslim.comparing import compare as run_compare

    with watching_several() as watch:
        return run_compare(**lists, **options, watch=watch, **settings)


# What was typed


def listed(plural: str, text: str | None, settings: dict[str, Any]) -> list[Any] | None:
    """The values between the commas; a configuration file may have one value, or a list."""
    filed = settings.pop(plural, None)
    one = settings.pop(SINGLE[plural], None)
    if text is None:
        return filed if filed is not None or one is None else [one]
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise UserError(f"{plural}: {text!r} has an empty place; type names with commas between")
    return [parse_seed(part) for part in parts] if plural == "seeds" else parts


def parse_seed(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise UserError(f"seeds: {text!r} is not a whole number from 0 on; type 0,1,2")
    return int(text[:20])


def parse_places(text: str) -> dict[str, list[float]]:
    """0.25,1 are shares of the full cost; 59M, 64KB and 3ms are costs."""
    shares: list[float] = []
    sizes: list[float] = []
    for part in (part.strip() for part in text.split(",")):
        latency = part.removesuffix("ms")
        value = parse_size("at", latency)
        is_share = value <= 1 and latency == part and not part[-1].isalpha()
        (shares if is_share else sizes).append(value)
    return {"shares": shares, "sizes": sizes}


def refuse_failures(comparison: Comparison) -> None:
    """Runs that train now only need time; others have to be asked for again."""
    going = [entry for entry in comparison.failures if entry.training]
    failed = [entry for entry in comparison.failures if not entry.training]
    count, words = len(comparison.entries), []
    if going:
        still = f"{len(going)} of {count} runs are still training"
        words.append(f"{still}: {names_of(going)}; wait for their end")
    if failed:
        again = f"joslim compare --out {shlex.quote(str(failed[0].path.parent))}"
        missing = f"{len(failed)} of {count} runs have no front"
        words.append(f"{missing}: {names_of(failed)}; {again} tries them again")
    if words:
        raise RunFailed("; ".join(words))


def names_of(entries: Sequence[Entry]) -> str:
    return ", ".join(entry.path.name for entry in entries)


# What is shown


def show(comparison: Comparison, as_json: bool, out: Path | None, **options: Any) -> None:
    from rich.console import Console
    from rich.markup import escape

    from joslim.reports.comparison import comparison_tables, notes

    content = comparison.to_json(**options)
    if as_json:
        typer.echo(json.dumps(content, indent=2))
        return
    console = Console(highlight=False)
    if len(comparison.failures) < len(comparison.entries):
        for table in comparison_tables(content["table"]):
            console.print(table)
        for line in notes(content["table"], content["runs"]):
            console.print(line, soft_wrap=True)
    for entry in comparison.failures:
        line = f"no front: {entry.path.name}: {entry.failure}"
        console.print(escape(line), soft_wrap=True)
    if out is not None:
        picture = out / "compare.png"
        more = f" (picture: {picture})" if picture.exists() else ""
        console.print(escape(f"folder: {out}{more}"), soft_wrap=True)
