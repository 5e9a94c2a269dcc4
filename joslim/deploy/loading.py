"""`joslim.load_child`: an exported folder as an ordinary module."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from joslim.deploy.exporting import FORMAT
from joslim.errors import UserError
from joslim.files import (
    json_count,
    json_name,
    json_number,
    json_rows,
    json_value,
)
from joslim.formats import WEIGHTS, load_weights
from joslim.front import counts_of_json
from joslim.results.run_files import CONFIG, facts_of_child
from joslim.runs.run import MOST_CLASSES, MOST_PIXELS, MOST_VALUES
from joslim.runs.setup import check_model, load_blank, make_net


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
    module = child_of(facts, network(facts, path, model))
    file = Path(path) / WEIGHTS
    try:
        load_weights(module, file)
    except (OSError, SafetensorError, RuntimeError, MemoryError) as error:
        line = (str(error) or type(error).__name__).splitlines()[-1].strip()
        raise UserError(f"child: {str(file)!r} cannot be loaded: {line}") from error
    return module.eval()


def network(facts: dict[str, Any], path: str | Path, model: str | nn.Module | None) -> nn.Module:
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
        return load_blank(model or name, len(classes))


def child_of(facts: dict[str, Any], full: nn.Module) -> nn.Module:
    """Cut the network to the child's channels; its weights are still to be loaded."""
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
    child = net._cut(widths)
    return child.to_empty(device="cpu") if net.example[0].is_meta else child
