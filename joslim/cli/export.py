"""`joslim export`: children of a run as files that other programs run, or the whole network."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joslim.cli.budgets import LatencyMs, Macs, Memory, Params, budgets_of
from joslim.errors import UserError

if TYPE_CHECKING:
    from joslim.deploy.checking import Check
    from joslim.runs.run import Run


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    out: Annotated[
        str,
        typer.Option("--out", "-o", help="NAME.onnx, NAME.pt2, or a folder.", metavar="PATH"),
    ],
    macs: Macs = None,
    memory: Memory = None,
    latency_ms: LatencyMs = None,
    params: Params = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every child of the front, into a new folder.")
    ] = False,
    kind: Annotated[
        str | None, typer.Option("--format", help="With --all: onnx [default], pt2 or folder.")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="The slimmable network with its front, as a folder.")
    ] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="ONNX in 8-bit integers, with what that costs.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="Your own model again: package.module:function.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a child as a file that runs without joslim; without a budget, the full network."""
    budgets = budgets_of(macs=macs, memory=memory, latency_ms=latency_ms, params=params)
    check_together(budgets, every=every, whole=whole, kind=kind, int8=int8)
    if whole:
        facts = whole_network(run, out)
    elif every:
        facts = all_children(opened(run, model), out, kind or "onnx")
    else:
        facts = one_child(opened(run, model), out, budgets, int8)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        show(facts)


def check_together(
    budgets: dict[str, float], every: bool, whole: bool, kind: str | None, int8: bool
) -> None:
    wishes = {"a budget": bool(budgets), "--all": every, "--whole": whole}
    given = [name for name, asked in wishes.items() if asked]
    if len(given) > 1:
        raise UserError(f"export: {' and '.join(given)} exclude each other; type only one")
    if kind is not None and not every:
        raise UserError("format: it goes with --all; else the suffix of -o says it")
    if int8 and (every or whole):
        raise UserError("int8: it is for one child; leave out --all and --whole")


def opened(path: Path, model: str | None) -> Run:
    """With the front read: a run that has none yet says so before anything is made."""
    from joslim.runs.run import load

    run = load(path, model=model)
    own = run.config.model
    if ":" in own and model not in (None, own):
        raise UserError(f"model: {model!r} given, the run has {own!r}")
    if model is None and (":" in own or own.startswith("<")):
        again = own if ":" in own else "package.module:function"
        raise UserError(
            f"model: {own!r} is not imported because a file says so; type --model {again}"
        )
    _ = run.front
    return run


def one_child(run: Run, out: str, budgets: dict[str, float], int8: bool) -> list[dict[str, Any]]:
    from joslim.deploy import export as write
    from joslim.deploy import export_int8
    from joslim.deploy.checking import Check

    point = run.front.pick(**budgets) if budgets else run.net.space.full
    if not int8:
        return [facts_of(run, point, Path(out), write(run, point, out))]
    quantized = asdict(export_int8(run, point, out))
    check = Check(**quantized.pop("check"))
    return [{**facts_of(run, point, Path(out), check), "int8": quantized}]


def all_children(run: Run, out: str, kind: str) -> list[dict[str, Any]]:
    from joslim.deploy import export_children

    checks = export_children(run, run.front, out, kind)
    return [
        facts_of(run, point, Path(out) / name, check)
        for point, (name, check) in zip(run.front, checks.items())
    ]


def whole_network(path: Path, out: str) -> list[dict[str, Any]]:
    from joslim.deploy import export_whole
    from joslim.runs.run import load

    run = load(path)
    export_whole(run, out)
    return [{"file": out, "bytes": size_of(Path(out)), "children": len(run.front)}]


def facts_of(run: Run, point: Any, file: Path, check: Check) -> dict[str, Any]:
    """What is to be said of a file; the full network may not be one of the front."""
    widths = getattr(point, "widths", point)
    known = next((p for p in run.front if p.widths == widths), None)
    costs = known.costs if known else {}
    cost = {run.front.key: costs[run.front.key]} if costs else {}
    return {"file": str(file), "bytes": size_of(file), **cost, **asdict(check)}


def size_of(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def show(facts: list[dict[str, Any]]) -> None:
    from joslim.deploy.checking import Check
    from joslim.deploy.quantizing import Quantized
    from joslim.reports.tables import format_size, title

    for row in facts:
        line = f"{row.pop('file')}: {format_size('memory', row.pop('bytes'))}"
        if "children" in row:
            typer.echo(f"{line}, {row['children']} children on the front; joslim.load opens it")
            continue
        check = Check(*(row.pop(name) for name in ("difference", "agreeing", "samples")))
        quantized = row.pop("int8", None)
        costs = "".join(f", {title(name)} {format_size(name, cost)}" for name, cost in row.items())
        when = "before quantization " if quantized else ""
        typer.echo(f"{line}{costs}; {when}{check}")
        if quantized:
            typer.echo(str(Quantized(check, **quantized)))
