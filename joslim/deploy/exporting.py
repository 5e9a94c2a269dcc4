"""Exports of a run or a live network: one child, several, or all of it; and a child read back.

Every exported child is loaded back and compared with the network before the file is kept.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
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
)
from joslim.formats import (
    FORMATS,
    INPUT,
    OUTPUT,
    WEIGHTS,
    Child,
    Format,
    format_of,
    known_suffixes,
    load_weights,
)
from joslim.front import ERRORS, Point, counts_of_json
from joslim.results.device_times import inputs_of
from joslim.results.run_files import CONFIG, FRONT, facts_of_child, read_front
from joslim.runs import checkpoint
from joslim.runs.config import sizes_of
from joslim.runs.folder import CHECKPOINT, SAMPLES
from joslim.runs.networks import (
    blank_inputs,
    channels_in,
    check_model,
    classes_in,
    load_blank,
    more_options,
    name_of_own,
    network_facts,
    positional_inputs,
    slim_again,
    slim_options,
)
from joslim.runs.run import MOST_CHANNELS, MOST_CLASSES, Run, load
from joslim.runs.saving import checked_samples, is_batched
from joslim.slimmable import SlimmableNet
from joslim.slimmable.running import resized, tensors_in
from joslim.space import Widths
from joslim.training.evaluate import evaluating, moved

# Format number of an exported folder. It goes up when other versions cannot read the folder.
FORMAT = 1
# Largest difference of a score, relative to the largest score, or to 1 if that is smaller. Sums in
# another order differ by 1e-4 in the deepest networks, a wrong weight or statistic by far more.
TOLERANCE = 1e-3

Result = TypeVar("Result")
# Inputs of a network, and all tensors that it returns for them.
Case = tuple[tuple[Tensor, ...], list[Tensor]]


@dataclass(frozen=True)
class Check:
    """The largest difference of an output, and on how many samples the most likely class agrees.

    `agreeing` is None if the outputs are not known to be class scores. `difference` is None if the
    file was not run, because no program on this machine can.
    """

    difference: float | None
    agreeing: int | None
    samples: int

    def __str__(self) -> str:
        if self.difference is None:
            return "only converted: nothing here runs this format, so it was not compared"
        difference = f"largest difference {self.difference:.1e}"
        if self.agreeing is None:
            return f"{difference} on {self.samples} samples"
        return f"{difference}, classes agree on {self.agreeing} of {self.samples} samples"


def export(
    run: Run | str | Path | SlimmableNet,
    point: Any,
    path: str | Path,
    overwrite: bool = False,
    *,
    samples: Any = None,
) -> Check:
    """Write one child (subnet) to a file that other programs run, and check the file.

    The file is loaded back and compared with the network on samples. If they differ, nothing is
    left behind.

    Args:
        run: A run, its folder, or a slimmable network, such as one from your own training loop.
        point: A point of the front, or a child such as `net.space.full`.
        path: The file. Its suffix decides the format: .onnx, .pt2, .pte, .tflite, .openvino,
            .coreml, or none for a folder that `joslim.load_child` opens.
        overwrite: Replace what is at the path already.
        samples: A batch of inputs for the check, or a tuple of them if the network takes several.
            By default those that the run has kept; for a network, random numbers.

    Returns:
        The largest difference of an output, and for class scores of a run of `joslim.train` on how
        many samples the most likely class agrees. CoreML files are not run, the difference is None.

    Raises:
        UserError: The point is of another run or network, the path exists, or a package for the
            format is missing.
        RunFailed: The file computes something else than the network.

    Examples:
        >>> run = joslim.load("runs/digits")
        >>> check = joslim.export(run, run.front[0], "child")
        >>> check.agreeing == check.samples
        True
    """
    if not isinstance(run, (Run, SlimmableNet)):
        if not isinstance(run, (str, Path)):
            kind = type(run).__name__
            raise UserError(f"run: {kind} given; give a run, its folder or a slimmable network")
        run = load(run)
    chosen = format_of(path)
    chosen.check_installed()
    with destination(path, folder=chosen.folder, overwrite=overwrite) as new:
        return write_child(run, point, new, chosen, samples)


def export_children(
    run: Run,
    points: Iterable[Any],
    path: str | Path,
    kind: str | None = None,
    overwrite: bool = False,
) -> dict[str, Check]:
    """Write several children into one new folder, as child-01.onnx and so on: all or none.

    If the path is a file whose format has methods, NAME.pte, the children become its methods
    child-01 and so on.

    Args:
        run: A run.
        points: Points of its front, or children such as `net.space.full`.
        path: The folder, or NAME.pte.
        kind: Name of a format. By default onnx, or that of the file.
        overwrite: Replace what is at the path already.

    Returns:
        The check of each child, by the name of its file or its method.
    """
    if kind is not None and kind not in FORMATS:
        raise unknown("format", kind, FORMATS)
    suffix = Path(path).suffix
    named = next((f for f in FORMATS.values() if f.write_several and f.suffix == suffix), None)
    if named is not None and kind in (None, named.name):
        named.check_installed()
        with destination(path, folder=False, overwrite=overwrite) as new:
            return write_in_one_file(run, points, new, named)
    chosen = FORMATS[kind or "onnx"]
    chosen.check_installed()
    return write_several(
        points, path, chosen.suffix, lambda p, file: write_child(run, p, file, chosen), overwrite
    )


def write_in_one_file(
    run: Run, points: Iterable[Any], file: Path, chosen: Format
) -> dict[str, Check]:
    """Write children as methods of one file, and compare each with the network."""
    assert chosen.write_several is not None
    assert chosen.run is not None
    children, cases = [], []
    for number, point in enumerate(points, start=1):
        widths = widths_of(run, point)
        child = cut_child(run.net, widths, metadata(run, widths))
        children.append(replace(child, name=f"child-{number:02}"))
        cases.append(cases_of(run.net, widths, run.samples))
    chosen.write_several(children, file)
    return {
        child.name: compared(chosen.run(child, file), own, "classes" in child.facts)
        for child, own in zip(children, cases)
    }


def worst_of(checks: Iterable[Check]) -> Check:
    """The largest difference and the least agreement of files that were all run."""
    checks = list(checks)
    agreeing = [check.agreeing for check in checks if check.agreeing is not None]
    return Check(
        max(check.difference for check in checks if check.difference is not None),
        min(agreeing) if agreeing else None,
        checks[0].samples,
    )


def write_several(
    points: Iterable[Any],
    path: str | Path,
    suffix: str,
    write: Callable[[Any, Path], Result],
    overwrite: bool,
    finish: Callable[[Path, list[Result]], None] | None = None,
) -> dict[str, Result]:
    """Write several children into one new folder; the results of `write` by file name.

    `finish` adds files about all children to the folder.
    """
    if Path(path).suffix in known_suffixes():
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
        if finish is not None:
            finish(new, [*results.values()])
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


def write_child(
    run: Run | SlimmableNet, point: Any, file: Path, chosen: Format, samples: Any = None
) -> Check:
    """Write a child in a format, and compare it with the network."""
    widths = widths_of(run, point)
    net = run.net if isinstance(run, Run) else run
    if samples is None and isinstance(run, Run):
        inputs = run.samples
    else:
        inputs = checked_samples(net, samples)
    if isinstance(run, Run):
        facts = metadata(run, widths)
    else:
        facts = metadata_of_own(name_of_own(net), network_facts(net), point)
    child = cut_child(net, widths, facts)
    cases = cases_of(net, widths, inputs)
    chosen.write(child, file)
    if chosen.run is None:
        return Check(None, None, 0)
    return compared(chosen.run(child, file), cases, "classes" in facts)


def cut_child(net: SlimmableNet, widths: Widths, facts: dict[str, Any]) -> Child:
    batched = is_batched(net)
    inputs = resized(positional_inputs(net), widths.pixels)
    examples = tuple((torch.cat([x, x]) if batched else x).cpu() for x in inputs)
    return Child(net._cut(widths).cpu().eval(), facts, examples, batched)


def cases_of(net: SlimmableNet, widths: Widths, inputs: tuple[Tensor, ...]) -> list[Case]:
    """What a file of this child is compared with, for a batch and for one sample, in its size."""
    inputs = resized(inputs, widths.pixels)
    batches = [inputs, tuple(x[:1] for x in inputs)] if is_batched(net) else [inputs]
    return [(batch, outputs_in_place(net, widths, batch)) for batch in batches]


def widths_of(run: Run | SlimmableNet, point: Any) -> Widths:
    """The widths of a point of this run, for which the network has BatchNorm statistics."""
    net = run.net if isinstance(run, Run) else run
    widths = net._checked(getattr(point, "widths", point))
    if isinstance(point, Point) and isinstance(run, Run):
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
            "point: this child has no BatchNorm statistics of its own; take one of the front that "
            "was made after the last step, or call joslim.recalibrate(net, batches) at its widths"
        )
    return widths


def metadata(run: Run, widths: Widths) -> dict[str, Any]:
    """How the child was cut, and the meaning of its inputs and outputs, as JSON.

    Inputs of `joslim.train` are pixels from 0 to 1, less the mean, over the standard deviation.
    """
    known: Point | None = next((p for p in run.front if p.widths == widths), None)
    if run.in_own_loop:
        return metadata_of_own(run.config.model, run.facts["network"], known or widths)
    where = f"{CONFIG}.data"
    data = json_value(run.facts, "data", CONFIG)
    classes = json_rows(data, "classes", where, MOST_CLASSES)
    mean, std = (
        # A text has neither.
        [json_number(n, f"{where}.{key}") for n in json_rows(data, key, where, MOST_CHANNELS, 0)]
        for key in ("mean", "std")
    )
    return {
        **facts_of_point(run.config.model, known or widths),
        "low": run.config.low,
        **more_options(sizes_of(run.config.resolutions), run.config.depth),
        "divisor": run.config.divisor,
        "input": INPUT,
        "output": OUTPUT,
        "shape": list(run.net._example_of(widths)[0].shape[1:]),
        **({"dtype": kind} if (kind := data.get("dtype", "float32")) != "float32" else {}),
        "mean": mean,
        "std": std,
        "classes": [json_name(name, f"{where}.classes") for name in classes],
    }


def metadata_of_own(model: str, network: dict[str, Any], point: Any) -> dict[str, Any]:
    """The metadata of a child from somebody's own loop, which may do anything but classify."""
    inputs, outputs = len(network["inputs"]), len(network["outputs"])
    return {
        **facts_of_point(model, point),
        "input": "input" if inputs == 1 else [f"input_{at}" for at in range(inputs)],
        "output": "output" if outputs == 1 else [f"output_{at}" for at in range(outputs)],
        "network": network,
    }


def facts_of_point(model: str, point: Any) -> dict[str, Any]:
    """The channels of a child, and what is known of it if it is a point of a front."""
    widths = getattr(point, "widths", point)
    return {
        "format": FORMAT,
        "made_by": f"joslim {__version__}",
        "model": model,
        "channels": widths.channels,
        **({} if widths.pixels is None else {"resize": resizing_of(widths)}),
        "costs": getattr(point, "costs", {}),
        **{name: getattr(point, name, None) for name in ERRORS},
    }


def resizing_of(widths: Widths) -> dict[str, Any]:
    """How images of the full size become those that the child takes."""
    return {
        "from": widths.space.full.pixels,
        "to": widths.pixels,
        "interpolation": "bilinear",
        "antialias": True,
    }


# The check


def outputs_in_place(net: SlimmableNet, widths: Widths, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """All tensors that the slimmable network returns at these widths."""
    device = next(net.parameters()).device
    with evaluating(net), net.at(widths):
        return [tensor.cpu() for tensor in tensors_in(net(*(moved(x, device) for x in inputs)))]


def compared(
    forwards: Sequence[Callable[..., Any]], cases: Sequence[Case], classes: bool = True
) -> Check:
    """Compare every way to run a file with the network, in all cases; the first has all samples.

    classes: whether the only output has class scores, [n, classes].
    """
    samples = len(cases[0][0][0]) if len(cases) > 1 else 1
    difference, excess, agreeing = 0.0, 0.0, samples
    for forward, (inputs, expected) in itertools.product(forwards, cases):
        with torch.no_grad():
            outputs = tensors_in(forward(*inputs))
        given, wanted = ([tuple(t.shape) for t in some] for some in (outputs, expected))
        if given != wanted:
            raise RunFailed(
                f"export: the file gives {', '.join(map(str, given))}, "
                f"not {', '.join(map(str, wanted))}"
            )
        for ours, theirs, of_all in zip(outputs, expected, cases[0][1]):
            if theirs.numel():
                # A NaN counts as an infinite difference.
                apart = (ours.double() - theirs.double()).abs().nan_to_num(nan=torch.inf)
                difference = max(difference, most := apart.max().item())
                excess = max(excess, most / max(1.0, of_all.double().abs().max().item()))
        classes = classes and expected[0].ndim == 2  # not scores of pixels or tokens
        if classes:
            same = outputs[0].argmax(dim=1) == expected[0].argmax(dim=1)
            agreeing = min(agreeing, samples - int((~same).sum()))
    check = Check(difference, agreeing if classes else None, samples)
    if not excess <= TOLERANCE:
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
    if "network" in facts:
        classes = classes_in(facts["network"], f"{CONFIG}.network")
    else:
        classes = len(json_rows(facts, "classes", CONFIG, MOST_CLASSES))
    with torch.random.fork_rng(devices=[]):
        return load_blank(model or name, classes, channels_in(inputs_of(facts)))


def child_of(facts: dict[str, Any], full: nn.Module) -> nn.Module:
    """Cut the network to the child's channels; its weights are still to be loaded."""
    if "network" in facts:
        options = slim_options(facts["network"], f"{CONFIG}.network")
    else:
        low = json_value(facts, "low", CONFIG)
        options = {"low": None if low is None else json_number(low, f"{CONFIG}.low")}
        options |= {name: facts[name] for name in ("resolutions", "depth") if name in facts}
        if (divisor := facts.get("divisor")) is not None:
            options["divisor"] = json_count(divisor, f"{CONFIG}.divisor", 1, MOST_CHANNELS)
    inputs = inputs_of(facts)
    if "resize" in facts and "network" not in facts:  # the shape is that of the child
        (shape, kind), *_ = inputs
        where = f"{CONFIG}.resize"
        side = json_count(json_value(facts["resize"], "from", where), f"{where}.from", 1, 10**5)
        inputs = [((*shape[:2], side, side), kind)]
    net = slim_again(full, blank_inputs(inputs), options)
    try:
        widths = net.space.of_counts(counts_of_json(facts, net.space, CONFIG))
    except ValueError as error:
        raise UserError(f"child: its channels do not fit the network: {error}") from error
    return net._cut(widths)
