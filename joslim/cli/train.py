"""`joslim train`: weights and widths jointly, into a run folder. `joslim resume`: go on."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import Field
from pathlib import Path
from typing import Annotated, Any

import typer

from joslim.errors import UserError
from joslim.runs.config import DEFAULTS, FIELDS, kind_of, read_config_file


def read_folder(text: str) -> Path:
    """An empty one is most likely a variable that is not set: it is not the current folder."""
    if not text.strip():
        raise typer.BadParameter("it is empty; type the name of a folder")
    return Path(text)


Out = Annotated[
    Path | None,
    typer.Option("--out", help="The run folder.", parser=read_folder, metavar="FOLDER"),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Begin anew in a folder with a run.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on if there is something to go on.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="A .toml or .json file with these options as keys.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Time, memory and rounds; trains and writes nothing.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def with_flags_of_config(
    command: Callable[..., None], has_defaults: bool = True
) -> Callable[..., None]:
    """Gives the command a flag for each field of `Config`, which it gets as keyword arguments.

    A flag that is not given is None, so that a file's value can stand. has_defaults: else what is
    not given comes from elsewhere.
    """
    own = list(inspect.signature(command, eval_str=True).parameters.values())
    flags = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=annotation(field, has_defaults),
        )
        for name, field in FIELDS.items()
    ]
    parameters = [*flags, *(p for p in own if p.kind is not inspect.Parameter.VAR_KEYWORD)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def annotation(field: Field[Any], has_defaults: bool) -> Any:
    kind, _ = kind_of(field)
    default = DEFAULTS[field.name]
    shown = "" if default is None or kind is bool or not has_defaults else f" [{default}]"
    name = field.name.replace("_", "-")
    flag = f"--{name}/--no-{name}" if default is True else f"--{name}"
    words = field.metadata["help"] + shown
    if kind in (int, float):
        metavar = "INTEGER" if kind is int else "NUMBER"
        return Annotated[
            kind | None, typer.Option(flag, help=words, parser=reader(kind), metavar=metavar)
        ]
    return Annotated[kind | None, typer.Option(flag, help=words)]


def reader(kind: type) -> Callable[[str], Any]:
    """What cannot be read stays as it was typed: the configuration says what is allowed."""

    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            return text

    return read


def settings_of(config: Path | None, flags: dict[str, Any]) -> dict[str, Any]:
    """Those of the file, and over them what was typed. Of steps and epochs, what was typed."""
    given = {name: value for name, value in flags.items() if value is not None}
    filed = read_config_file(config) if config is not None else {}
    if {"steps", "epochs"} & given.keys():
        filed = {name: value for name, value in filed.items() if name not in ("steps", "epochs")}
    return {**filed, **given}


def refuse_training_flags(given: dict[str, Any], but: tuple[str, ...] = ()) -> None:
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
    """Train a slimmable network and choose its widths; ends with a front in a run folder."""
    values = settings_of(config, flags)
    if overwrite and resume:
        raise UserError("resume: --overwrite and --resume exclude each other; type only one")
    if dry_run:
        show_estimate(values, as_json)
    else:
        run_training(values, as_json, out=out, overwrite=overwrite, resume=resume)


def resume(
    run: Annotated[Path, typer.Argument(help="The folder of a run that was stopped.")],
    model: Annotated[
        str | None, typer.Option(help="Your own model again: package.module:function.")
    ] = None,
    until: Annotated[
        int | None, typer.Option(min=1, help="Train on to this step, past the end if need be.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a training that was stopped, with the same configuration."""
    from joslim.runs.run import load

    stored = load(run)
    values = stored.config.to_json()
    own = values["model"]
    if model is not None and model != own:
        raise UserError(f"model: {model!r} given, the run has {own!r}")
    if ":" in own and model is None:
        raise UserError(
            f"model: {own!r} is not imported because a file says so; type --model {own}"
        )
    for name in ("model", "data"):
        if values[name].startswith("<"):
            raise UserError(
                f"{name}: the run was begun in Python with {values[name]}; "
                "go on there: joslim.train(..., resume=True)"
            )
    values["device_file"] = None  # the run has its own copy
    if (root := values["data_root"]) is not None and not Path(root).is_dir():
        values["data_root"] = None  # a file of a stranger's does not say where to download to
    run_training(values, as_json, out=run, resume=True, until=until)


def run_training(values: dict[str, Any], as_json: bool, **where: Any) -> None:
    from joslim.cli.front import described, show
    from joslim.cli.progress import speaks, watching
    from joslim.runs.config import config_of
    from joslim.runs.training import train as run_train

    checked = config_of(values).to_json()
    with watching() as watch:
        finished = run_train(**checked, **where, watch=watch)
    if not speaks():
        return
    if fresh := finished.fresh:
        typer.echo(f"not from --init, and so learned anew: {', '.join(fresh)}", err=True)
    if as_json:
        typer.echo(json.dumps({"run": str(finished.path), **described(finished.front)}, indent=2))
        return
    show(finished.front)
    typer.echo(f"run folder: {finished.path} (picture: {finished.path / 'front.png'})")
    typer.echo(f"page: {finished.path / 'report.html'} (open it in a browser)")


def show_estimate(values: dict[str, Any], as_json: bool) -> None:
    from joslim.runs.config import config_of
    from joslim.runs.dry_run import estimate
    from joslim.runs.job import make_job

    facts = estimate(make_job(config_of(values)))
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):<16} {value}")
