"""A child in 8-bit integers, by onnxruntime's static quantization, compared with the floats."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joslim.costs import COSTS
from joslim.data import Data, load_data
from joslim.deploy.destination import destination
from joslim.deploy.exporting import Check, write_child, write_several
from joslim.errors import RunFailed, UserError, reason
from joslim.files import json_number, json_rows, json_value
from joslim.formats import FORMATS, format_of, onnx_forward, onnx_session
from joslim.front import IN_PERCENT, Front, MetricName, Point
from joslim.results.plots import draw_quantized
from joslim.results.run_files import CONFIG
from joslim.runs.run import Run
from joslim.runs.setup import task_of
from joslim.slimmable.running import tensors_in
from joslim.training.metrics import as_metric
from joslim.training.tasks import TASKS

Forward = Callable[[Tensor], Tensor]

CALIBRATION_IMAGES = 256
BATCH = 32
TIMED_RUNS = 50
PICTURE = "front.png"
LATENCY = COSTS["latency"].key


@dataclass(frozen=True)
class Quantized:
    """The 8-bit file beside the one in floats, which is checked first and not kept.

    Pairs are (floats, 8 bits). Errors are those of the run's test images, if these could be
    loaded; milliseconds are medians for one image on one thread of this machine.
    """

    check: Check
    difference: float
    agreeing: int | None
    bytes: tuple[int, int]
    ms: tuple[float, float]
    error: tuple[float, ...] | None = None
    metric: MetricName = IN_PERCENT

    def __str__(self) -> str:
        rows = [str(Check(self.difference, self.agreeing, self.check.samples))]
        if self.error is not None:
            before, after = map(self.metric.text, self.error)
            rows.append(f"{self.metric.words('test_error')} {before} -> {after}")
        rows.append("{:.3f} ms -> {:.3f} ms".format(*self.ms))
        rows.append("{:,} -> {:,} bytes".format(*self.bytes))
        return f"8 bits: {', '.join(rows)}"


def export_int8(
    run: Run, point: Any, path: str | Path, overwrite: bool = False, data: str | None = None
) -> Quantized:
    """Write one child as an ONNX file of 8-bit integers; `data` says where its data are now."""
    if format_of(path).suffix != ".onnx":
        raise UserError(f"int8: it goes with ONNX, {str(path)!r} given; type -o NAME.onnx")
    FORMATS["onnx"].check_installed()
    with destination(path, folder=False, overwrite=overwrite) as new:
        return write_int8(run, point, new, data_of(run, data))


def export_children_int8(
    run: Run,
    points: Iterable[Any],
    path: str | Path,
    overwrite: bool = False,
    data: str | None = None,
) -> dict[str, Quantized]:
    """Write several children into one new folder, as export_children does.

    If the data of the run can be loaded, a picture beside them shows the children of the front
    before and after.
    """
    FORMATS["onnx"].check_installed()
    points, images = list(points), data_of(run, data)
    return write_several(
        points,
        path,
        ".onnx",
        lambda p, file: write_int8(run, p, file, images),
        overwrite,
        lambda folder, results: draw(run, points, results, folder / PICTURE),
    )


def draw(run: Run, points: list[Any], results: Sequence[Quantized], path: Path) -> None:
    """Draw error against cost and against latency, of the floats and of the 8 bits.

    Children that are not on the front, and those without a test error, are left out.
    """
    pairs = [(p, q) for p, q in zip(points, results) if isinstance(p, Point) and q.error]
    if not pairs:
        return
    ms = [time for _, quantized in pairs for time in quantized.ms]
    by_cost, by_latency = {}, {}
    for at, label in enumerate(("floats", "8 bits")):
        judged = [
            replace(p, test_error=q.error[at], costs={**p.costs, LATENCY: q.ms[at]})
            for p, q in pairs
            if q.error is not None
        ]
        by_cost[label] = Front(judged, run.front.cost, run.front.span)
        by_latency[label] = Front(judged, "latency", (min(ms), max(ms)))
    draw_quantized(by_cost, by_latency, path)


def write_int8(run: Run, point: Any, file: Path, data: Data | None) -> Quantized:
    full = file.with_name(f"float-{file.name}")
    check = write_child(run, point, full, FORMATS["onnx"])
    if len(run.samples) != 1:
        count = len(run.samples)
        raise UserError(f"int8: it is for networks with one input, this one takes {count}")
    (samples,) = run.samples
    images = samples
    if data is not None:
        sweep = data.sweep("train", BATCH, limit=CALIBRATION_IMAGES)
        images = torch.cat([samples, *(batch.cpu() for batch, _ in sweep)])
    quantize(full, file, images)
    forwards = (onnx_forward(full), onnx_forward(file))
    before, after = (tensors_in(forward(samples)) for forward in forwards)
    if not all(output.isfinite().all() for output in after):
        raise RunFailed("export: the network in 8 bits gives no numbers; nothing is kept")
    sizes = (full.stat().st_size, file.stat().st_size)
    full.unlink()
    return Quantized(
        check,
        max((a - b).abs().max().item() for a, b in zip(before, after) if a.is_floating_point()),
        None
        if check.agreeing is None
        else int((before[0].argmax(dim=1) == after[0].argmax(dim=1)).sum()),
        sizes,
        milliseconds_of(forwards, samples[:1]),
        errors_of(run, forwards, data),
        run.front.metric,
    )


def data_of(run: Run, name: Any = None) -> Data | None:
    """The data that the run was trained on; None if they cannot be loaded, or have changed.

    Data that are given, by a name or as `joslim.load_data` takes them, must be those of the run.
    """
    if run.in_own_loop:
        return None
    config = run.config
    root = config.data_root if config.data_root and Path(config.data_root).is_dir() else None
    names = ("size", "channels", "split", "context", "ignore_index")
    asked = {name: getattr(config, name) for name in names}
    options = {name: value for name, value in asked.items() if value is not None}
    task = config.task if config.task in TASKS else None
    try:
        data = load_data(name or run.data_name, root, val=config.held_out, task=task, **options)
    except (UserError, OSError):
        if name is not None:
            raise
        return None
    known = json_value(run.facts, "data", CONFIG)
    if data.identity == json_value(known, "identity", CONFIG):
        size = len(data.mean)
        for key in ("mean", "std"):  # a network of a library has others than the data set
            rows = json_rows(known, key, CONFIG, size, size)
            setattr(data, key, tuple(json_number(n, f"{CONFIG}.{key}") for n in rows))
        return data
    if name is not None:
        raise UserError(f"data: {name!r} is not what the run was trained on")
    return None


def quantize(source: Path, target: Path, images: Tensor) -> None:
    """Quantize weights for each channel, activations by their range on the images."""
    from onnxruntime.quantization import quantize_static  # type: ignore[import-untyped]

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # onnxruntime's advice on the files of other exporters
    try:
        name = onnx_session(source).get_inputs()[0].name
        quantize_static(str(source), str(target), Batches(images, name), per_channel=True)
    except Exception as error:
        raise RunFailed(f"export: cannot quantize this network: {reason(error)}") from error
    finally:
        logging.disable(before)


class Batches:
    """The batches for calibration, with the interface of onnxruntime's CalibrationDataReader."""

    def __init__(self, images: Tensor, name: str) -> None:
        self.batches, self.name = iter(images.split(BATCH)), name

    def get_next(self) -> dict[str, Any] | None:
        batch = next(self.batches, None)
        return None if batch is None else {self.name: batch.numpy()}


def milliseconds_of(forwards: tuple[Forward, Forward], image: Tensor) -> tuple[float, float]:
    """Milliseconds of one image, measured in turns because the speed of a machine drifts."""
    ms = np.zeros((TIMED_RUNS, len(forwards)))
    for turn in range(TIMED_RUNS):
        for place, forward in enumerate(forwards):
            forward(image)
            start = time.perf_counter()
            forward(image)
            ms[turn, place] = 1000 * (time.perf_counter() - start)
    before, after = np.median(ms, axis=0).tolist()
    return before, after


def errors_of(run: Run, forwards: Sequence[Forward], data: Data | None) -> tuple[float, ...] | None:
    """Test errors by the metric of the run; None without data, or if its task is an object."""
    own = run.config.task is not None and run.config.task not in TASKS
    metric = None if data is None or own else as_metric(task_of(run.config, data).metric)
    if data is None or metric is None:
        return None
    found = [metric.make() for _ in forwards]
    for x, y in data.sweep("test", BATCH):
        for forward, one in zip(forwards, found):
            one.update(forward(x.cpu()), y.cpu())
    return tuple(one.compute() for one in found)
