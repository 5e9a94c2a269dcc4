"""`joslim latency`: measure children on this device, and write a device file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joslim.cli.flags import AsJson, Depth, Low, OwnModel, Resolutions, Shape
from joslim.errors import UserError
from joslim.files import json_count
from joslim.runs.config import sizes_of

if TYPE_CHECKING:
    from joslim.costs.device_file import DeviceFile
    from joslim.costs.timing import Setting, Watch
    from joslim.slimmable import SlimmableNet
    from joslim.space import Widths

# The error of the model cannot be estimated from fewer children.
FEWEST_CHILDREN = 10
# Children that are measured again at the end, for the machine's own repeatability.
AGAIN = 8


def latency(
    what: Annotated[
        str,
        typer.Argument(
            help="Built-in model, package.module:function, or folder of a run.",
            metavar="MODEL|RUN",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Device file to write.", metavar="FILE")
    ] = Path("latency.json"),
    shape: Shape = None,
    low: Low = None,
    resolutions: Resolutions = None,
    depth: Depth = False,
    model: OwnModel = None,
    threads: Annotated[int | None, typer.Option(help="Number of processor threads.")] = None,
    batch: Annotated[int, typer.Option(help="Number of inputs in a forward pass.")] = 1,
    precision: Annotated[str, typer.Option(help="Precision: fp32, bf16 or fp16.")] = "fp32",
    backend: Annotated[
        str, typer.Option(help="How a child is run: eager, compiled or onnxruntime.")
    ] = "eager",
    device: Annotated[str, typer.Option(help="Device: cpu, cuda, cuda:N or auto.")] = "cpu",
    children: Annotated[int, typer.Option(help="Number of children to measure.")] = 64,
    repeats: Annotated[int, typer.Option(help="Number of turns of each child.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Measure the latency of children on this device.

    Give the file to pick, export, front, allocate and report as --device-file, or to train with
    --cost latency.
    """
    from joslim.costs.device_file import CHILDREN_LIMIT
    from joslim.costs.latency import REPEATS_LIMIT
    from joslim.costs.timing import Setting, import_onnxruntime
    from joslim.runs.setup import find_device

    setting = Setting(threads, batch, precision, backend)
    json_count(children, "children", FEWEST_CHILDREN, CHILDREN_LIMIT)
    json_count(repeats, "repeats", 1, REPEATS_LIMIT)
    check_writable(out)
    if backend == "onnxruntime":
        import_onnxruntime()
    net, front = load_network(what, shape, low, model, resolutions, depth)
    net.to(find_device(device))
    with bar() as watch:
        measured, facts = measured_facts(net, setting, children, repeats, front, watch)
    measured.write(out)
    facts = {"network": what, **facts, "file": str(out)}
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        show(facts, str(measured.conditions))


def check_writable(out: Path) -> None:
    """Refuse a file that cannot be written, before the measurement takes its time."""
    if out.is_dir() or not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        why = "a folder" if out.is_dir() else "its folder cannot be written to"
        raise UserError(f"out: {str(out)!r}: {why}; type -o FILE")


def load_network(
    what: str,
    shape: str | None,
    low: float | None,
    model: str | None,
    resolutions: str | None = None,
    depth: bool = False,
) -> tuple[SlimmableNet, list[Widths]]:
    """Load the network, and the children of the front if it is the network of a run."""
    from joslim.models import MODELS
    from joslim.runs.fronts import opened
    from joslim.runs.networks import net_of

    if what not in MODELS and ":" not in what and (Path(what).is_dir() or os.sep in what):
        flags = {"input": shape, "low": low, "resolutions": resolutions, "depth": depth or None}
        for flag in (flag for flag, value in flags.items() if value is not None):
            raise UserError(f"{flag}: a run has its own; leave out --{flag}")
        run = opened(what, model)
        return run.net, [point.widths for point in run.front]
    if model is not None:
        raise UserError(f"model: {what!r} is no run; leave out --model")
    return net_of(what, shape, low, sizes_of(resolutions), depth), []


def measured_facts(
    net: SlimmableNet,
    setting: Setting,
    count: int,
    repeats: int,
    front: list[Widths],
    watch: Watch,
) -> tuple[DeviceFile, dict[str, Any]]:
    import numpy as np

    from joslim.costs.latency import (
        LatencyModel,
        held_out_error,
        measure_device,
        with_both_ends,
    )
    from joslim.costs.timing import measure

    chosen = with_both_ends(net, count, np.random.default_rng(0))
    if len(chosen) < 2:
        raise UserError("latency: this network has one child only; type a lower --low")
    measured = measure_device(net, list(dict.fromkeys([*chosen, *front])), setting, repeats, watch)
    some = np.unique(np.linspace(0, len(measured.ms) - 1, AGAIN).astype(int))
    again = measure(net, [measured.children[i] for i in some], setting, repeats).ms
    ms = np.array(measured.ms)
    model = LatencyModel(net.blueprint, measured.counts, ms)
    rows = [
        {"channels": child.channels, "ms": time, "modelled_ms": price, "spread": spread}
        for child, time, price, spread in zip(
            measured.children, measured.ms, model(measured.counts).tolist(), measured.spread
        )
    ]
    of = dict(zip(measured.children, rows))
    middle = measured.children[int(np.argsort(ms)[len(ms) // 2])]
    named = {"smallest": net.space.smallest, "middle": middle, "full": net.space.full}
    facts = {
        "conditions": measured.conditions.to_json(),
        "measured": len(rows),
        "sizes": {name: of[child] for name, child in named.items()},
        "front": [of[child] for child in front],
        "held_out_error": held_out_error(net.blueprint, measured.counts, ms),
        "repeatability": float(np.abs(again / ms[some] - 1).mean()),
        "spread": float(np.median(measured.spread)),
    }
    return measured, facts


def show(facts: dict[str, Any], conditions: str) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from joslim.results.tables import print_table

    console = Console(highlight=False)
    front = {f"front, child {i}": row for i, row in enumerate(facts["front"], start=1)}
    console.print(escape(f"{facts['network']} on {conditions}"))
    table = Table()
    for column in ("", "measured", "modelled", "spread"):
        table.add_column(column, justify="right" if column else "left")
    for name, row in {**facts["sizes"], **front}.items():
        times = (f"{row[key]:.3f} ms" for key in ("ms", "modelled_ms"))
        table.add_row(name, *times, percent(row["spread"]))
    print_table(console, table)
    console.print(
        f"model: off by {percent(facts['held_out_error'])} on children that it has not seen; "
        f"the machine itself, measured again: {percent(facts['repeatability'])}"
    )
    console.print(
        f"{facts['measured']} children, the middle half of their times spans "
        f"{percent(facts['spread'])} of them"
    )
    console.print(escape(f"device file: {facts['file']}"), soft_wrap=True)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


@contextmanager
def bar(words: str = "measuring") -> Iterator[Watch]:
    """Yield a function that shows the progress; it is silent if stderr is no terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(words, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
