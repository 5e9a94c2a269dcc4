"""`joslim compare`: methods x seeds (x costs, x networks) on equal terms, in one table."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joslim.cli.flags import AsJson
from joslim.cli.train import (
    ConfigFile,
    read_folder,
    refuse_training_flags,
    typed_settings,
    with_flags_of_config,
)
from joslim.errors import RunFailed, UserError
from joslim.runs.config import FIELDS
from joslim.units import parse_size

if TYPE_CHECKING:
    from joslim.comparing import Comparison

SINGLE = {"models": "model", "costs": "cost", "methods": "method", "seeds": "seed"}

Runs = Annotated[
    list[Path] | None,
    typer.Argument(help="Folders of finished runs or comparisons to show; nothing is trained."),
]
Methods = Annotated[
    str | None, typer.Option(help="Methods, separated by commas. [slim,bignas,joslim]")
]
Seeds = Annotated[str | None, typer.Option(help="Random seeds, separated by commas. [0,1,2]")]
Costs = Annotated[str | None, typer.Option(help="Costs, separated by commas. [macs]")]
Models = Annotated[str | None, typer.Option(help="Models, separated by commas. [resnet8]")]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Folder of the comparison.", parser=read_folder, metavar="FOLDER"),
]
AtOnce = Annotated[
    int | None,
    typer.Option(min=1, help="Number of parallel runs; by default one per GPU, or per core."),
]
Processes = Annotated[
    int | None,
    typer.Option(min=1, help="Processes of each training, one per GPU, started by torchrun. [1]"),
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine", help="Launcher: local, or submitit:timeout_min=600,... for a cluster."
    ),
]
Against = Annotated[str | None, typer.Option(help="Reference method for the statistical tests.")]
At = Annotated[
    str,
    typer.Option(
        help="Costs at which to show the error: shares of the full cost, or sizes like 59M."
    ),
]
Anyway = Annotated[
    bool, typer.Option("--anyway", help="Allow runs that differ in data, steps or settings.")
]


def with_training_flags(
    *removed: str, has_defaults: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for each field of `Config`, after its own flags, without some."""

    def change(function: Callable[..., None]) -> Callable[..., None]:
        command: Any = with_flags_of_config(function, has_defaults)
        flags = [p for p in command.__signature__.parameters.values() if p.name not in removed]
        flags.sort(key=lambda parameter: parameter.name in FIELDS)
        command.__signature__ = command.__signature__.replace(parameters=flags)
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in flags}
        return command

    return change


@with_training_flags(*SINGLE.values())
def compare(
    *,
    runs: Runs = None,
    methods: Methods = None,
    seeds: Seeds = None,
    costs: Costs = None,
    models: Models = None,
    out: Out = None,
    at_once: AtOnce = None,
    processes: Processes = None,
    engine: EngineName = "local",
    against: Against = None,
    at: At = "0.25,0.5,1",
    anyway: Anyway = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Compare methods over several seeds in one table.

    Trains the runs that are missing. The same command continues after a stop, and may add seeds or
    methods later.
    """
    from joslim import comparing
    from joslim.cli.progress import watching_several

    lists = {"methods": methods, "seeds": seeds, "costs": costs, "models": models}
    settings = typed_settings(config, flags)
    options: dict[str, Any] = {"against": against, **parse_places(at)}
    if runs:
        refuse_training_flags({**lists, "processes": processes, **settings})
        comparison = comparing.read(runs, anyway)
        if out is not None:
            comparison.write(out, **options)
    else:
        if out is None:
            raise UserError("out: no folder given; type --out comparisons/NAME, or folders of runs")
        chosen: dict[str, Any] = {
            name: parse_list(name, text, settings) for name, text in lists.items()
        }
        how: dict[str, Any] = {"out": out, "at_once": at_once, "processes": processes}
        how["engine"] = engine
        with watching_several() as watch:
            comparison = comparing.compare(**chosen, **how, **options, watch=watch, **settings)
    show(comparison, as_json, out, **options)
    refuse_failures(comparison)


def parse_list(plural: str, text: str | None, settings: dict[str, Any]) -> list[Any] | None:
    """Split a flag at its commas; a configuration file may have one value, or a list."""
    filed = settings.pop(plural, None)
    one = settings.pop(SINGLE[plural], None)
    if text is None:
        return filed if filed is not None or one is None else [one]
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise UserError(f"{plural}: {text!r} has an empty place; type names with commas between")
    return parse_numbers(plural, text) if plural == "seeds" else parts


def parse_numbers(field: str, text: str, least: int = 0) -> list[int]:
    """Read whole numbers that are separated by commas."""
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdecimal() and int(part[:20]) >= least):
            example = f"{least},{least + 1},{least + 2}"
            raise UserError(
                f"{field}: {part!r} is not a whole number from {least} on; type {example}"
            )
    return [int(part[:20]) for part in parts]


def parse_places(text: str) -> dict[str, list[float]]:
    """Read costs: 0.25,1 are shares of the full cost; 59M, 64KB and 3ms are sizes."""
    shares: list[float] = []
    sizes: list[float] = []
    for part in (part.strip() for part in text.split(",")):
        latency = part.removesuffix("ms")
        value = parse_size("at", latency)
        is_share = value <= 1 and latency == part and not part[-1].isalpha()
        (shares if is_share else sizes).append(value)
    return {"shares": shares, "sizes": sizes}


def refuse_failures(comparison: Comparison) -> None:
    """Fail if some run has no front: one that is training needs time, others a new attempt."""
    count, words = len(comparison.entries), []
    training = [entry.path for entry in comparison.failures if entry.training]
    failed = [entry.path for entry in comparison.failures if not entry.training]
    if training:
        names = ", ".join(path.name for path in training)
        still = f"{len(training)} of {count} runs are still training"
        words.append(f"{still}: {names}; wait for their end")
    if failed:
        names = ", ".join(path.name for path in failed)
        again = f"joslim compare --out {shlex.quote(str(failed[0].parent))}"
        missing = f"{len(failed)} of {count} runs have no front"
        words.append(f"{missing}: {names}; {again} tries them again")
    if words:
        raise RunFailed("; ".join(words))


def show(comparison: Comparison, as_json: bool, out: Path | None, **options: Any) -> None:
    from rich.console import Console
    from rich.markup import escape

    from joslim.results.comparison import PICTURE
    from joslim.results.tables import comparison_notes, comparison_tables, print_table

    content = comparison.to_json(**options)
    if as_json:
        typer.echo(json.dumps(content, indent=2))
        return
    console = Console(highlight=False)
    if len(comparison.failures) < len(comparison.entries):
        for table in comparison_tables(content["table"]):
            print_table(console, table)
        for line in comparison_notes(content["table"], content["runs"]):
            console.print(line, soft_wrap=True)
    for entry in comparison.failures:
        line = f"no front: {entry.path.name}: {entry.failure}"
        console.print(escape(line), soft_wrap=True)
    if out is not None:
        picture = out / PICTURE
        more = f" (picture: {picture})" if picture.exists() else ""
        console.print(escape(f"folder: {out}{more}"), soft_wrap=True)
