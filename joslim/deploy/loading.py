"""`joslim.load_child`: an exported folder as an ordinary module."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from joslim.deploy.facts import FORMAT
from joslim.errors import UserError
from joslim.front import counts_of_json
from joslim.runs.checkpoint import MODEL, unshared
from joslim.runs.folder import CONFIG
from joslim.runs.network import check_model, load_model, make_net
from joslim.runs.opening import facts_of_child
from joslim.runs.run import MOST_CLASSES, MOST_PIXELS, MOST_VALUES
from joslim.untrusted import (
    json_count,
    json_name,
    json_number,
    json_rows,
    json_value,
    stored_tensors,
)


def load_child(path: str | Path, model: str | nn.Module | None = None) -> nn.Module:
    """The module of an exported folder, in eval mode, with its own weights and statistics.

    Nothing in the folder is executed; `model` is needed for networks of one's own.
    """
    check_model(model)
    facts = facts_of_child(Path(path))
    version = json_count(json_value(facts, "format", CONFIG), f"{CONFIG}.format", 1, 10**6)
    if version > FORMAT:
        raise UserError(f"child: {str(path)!r} is of a newer joslim; type pip install -U joslim")
    module = child_of(facts, network(facts, path, model))
    file = Path(path) / MODEL
    try:
        load_weights(module, file)
    except (OSError, SafetensorError, RuntimeError) as error:
        line = str(error).splitlines()[-1].strip()
        raise UserError(f"child: {str(file)!r} cannot be loaded: {line}") from error
    return module.eval()


def load_weights(module: nn.Module, file: Path) -> dict[str, Tensor]:
    """All of them; of those that share memory the file has one."""
    weights, wanted = stored_tensors(file), module.state_dict()
    module.load_state_dict(weights, strict=len(unshared(dict(wanted))) == len(wanted))
    return weights


def network(facts: dict[str, Any], path: str | Path, model: str | nn.Module | None) -> nn.Module:
    """Code named by a file is not imported: a model of one's own is given again."""
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
        return load_model(model or name, len(classes))


def child_of(facts: dict[str, Any], full: nn.Module) -> nn.Module:
    """The network cut to the child's channels; its weights are still to be loaded."""
    sizes = json_rows(facts, "shape", CONFIG, most=3, least=3)
    shape = tuple(json_count(size, f"{CONFIG}.shape", 1, MOST_PIXELS) for size in sizes)
    if math.prod(shape) > MOST_VALUES:
        raise UserError(f"{CONFIG}.shape: {shape} is more than {MOST_VALUES} values")
    low = json_value(facts, "low", CONFIG)
    net, _ = make_net(full, shape, None if low is None else json_number(low, f"{CONFIG}.low"))
    try:
        widths = net.space.of_counts(counts_of_json(facts, net.space, CONFIG))
    except ValueError as error:
        raise UserError(f"child: its channels do not fit the network: {error}") from error
    return net._cut(widths)
