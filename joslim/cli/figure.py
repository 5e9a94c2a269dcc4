"""`joslim figure`: the figures of the paper, each one command, from trainings or finished runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joslim.cli.compare import AtOnce, EngineName, Processes, parse_numbers, with_training_flags
from joslim.cli.flags import AsJson
from joslim.cli.train import ConfigFile, read_folder, refuse_training_flags, typed_settings
from joslim.errors import UserError

if TYPE_CHECKING:
    from joslim.paper.making import DrawingOptions

# Settings that a figure has by itself.
ITS_OWN = ("method", "cost", "seed", "widths")
# Settings of a figure that is only drawn: how its children are timed, and a network of one's own.
OF_DRAWING = ("model", "device", "device_file", "threads")

Name = Annotated[
    str | None, typer.Argument(help="Name of the figure; without it, the figures are listed.")
]
Runs = Annotated[
    list[Path] | None,
    typer.Argument(help="Folders of finished runs or comparisons to draw; nothing is trained."),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="Folder of the figure; with RUNS, the picture to write, .png or .svg.",
        parser=read_folder,
        metavar="PATH",
    ),
]
Seeds = Annotated[
    str | None, typer.Option(help="Random seeds, separated by commas; by default the paper's.")
]
Only = Annotated[
    str | None, typer.Option(help="Panels to make, separated by commas; joslim figure lists them.")
]
Ks = Annotated[
    str | None,
    typer.Option(help="Figure k: values of K, separated by commas. [156,313,626,1252,3128]"),
]
At = Annotated[
    str | None,
    typer.Option(help="Figure widths: shares of the full cost, separated by commas. [0.3,0.5,0.7]"),
]
TimingBatch = Annotated[
    int, typer.Option(help="Figure latency: batch size of a timed forward pass.")
]


@with_training_flags(*ITS_OWN, has_defaults=False)  # the defaults are those of the paper
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
    processes: Processes = None,
    engine: EngineName = "local",
    config: ConfigFile = None,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Make a figure of the paper, from new or finished runs.

    Trains the runs that are missing; the same command continues after a stop. Every setting can be
    changed: --model resnet8 --data digits --steps 300 makes the same figure in minutes.
    """
    if name is None:
        show_figures(as_json)
        return
    from joslim.cli.latency import bar, check_writable
    from joslim.cli.progress import watching_several
    from joslim.paper.figures import find_figure

    find_figure(name)
    settings = typed_settings(config, flags)
    if own := [key for key in ITS_OWN if key in settings]:
        raise UserError(f"{own[0]}: figure {name} has its own; leave it out")
    if out is None:
        raise UserError("out: nothing given; type -o FOLDER, or -o FILE.png after folders of runs")
    options = drawing_options(name, at, timing_batch, settings)
    if runs:
        more = {"seeds": seeds, "only": only, "ks": ks, "at_once": at_once, **settings}
        more["processes"] = processes
        refuse_training_flags(more, but=OF_DRAWING)
        from joslim.paper.making import draw_runs

        check_writable(out)
        with bar() as watch:
            timed = replace(options, clock=replace(options.clock, watch=watch))
            record = draw_runs(name, runs, out, timed)
    else:
        from joslim.paper.making import make_figure

        lists: dict[str, Any] = {
            "seeds": None if seeds is None else parse_numbers("seeds", seeds),
            "only": None if only is None else [part.strip() for part in only.split(",")],
            "ks": None if ks is None else parse_numbers("ks", ks, least=1),
        }
        with watching_several() as watching:
            how: dict[str, Any] = {"at_once": at_once, "processes": processes, "engine": engine}
            how["watch"] = watching
            record = make_figure(name, out, options=options, how=how, **lists, **settings)
    show(record, as_json)


def drawing_options(
    name: str, at: str | None, batch: int, settings: dict[str, Any]
) -> DrawingOptions:
    """Collect the flags of the drawing; the device file, which no training takes, is removed."""
    from joslim.costs.timing import BATCH_LIMIT
    from joslim.files import json_count
    from joslim.paper.drawings import Clock
    from joslim.paper.making import DrawingOptions

    for key, value, figure in (
        ("at", at, "widths"),
        ("device_file", settings.get("device_file"), "latency"),
    ):
        if value is not None and name != figure:
            raise UserError(f"{key}: it is for figure {figure}, not {name}; leave it out")
    json_count(batch, "timing_batch", 1, BATCH_LIMIT)
    clock = Clock(
        device=settings.get("device", "auto"),
        batch=batch,
        threads=settings.get("threads"),
        device_file=settings.pop("device_file", None),
        model=settings.get("model"),
    )
    if at is None:
        return DrawingOptions(clock=clock)
    for part in at.split(","):
        try:
            is_share = 0 < float(part) <= 1
        except ValueError:
            is_share = False
        if not is_share:
            raise UserError(f"at: {part!r} is not a share of the full cost; type 0.3,0.5,0.7")
    return DrawingOptions([float(part) for part in at.split(",")], clock)


def show_figures(as_json: bool) -> None:
    """Print one line for each figure, and the panels that --only takes."""
    from joslim.paper.figures import FIGURES
    from joslim.runs.recipes import PAPER

    facts: dict[str, dict[str, Any]] = {
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
    panels = dict.fromkeys(panel for fact in facts.values() for panel in fact["panels"])
    typer.echo(f"type joslim figure NAME -o FOLDER; --only takes: {', '.join(panels)}")


def show(record: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(record, indent=2))
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    for panel in record["panels"]:
        for label, line in panel.get("lines", {}).items():
            words = f"{panel['title']}, {panel['cost']}: {label}"
            if area := line.get("area"):
                spread = "" if area["deviation"] is None else f" ± {area['deviation']:.2f}"
                seeds = "1 seed" if len(area["each"]) == 1 else f"{len(area['each'])} seeds"
                words += f", area {area['mean']:.2f}{spread} % ({seeds})"
            console.print(escape(words), soft_wrap=True)
    for table in record.get("tables", []):
        from rich.table import Table

        from joslim.paper.drawings import table_texts
        from joslim.results.tables import print_table

        head, *rows = (map(escape, cells) for cells in table_texts(table))
        console.print(escape(f"{table['title']}: top-1 accuracy, %"), soft_wrap=True)
        shown = Table(*head)
        for cells in rows:
            shown.add_row(*cells)
        print_table(console, shown)
    for row in record.get("overhead", []):
        console.print(f"K = {row['every']}: {row['mean']:+.1f} % time beyond Slim's")
    console.print(escape(f"written: {', '.join(record['files'])}"), soft_wrap=True)
