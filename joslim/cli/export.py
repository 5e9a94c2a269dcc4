"""`joslim export`: children of a run, or the whole network, as files for other programs."""

from __future__ import annotations

import json
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
    from joslim.deploy.rounding import rounded_children, rounded_front, summary
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
        facts = whole_network(run, out, overwrite)
    elif bundle:
        facts = [bundle_of(run, out, device_file, model, overwrite, int8, data, divisor)]
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
            worst = asdict(worst_of(checks.values()))
            facts = [{"file": out, "bytes": size_of(Path(out)), "bundled": len(points), **worst}]
            if rounded:
                facts[0]["rounded"] = summary(rounded, len(points))
        else:
            costs = [*sets[0], *([COSTS["latency"].key] if device_file else [])]
            facts = [
                facts_of(source, point, Path(file), check, costs)
                for point, (file, check) in zip(points, checks.items())
            ]
            shown = dict.fromkeys([source.front.key, *sets[0]])
            for row, point in zip(facts, points):
                if rounded:
                    pair = next(pair for pair in rounded if pair.after == point)
                    row["rounded"] = pair.to_json(list(shown))
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        show(facts)


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


def whole_network(path: Path, out: str, overwrite: bool) -> list[dict[str, Any]]:
    from joslim.deploy import export_whole
    from joslim.runs.run import load

    if Path(out).suffix in known_suffixes():
        raise UserError(f"out: --whole makes a folder, {out!r} is the name of a file; type another")
    run = load(path)
    export_whole(run, out, overwrite=overwrite)
    return [{"file": out, "bytes": size_of(Path(out)), "children": len(run.front)}]


def bundle_of(
    path: Path,
    out: str,
    device_file: Path | None,
    model: str | None,
    overwrite: bool,
    int8: bool,
    data: str | None,
    divisor: int | None,
) -> dict[str, Any]:
    from joslim.cli.latency import bar
    from joslim.deploy import export_bundle
    from joslim.deploy.rounding import rounded_front, summary
    from joslim.runs.fronts import opened

    run = opened(path, model)
    run.front = run.timed(device_file) if device_file else run.front
    rounded: list[Rounded] = []
    if divisor is not None:
        run, rounded = rounded_front(run, divisor, run.front, data, device_file)
    with bar("writing children") as progress:
        made = export_bundle(run, out, overwrite, progress, int8, data)
    facts = {"file": out, "bytes": made.bytes, "bundled": made.children, **asdict(made.check)}
    facts |= {"int8_errors": made.errors} if int8 else {}
    return facts | ({"rounded": summary(rounded, made.children)} if rounded else {})


def facts_of(
    run: Run, point: Any, file: Path, check: Check | Quantized, costs: list[str]
) -> dict[str, Any]:
    """The size of a file, the costs of its child and the result of its check."""
    from joslim.deploy.int8 import Quantized

    widths = getattr(point, "widths", point)
    known = next((p.costs for p in run.front if p.widths == widths), {})
    shown = {name: known[name] for name in (run.front.key, *costs) if name in known}
    record = {"file": str(file), "bytes": size_of(file), **shown}
    if not isinstance(check, Quantized):
        return {**record, **asdict(check)}
    quantized = asdict(check)
    return {**record, **quantized.pop("check"), "int8": quantized}


def size_of(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def show(facts: list[dict[str, Any]]) -> None:
    from joslim.deploy.exporting import Check
    from joslim.deploy.int8 import Quantized
    from joslim.front import MetricName
    from joslim.results.tables import title
    from joslim.units import format_size

    for row in facts:
        line = f"{row.pop('file')}: {format_size('memory', row.pop('bytes'))}"
        if "children" in row:
            typer.echo(f"{line}, {row['children']} children on the front; joslim.load opens it")
            continue
        check = Check(*(row.pop(name) for name in ("difference", "agreeing", "samples")))
        rounded = row.pop("rounded", None)
        if "bundled" in row:
            typer.echo(f"{line}, {row['bundled']} children; the worst of them: {check}")
            if rounded:
                typer.echo(rounded["text"])
            if errors := row.get("int8_errors"):
                more = [after - before for before, after in errors]
                typer.echo(
                    "8-bit weights: test errors of the children change by "
                    f"{sum(more) / len(more):+.2f} % on average, {min(more):+.2f} to "
                    f"{max(more):+.2f} %"
                )
            continue
        quantized = row.pop("int8", None)
        costs = "".join(f", {title(name)} {format_size(name, cost)}" for name, cost in row.items())
        when = "before quantization " if quantized else ""
        typer.echo(f"{line}{costs}; {when}{check}")
        if rounded:
            typer.echo(rounded["text"])
        if quantized:
            metric = MetricName(**quantized.pop("metric"))
            typer.echo(str(Quantized(check, **quantized, metric=metric)))
