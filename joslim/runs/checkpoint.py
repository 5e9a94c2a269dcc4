"""Checkpoints: all that the next step depends on, swapped in whole.

model.safetensors        weights and buffers
statistics.safetensors   BatchNorm statistics of the front's children, once there is a front
state.pt                 optimizer, scaler, the loop's state: loaded with weights_only=True
checkpoint.json          the step, and a checksum of each file

While a run trains, the one before is kept as checkpoint.old: should the newest be damaged, it goes
on from that.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from joslim.errors import RunFailed, UserError
from joslim.runs.folder import CHECKPOINT, NEW, OLD, RunFolder, remove
from joslim.slimmable import SlimmableNet
from joslim.slimmable.layers import stored_statistic
from joslim.slimmable.statistics import has_statistics
from joslim.untrusted import json_count, stored_tensors
from joslim.widths import Widths

MODEL = "model.safetensors"
STATISTICS = "statistics.safetensors"
STATE = "state.pt"
SUMMARY = "checkpoint.json"
# Goes up when files change so that an older joslim cannot read them.
FORMAT = 1

log = logging.getLogger("joslim")


def save(folder: RunFolder, net: SlimmableNet, state: dict[str, Any], step: int) -> None:
    """Written to the side, synced, then swapped in; the last good one stays until then."""
    weights = {name: tensor.detach().cpu() for name, tensor in net.state_dict().items()}
    refuse_bad_weights(weights, step)
    new = folder.file(NEW)
    if new.exists():
        remove(new)
    new.mkdir()
    with disk_errors(new):
        save_file({name: tensor.contiguous() for name, tensor in unshared(weights)}, new / MODEL)
        save_file(flat_statistics(net), new / STATISTICS)
        torch.save(state, new / STATE)
    checksums = {name: checksum(new / name) for name in (MODEL, STATISTICS, STATE)}
    summary = {"format": FORMAT, "step": step, "sha256": checksums}
    (new / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")
    for file in new.iterdir():
        sync(file)
    refuse_unreadable(new)
    swap_in(folder, new)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """The writers of torch and safetensors have exceptions of their own for a full disk."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        line = str(error).strip().splitlines()[0]
        raise OSError(f"cannot write {str(path)!r}: {line}") from error


def swap_in(folder: RunFolder, new: Path) -> None:
    current, old = folder.file(CHECKPOINT), folder.file(OLD)
    if current.exists():
        if old.exists():
            remove(old)
        os.rename(current, old)
    os.rename(new, current)


def drop_old(folder: RunFolder) -> None:
    """A finished run is not trained on: one checkpoint will do."""
    if (old := folder.file(OLD)).exists():
        remove(old)


def find(folder: RunFolder) -> Path | None:
    """The newest checkpoint. A crash may have come between two renames."""
    return next(iter(candidates(folder)), None)


def last_good(folder: RunFolder) -> Path | None:
    """The newest checkpoint that is as it was written; None if there was none yet."""
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
    """Weights, buffers and the statistics of the front's children."""
    tensors = read_tensors(path / MODEL)
    try:
        net.load_state_dict(tensors, strict=not shared_names(net))
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
        state = torch.load(path / STATE, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise UserError(f"checkpoint: cannot read {str(path / STATE)!r}: broken file") from error
    if not isinstance(state, dict):
        why = "a network that was exported whole cannot be resumed"
        raise UserError(f"checkpoint: {str(path / STATE)!r} holds no state; {why}")
    return state


def verify(path: Path) -> None:
    """The files are those that were written."""
    try:
        summary = json.loads((path / SUMMARY).read_text())
        sums, version = summary["sha256"], json_count(summary["format"], "format", 1, 10**6)
        files = (MODEL, STATISTICS, STATE)
        broken = [name for name in files if checksum(path / name) != sums[name]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"checkpoint: {str(path)!r} is broken: {error}") from error
    if version > FORMAT:
        raise UserError(
            f"checkpoint: {str(path)!r} was written by a newer joslim; type pip install -U joslim"
        )
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
        if kind == "mean":
            child = net.space.of_counts([int(count) for count in counts.split("-")])
            pair = (tensors[name], tensors[f"{counts}/{norm}/var"])
            check_statistics(net, child, norm, pair)
            mean, var = (tensor.to(device) for tensor in pair)
            net.statistics.setdefault(child, {})[norm] = (mean, var)


def check_statistics(
    net: SlimmableNet, child: Widths, norm: str, pair: tuple[Tensor, Tensor]
) -> None:
    """They are as long as the norm's own at these widths."""
    module = net.get_submodule(norm)
    if not has_statistics(module):
        raise ValueError(f"{norm} has no statistics")
    with net.at(child):
        wanted = stored_statistic(module, "running_mean")
    if any(t.shape != wanted.shape or not t.is_floating_point() for t in pair):
        raise ValueError(f"those of {norm} at widths {child} have another shape or kind")


def refuse_bad_weights(weights: dict[str, Tensor], step: int) -> None:
    """A checkpoint with a NaN in it would replace the last good one."""
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise RunFailed(f"{name} is not finite after step {step}; the last checkpoint is kept")


def refuse_unreadable(new: Path) -> None:
    """What cannot be read back must not replace what can."""
    try:
        load_state(new)
    except UserError as error:
        raise RunFailed(f"{error}, though it was just written; the last one is kept") from error


def unshared(weights: dict[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Tensors that share memory once each: safetensors refuses to write them twice."""
    seen: set[tuple[int, int]] = set()
    kept = []
    for name, tensor in weights.items():
        place = (tensor.data_ptr(), tensor.numel())
        if tensor.numel() == 0 or place not in seen:
            seen.add(place)
            kept.append((name, tensor))
    return kept


def shared_names(net: SlimmableNet) -> bool:
    weights = dict(net.state_dict())
    return len(unshared(weights)) < len(weights)


def checksum(file: Path) -> str:
    if not file.is_file():  # a pipe or a device would never end
        raise FileNotFoundError(f"{str(file)!r} is not a file")
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sync(file: Path) -> None:
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
