"""`joslim.export`: from a point of a run to a file that has proved itself."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from joslim.costs.measuring import import_onnxruntime
from joslim.deploy.beside import beside
from joslim.deploy.checking import Check, compared, samples_of, scores_in_place
from joslim.deploy.facts import facts_of, widths_of
from joslim.deploy.formats import FORMATS, Child, Format, format_of
from joslim.errors import unknown
from joslim.runs.run import Run, load


def export(run: Run | str | Path, point: Any, path: str | Path) -> Check:
    """Write one child as .onnx, .pt2 or a folder, by the suffix of the path, and check the file.

    run: what `joslim.load` returns, or the folder. point: of the run's front, or Widths such as
    run.net.space.full. A file that differs from the network run in place is a RunFailed, and
    nothing is left behind.
    """
    run = run if isinstance(run, Run) else load(run)
    chosen = ready(format_of(path))
    with beside(path, folder=not chosen.suffix) as new:
        return write_child(run, point, new, chosen)


def export_children(
    run: Run, points: Iterable[Any], path: str | Path, kind: str = "onnx"
) -> dict[str, Check]:
    """Several children into one new folder, as child-01.onnx and so on: all of them or none."""
    if kind not in FORMATS:
        raise unknown("format", kind, FORMATS)
    chosen = ready(FORMATS[kind])
    checks = {}
    with beside(path, folder=True) as new:
        new.mkdir()
        for number, point in enumerate(points, start=1):
            name = f"child-{number:02}{chosen.suffix}"
            checks[name] = write_child(run, point, new / name, chosen)
    return checks


def ready(chosen: Format) -> Format:
    """What is not installed is said before anything is made."""
    if chosen.suffix == ".onnx":
        import_onnxruntime()
    return chosen


def write_child(run: Run, point: Any, file: Path, chosen: Format) -> Check:
    widths = widths_of(run, point)
    samples = samples_of(run)
    expected = scores_in_place(run, widths, samples)
    child = Child(run.net._cut(widths).cpu().eval(), facts_of(run, widths))
    chosen.write(child, file)
    return compared(chosen.run(child, file), samples, expected)
