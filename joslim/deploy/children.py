"""`joslim.export`: from a point of a run to a file that has proved itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from joslim.deploy.beside import beside
from joslim.deploy.checking import Check, compared, samples_of, scores_in_place
from joslim.deploy.facts import facts_of, widths_of
from joslim.deploy.formats import FORMATS, Child, Format, format_of, onnx_packages
from joslim.errors import UserError, unknown
from joslim.runs.run import Run, load

Told = TypeVar("Told")


def export(run: Run | str | Path, point: Any, path: str | Path, overwrite: bool = False) -> Check:
    """Write one child as .onnx, .pt2 or a folder, by the suffix of the path, and check the file.

    run: what `joslim.load` returns, or the folder. point: of the run's front, or Widths such as
    run.net.space.full. A file that differs from the network run in place is a RunFailed, and
    nothing is left behind. What is at the path already stays, unless it is to be overwritten.
    """
    run = run if isinstance(run, Run) else load(run)
    chosen = ready(format_of(path))
    with beside(path, folder=not chosen.suffix, overwrite=overwrite) as new:
        return write_child(run, point, new, chosen)


def export_children(
    run: Run,
    points: Iterable[Any],
    path: str | Path,
    kind: str = "onnx",
    overwrite: bool = False,
) -> dict[str, Check]:
    """Several children into one new folder, as child-01.onnx and so on: all of them or none."""
    if kind not in FORMATS:
        raise unknown("format", kind, FORMATS)
    chosen = ready(FORMATS[kind])
    write = partial(write_child, run, chosen=chosen)
    return write_several(points, path, chosen.suffix, write, overwrite)


def write_several(
    points: Iterable[Any],
    path: str | Path,
    suffix: str,
    write: Callable[[Any, Path], Told],
    overwrite: bool,
) -> dict[str, Told]:
    """What `write` tells of each file, by its name."""
    if Path(path).suffix in {known.suffix for known in FORMATS.values() if known.suffix}:
        raise UserError(
            f"out: several children go into a folder, {str(path)!r} given; type -o NAME --format "
            f"{Path(path).suffix[1:]}"
        )
    told = {}
    with beside(path, folder=True, overwrite=overwrite) as new:
        new.mkdir()
        for number, point in enumerate(points, start=1):
            name = f"child-{number:02}{suffix}"
            told[name] = write(point, new / name)
    return told


def ready(chosen: Format) -> Format:
    """What is not installed is said before anything is made."""
    if chosen.suffix == ".onnx":
        onnx_packages()
    return chosen


def write_child(run: Run, point: Any, file: Path, chosen: Format) -> Check:
    widths = widths_of(run, point)
    samples = samples_of(run)
    expected = scores_in_place(run, widths, samples)
    child = Child(run.net._cut(widths).cpu().eval(), facts_of(run, widths))
    chosen.write(child, file)
    return compared(chosen.run(child, file), samples, expected)
