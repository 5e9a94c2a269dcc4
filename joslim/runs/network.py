"""Networks: from the name of a model to a slimmable network with weights."""

from __future__ import annotations

import importlib
import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from joslim.errors import UserError, unknown
from joslim.files import stored_tensors
from joslim.models import MODELS
from joslim.slimmable import SlimmableNet, slim, sort_channels

# Prefixes that wrappers add to the names of weights.
PREFIXES = re.compile(r"^(module\.)?(_orig_mod\.)?")
# Largest number of values of an input that is typed: 4 GB.
MOST_VALUES = 2**30


def load_model(name: str, num_classes: int | None = None) -> nn.Module:
    """Make a built-in model by its name, or one of `package.module:function`.

    The function is called with num_classes if it takes that argument and a number is given.
    """
    maker = find_maker(name)
    try:
        model = maker(**classes_for(maker, num_classes))
    except (Exception, SystemExit) as error:
        raise UserError(f"model: {name}() failed: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise UserError(f"model: {name}() returned {kind}, a torch.nn.Module is needed")
    return model


def load_blank(name: str, num_classes: int) -> nn.Module:
    """Make a model as `load_model` does, but a built-in one on torch's meta device, without values.

    Tracing it computes nothing, however large an input a file of somebody else states.
    """
    with torch.device("meta") if name in MODELS else nullcontext():
        return load_model(name, num_classes)


def fill_blank(net: SlimmableNet) -> None:
    """Give a network of `load_blank` memory for weights, which are still to be loaded."""
    if net.example[0].is_meta:
        net.to_empty(device="cpu")


def find_maker(name: str) -> Callable[..., Any]:
    if ":" in name:
        return imported(name)
    if name not in MODELS:
        error = unknown("model", name, MODELS, most=len(MODELS))
        raise UserError(f"{error}; or your own as package.module:function")
    return MODELS[name]


def check_model(model: Any) -> None:
    """Refuse a model that is neither a name nor a module."""
    if model is not None and not isinstance(model, (str, nn.Module)):
        raise UserError(
            f"model: {type(model).__name__} given; give an nn.Module, or 'package.module:function'"
        )


def classes_for(maker: Callable[..., Any], num_classes: int | None) -> dict[str, int]:
    try:
        takes = "num_classes" in inspect.signature(maker).parameters
    except (TypeError, ValueError):  # some callables have no signature
        takes = False
    return {"num_classes": num_classes} if takes and num_classes is not None else {}


def imported(name: str) -> Any:
    """Import `package.module:function`, also from the current folder, as `python -m` does."""
    module_name, _, attribute = name.partition(":")
    if module_name.endswith(".py"):
        dotted = ".".join(Path(module_name[:-3]).parts)
        raise UserError(f"model: {name!r} is a file and not a module; type {dotted}:{attribute}")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        kind = type(error).__name__
        raise UserError(f"model: cannot import {module_name!r}: {kind}: {error}") from error
    maker = getattr(module, attribute, None)
    if not callable(maker):
        functions = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise unknown("model", attribute, functions)
    return maker


def default_shape(model: nn.Module) -> tuple[int, ...]:
    """Return the input shape of the model's `slim_defaults`, or (3, 224, 224)."""
    shape = getattr(model, "slim_defaults", {}).get("input", (3, 224, 224))
    if not isinstance(shape, (tuple, list)) or not all(isinstance(n, int) for n in shape):
        raise UserError(f"slim_defaults: input {shape!r} is not a shape such as (3, 224, 224)")
    return tuple(shape)


def blank_input(shape: tuple[int, ...], device: str | torch.device = "cpu") -> Tensor:
    """Return a batch of one input of this shape, all zeros."""
    try:
        return torch.zeros(1, *shape, device=device)
    except RuntimeError as error:
        raise UserError(f"input: {'x'.join(map(str, shape))} does not fit into memory") from error


def parse_shape(text: str) -> tuple[int, ...]:
    """3x224x224 -> (3, 224, 224)"""
    if not re.fullmatch(r"[1-9][0-9]*(x[1-9][0-9]*)*", text):
        raise UserError(
            f"input: {text!r} is not a shape; type channels x height x width: 3x224x224"
        )
    sizes = text.split("x")
    # Only short numbers are read: Python refuses those of thousands of digits.
    if any(len(size) > 10 for size in sizes) or math.prod(map(int, sizes)) > MOST_VALUES:
        raise UserError(f"input: {text} is more than {MOST_VALUES} values; type a smaller shape")
    return tuple(map(int, sizes))


def make_net(
    model: nn.Module,
    shape: tuple[int, ...],
    low: float | None = None,
    init: Mapping[str, Tensor] | None = None,
) -> tuple[SlimmableNet, list[str]]:
    """Return the slimmable network, and the names of its weights that are not from `init`.

    The channels of trained weights are sorted by importance, which changes nothing at full width:
    narrow children keep the first channels.
    """
    fresh = [] if init is None else load_weights(model, init)
    tensors = model.state_dict().values() if isinstance(model, nn.Module) else ()  # slim says so
    device = next((tensor.device for tensor in tensors), "cpu")
    net = slim(model, blank_input(shape, device), low=low)
    if init is not None:
        sort_channels(net)
    return net, fresh


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read the tensors of a .safetensors file, in which nothing can be executed."""
    file = Path(path)
    if file.suffix != ".safetensors":
        raise UserError(
            f"init: {str(path)!r} is not a .safetensors file; "
            "type safetensors.torch.save_file(model.state_dict(), 'weights.safetensors') to get one"
        )
    try:
        return stored_tensors(file)
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"init: cannot read {str(path)!r}: {error}") from error


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> list[str]:
    """Load trained weights; returns the names of the weights that do not fit and stay untrained.

    Only the number of classes of the last layer may differ.
    """
    wanted = model.state_dict()
    given = {PREFIXES.sub("", name): tensor for name, tensor in weights.items()}
    if wrong := [n for n, value in given.items() if not isinstance(value, Tensor)]:
        raise UserError(f"init: {wrong[0]} is {type(given[wrong[0]]).__name__}, not a tensor")
    missing = [n for n in wanted if n not in given and not n.endswith("num_batches_tracked")]
    extra = [n for n in given if n not in wanted]
    if missing or extra:
        kind, names = ("lack", missing) if missing else ("have unknown", extra)
        some = ", ".join(names[:3])
        raise UserError(f"init: the weights {kind} {some} ({len(names)} in all): another model?")
    different = [n for n in given if given[n].shape != wanted[n].shape]
    head = [n for n in different if given[n].shape[1:] == wanted[n].shape[1:]]
    if different and (head != different or len(different) > 2):
        n = next(n for n in different if n not in head) if head != different else different[0]
        shapes = f"{tuple(given[n].shape)}, the model has {tuple(wanted[n].shape)}"
        raise UserError(f"init: {n} is {shapes}; only the number of classes may differ")
    model.load_state_dict(wanted | {n: t for n, t in given.items() if n not in different})
    return different
