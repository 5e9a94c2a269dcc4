"""Cut a child out of the shared weights, as an ordinary module."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from joslim.slimmable.blueprint import Layout
from joslim.slimmable.layers import attributes, undress
from joslim.slimmable.planning import LayerPlan

# Running mean and variance of each norm, by the norm's name.
Statistics = Mapping[str, tuple[Tensor, Tensor]]


def cut_out(
    model: nn.Module,
    plans: Mapping[str, LayerPlan],
    units: tuple[int, ...],
    share: bool = False,
    statistics: Statistics | None = None,
    without: tuple[Any, ...] = (),
) -> nn.Module:
    """A copy of the model in which every tensor has the child's size.

    The copy is made by `deepcopy` with the cut tensors already in its memo, so the full weights
    are never copied. `share`: parameters are views on the shared storage, where a view can express
    the cut; buffers are the child's own. `without`: attributes that are not to be copied.
    """
    modules = dict(model.named_modules())
    memo: dict[int, Any] = {id(value): None for value in without}
    if share:
        memo |= {id(parameter): parameter for parameter in model.parameters()}
    for module in modules.values():
        # Results that forward keeps on the module have a history, which deepcopy refuses.
        kept = (v for v in module.__dict__.values() if isinstance(v, Tensor) and not v.is_leaf)
        memo |= {id(tensor): tensor.detach() for tensor in kept}
    for name, plan in plans.items():
        for tensor_name, layouts in plan.tensors.items():
            module = modules[name]
            tensor = {**module._parameters, **module._buffers}.get(tensor_name)
            if tensor is not None:
                memo[id(tensor)] = piece(tensor, layouts, units, share)
    child = copy.deepcopy(model, memo)
    for name, module in child.named_modules():
        undress(module)
        if name in plans:
            module.__dict__.update(attributes(plans[name], units))
    if statistics is not None:
        load_statistics(child, statistics)
    return child


def piece(
    tensor: Tensor, layouts: tuple[Layout, ...], units: tuple[int, ...], share: bool
) -> Tensor:
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


def load_statistics(child: nn.Module, statistics: Statistics) -> None:
    for name, (mean, var) in statistics.items():
        norm: Any = child.get_submodule(name)
        norm.running_mean = mean.clone()
        norm.running_var = var.clone()
