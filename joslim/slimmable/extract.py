"""Extract a child from the shared weights, as an ordinary module.

`SlimmableNet.child` calls this, and `slim` does before it returns: trial children prove a plan.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from joslim.errors import UserError, first_line
from joslim.slimmable.blueprint import Layout
from joslim.slimmable.layers import attributes, restore_layer
from joslim.slimmable.plan import LayerPlan

# Running mean and variance of each norm, by the norm's name.
Statistics = Mapping[str, tuple[Tensor, Tensor]]


def extract_child(
    model: nn.Module,
    plans: Mapping[str, LayerPlan],
    units: tuple[int, ...],
    share: bool = False,
    statistics: Statistics | None = None,
    without: tuple[Any, ...] = (),
) -> nn.Module:
    """Copy the model with every tensor cut to the size of the child.

    The copy is made by `deepcopy` with the cut tensors already in its memo, so that the full
    weights are never copied.

    Args:
        model: The model, slimmable already or not.
        plans: How each module is cut, by its name.
        units: Units of each Dim that the child keeps.
        share: If true, parameters are views of the shared weights where a view can express the cut.
            Buffers are always copies.
        statistics: BatchNorm statistics of the child.
        without: Objects that are not copied.
    """
    modules = dict(model.named_modules())
    memo: dict[int, Any] = {id(value): None for value in without}
    if share:
        memo |= {id(parameter): parameter for parameter in model.parameters()}
    # deepcopy refuses tensors that are part of a graph; forward or a hook may have stored some.
    memo |= {id(tensor): tensor.detach() for tensor in tensors_with_graph(model, without)}
    for name, plan in plans.items():
        for tensor_name, layouts in plan.tensors.items():
            module = modules[name]
            tensor = {**module._parameters, **module._buffers}.get(tensor_name)
            if tensor is not None:
                memo[id(tensor)] = cut_tensor(tensor, layouts, units, share)
    try:
        child = copy.deepcopy(model, memo)
    except Exception as error:  # attributes of users may raise anything
        raise UserError(
            f"model: {type(model).__name__} cannot be copied, so no child can be cut out: "
            f"{first_line(error)}; take off the model what it or a hook keeps"
        ) from error
    for name, module in child.named_modules():
        restore_layer(module)
        if name in plans:
            module.__dict__.update(attributes(plans[name], units))
    for name, (mean, var) in (statistics or {}).items():
        norm: Any = child.get_submodule(name)
        norm.running_mean, norm.running_var = mean.clone(), var.clone()
    return child


def tensors_with_graph(root: Any, without: tuple[Any, ...]) -> Iterator[Tensor]:
    """Yield the results of operations among all objects that deepcopy would reach."""
    rest, seen = [root], {id(value) for value in without}
    while rest:
        value = rest.pop()
        if id(value) in seen or isinstance(value, (str, bytes, type, FunctionType)):
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            if not value.is_leaf:
                yield value
        elif isinstance(value, dict):
            rest += value.values()
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            rest += value
        elif isinstance(value, partial):
            rest += [*value.args, *value.keywords.values()]
        elif isinstance(value, MethodType):
            rest.append(value.__self__)
        else:
            rest += getattr(value, "__dict__", {}).values()


def cut_tensor(
    tensor: Tensor, layouts: tuple[Layout, ...], units: tuple[int, ...], share: bool
) -> Tensor:
    """Return the part of a tensor that the child keeps: one prefix of each stretch."""
    result = tensor.detach()
    for axis, layout in enumerate(layouts):
        runs = layout.runs(units)
        if len(runs) == 1:
            result = result.narrow(axis, 0, runs[0][1])
        else:
            parts = [result.narrow(axis, start, stop - start) for start, stop in runs]
            result = torch.cat(parts, dim=axis)
    is_parameter = isinstance(tensor, nn.Parameter)
    if not (share and is_parameter):
        result = result.clone(memory_format=torch.contiguous_format)
    return nn.Parameter(result, requires_grad=tensor.requires_grad) if is_parameter else result
