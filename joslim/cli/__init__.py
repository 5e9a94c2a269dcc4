"""The command line: one file for each command, and the list of commands below.

Commands import torch inside their functions, so that `joslim --help` answers at once.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from typing import Annotated, Any

import typer

from joslim import __version__
from joslim.cli.allocate import allocate
from joslim.cli.compare import compare
from joslim.cli.demo_page import demo_page
from joslim.cli.export import export
from joslim.cli.figure import figure
from joslim.cli.front import front
from joslim.cli.latency import latency
from joslim.cli.pick import pick
from joslim.cli.profile import profile
from joslim.cli.progress import speaks
from joslim.cli.rejudge import rejudge
from joslim.cli.report import report
from joslim.cli.selftest import selftest
from joslim.cli.train import GroupedHelp, resume, train
from joslim.errors import RunFailed, Stopped, UserError
from joslim.files import printable

# The base class of all usage errors. Typer includes a copy of click, so click's class does not do.
UsageError: Any = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="joslim",
    help="One trained network, every size: train a slimmable network, and get the Pareto front of "
    "its subnets ('children').",
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
    rejudge,
    figure,
    allocate,
    latency,
    export,
    demo_page,
    report,
    selftest,
):
    app.command(cls=GroupedHelp)(command)


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
    """Run a command, and exit with 0, 2 (bad input), 1 (failed run), 130 or 143 (signals).

    Every other code than 0 comes with one line on stderr.
    """
    usual, warnings.formatwarning = warnings.formatwarning, as_one_line
    if isinstance(sys.stdout, io.TextIOWrapper):  # Names of files may not be valid UTF-8.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = app(args=arguments, prog_name="joslim", standalone_mode=False)
        if sys.stdout is not None:  # It is None after joslim ... >&-
            sys.stdout.flush()
    except UserError as error:
        fail(str(error), 2)
    except RunFailed as error:
        fail(str(error), 1)
    except UsageError as error:
        command = "joslim" if error.ctx is None else error.ctx.command_path
        fail(f"{error.format_message()} ({command} --help lists what is allowed)", 2)
    except Stopped as stopped:
        fail(str(stopped), 128 + stopped.signal)
    except OSError as error:
        fail_from_system(error)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    finally:
        warnings.formatwarning = usual
    sys.exit(code if isinstance(code, int) else 0)


def fail(message: str, code: int = 2) -> None:
    # Under torchrun every process prints: a file may be missing on one machine only.
    name = "joslim" if speaks() else f"joslim, process {os.environ['RANK']}"
    with contextlib.suppress(OSError):  # The exit code remains.
        print(f"{name}: {on_one_line(message)}", file=sys.stderr)
    distributed = sys.modules.get("joslim.distributed")
    if distributed is not None and distributed.has_joined():
        # Threads of torch may still wait for a process that is gone, and would keep this one.
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def fail_from_system(error: OSError) -> None:
    """Report a path that the system refuses, or output that cannot be written."""
    why = error.strerror or str(error)
    if error.filename is not None:
        fail(f"path: {os.fsdecode(error.filename)!r} cannot be used: {why}; type another")
    with contextlib.suppress(OSError):  # Otherwise Python writes it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):  # The reader ended, as in joslim ... | head.
        sys.exit(1)
    fail(f"cannot write to stdout, or to a file: {why}", 1)


def as_one_line(message: Warning | str, *where: Any, **line: Any) -> str:
    """Format a warning without its place in the code."""
    return f"joslim: {on_one_line(str(message))}\n"


def on_one_line(message: str) -> str:
    """Join the lines, and escape what names from files may contain."""
    return printable(" ".join(message.split()))
