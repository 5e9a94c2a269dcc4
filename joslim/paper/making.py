"""Make a figure of the paper: train the runs that are missing, and draw it.

In its folder: NAME.png, NAME.svg, NAME.json with all numbers, table1.md with the table, and runs/,
where figures that need the same trainings find them. Given settings win over those of the paper; a
setting that the figure itself varies cannot be given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from joslim.comparing import Entry, compare
from joslim.comparing.plan import LISTS, run_folders
from joslim.errors import RunFailed, Stopped, UserError, unknown
from joslim.files import write_whole, writing
from joslim.paper.drawings import (
    SHARES,
    Clock,
    draw_bisection,
    draw_every,
    draw_imagenet,
    draw_latency,
    draw_table1,
    draw_widths,
    every_of,
    search_of,
    table_texts,
)
from joslim.paper.figures import KS, PaperFigure, Trials, ablation_of_k, find_figure
from joslim.paper.panels import Drawn, Labelled, Panel, data_name, draw_curves, method_of, panels_of
from joslim.results.plots import save
from joslim.results.record import Record, read_record
from joslim.results.run_files import refuse_unfinished
from joslim.runs.config import config_of
from joslim.runs.recipes import PAPER, check_data
from joslim.training.methods import PRESETS

RUNS = "runs"


@dataclass(frozen=True)
class DrawingOptions:
    """The choices of a drawing. shares: of figure widths; clock: of figure latency."""

    shares: Sequence[float] = SHARES
    clock: Clock = field(default_factory=Clock)


# How each figure of `FIGURES` is drawn.
DRAWINGS: dict[str, Callable[[Sequence[Panel], DrawingOptions], Drawn]] = {
    "cifar": lambda panels, _: draw_curves(panels),
    "imagenet": lambda panels, _: draw_imagenet(panels),
    "table1": lambda panels, _: draw_table1(panels),
    "latency": lambda panels, options: draw_latency(panels, options.clock),
    "memory": lambda panels, _: draw_curves(panels),
    "bisection": lambda panels, _: draw_bisection(panels),
    "k": lambda panels, _: draw_every(panels),
    "widths": lambda panels, options: draw_widths(panels, options.shares),
    "autoslim": lambda panels, _: draw_curves(panels),
}
# The functions that name the line of a run, where it is not its method.
LINES: dict[str, Labelled] = {"bisection": search_of, "k": every_of}


def make_figure(
    name: str,
    out: str | Path,
    *,
    seeds: Sequence[int] | None = None,
    only: Sequence[str] | None = None,
    ks: Sequence[int] | None = None,
    options: DrawingOptions | None = None,
    how: Mapping[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train the runs that are missing, draw the figure, and return its numbers.

    Args:
        name: A name in `FIGURES`.
        out: Folder of the figure.
        seeds: Random seeds; by default those of the paper.
        only: Recipes of the figure, without paper/; by default all of them.
        ks: Values of K of figure k.
        options: How the figure is drawn.
        how: at_once, processes, engine and watch of `joslim.compare`.
        settings: Fields of `Config`, in place of those of the recipes. Panels that become the same
            are drawn once.
    """
    figure = figure_with(name, ks, settings)
    trainings = planned(figure, settings, only)
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"out: {str(folder)!r} is a file, a folder is needed")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    chosen = figure.seeds if seeds is None else seeds
    entries = [entry for t in trainings for entry in _trained(t, chosen, folder, how or {})]
    failures = [f"{e.path}: {e.failure}" for e in entries if e.front is None]
    if failures:
        raise RunFailed(
            f"{len(failures)} of {len(entries)} trainings have failed, and the same command tries "
            f"them again: {'; '.join(failures)}"
        )
    options = options or DrawingOptions()
    # Code of a model of one's own is imported because it is given, not because a file names it.
    model = settings.get("model")
    clock = replace(options.clock, model=model if model is not None and ":" in model else None)
    if clock.device_file is None:
        clock = replace(clock, kept=folder / f"{name}-device.json")
    paths = [folder / f"{name}{suffix}" for suffix in (".png", ".svg")]
    records = [read_record(entry.path) for entry in entries]
    return _drawn(name, records, replace(options, clock=clock), paths)


def draw_runs(
    name: str,
    runs: Iterable[str | Path],
    path: str | Path,
    options: DrawingOptions | None = None,
) -> dict[str, Any]:
    """Draw the figure of finished runs, or of whole comparisons; nothing is trained."""
    find_figure(name)
    folders = run_folders(runs)
    for folder in folders:
        refuse_unfinished(folder)
    records = [read_record(folder) for folder in folders]
    return _drawn(name, records, options or DrawingOptions(), [Path(path)])


def _drawn(
    name: str, runs: Sequence[Record], options: DrawingOptions, paths: Sequence[Path]
) -> dict[str, Any]:
    """Draw the picture at these paths, and write its numbers beside the first of them."""
    figure = find_figure(name)
    panels = panels_of(runs, LINES.get(name, method_of), figure.costs)
    picture, numbers = DRAWINGS[name](panels, options)
    for path in paths:
        save(picture, path)
    record: dict[str, Any] = {"figure": name, "of_the_paper": figure.place, **numbers}
    record["files"] = [str(path) for path in paths]
    texts = {".json": json.dumps(record, indent=1, allow_nan=False) + "\n"}
    if "tables" in record:
        texts[".md"] = "\n".join(map(_markdown, record["tables"]))
    for suffix, text in texts.items():
        file = paths[0].with_suffix(suffix)
        with writing(file):
            write_whole(file, text)
        record["files"] = [*record["files"], str(file)]
    return record


def _markdown(table: Mapping[str, Any]) -> str:
    head, *rows = table_texts(table)
    lines = [" | ".join(cells) for cells in (head, ["---:"] * len(head), *rows)]
    body = "\n".join(f"| {line} |" for line in lines)
    return f"**{table['title']}**: top-1 accuracy in percent\n\n{body}\n"


# The trainings of a figure


@dataclass(frozen=True)
class Training:
    """The trainings of one call of `compare`, in a folder of this name."""

    folder: str
    model: str
    cost: str
    methods: tuple[str, ...]
    settings: dict[str, Any]


def figure_with(name: str, ks: Sequence[int] | None, settings: Mapping[str, Any]) -> PaperFigure:
    """Return the figure, with other values of K if they are given."""
    figure = find_figure(name)
    if name != "k":
        if ks is not None:
            raise UserError(f"ks: figure {name} has no values of K to choose; leave it out")
        return figure
    if ks is None and any(settings.get(key) is not None for key in ("steps", "epochs")):
        listed = ",".join(map(str, KS))
        raise UserError(
            f"ks: the paper's {listed} belong to its 400 epochs; type values for this length: "
            "--ks 2,5,10"
        )
    chosen = KS if ks is None else ks
    if len({*chosen}) < len(chosen):
        raise UserError(f"ks: {','.join(map(str, chosen))} has a value twice; type each only once")
    return replace(figure, trials=ablation_of_k(chosen))


def planned(
    figure: PaperFigure, settings: Mapping[str, Any], only: Sequence[str] | None = None
) -> list[Training]:
    """Plan the trainings of a figure, and refuse wrong settings before anything is trained."""
    names = list(dict.fromkeys(trials.recipe.removeprefix(PAPER) for trials in figure.trials))
    for name in only or ():
        if name not in names:
            raise unknown("only", name, names, most=len(names))
    wanted = names if only is None else only
    trainings: dict[tuple[str, str], Training] = {}
    for trials in figure.trials:
        if trials.recipe.removeprefix(PAPER) in wanted:
            training = _training_of(trials, settings)
            key = (training.folder, training.cost)
            before = trainings.get(key, training)
            methods = tuple(dict.fromkeys([*before.methods, *training.methods]))
            trainings[key] = replace(before, methods=methods)
    return list(trainings.values())


def _training_of(trials: Trials, given: Mapping[str, Any]) -> Training:
    """Combine the recipe, the given settings, and those that the figure itself varies."""
    for key in trials.change:
        if given.get(key) is not None:
            raise UserError(f"{key}: {given[key]!r} given, but this figure varies it; leave it out")
    values = {key: value for key, value in given.items() if value is not None}
    config = config_of({"recipe": trials.recipe, **values})
    check_data(config.recipe, config.data)
    present = config.to_json()
    if config.searcher is None:
        present["searcher"] = PRESETS[config.preset].searchers["joslim"][0]
    # A change to the present value is none: other figures have trained that.
    change = {key: value for key, value in trials.change.items() if value != present[key]}
    changed = config_of({**config.to_json(), **change})
    settings = {
        key: value
        for key, value in changed.to_json().items()
        if value is not None and key not in LISTS and key != "recipe"
    }
    # cifar100-resnet20, cifar100-resnet20-every-156
    changes = [f"{key}-{value}" for key, value in change.items()]
    parts = "-".join([data_name(config.data), config.model, *changes])
    folder = re.sub(r"[^\w.-]", ".", parts).lstrip(".")
    return Training(folder, config.model, trials.cost, trials.methods, settings)


def _trained(
    training: Training, seeds: Sequence[int], folder: Path, how: Mapping[str, Any]
) -> list[Entry]:
    """Train the runs; others in the same comparison, of another figure, are left out."""
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
