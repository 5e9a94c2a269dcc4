"""What the commands take as arguments, turned into objects: models, input shapes."""

from __future__ import annotations

import importlib
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from joslim.errors import UserError, unknown

if TYPE_CHECKING:
    from torch import Tensor, nn


def load_model(name: str) -> nn.Module:
    """A built-in model by its name, or `package.module:function`, called without arguments."""
    from torch import nn

    from joslim.models import MODELS

    if ":" in name:
        maker = imported(name)
    elif name in MODELS:
        maker = MODELS[name]
    else:
        error = unknown("model", name, MODELS, most=len(MODELS))
        raise UserError(f"{error}; or your own as package.module:function")
    try:
        model = maker()
    except (Exception, SystemExit) as error:
        raise UserError(f"model: {name}() failed: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise UserError(f"model: {name}() returned {kind}, a torch.nn.Module is needed")
    return model


def imported(name: str) -> Any:
    """`package.module:function`, looked for in the current folder too, as `python -m` does."""
    module_name, _, attribute = name.partition(":")
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
    import torch

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
