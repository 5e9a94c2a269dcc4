"""`joslim export`: children of a run as files that other programs run, or the whole network."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joslim.cli.budgets import DeviceFile, LatencyMs, Macs, Memory, Params, sets_of
from joslim.errors import UserError

if TYPE_CHECKING:
    from joslim.deploy.checking import Check
    from joslim.deploy.quantizing import Quantized
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
    device_file: DeviceFile = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every child of the front, into a new folder.")
    ] = False,
    kind: Annotated[
        str | None,
        typer.Option("--format", help="Of several children: onnx [default], pt2 or folder."),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="The slimmable network with its front, as a folder.")
    ] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="ONNX in 8-bit integers, with what that costs.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier export, file or folder.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="Your own model again: package.module:function.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a child as a file that runs without joslim; without a budget, the full network.

    Of the children that fit, it is the one with the least training loss, as in joslim pick. Budgets
    that are given several times are for several children, which go into a new folder.
    """
    from joslim.runs.fronts import opened

    sets = sets_of(macs=macs, memory=memory, latency_ms=latency_ms, params=params)
    several = every or len(sets) > 1
    check_together({"a budget": bool(sets[0]), "--all": every, "--whole": whole})
    check_format(kind, int8, device_file, several, whole)
    if whole:
        facts = whole_network(run, out, overwrite)
    else:
        source = with_front(opened(run, model), device_file)
        points = chosen(source, sets, every)
        if several:
            told = several_children(source, points, out, kind or "onnx", int8, overwrite)
        else:
            told = {out: one_child(source, points[0], out, int8, overwrite)}
        costs = [*sets[0], *(["latency_ms"] if device_file else [])]
        facts = [
            facts_of(source, point, Path(file), found, costs)
            for point, (file, found) in zip(points, told.items())
        ]
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        show(facts)


def check_together(wishes: dict[str, bool]) -> None:
    given = [name for name, asked in wishes.items() if asked]
    if len(given) > 1:
        raise UserError(f"export: {' and '.join(given)} exclude each other; type only one")


def check_format(
    kind: str | None, int8: bool, device_file: Path | None, several: bool, whole: bool
) -> None:
    if kind is not None and not several:
        raise UserError("format: it is for several children; else the suffix of -o says it")
    if whole and (int8 or device_file):
        field = "int8" if int8 else "device_file"
        raise UserError(f"{field}: it is for children; leave out --whole")
    if int8 and kind not in (None, "onnx"):
        raise UserError(f"int8: it goes with ONNX, {kind!r} given; type --format onnx")


def with_front(run: Run, device_file: Path | None) -> Run:
    """With the front read: a run that has none yet says so before anything is made."""
    run.front = run.timed(device_file) if device_file else run.front
    return run


def chosen(run: Run, sets: list[dict[str, float]], every: bool) -> list[Any]:
    """Points of the front; without a budget the full network, which may not be one of them."""
    if every:
        return list(run.front)
    return [run.front.pick(**budgets) if budgets else run.net.space.full for budgets in sets]


def one_child(run: Run, point: Any, out: str, int8: bool, overwrite: bool) -> Check | Quantized:
    from joslim.deploy import export as write
    from joslim.deploy import export_int8

    return (export_int8 if int8 else write)(run, point, out, overwrite=overwrite)


def several_children(
    run: Run, points: list[Any], out: str, kind: str, int8: bool, overwrite: bool
) -> dict[str, Check | Quantized]:
    from joslim.deploy import export_children, export_children_int8

    told: dict[str, Any]
    if int8:
        told = export_children_int8(run, points, out, overwrite=overwrite)
    else:
        told = export_children(run, points, out, kind, overwrite=overwrite)
    return {str(Path(out) / name): found for name, found in told.items()}


def whole_network(path: Path, out: str, overwrite: bool) -> list[dict[str, Any]]:
    from joslim.deploy import export_whole
    from joslim.runs.run import load

    if Path(out).suffix in (".onnx", ".pt2"):
        raise UserError(f"out: --whole makes a folder, {out!r} is the name of a file; type another")
    run = load(path)
    export_whole(run, out, overwrite=overwrite)
    return [{"file": out, "bytes": size_of(Path(out)), "children": len(run.front)}]


def facts_of(
    run: Run, point: Any, file: Path, told: Check | Quantized, costs: list[str]
) -> dict[str, Any]:
    """What is to be said of a file: its child's cost, and those that matter besides."""
    from joslim.deploy.quantizing import Quantized

    widths = getattr(point, "widths", point)
    known = next((p.costs for p in run.front if p.widths == widths), {})
    shown = {name: known[name] for name in (run.front.key, *costs) if name in known}
    record = {"file": str(file), "bytes": size_of(file), **shown}
    if not isinstance(told, Quantized):
        return {**record, **asdict(told)}
    quantized = asdict(told)
    return {**record, **quantized.pop("check"), "int8": quantized}


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
