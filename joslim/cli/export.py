"""`joslim export`: children of a run, or the whole network, as files for other programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joslim.cli.flags import (
    AsJson,
    By,
    DeviceFile,
    MovedData,
    OwnModel,
    sets_of,
    with_budgets,
)
from joslim.costs import COSTS
from joslim.errors import UserError
from joslim.formats import FORMATS, known_suffixes

if TYPE_CHECKING:
    from joslim.deploy.exporting import Check
    from joslim.deploy.int8 import Quantized
    from joslim.deploy.rounding import Rounded
    from joslim.runs.run import Run

# The record of a file for --json, and its lines for people.
Facts = tuple[dict[str, Any], list[str]]
FILES = ", ".join(f"NAME{suffix}" for suffix in known_suffixes())


@with_budgets
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[
        str,
        typer.Option("--out", "-o", help=f"{FILES}, or NAME for a folder.", metavar="PATH"),
    ],
    device_file: DeviceFile = None,
    by: By = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Export every child of the front: into a new folder, or as methods of NAME.pte.",
        ),
    ] = False,
    kind: Annotated[
        str | None,
        typer.Option("--format", help=f"Format of several children: {', '.join(FORMATS)}. [onnx]"),
    ] = None,
    whole: Annotated[
        bool,
        typer.Option("--whole", help="Export the slimmable network with its front: a folder."),
    ] = False,
    bundle: Annotated[
        bool, typer.Option("--bundle", help="Export the whole front as one file, NAME.joslim.")
    ] = False,
    int8: Annotated[
        bool,
        typer.Option("--int8", help="Quantize to 8-bit integers (ONNX or bundle), and compare."),
    ] = False,
    divisor: Annotated[
        int | None,
        typer.Option(
            help="Round the channels of the children to multiples of this number, such as 8, and "
            "judge the rounded children.",
            min=1,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing export.")
    ] = False,
    model: OwnModel = None,
    data: MovedData = None,
    as_json: AsJson = False,
    **texts: list[str] | None,
) -> None:
    """Export children (subnets) as files that run without joslim.

    Without a budget, the full network is exported; with budgets, the best child that fits them, as
    in joslim pick. Budgets that are given several times select several children, which are written
    into a new folder.
    """
    from joslim.deploy.exporting import worst_of
    from joslim.deploy.rounding import rounded_children, rounded_front
    from joslim.runs.fronts import opened

    sets = sets_of(**texts)
    several = every or len(sets) > 1
    wishes = {"a budget": bool(sets[0]), "--all": every, "--whole": whole, "--bundle": bundle}
    given = [name for name, asked in wishes.items() if asked]
    if len(given) > 1:
        raise UserError(f"export: {' and '.join(given)} exclude each other; type only one")
    check_format(kind, int8, device_file, several, whole)
    if data is not None and not int8 and divisor is None:
        raise UserError("data: it is for --int8 and --divisor; leave it out, or type one of them")
    if divisor is not None and (whole or not given):
        why = "--whole has all of them" if whole else "the full network keeps its channels"
        raise UserError(f"divisor: it is for children, {why}; type a budget, --all or --bundle")
    rounded: list[Rounded] = []
    if whole:
        found = [whole_network(run, out, overwrite)]
    elif bundle:
        found = [bundle_of(run, out, device_file, model, overwrite, int8, data, divisor)]
    else:
        source = opened(run, model)
        # The front is read now: a run that has none yet says so before anything is written.
        source.front = source.timed(device_file) if device_file else source.front
        if every:
            if divisor is not None:
                source, rounded = rounded_front(source, divisor, source.front, data, device_file)
            points: list[Any] = list(source.front)
        else:
            full = source.net.space.full  # it may not be on the front
            points = [source.front.pick(by=by, **budgets) if budgets else full for budgets in sets]
            if divisor is not None:
                wanted = list(zip(points, sets))
                source, rounded = rounded_children(source, divisor, wanted, data, device_file)
                points = [pair.after for pair in rounded]
        checks = write(source, points, out, several, kind, int8, overwrite, data)
        if several and Path(out).is_file():  # the children are methods of one file
            worst = worst_of(checks.values())
            found = [facts_of_many(out, size_of(Path(out)), len(points), worst, rounded)]
        else:
            costs = [*sets[0], *([COSTS["latency"].key] if device_file else [])]
            found = []
            for point, (file, check) in zip(points, checks.items()):
                row, lines = facts_of(source, point, file, check, costs)
                if rounded:
                    pair = next(pair for pair in rounded if pair.after == point)
                    row["rounded"] = pair.to_json([*dict.fromkeys([source.front.key, *sets[0]])])
                    lines.insert(1, row["rounded"]["text"])
                found.append((row, lines))
    if as_json:
        typer.echo(json.dumps([row for row, _ in found], indent=2))
    else:
        typer.echo("\n".join(line for _, lines in found for line in lines))


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


def write(
    run: Run,
    points: list[Any],
    out: str,
    several: bool,
    kind: str | None,
    int8: bool,
    overwrite: bool,
    data: str | None = None,
) -> dict[str, Any]:
    """Write children; the results of their checks by file."""
    from joslim import deploy

    found: dict[str, Any]
    if not several:
        if int8:
            return {out: deploy.export_int8(run, points[0], out, overwrite, data)}
        return {out: deploy.export(run, points[0], out, overwrite=overwrite)}
    if int8:
        found = deploy.export_children_int8(run, points, out, overwrite, data)
    else:
        found = deploy.export_children(run, points, out, kind, overwrite=overwrite)
    return {str(Path(out) / name): check for name, check in found.items()}


def whole_network(path: Path, out: str, overwrite: bool) -> Facts:
    from joslim.deploy import export_whole
    from joslim.runs.run import load

    if Path(out).suffix in known_suffixes():
        raise UserError(f"out: --whole makes a folder, {out!r} is the name of a file; type another")
    run = load(path)
    export_whole(run, out, overwrite=overwrite)
    row, line = facts_of_file(out, size_of(Path(out)))
    count = len(run.front)
    words = f"{line}, {count} children on the front; joslim.load opens it"
    return {**row, "children": count}, [words]


def bundle_of(
    path: Path,
    out: str,
    device_file: Path | None,
    model: str | None,
    overwrite: bool,
    int8: bool,
    data: str | None,
    divisor: int | None,
) -> Facts:
    from joslim.cli.latency import bar
    from joslim.deploy import export_bundle
    from joslim.deploy.rounding import rounded_front
    from joslim.runs.fronts import opened

    run = opened(path, model)
    run.front = run.timed(device_file) if device_file else run.front
    rounded: list[Rounded] = []
    if divisor is not None:
        run, rounded = rounded_front(run, divisor, run.front, data, device_file)
    with bar("writing children") as progress:
        made = export_bundle(run, out, overwrite, progress, int8, data)
    row, lines = facts_of_many(out, made.bytes, made.children, made.check, rounded)
    if int8:
        row["int8_errors"] = made.errors
    if made.errors:
        more = [after - before for before, after in made.errors]
        lines.append(
            "8-bit weights: test errors of the children change by "
            f"{sum(more) / len(more):+.2f} % on average, {min(more):+.2f} to {max(more):+.2f} %"
        )
    return row, lines


def facts_of_file(file: str, size: int) -> tuple[dict[str, Any], str]:
    from joslim.units import format_size

    return {"file": file, "bytes": size}, f"{file}: {format_size('memory', size)}"


def facts_of_many(
    file: str, size: int, count: int, check: Check, rounded: Sequence[Rounded]
) -> Facts:
    """Describe a file of several children. check: the worst of their checks."""
    from joslim.deploy.rounding import summary

    row, line = facts_of_file(file, size)
    row |= {"bundled": count, **asdict(check)}
    lines = [f"{line}, {count} children; the worst of them: {check}"]
    if rounded:
        row["rounded"] = summary(rounded, count)
        lines.append(row["rounded"]["text"])
    return row, lines


def facts_of(run: Run, point: Any, file: str, check: Check | Quantized, costs: list[str]) -> Facts:
    """Describe a child: the size of its file, its costs and the result of its check."""
    from joslim.deploy.int8 import Quantized
    from joslim.results.tables import title
    from joslim.units import format_size

    widths = getattr(point, "widths", point)
    known = next((p.costs for p in run.front if p.widths == widths), {})
    shown = {name: known[name] for name in (run.front.key, *costs) if name in known}
    row, line = facts_of_file(file, size_of(Path(file)))
    row |= shown
    line += "".join(f", {title(name)} {format_size(name, cost)}" for name, cost in shown.items())
    if not isinstance(check, Quantized):
        return {**row, **asdict(check)}, [f"{line}; {check}"]
    quantized = asdict(check)
    row |= {**quantized.pop("check"), "int8": quantized}
    return row, [f"{line}; before quantization {check.check}", str(check)]


def size_of(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
