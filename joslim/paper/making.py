"""A figure of the paper from nothing: its trainings, as far as they are missing, and its picture.

In its folder: NAME.png, NAME.svg, NAME.json with all numbers, and runs/, where figures that need
the same trainings find them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from joslim.comparing import Entry, compare
from joslim.comparing.plan import run_folders
from joslim.errors import RunFailed, Stopped, UserError
from joslim.paper.drawing import DRAWINGS, Wishes
from joslim.paper.figures import find_figure
from joslim.paper.panels import panels_of
from joslim.paper.planning import Training, figure_with, planned
from joslim.reports.figures import save
from joslim.runs.run import Run, load
from joslim.runs.whereabouts import refuse_unfinished
from joslim.whole import write_whole

RUNS = "runs"


def make_figure(
    name: str,
    out: str | Path,
    *,
    seeds: Sequence[int] | None = None,
    only: Sequence[str] | None = None,
    ks: Sequence[int] | None = None,
    wishes: Wishes | None = None,
    how: Mapping[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train what is missing, draw the figure into the folder `out`, and return its numbers.

    only: recipes of the figure, without paper/; all of them by default. ks: of figure k. wishes:
    how it is drawn. how: at_once, engine and watch of `joslim.compare`. settings: fields of
    `Config`, instead of those of the recipes; panels that become the same are drawn once.
    """
    figure = figure_with(name, ks, settings)
    trainings = planned(figure, settings, only)
    folder = made_folder(out)
    chosen = figure.seeds if seeds is None else seeds
    entries = [entry for t in trainings for entry in trained(t, chosen, folder, how or {})]
    refuse_failures(entries)
    runs = [load(entry.path, own_model(settings)) for entry in entries]
    paths = [folder / f"{name}{suffix}" for suffix in (".png", ".svg")]
    return drawn(
        name, runs, keeping_times(wishes or Wishes(), folder / f"{name}-device.json"), paths
    )


def trained(
    training: Training, seeds: Sequence[int], folder: Path, how: Mapping[str, Any]
) -> list[Entry]:
    """Its runs; the comparison may have others too, of another figure."""
    try:
        comparison = compare(
            training.methods,
            seeds,
            [training.cost],
            [training.model],
            out=folder / RUNS / training.folder,
            **how,
            **training.settings,
        )
    except Stopped as stopped:
        raise Stopped(f"stopped; the same command goes on in {folder}", stopped.signal) from stopped
    wanted = {(training.model, training.cost, m, s) for m in training.methods for s in seeds}
    return [e for e in comparison.entries if (e.model, e.cost, e.method, e.seed) in wanted]


def refuse_failures(entries: Sequence[Entry]) -> None:
    failures = [f"{e.path}: {e.failure}" for e in entries if e.front is None]
    if failures:
        raise RunFailed(
            f"{len(failures)} of {len(entries)} trainings have failed, and the same command tries "
            f"them again: {'; '.join(failures)}"
        )


def keeping_times(wishes: Wishes, file: Path) -> Wishes:
    """What is measured is kept in the folder of the figure."""
    if wishes.clock.device_file is not None:
        return wishes
    return replace(wishes, clock=replace(wishes.clock, kept=file))


def draw_runs(
    name: str,
    runs: Iterable[str | Path],
    path: str | Path,
    wishes: Wishes | None = None,
    model: str | None = None,
) -> dict[str, Any]:
    """Draw the figure of runs that are there, or of whole comparisons; nothing is trained.

    model: a network of one's own again, for figures that need the network itself.
    """
    find_figure(name)
    found = [opened(folder, model) for folder in run_folders(runs)]
    return drawn(name, found, wishes or Wishes(), [Path(path)])


def drawn(name: str, runs: Sequence[Run], wishes: Wishes, paths: Sequence[Path]) -> dict[str, Any]:
    """The picture at these paths, and its numbers beside the first of them."""
    figure = find_figure(name)
    panels = panels_of(runs, DRAWINGS[name].label, figure.costs)
    picture, numbers = DRAWINGS[name].draw(panels, wishes)
    for path in paths:
        save(picture, path)
    record = {"figure": name, "of_the_paper": figure.place, **numbers}
    record["files"] = [str(path) for path in paths]
    file = paths[0].with_suffix(".json")
    try:
        write_whole(file, json.dumps(record, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise UserError(f"out: cannot write {str(file)!r}: {error.strerror}") from error
    return {**record, "files": [*record["files"], str(file)]}


# Runs that are there


def opened(folder: Path, model: str | None = None) -> Run:
    """A run that has finished."""
    refuse_unfinished(folder)
    return load(folder, model)


# What the trainings need


def own_model(settings: Mapping[str, Any]) -> str | None:
    """A network of one's own is not imported because a file says so, but because it is given."""
    model = settings.get("model")
    return model if model is not None and ":" in model else None


def made_folder(path: str | Path) -> Path:
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"out: {str(folder)!r} is a file, a folder is needed")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"out: cannot make {str(folder)!r}: {error.strerror}") from error
    return folder
