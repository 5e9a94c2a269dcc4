"""`joslim figure`: the figures of the paper, each one command, from trainings or finished runs."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from functools import partial
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
from joslim.errors import UserError

if TYPE_CHECKING:
    from joslim.paper.drawing import Wishes

# What a figure has by itself.
ITS_OWN = ("method", "cost", "seed", "widths")
# Settings of a figure that is only drawn: how its children are timed, and a network of one's own.
OF_DRAWING = ("model", "device", "device_file", "threads")

Name = Annotated[str | None, typer.Argument(help="A figure; leave it out for a list of them.")]
Runs = Annotated[
    list[Path] | None,
    typer.Argument(help="Folders of runs or comparisons: only drawn, nothing is trained."),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="The figure's folder; with RUNs the picture: .png, .svg.",
        parser=read_folder,
        metavar="PATH",
    ),
]
Seeds = Annotated[str | None, typer.Option(help="Separated by commas; else as in the paper.")]
Only = Annotated[
    str | None, typer.Option(help="Panels to make, of those that joslim figure lists.")
]
Ks = Annotated[str | None, typer.Option(help="Figure k: values of K. [156,313,626,1252,3128]")]
At = Annotated[
    str | None,
    typer.Option(help="Figure widths: shares of the full cost. [0.3,0.5,0.7]"),
]
TimingBatch = Annotated[int, typer.Option(help="Figure latency: inputs of a timed pass.")]
AtOnce = Annotated[
    int | None, typer.Option(min=1, help="Trainings at a time; as many as GPUs, or cores.")
]
EngineName = Annotated[
    str, typer.Option("--engine", help="local, or submitit:timeout_min=600,... for a cluster.")
]


def without_flags(*names: str) -> Callable[[Any], Any]:
    """Takes the flags of these fields from a command that has one for each field of `Config`."""

    def change(command: Any) -> Any:
        kept = [p for p in command.__signature__.parameters.values() if p.name not in names]
        command.__signature__ = inspect.Signature(kept)
        command.__annotations__ = {p.name: p.annotation for p in kept}
        return command

    return change


@without_flags(*ITS_OWN)
@partial(with_flags_of_config, has_defaults=False)  # what is not given is as in the paper
def figure(
    *,
    name: Name = None,
    runs: Runs = None,
    out: Out = None,
    seeds: Seeds = None,
    only: Only = None,
    ks: Ks = None,
    at: At = None,
    timing_batch: TimingBatch = 128,
    at_once: AtOnce = None,
    engine: EngineName = "local",
    config: ConfigFile = None,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Make a figure of the paper: train what is missing, and draw it; or draw finished runs.

    Every setting can be changed, so that --model resnet8 --data digits --steps 300 makes the same
    figure in minutes. The same command goes on where it was stopped.
    """
    if name is None:
        show_figures(as_json)
        return
    from joslim.paper.figures import find_figure

    find_figure(name)
    settings = settings_of(config, flags)
    if own := [key for key in ITS_OWN if key in settings]:
        raise UserError(f"{own[0]}: figure {name} has its own; leave it out")
    if out is None:
        raise UserError("out: nothing given; type -o FOLDER, or -o FILE.png after folders of runs")
    refuse_wishes_of_others(name, at=at, device_file=settings.get("device_file"))
    wishes = wishes_of(at, timing_batch, settings)
    if runs:
        more = {"seeds": seeds, "only": only, "ks": ks, "at_once": at_once, **settings}
        refuse_training_flags(more, but=OF_DRAWING)
        record = drawn(name, runs, out, wishes, settings)
    else:
        lists = {"seeds": numbers("seeds", seeds), "only": names(only), "ks": numbers("ks", ks, 1)}
        record = trained(name, out, wishes, at_once, engine, {**lists, **settings})
    show(record, as_json)


def drawn(
    name: str, runs: list[Path], out: Path, wishes: Wishes, settings: dict[str, Any]
) -> dict[str, Any]:
    from joslim.cli.latency import bar, check_writable
    from joslim.paper.making import draw_runs

    check_writable(out)
    with bar() as watch:
        return draw_runs(name, runs, out, watched(wishes, watch), settings.get("model"))


def trained(
    name: str,
    out: Path,
    wishes: Wishes,
    at_once: int | None,
    engine: str,
    settings: dict[str, Any],
) -> dict[str, Any]:
    from joslim.cli.bars import watching_several
    from joslim.paper.making import make_figure

    with watching_several() as watch:
        how = {"at_once": at_once, "engine": engine, "watch": watch}
        return make_figure(name, out, wishes=wishes, how=how, **settings)


# What was typed


def wishes_of(at: str | None, batch: int, settings: dict[str, Any]) -> Wishes:
    """The flags that drawing needs. A device file is for the drawing of latency only."""
    from joslim.costs.measuring import MOST_BATCH, check_count
    from joslim.paper.drawing import Wishes
    from joslim.paper.latency import Clock

    check_count("timing_batch", batch, 1, MOST_BATCH)
    clock = Clock(
        device=settings.get("device", "auto"),
        batch=batch,
        threads=settings.get("threads"),
        device_file=settings.pop("device_file", None),
    )
    return Wishes(shares(at), clock) if at is not None else Wishes(clock=clock)


def refuse_wishes_of_others(name: str, **wishes: Any) -> None:
    """What one figure takes, and the others would not look at."""
    for key, figure in (("at", "widths"), ("device_file", "latency")):
        if wishes[key] is not None and name != figure:
            raise UserError(f"{key}: it is for figure {figure}, not {name}; leave it out")


def watched(wishes: Wishes, watch: Any) -> Wishes:
    from dataclasses import replace

    return replace(wishes, clock=replace(wishes.clock, watch=watch))


def names(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",")]


def numbers(field: str, text: str | None, least: int = 0) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdecimal() and least <= int(part[:20]) < 2**31):
            raise UserError(
                f"{field}: {part!r} is not a whole number from {least} on; "
                "type them with commas between: 1,2,3"
            )
    return [int(part) for part in parts]


def shares(text: str) -> list[float]:
    found = []
    for part in text.split(","):
        try:
            found.append(float(part))
        except ValueError:
            found.append(0.0)
        if not 0 < found[-1] <= 1:
            raise UserError(f"at: {part!r} is not a share of the full cost; type 0.3,0.5,0.7")
    return found


# What is shown


def show_figures(as_json: bool) -> None:
    """One line for each figure, and the panels that it has."""
    from joslim.paper.figures import FIGURES
    from joslim.runs.recipes import PAPER

    facts = {
        name: {
            "of_the_paper": figure.place,
            "summary": figure.summary,
            "panels": list(dict.fromkeys(t.recipe.removeprefix(PAPER) for t in figure.trials)),
            "trainings": len(figure.seeds) * sum(len(t.methods) for t in figure.trials),
        }
        for name, figure in FIGURES.items()
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    for name, figure in FIGURES.items():
        typer.echo(f"{name:<10} {figure.summary} ({figure.place})")
    typer.echo("type joslim figure NAME -o FOLDER; --only takes: " + panels_in_words(facts))


def panels_in_words(facts: dict[str, Any]) -> str:
    return ", ".join(dict.fromkeys(p for figure in facts.values() for p in figure["panels"]))


def show(record: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(record, indent=2))
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    for panel in record["panels"]:
        for label, line in panel.get("lines", {}).items():
            words = f"{panel['title']}, {panel['cost']}: {label}{area_in_words(line)}"
            console.print(escape(words), soft_wrap=True)
    for row in record.get("overhead", []):
        console.print(f"K = {row['every']}: {row['mean']:+.1f} % time beyond Slim's")
    console.print(escape(f"written: {', '.join(record['files'])}"), soft_wrap=True)


def area_in_words(line: dict[str, Any]) -> str:
    area = line.get("area")
    if area is None:
        return ""
    spread = "" if area["deviation"] is None else f" ± {area['deviation']:.2f}"
    count = len(area["each"])
    return f", area {area['mean']:.2f}{spread} % ({count} seed{'s' if count > 1 else ''})"
