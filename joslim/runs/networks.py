"""Networks by name, and their descriptions in files: from either to a slimmable network."""

from __future__ import annotations

import importlib
import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from joslim.errors import UserError, unknown
from joslim.files import json_count, json_rows, json_value
from joslim.models import MODELS
from joslim.runs.libraries import library_of, make
from joslim.runs.trained_weights import Loaded, load_weights
from joslim.slimmable import SlimmableNet, slim, sort_channels
from joslim.slimmable.running import tensors_in
from joslim.space import BLOCKS
from joslim.training.evaluate import evaluating, moved

# Largest number of values of an input that is typed: 4 GB.
MOST_VALUES = 2**30
# Limit of the names and sizes in the description of a network.
MOST_NAMES = 10**6
# Types of the inputs of a network that can be saved.
DTYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}


def load_model(
    name: str, num_classes: int | None = None, in_channels: int | None = None
) -> nn.Module:
    """Make a built-in model by its name, or one of `package.module:function`.

    The function is called with those of num_classes and in_channels that it takes and are given.
    """
    if library_of(name) is not None:
        return make(name, num_classes, in_channels)
    maker = find_maker(name)
    given = {"num_classes": num_classes, "in_channels": in_channels}
    try:
        taken = inspect.signature(maker).parameters.keys() & given
    except (TypeError, ValueError):  # some callables have no signature
        taken = set()
    options = {key: given[key] for key in taken if given[key] is not None}
    try:
        model = maker(**options)
    except (Exception, SystemExit) as error:
        raise UserError(f"model: {name}() failed: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise UserError(f"model: {name}() returned {kind}, a torch.nn.Module is needed")
    return model


def set_dropout(model: nn.Module, probability: float) -> None:
    """Give all dropout layers this probability; 0 is that of a network without such layers."""
    layers = [module for module in model.modules() if isinstance(module, _DropoutNd)]
    if probability > 0 and not layers:
        raise UserError(f"dropout: {probability:g} given, the network has no dropout; leave it out")
    for layer in layers:
        layer.p = probability


def load_blank(name: str, num_classes: int | None, in_channels: int | None) -> nn.Module:
    """Make a model as `load_model` does, but a built-in one on torch's meta device, without values.

    Tracing it computes nothing, however large an input a file of somebody else states.
    """
    with torch.device("meta") if name in MODELS else nullcontext():
        return load_model(name, num_classes, in_channels)


def slim_again(
    model: nn.Module, inputs: tuple[Tensor, ...], options: Mapping[str, Any]
) -> SlimmableNet:
    """Make a network slimmable as it was when it was saved; its weights are still to be loaded.

    A network of `load_blank` gets memory for its weights.
    """
    device = device_of(model)
    net = slim(model, tuple(value.to(device) for value in inputs), **options)
    if device.type == "meta":
        net.to_empty(device="cpu")
        net._slim_net.example = inputs
    return net


def blank_inputs(specs: Iterable[tuple[tuple[int, ...], str]]) -> tuple[Tensor, ...]:
    """Return zeros of these shapes and types, which a file states."""
    inputs = []
    for shape, kind in specs:
        if kind not in DTYPES:
            raise unknown("dtype", kind, DTYPES)
        inputs.append(torch.zeros(shape, dtype=DTYPES[kind]))
    return tuple(inputs)


def are_inputs(
    values: Sequence[Any], specs: Sequence[tuple[tuple[int, ...], str]], batched: bool
) -> bool:
    """Whether the values have these shapes and types; if batched, with as many samples in each."""
    first = 1 if batched else 0
    return (
        len(values) == len(specs)
        and all(
            isinstance(x, Tensor)
            and x.ndim == len(shape)
            and tuple(x.shape[first:]) == shape[first:]
            and str(x.dtype) == f"torch.{kind}"
            and x.numel() > 0
            for x, (shape, kind) in zip(values, specs)
        )
        and (not batched or len({len(x) for x in values}) <= 1)
    )


def channels_in(specs: Sequence[tuple[tuple[int, ...], str]]) -> int | None:
    """Return the channels of the first input, which functions that make networks may take."""
    shape, _ = specs[0]
    return shape[1] if len(shape) > 1 else None


def positional_inputs(net: SlimmableNet) -> tuple[Any, ...]:
    """Return the example input of a network without keyword arguments."""
    if isinstance(net.example, Mapping):
        raise UserError(
            f"net: it takes keyword arguments ({', '.join(map(str, net.example))}), which files of "
            "networks cannot have; wrap it in a module whose forward takes them by position"
        )
    return net.example


def network_facts(net: SlimmableNet) -> dict[str, Any]:
    """Describe a network so that `slim_options` and `inputs_of` give its space again, as JSON."""
    example = positional_inputs(net)
    for value in example:
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise UserError(f"net: {kind} in its example input; only tensors can be saved")
        if value.dtype not in DTYPES.values():
            raise UserError(f"net: its example input is {value.dtype}, which cannot be saved")
    device, options = device_of(net), net._slim_net.options
    with evaluating(net), net.at(net.space.full):
        outputs = tensors_in(net(*(moved(value, device) for value in example)))
    low, names = options.low, lambda item: item if isinstance(item, str) else [*item]
    kinds = {kind: name for name, kind in DTYPES.items()}
    return {
        "inputs": [{"shape": [*x.shape], "dtype": kinds[x.dtype]} for x in example],
        "outputs": [[*tensor.shape] for tensor in outputs],
        "low": {**low} if isinstance(low, Mapping) else float(low),
        "keep": [*options.keep],
        "tie": [names(item) for item in options.tie],
        "divisor": options.divisor,
        **more_options(options.resolutions, options.depth),
    }


def more_options(resolutions: Sequence[int] | None, depth: Any) -> dict[str, Any]:
    """Return the options of `slim` for other knobs than widths as JSON; none in most networks."""
    found: dict[str, Any] = {"resolutions": [*resolutions]} if resolutions else {}
    return found | ({"depth": {**depth} if isinstance(depth, Mapping) else True} if depth else {})


def name_of_own(net: SlimmableNet) -> str:
    """Return the name of a network that was an object: its class, by which it cannot be made."""
    base, *_ = vars(type(net))["_slim_made_of"]
    return f"<{base.__name__}>"


def slim_options(record: Any, where: str) -> dict[str, Any]:
    """Return the options of `slim` in what `network_facts` has described."""
    lists = {name: json_rows(record, name, where, MOST_NAMES, least=0) for name in ("keep", "tie")}
    more = [name for name in ("resolutions", "depth") if name in record]
    names = ("low", "divisor", *more)
    return {**lists, **{name: json_value(record, name, where) for name in names}}


def classes_in(record: Any, where: str) -> int | None:
    """Return the second size of the first output, which functions that make networks may take."""
    shapes = json_rows(record, "outputs", where, MOST_NAMES, least=0)
    if not shapes or not isinstance(shapes[0], list) or len(shapes[0]) < 2:
        return None
    return json_count(shapes[0][1], f"{where}.outputs", 1, MOST_NAMES)


def device_of(model: Any) -> torch.device:
    tensors = model.state_dict().values() if isinstance(model, nn.Module) else ()  # slim says so
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def find_maker(name: str) -> Callable[..., Any]:
    if ":" in name:
        return import_maker(name)
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


def import_maker(name: str) -> Any:
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


def net_of(
    model: str,
    shape: str | None,
    low: float | None,
    resolutions: tuple[int, ...] | None = None,
    depth: bool = False,
) -> SlimmableNet:
    """Make the network of a command line: the name of a model, and an input such as 3x224x224."""
    given = parse_shape(shape) if shape is not None else None
    network = load_model(model)
    kind = getattr(network, "slim_defaults", {}).get("dtype", torch.float32)
    example = blank_input(given or default_shape(network)).to(kind)
    return slim(network, example, low=low, resolutions=resolutions, depth=depth or None)


def make_net(
    model: nn.Module,
    example: Tensor,
    options: Mapping[str, Any] | None = None,
    init: Mapping[str, Tensor] | None = None,
) -> tuple[SlimmableNet, Loaded | None]:
    """Return the slimmable network, and what was loaded from `init`.

    The channels of trained weights are sorted by importance, which changes nothing at full width:
    narrow children keep the first channels. Blocks stay in their order, because moving one would
    change the network; shallow children keep the first blocks of each stage.
    """
    start = None if init is None else load_weights(model, init)
    net = slim(model, example.to(device_of(model)), **(options or {}))
    if start is not None:
        kept = sort_channels(net)
        words = "channels sorted by importance"
        if kept:
            units = sum(item.units for item in kept)
            words += f", but for {units} whose order the network depends on"
        if BLOCKS in net.space.kinds:
            words += "; blocks stay in their order, children keep the first ones"
        start = replace(start, words=[*start.words, words])
    return net, start
