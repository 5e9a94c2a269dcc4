"""The command line: one file for each command. Nothing here imports torch before it is needed."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, Any

import typer

from joslim import __version__
from joslim.cli.allocate import allocate
from joslim.cli.compare import compare
from joslim.cli.export import export
from joslim.cli.figure import figure
from joslim.cli.front import front
from joslim.cli.latency import latency
from joslim.cli.pick import pick
from joslim.cli.profile import profile
from joslim.cli.progress import speaks
from joslim.cli.report import report
from joslim.cli.train import resume, train
from joslim.errors import RunFailed, Stopped, UserError
from joslim.untrusted import printable

# The base of all usage errors. Typer has a copy of click inside, so click's own is another class.
UsageError: Any = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="joslim",
    help="One trained network, every size.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (
    train,
    resume,
    profile,
    front,
    pick,
    compare,
    figure,
    allocate,
    latency,
    export,
    report,
):
    app.command()(command)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"joslim {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: list[str] | None = None) -> None:
    """Exit codes: 0; 2 for bad input, 1 for a run that failed, 130 and 143 for signals.

    All but the first with one line on stderr.
    """
    usual, warnings.formatwarning = warnings.formatwarning, as_one_line
    try:
        code = app(args=arguments, prog_name="joslim", standalone_mode=False)
    except UserError as error:
        fail(str(error), 2)
    except RunFailed as error:
        fail(str(error), 1)
    except UsageError as error:
        command = "joslim" if error.ctx is None else error.ctx.command_path
        fail(f"{error.format_message()} ({command} --help lists what is allowed)", 2)
    except Stopped as stopped:
        fail(str(stopped), 128 + stopped.signal)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    finally:
        warnings.formatwarning = usual
    sys.exit(code if isinstance(code, int) else 0)


def fail(message: str, code: int = 2) -> None:
    # Under torchrun each process has a right to complain: a file may be missing on one machine.
    name = "joslim" if speaks() else f"joslim, process {os.environ['RANK']}"
    print(f"{name}: {on_one_line(message)}", file=sys.stderr)
    sys.exit(code)


def as_one_line(message: Warning | str, *where: Any, **line: Any) -> str:
    """A warning without the place in the code, which is none of the user's."""
    return f"joslim: {on_one_line(str(message))}\n"


def on_one_line(message: str) -> str:
    """Names from files may be in it, with anything in them."""
    return printable(" ".join(message.split()))
