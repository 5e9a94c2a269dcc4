"""Checkpoints: everything that the next step depends on, replaced as a whole.

model.safetensors        weights and buffers
statistics.safetensors   BatchNorm statistics of the front's children, once there is a front
state.pt                 optimizer, scaler, the loop's state: loaded with weights_only=True
checkpoint.json          the step, whether the front was judged, the size and checksum of each file

While a run trains, the previous checkpoint is kept as checkpoint.old: if the newest is damaged, the
run continues from that.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from joslim.errors import RunFailed, UserError
from joslim.files import (
    JSON_LIMIT,
    checksum,
    disk_errors,
    json_count,
    moved_aside,
    read_json,
    remove,
    stored_tensors,
    sync,
    unshared,
    write_tensors,
)
from joslim.results.run_files import FORMAT, OtherFormat, refuse_other_format
from joslim.runs.folder import CHECKPOINT, NEW, OLD, RunFolder
from joslim.slimmable import SlimmableNet
from joslim.slimmable.batchnorm import has_statistics
from joslim.slimmable.layers import stored_statistic

MODEL = "model.safetensors"
STATISTICS = "statistics.safetensors"
STATE = "state.pt"
SUMMARY = "checkpoint.json"
FILES = (MODEL, STATISTICS, STATE)

log = logging.getLogger("joslim")


def save(
    folder: RunFolder,
    net: SlimmableNet,
    state: dict[str, Any] | None,
    step: int,
    finished: bool = False,
) -> None:
    """Write a checkpoint beside the last one, sync it, and replace the last one.

    state: all that the training goes on from; None if it cannot be resumed from the folder.
    finished: Whether the front of this step was judged, so that the statistics of its children are
    in the checkpoint.
    """
    weights = {name: tensor.detach().cpu() for name, tensor in net.state_dict().items()}
    for name, tensor in weights.items():  # they would replace the last good checkpoint
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise RunFailed(f"{name} is not finite after step {step}; the last checkpoint is kept")
    new = folder.file(NEW)
    if new.exists():
        remove(new)
    new.mkdir()
    with disk_errors(new):
        write_tensors(
            {name: tensor.contiguous() for name, tensor in unshared(weights)}, new / MODEL
        )
        write_tensors(flat_statistics(net), new / STATISTICS)
        # Given a path, torch would report a full disk as "unexpected pos".
        with (new / STATE).open("wb") as stream:
            torch.save(state, stream)
    write_summary(new, {"format": FORMAT, "step": step, "finished": finished})
    for file in new.iterdir():
        sync(file)
    try:
        verify(new) if state is None else load_state(new)
    except UserError as error:
        raise RunFailed(f"{error}, though it was just written; the last one is kept") from error
    swap_in(folder, new)


def write_summary(path: Path, facts: dict[str, Any]) -> None:
    """Write checkpoint.json: the facts, and size and checksum of each file."""
    sizes = {name: (path / name).stat().st_size for name in FILES}
    checksums = {name: checksum(path / name) for name in FILES}
    summary = {**facts, "bytes": sizes, "sha256": checksums}
    (path / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")


def swap_in(folder: RunFolder, new: Path) -> None:
    """Make the new checkpoint the current one, and the current one the old one."""
    current, old = folder.file(CHECKPOINT), folder.file(OLD)
    if current.exists():
        if old.exists():
            remove(old)
        with moved_aside(current, old):
            os.rename(new, current)
    else:
        os.rename(new, current)


def drop_old(folder: RunFolder) -> None:
    """Remove the checkpoint before the last, which a finished run does not need."""
    if (old := folder.file(OLD)).exists():
        remove(old)


def find(folder: RunFolder) -> Path | None:
    """Return the newest checkpoint; it is the old one if a crash came between two renames."""
    return next(iter(candidates(folder)), None)


def last_good(folder: RunFolder) -> Path | None:
    """Return the newest checkpoint whose files are intact; None if there is none yet."""
    found = candidates(folder)
    for path in found:
        try:
            verify(path)
        except UserError as error:
            if path == found[-1]:
                raise
            log.warning("%s; going on from %s", error, found[-1])
        else:
            return path
    return None


def candidates(folder: RunFolder) -> list[Path]:
    paths = [folder.file(name) for name in (CHECKPOINT, OLD)]
    return [path for path in paths if (path / SUMMARY).is_file()]


def load_weights(path: Path, net: SlimmableNet) -> None:
    """Load weights, buffers and the statistics of the front's children."""
    tensors = read_tensors(path / MODEL)
    try:
        weights = dict(net.state_dict())
        net.load_state_dict(tensors, strict=len(unshared(weights)) == len(weights))
    except RuntimeError as error:
        message = str(error).splitlines()[-1].strip()
        raise UserError(f"checkpoint: the weights do not fit the network: {message}") from error
    net.statistics.clear()
    try:
        load_statistics(net, read_tensors(path / STATISTICS))
    except (ValueError, KeyError, AttributeError) as error:
        raise UserError(f"checkpoint: {str(path / STATISTICS)!r} is broken: {error}") from error


def load_state(path: Path) -> dict[str, Any]:
    verify(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of files in an older format: they are refused anyway
            state = torch.load(path / STATE, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise UserError(f"checkpoint: cannot read {str(path / STATE)!r}: broken file") from error
    if not isinstance(state, dict):
        why = "a network that was exported whole cannot be resumed"
        raise UserError(f"checkpoint: {str(path / STATE)!r} holds no state; {why}")
    return state


def verify(path: Path) -> None:
    """Refuse files that are not as they were written."""
    summary = read_json(path / SUMMARY, JSON_LIMIT, "checkpoint")
    try:
        version = json_count(summary["format"], "format", 1, 10**6)
        refuse_other_format(f"checkpoint: {str(path)!r}", version)
        sizes, sums = summary["bytes"], summary["sha256"]
        # A file of another size is not read: a sparse one of terabytes would take hours.
        broken = [
            name
            for name in FILES
            if (path / name).stat().st_size != sizes[name] or checksum(path / name) != sums[name]
        ]
    except PermissionError as error:
        raise UserError(
            f"checkpoint: cannot read {str(error.filename)!r}: {error.strerror}"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, OtherFormat):
            raise
        raise UserError(f"checkpoint: {str(path)!r} is broken: {error}") from error
    if broken:
        raise UserError(f"checkpoint: {str(path / broken[0])!r} is damaged: its checksum differs")


def read_tensors(file: Path) -> dict[str, Tensor]:
    try:
        return stored_tensors(file)
    except (OSError, SafetensorError) as error:
        raise UserError(f"checkpoint: cannot read {str(file)!r}: {error}") from error


# The statistics of a child are named after its channel counts: 16-8-32/layer1.0.bn1/mean


def flat_statistics(net: SlimmableNet) -> dict[str, Tensor]:
    return {
        f"{'-'.join(map(str, child.counts))}/{norm}/{kind}": tensor.detach().cpu().contiguous()
        for child, norms in net.statistics.items()
        for norm, pair in norms.items()
        for kind, tensor in zip(("mean", "var"), pair)
    }


def load_statistics(net: SlimmableNet, tensors: dict[str, Tensor]) -> None:
    device = next(net.parameters()).device
    for name in tensors:
        counts, norm, kind = name.split("/")
        if kind != "mean":
            continue
        child = net.space.of_counts([int(count) for count in counts.split("-")])
        mean, var = tensors[name], tensors[f"{counts}/{norm}/var"]
        module = net.get_submodule(norm)
        if not has_statistics(module):
            raise ValueError(f"{norm} has no statistics")
        with net.at(child):
            wanted = stored_statistic(module, "running_mean")
        if any(t.shape != wanted.shape or not t.is_floating_point() for t in (mean, var)):
            raise ValueError(f"those of {norm} at widths {child} have another shape or kind")
        net.statistics.setdefault(child, {})[norm] = (mean.to(device), var.to(device))
