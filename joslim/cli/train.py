"""`joslim train` and `joslim resume`, and the flags that other commands share with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import Field
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from joslim.cli.flags import AsJson, MovedData, OwnModel, with_flags
from joslim.errors import UserError
from joslim.runs.config import DEFAULTS, FIELDS, TITLES, read_config_file
from joslim.training.settings import ONLY_FOR, SEARCH_OPTIONS, kind_of


def read_folder(text: str) -> Path:
    """Refuse an empty name, which is most likely a variable that is not set."""
    if not text.strip():
        raise typer.BadParameter("it is empty; type the name of a folder")
    return Path(text)


Out = Annotated[
    Path | None,
    typer.Option("--out", help="Run folder to write.", parser=read_folder, metavar="FOLDER"),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue the run in the folder, which was begun with these options, or begin it.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="A .toml or .json file with these options as keys."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Estimate time, memory and rounds; write nothing.")
]


def with_flags_of_config(
    command: Callable[..., None], has_defaults: bool = True
) -> Callable[..., None]:
    """Give the command a flag for each setting of `Config`, passed as keyword arguments.

    A flag that is not given is None, so that the value of a file counts. has_defaults: Whether the
    help shows the defaults; some commands take them from elsewhere.
    """
    return with_flags(command, {n: annotation(item, has_defaults) for n, item in FIELDS.items()})


def annotation(field: Field[Any], has_defaults: bool) -> Any:
    kind, _ = kind_of(field)
    default = DEFAULTS[field.name]
    shown = "" if default is None or kind is bool or not has_defaults else f" [{default}]"
    name = field.name.replace("_", "-")
    two_ways = kind is bool and default is not False
    flag = f"--{name}/--no-{name}" if two_ways else f"--{name}"
    options: dict[str, Any] = {
        "help": field.metadata["help"] + shown,
        "rich_help_panel": TITLES[field.name],
    }
    if kind is not bool:
        options["metavar"] = {int: "INTEGER", float: "NUMBER", str: "TEXT"}[kind]
    if kind in (int, float):
        options["parser"] = reader(kind)
    return Annotated[kind | None, typer.Option(flag, **options)]


def reader(kind: type) -> Callable[[str], Any]:
    """Read a number. Other text stays as it is: the configuration says what is allowed."""

    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            return text

    return read


class GroupedHelp(TyperCommand):
    """A command whose help lists its options by panel, the command's own options last."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                kind = f"{parameter.param_type_name.capitalize()}s"
                title = getattr(parameter, "rich_help_panel", None) or kind
                panels.setdefault(title, []).append(record)
        for title, records in panels.items():
            with formatter.section(title):
                formatter.write_dl(records)


def typed_settings(config: Path | None, flags: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the file, replaced by those that were typed.

    Steps that were typed also replace epochs of the file, and epochs steps. Another method than
    that of the file, which may be the record of a run, replaces the settings of its search, and
    those that the typed method does not take.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    filed = read_config_file(config) if config is not None else {}
    replaced = {"steps", "epochs"} if {"steps", "epochs"} & given.keys() else set()
    if (method := given.get("method")) not in (None, filed.get("method")):
        replaced |= {"searcher", *SEARCH_OPTIONS}
        replaced |= {name for name, methods in ONLY_FOR.items() if method not in methods}
    return {**{name: filed[name] for name in filed if name not in replaced}, **given}


def refuse_training_flags(given: dict[str, Any], but: tuple[str, ...] = ()) -> None:
    """Refuse settings of a training where nothing is trained."""
    for name, value in given.items():
        if value is not None and name not in but:
            flag = "--" + name.replace("_", "-")
            raise UserError(
                f"{name}: folders of runs are given, nothing is trained; leave out {flag}"
            )


@with_flags_of_config
def train(
    *,
    out: Out = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    config: ConfigFile = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Train a slimmable network and find its Pareto front.

    The widths of its children (subnets) are chosen while the shared weights train. The run folder
    holds the front, the weights and everything else about the run.
    """
    values = typed_settings(config, flags)
    if overwrite and resume:
        raise UserError("resume: --overwrite and --resume exclude each other; type only one")
    if dry_run:
        show_estimate(values, as_json)
    else:
        run_training(values, as_json, out=out, overwrite=overwrite, resume=resume)


def resume(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    model: OwnModel = None,
    data: MovedData = None,
    until: Annotated[
        int | None,
        typer.Option(min=1, help="Train to this step, also past the planned end of the run."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Continue a run that was stopped, with the same configuration."""
    from joslim.runs.fronts import opened
    from joslim.runs.resume import refuse_trained_elsewhere
    from joslim.runs.run import load

    opened_run = load(run)
    refuse_trained_elsewhere(opened_run.facts, opened_run.folder)
    values = opened_run.config.to_json()
    for name in ("model", "data", "task"):
        if (values[name] or "").startswith("<"):
            raise UserError(
                f"{name}: the run was begun in Python with {values[name]}; "
                "go on there: joslim.train(..., resume=True)"
            )
    opened(run, model)  # refuses another model, and a model of one's own that is not named again
    values["data"] = data or values["data"]
    values["device_file"] = None  # the run has its own copy
    if (root := values["data_root"]) is not None and not Path(root).is_dir():
        values["data_root"] = None  # a file that came from somebody else must not choose it
    run_training(values, as_json, out=run, resume=True, until=until)


def say(line: str) -> None:
    from joslim.cli.progress import speaks

    if speaks():
        typer.echo(line, err=True)


def run_training(values: dict[str, Any], as_json: bool, **where: Any) -> None:
    """Train, show the progress, and print the front."""
    from joslim.cli.front import described, show
    from joslim.cli.progress import speaks, watching
    from joslim.results.record import read_record
    from joslim.runs.config import config_of
    from joslim.runs.driver import run_training as run

    with watching() as watch:
        finished = run(config_of(values), **where, watch=watch, say=say)
    if not speaks():
        return
    if fresh := finished.fresh:
        typer.echo(f"not from --init, and so learned anew: {', '.join(fresh)}", err=True)
    if as_json:
        typer.echo(json.dumps({"run": str(finished.path), **described(finished.front)}, indent=2))
        return
    show(finished.front)
    if validation := read_record(finished.path).validation:
        best = f"step {validation.best:,}, whose validation error is least"
        typer.echo(f"the front is that of the weights of {best}")
    typer.echo(f"run folder: {finished.path} (picture: {finished.path / 'front.png'})")
    typer.echo(f"page: {finished.path / 'report.html'} (open it in a browser)")


def show_estimate(values: dict[str, Any], as_json: bool) -> None:
    """Print the estimate of a dry run."""
    from joslim.results.tables import duration
    from joslim.runs.config import config_of
    from joslim.runs.driver import estimate
    from joslim.units import format_size

    facts = estimate(config_of(values))
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    steps, rounds = (3600 * facts.pop(f"hours_of_{part}") for part in ("steps", "rounds"))
    memory = format_size("memory", facts.pop("memory_bytes"))
    on_many = [f"{n} take {duration(3600 * hours)}" for n, hours in facts.pop("hours_on").items()]
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):<16} {value}")
    if on_many:
        typer.echo(f"{'several devices':<16} {', '.join(on_many)} (docs/scaling.md)")
    parts = f"steps {duration(steps)}, rounds of the search {duration(rounds)}"
    typer.echo(f"about {duration(steps + rounds)} ({parts}; judging follows), {memory}")
