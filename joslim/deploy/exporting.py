"""Exports of a run: one child, several, or the whole slimmable network; and a child read back.

Every exported child is loaded back and compared with the network before the file is kept.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from joslim import __version__
from joslim.deploy.destination import destination
from joslim.errors import RunFailed, UserError, unknown
from joslim.files import (
    JSON_LIMIT,
    json_count,
    json_name,
    json_number,
    json_rows,
    json_value,
    read_json,
    stored_tensors,
)
from joslim.formats import (
    FORMATS,
    INPUT,
    OUTPUT,
    WEIGHTS,
    Child,
    Format,
    format_of,
    load_weights,
    suffixes_of_files,
)
from joslim.front import ERRORS, Point, counts_of_json
from joslim.results.run_files import CONFIG, FRONT, facts_of_child, read_front
from joslim.runs import checkpoint
from joslim.runs.folder import CHECKPOINT, SAMPLES
from joslim.runs.run import MOST_CHANNELS, MOST_CLASSES, MOST_PIXELS, MOST_VALUES, Run, load
from joslim.runs.setup import check_model, load_blank, make_net
from joslim.space import Widths
from joslim.training.evaluate import evaluating

# Format number of an exported folder. It goes up when other versions cannot read the folder.
FORMAT = 1
# Largest difference of a score, relative to the largest score, or to 1 if that is smaller. Sums in
# another order differ by 1e-4 in the deepest networks, a wrong weight or statistic by far more.
TOLERANCE = 1e-3

Result = TypeVar("Result")


@dataclass(frozen=True)
class Check:
    """The largest difference of a score, and on how many samples the most likely class agrees."""

    difference: float
    agreeing: int
    samples: int

    def __str__(self) -> str:
        classes = f"classes agree on {self.agreeing} of {self.samples} samples"
        return f"largest difference {self.difference:.1e}, {classes}"


def export(run: Run | str | Path, point: Any, path: str | Path, overwrite: bool = False) -> Check:
    """Write one child (subnet) to a file that other programs run, and check the file.

    The file is loaded back and compared with the network on the samples that the run has kept. If
    they differ, nothing is left behind.

    Args:
        run: A run, or its folder.
        point: A point of the run's front, or a child such as `run.net.space.full`.
        path: The file. Its suffix decides the format: .onnx, .pt2, or none for a folder that
            `joslim.load_child` opens.
        overwrite: Replace what is at the path already.

    Returns:
        The largest difference of a score, and on how many samples the most likely class agrees.

    Raises:
        UserError: The point is of another run, the path exists, or a package for the format is
            missing.
        RunFailed: The file computes something else than the network.

    Examples:
        >>> run = joslim.load("runs/digits")
        >>> check = joslim.export(run, run.front[0], "child")
        >>> check.agreeing == check.samples
        True
    """
    run = run if isinstance(run, Run) else load(run)
    chosen = format_of(path)
    chosen.check_installed()
    with destination(path, folder=not chosen.suffix, overwrite=overwrite) as new:
        return write_child(run, point, new, chosen)


def export_children(
    run: Run,
    points: Iterable[Any],
    path: str | Path,
    kind: str = "onnx",
    overwrite: bool = False,
) -> dict[str, Check]:
    """Write several children into one new folder, as child-01.onnx and so on: all or none."""
    if kind not in FORMATS:
        raise unknown("format", kind, FORMATS)
    chosen = FORMATS[kind]
    chosen.check_installed()

    return write_several(
        points, path, chosen.suffix, lambda p, file: write_child(run, p, file, chosen), overwrite
    )


def write_several(
    points: Iterable[Any],
    path: str | Path,
    suffix: str,
    write: Callable[[Any, Path], Result],
    overwrite: bool,
) -> dict[str, Result]:
    """Write several children into one new folder; the results of `write` by file name."""
    if Path(path).suffix in suffixes_of_files():
        raise UserError(
            f"out: several children go into a folder, {str(path)!r} given; type -o NAME --format "
            f"{Path(path).suffix[1:]}"
        )
    results = {}
    with destination(path, folder=True, overwrite=overwrite) as new:
        new.mkdir()
        for number, point in enumerate(points, start=1):
            name = f"child-{number:02}{suffix}"
            results[name] = write(point, new / name)
    return results


def export_whole(run: Run, path: str | Path, overwrite: bool = False) -> None:
    """Write the slimmable network with its front as a run folder without its training state.

    `joslim.load` opens the folder; no training can be resumed from it.
    """
    front = read_front(run.path)
    source = checkpoint.find(run.folder)
    if source is None:
        raise UserError(f"run: {str(run.path)!r} has no checkpoint yet")
    checkpoint.verify(source)
    if not run.folder.file(SAMPLES).is_file():
        raise UserError(f"run: {str(run.path)!r} has no {SAMPLES}, its training has not finished")
    with destination(path, folder=True, overwrite=overwrite) as new:
        target = new / CHECKPOINT
        target.mkdir(parents=True)
        for name in (CONFIG, FRONT, SAMPLES):
            shutil.copyfile(run.folder.file(name), new / name)
        for name in (checkpoint.MODEL, checkpoint.STATISTICS):
            shutil.copyfile(source / name, target / name)
        torch.save(None, target / checkpoint.STATE)  # empty, by which `joslim resume` knows it
        summary = read_json(source / checkpoint.SUMMARY, JSON_LIMIT, "checkpoint")
        checkpoint.write_summary(target, summary)
        copied = load(new)
        checkpoint.verify(target)
        assert copied.front == front


# One child


def write_child(run: Run, point: Any, file: Path, chosen: Format) -> Check:
    """Write a child in a format, and compare it with the network."""
    widths = widths_of(run, point)
    samples = samples_of(run)
    expected = scores_in_place(run, widths, samples)
    child = Child(run.net._cut(widths).cpu().eval(), metadata(run, widths))
    chosen.write(child, file)
    return compared(chosen.run(child, file), samples, expected)


def widths_of(run: Run, point: Any) -> Widths:
    """The widths of a point of this run, for which the network has BatchNorm statistics."""
    net = run.net
    widths = net._checked(getattr(point, "widths", point))
    if isinstance(point, Point):
        # Costs may differ: milliseconds may be of another device.
        figures = ("widths", "train_loss", *ERRORS)
        if not any(
            all(getattr(point, name) == getattr(own, name) for name in figures) for own in run.front
        ):
            raise UserError(
                f"point: it is not on the front of {str(run.path)!r}, another run may have it; "
                "take one of run.front, or give point.widths if you mean these channels"
            )
    if net._slim_net.norms and widths not in {*net.statistics, net.space.full}:
        raise UserError(
            "point: this child has no BatchNorm statistics of its own; take one of run.front, "
            "or call joslim.recalibrate(run.net, batches) at its widths first"
        )
    return widths


def metadata(run: Run, widths: Widths) -> dict[str, Any]:
    """How the child was cut, and the meaning of its inputs and outputs, as JSON.

    Inputs are pixels from 0 to 1, less the mean, over the standard deviation.
    """
    where = f"{CONFIG}.data"
    data = json_value(run.facts, "data", CONFIG)
    classes = json_rows(data, "classes", where, MOST_CLASSES)
    mean, std = (
        [json_number(n, f"{where}.{key}") for n in json_rows(data, key, where, MOST_CHANNELS)]
        for key in ("mean", "std")
    )
    known: Point | None = next((p for p in run.front if p.widths == widths), None)
    return {
        "format": FORMAT,
        "made_by": f"joslim {__version__}",
        "model": run.config.model,
        "low": run.config.low,
        "channels": widths.channels,
        "costs": known.costs if known else {},
        **{name: getattr(known, name, None) for name in ERRORS},
        "input": INPUT,
        "output": OUTPUT,
        "shape": list(run.net.example[0].shape[1:]),
        "mean": mean,
        "std": std,
        "classes": [json_name(name, f"{where}.classes") for name in classes],
    }


# The check


def samples_of(run: Run) -> Tensor:
    """The inputs that the run has kept for the check: [n, channels, height, width]."""
    file = run.folder.file(SAMPLES)
    try:
        samples = stored_tensors(file)["inputs"] if file.is_file() else None
    except (OSError, SafetensorError, KeyError) as error:
        raise UserError(f"run: cannot read {str(file)!r}: {error}") from error
    if samples is None:
        raise UserError(f"run: {str(run.path)!r} has no {SAMPLES}, its training has not finished")
    shape = run.net.example[0].shape[1:]
    if samples.dtype != torch.float32 or samples.shape[1:] != shape or not len(samples):
        raise UserError(f"run: {str(file)!r} holds no inputs of shape {tuple(shape)}")
    return samples


def scores_in_place(run: Run, widths: Widths, samples: Tensor) -> Tensor:
    """Scores of the slimmable network at these widths."""
    net = run.net
    with evaluating(net), net.at(widths):
        return net(samples.to(next(net.parameters()).device)).cpu()


def compared(
    forwards: Sequence[Callable[[Tensor], Tensor]], samples: Tensor, expected: Tensor
) -> Check:
    """Compare every way to run a file with the expected scores, in a batch and with one sample."""
    difference, agreeing = 0.0, len(samples)
    for forward in forwards:
        with torch.no_grad():
            scores = forward(samples)
            single = forward(samples[:1])
        if scores.shape != expected.shape or single.shape != expected[:1].shape:
            shapes = f"{tuple(scores.shape)} for all samples and {tuple(single.shape)} for one"
            raise RunFailed(f"export: the file gives {shapes}, not {tuple(expected.shape)}")
        both = torch.cat([scores - expected, single - expected[:1]]).abs()
        # A NaN counts as an infinite difference.
        difference = max(difference, both.nan_to_num(nan=torch.inf).max().item())
        same = scores.argmax(dim=1) == expected.argmax(dim=1)
        agreeing = min(agreeing, int(same.sum()))
    check = Check(difference, agreeing, len(samples))
    limit = TOLERANCE * max(1.0, expected.abs().max().item())
    if not difference <= limit:
        raise RunFailed(f"export: the file differs from the network: {check}; nothing is kept")
    return check


# Reading a child back


def load_child(path: str | Path, model: str | nn.Module | None = None) -> nn.Module:
    """Load an exported folder as an ordinary module in eval mode.

    Nothing in the folder is executed, so it may come from anybody.

    Args:
        path: A folder that `joslim.export` has written.
        model: The network, if it is your own: a module, or "package.module:function".

    Returns:
        The child (subnet) with its own weights and BatchNorm statistics.

    Raises:
        UserError: The folder is damaged, of a newer version, or its network is your own and was not
            given.

    Examples:
        >>> run = joslim.load("runs/digits")
        >>> _ = joslim.export(run, run.front[0], "child")
        >>> child = joslim.load_child("child")
        >>> child(torch.zeros(1, 3, 8, 8)).shape
        torch.Size([1, 10])
    """
    check_model(model)
    facts = facts_of_child(Path(path))
    version = json_count(json_value(facts, "format", CONFIG), f"{CONFIG}.format", 1, 10**6)
    if version != FORMAT:
        raise UserError(
            f"child: {str(path)!r} has format {version}, this joslim reads {FORMAT}; "
            "export it again, or type pip install -U joslim"
        )
    module = child_of(facts, network_of(facts, path, model))
    file = Path(path) / WEIGHTS
    try:
        load_weights(module, file)
    except (OSError, SafetensorError, RuntimeError, MemoryError) as error:
        line = (str(error) or type(error).__name__).splitlines()[-1].strip()
        raise UserError(f"child: {str(file)!r} cannot be loaded: {line}") from error
    return module.eval()


def network_of(facts: dict[str, Any], path: str | Path, model: str | nn.Module | None) -> nn.Module:
    """The network of the child. Code that a file names is not imported: the user gives it again."""
    if isinstance(model, nn.Module):
        return model
    name = json_name(json_value(facts, "model", CONFIG), f"{CONFIG}.model")
    if model is None and (":" in name or name.startswith("<")):
        raise UserError(
            f"model: the child is of {name!r}, which is not imported because a file says so; "
            f"give it again: joslim.load_child({str(path)!r}, model=...)"
        )
    classes = json_rows(facts, "classes", CONFIG, MOST_CLASSES)
    with torch.random.fork_rng(devices=[]):
        return load_blank(model or name, len(classes), shape_of(facts)[0])


def shape_of(facts: dict[str, Any]) -> tuple[int, ...]:
    """Read the shape of one input of the child."""
    sizes = json_rows(facts, "shape", CONFIG, most=3, least=3)
    shape = tuple(json_count(size, f"{CONFIG}.shape", 1, MOST_PIXELS) for size in sizes)
    if math.prod(shape) > MOST_VALUES:
        raise UserError(f"{CONFIG}.shape: {shape} is more than {MOST_VALUES} values")
    return shape


def child_of(facts: dict[str, Any], full: nn.Module) -> nn.Module:
    """Cut the network to the child's channels; its weights are still to be loaded."""
    shape = shape_of(facts)
    low = json_value(facts, "low", CONFIG)
    net, _ = make_net(full, shape, None if low is None else json_number(low, f"{CONFIG}.low"))
    try:
        widths = net.space.of_counts(counts_of_json(facts, net.space, CONFIG))
    except ValueError as error:
        raise UserError(f"child: its channels do not fit the network: {error}") from error
    child = net._cut(widths)
    return child.to_empty(device="cpu") if net.example[0].is_meta else child
