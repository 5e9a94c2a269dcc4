"""A child in 8-bit integers, by onnxruntime's static quantization, and what that costs."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joslim.data import Data, load_data
from joslim.deploy.beside import beside
from joslim.deploy.checking import Check, samples_of
from joslim.deploy.children import write_child, write_several
from joslim.deploy.facts import INPUT
from joslim.deploy.formats import (
    FORMATS,
    Forward,
    format_of,
    onnx_packages,
    onnx_session,
    reason,
)
from joslim.errors import RunFailed, UserError
from joslim.runs.folder import CONFIG
from joslim.runs.run import Run
from joslim.training.evaluate import wrong
from joslim.untrusted import json_value

CALIBRATION_IMAGES = 256
BATCH = 32
TIMED_RUNS = 50


@dataclass(frozen=True)
class Quantized:
    """The 8-bit file against the one in floats, which is checked first and not kept.

    Errors are of the run's test images, in percent, where they could be loaded; milliseconds are
    medians of one image on one thread of this machine.
    """

    check: Check
    agreeing: int
    bytes: tuple[int, int]
    ms: tuple[float, float]
    error: tuple[float, float] | None = None

    def __str__(self) -> str:
        rows = [f"classes agree on {self.agreeing} of {self.check.samples} samples"]
        if self.error is not None:
            rows.append("test error {:.2f} % -> {:.2f} %".format(*self.error))
        rows.append("{:.3f} ms -> {:.3f} ms".format(*self.ms))
        rows.append("{:,} -> {:,} bytes".format(*self.bytes))
        return f"8 bits: {', '.join(rows)}"


def export_int8(run: Run, point: Any, path: str | Path, overwrite: bool = False) -> Quantized:
    """Write one child as an ONNX file of 8-bit integers."""
    if format_of(path).suffix != ".onnx":
        raise UserError(f"int8: it goes with ONNX, {str(path)!r} given; type -o NAME.onnx")
    onnx_packages()
    with beside(path, folder=False, overwrite=overwrite) as new:
        return write_int8(run, point, new, data_of(run))


def export_children_int8(
    run: Run, points: Iterable[Any], path: str | Path, overwrite: bool = False
) -> dict[str, Quantized]:
    """Several children into one new folder, as export_children does."""
    onnx_packages()
    data = data_of(run)

    def write(point: Any, file: Path) -> Quantized:
        return write_int8(run, point, file, data)

    return write_several(points, path, ".onnx", write, overwrite)


def write_int8(run: Run, point: Any, file: Path, data: Data | None) -> Quantized:
    full = file.with_name(f"float-{file.name}")
    check = write_child(run, point, full, FORMATS["onnx"])
    samples = samples_of(run)
    quantize(full, file, calibration_images(samples, data))
    forwards = (forward_of(full), forward_of(file))
    before, after = (forward(samples) for forward in forwards)
    if not after.isfinite().all():
        raise RunFailed("export: the network in 8 bits gives no numbers; nothing is kept")
    sizes = (full.stat().st_size, file.stat().st_size)
    full.unlink()
    return Quantized(
        check,
        int((before.argmax(dim=1) == after.argmax(dim=1)).sum()),
        sizes,
        timed(forwards, samples[:1]),
        None if data is None else (error_of(forwards[0], data), error_of(forwards[1], data)),
    )


def data_of(run: Run) -> Data | None:
    """What the run was trained on, if it is still there."""
    config = run.config
    root = config.data_root if config.data_root and Path(config.data_root).is_dir() else None
    options = {"size": config.size, "channels": run.net.example[0].shape[1]}
    try:
        data = load_data(config.data, root=root, val=config.held_out, **options)
    except (UserError, OSError):
        return None
    stored = json_value(run.facts, "data", CONFIG)
    return data if data.identity == json_value(stored, "identity", CONFIG) else None


def calibration_images(samples: Tensor, data: Data | None) -> Tensor:
    if data is None:
        return samples
    sweep = data.sweep("train", BATCH, limit=CALIBRATION_IMAGES)
    return torch.cat([samples, *(images.cpu() for images, _ in sweep)])


def quantize(source: Path, target: Path, images: Tensor) -> None:
    """Weights for each channel of their own, activations by the range that the images show."""
    from onnxruntime.quantization import quantize_static  # type: ignore[import-untyped]

    try:
        with quiet():
            quantize_static(str(source), str(target), Batches(images), per_channel=True)
    except Exception as error:
        raise RunFailed(f"export: cannot quantize this network: {reason(error)}") from error


class Batches:
    """What onnxruntime calls a CalibrationDataReader."""

    def __init__(self, images: Tensor) -> None:
        self.batches = iter(images.split(BATCH))

    def get_next(self) -> dict[str, Any] | None:
        batch = next(self.batches, None)
        return None if batch is None else {INPUT: batch.numpy()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.get_next, None)


@contextmanager
def quiet() -> Iterator[None]:
    """Without advice on files that other exporters have made."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def forward_of(file: Path) -> Forward:
    session = onnx_session(file)
    return lambda x: torch.from_numpy(session.run(None, {INPUT: x.numpy()})[0])


def timed(forwards: tuple[Forward, Forward], image: Tensor) -> tuple[float, float]:
    """In turns, since the speed of a machine drifts."""
    ms = np.zeros((TIMED_RUNS, len(forwards)))
    for turn in range(TIMED_RUNS):
        for place, forward in enumerate(forwards):
            forward(image)
            start = time.perf_counter()
            forward(image)
            ms[turn, place] = 1000 * (time.perf_counter() - start)
    before, after = np.median(ms, axis=0).tolist()
    return before, after


def error_of(forward: Forward, data: Data) -> float:
    """Percent of the test images."""
    batches = data.sweep("test", BATCH)
    faults = torch.cat([wrong(forward(x.cpu()), y.cpu()) for x, y in batches])
    return 100 * faults.double().mean().item()
