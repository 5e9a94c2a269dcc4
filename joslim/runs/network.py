"""From the name of a model to a slimmable network with weights."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from joslim.errors import UserError, unknown
from joslim.models import MODELS
from joslim.slimmable import SlimmableNet, slim, sort_channels
from joslim.untrusted import stored_tensors

# What wrappers put before the names of weights.
PREFIXES = ("module.", "_orig_mod.")


def load_model(name: str, num_classes: int | None = None) -> nn.Module:
    """A built-in model by its name, or `package.module:function`.

    It is called with num_classes if it takes that and a number is given, else without arguments.
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


def find_maker(name: str) -> Callable[..., Any]:
    if ":" in name:
        return imported(name)
    if name not in MODELS:
        error = unknown("model", name, MODELS, most=len(MODELS))
        raise UserError(f"{error}; or your own as package.module:function")
    return MODELS[name]


def check_model(model: Any) -> None:
    """A model that is given again is its name or the thing itself."""
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
    """`package.module:function`, looked for in the current folder too, as `python -m` does."""
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
    """The input that the model asks for in its `slim_defaults`, or an image of the usual size."""
    shape = getattr(model, "slim_defaults", {}).get("input", (3, 224, 224))
    if not isinstance(shape, (tuple, list)) or not all(isinstance(n, int) for n in shape):
        raise UserError(f"slim_defaults: input {shape!r} is not a shape such as (3, 224, 224)")
    return tuple(shape)


def blank_input(shape: tuple[int, ...]) -> Tensor:
    """One input of this shape."""
    try:
        return torch.zeros(1, *shape)
    except RuntimeError as error:
        raise UserError(f"input: {'x'.join(map(str, shape))} does not fit into memory") from error


def parse_shape(text: str) -> tuple[int, ...]:
    """3x224x224 -> (3, 224, 224)"""
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text):
        raise UserError(
            f"input: {text!r} is not a shape; type channels x height x width: 3x224x224"
        )
    return tuple(int(size) for size in text.split("x"))


def make_net(
    model: nn.Module,
    shape: tuple[int, ...],
    low: float | None = None,
    init: Mapping[str, Tensor] | None = None,
) -> tuple[SlimmableNet, list[str]]:
    """The slimmable network, and which of its weights are not from `init`.

    The first channels of a trained network are no better than the last: they are put in order of
    importance, which changes nothing at full width.
    """
    fresh = [] if init is None else load_weights(model, init)
    net = slim(model, blank_input(shape), low=low)
    if init is not None:
        sort_channels(net)
    return net, fresh


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file: nothing in it can be executed."""
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
    """Load trained weights; returns the names of those that do not fit and stay as they are.

    Only the last layer may not fit, by its number of classes: that is how networks are reused.
    """
    wanted = model.state_dict()
    given = {without_prefix(name): tensor for name, tensor in weights.items()}
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


def without_prefix(name: str) -> str:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name
