"""What the layers of torch say about themselves before anything runs.

The axes of a layer's parameters that must agree (a conv's weight and bias), and the attributes that
repeat their lengths (`out_channels`, `groups`, `normalized_shape`). Everything else is found out by
running the network; parameters of modules that are not listed here start with unrelated axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from joslim.slimmable.axes import Axis, Segment, Var, fixed, fresh, length, scale

Axes = list[Axis]


@dataclass
class Declaration:
    """The axes of a module's own tensors, and of its attributes (a list for a tuple of sizes)."""

    tensors: dict[str, Axes] = field(default_factory=dict)
    attributes: dict[str, Axis | Axes] = field(default_factory=dict)

    def axes(self) -> Iterator[Axis]:
        for axes in self.tensors.values():
            yield from axes
        for axis in self.attributes.values():
            yield from axis if isinstance(axis, list) else [axis]


def declare(module: nn.Module, whole_groups: bool) -> Declaration:
    """`whole_groups`: slim a grouped layer by dropping groups, not channels in each of them."""
    declaration = Declaration()
    for applies, describe in DECLARED:
        if applies(module):
            declaration = describe(module, whole_groups)
            break
    declaration.tensors = {
        name: axes
        if (axes := declaration.tensors.get(name)) and fits(axes, tensor)
        else [fresh(size) for size in tensor.shape]
        for name, tensor in own_tensors(module).items()
    }
    return declaration


def has_groups(module: nn.Module) -> bool:
    """Whether there is a choice between dropping groups and slimming each of them."""
    if isinstance(module, _ConvNd):
        return module.groups not in (1, module.in_channels)
    return isinstance(module, nn.GroupNorm) and module.num_groups > 1


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    tensors = {**module._parameters, **module._buffers}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def fits(axes: Axes, tensor: Tensor) -> bool:
    return [length(axis) for axis in axes] == list(tensor.shape)


def _conv(module: Any, whole_groups: bool) -> Declaration:
    inside, out, groups = module.in_channels, module.out_channels, module.groups
    kernel = [fixed(size) for size in module.kernel_size]
    attributes: dict[str, Any] = {}
    if groups > 1 and (whole_groups or groups == inside):
        unit = (Segment(Var(groups), 1),)
        in_axis, out_axis = scale(unit, inside // groups), scale(unit, out // groups)
        in_group, out_group = fixed(inside // groups), fixed(out // groups)
        attributes["groups"] = unit
    else:
        in_group, out_group = fresh(inside // groups), fresh(out // groups)
        in_axis, out_axis = in_group * groups, out_group * groups
    if isinstance(module, _ConvTransposeNd):
        weight = [in_axis, out_group, *kernel]
    else:
        weight = [out_axis, in_group, *kernel]
    attributes |= {"in_channels": in_axis, "out_channels": out_axis}
    return Declaration({"weight": weight, "bias": [out_axis]}, attributes)


def _linear(module: Any, whole_groups: bool) -> Declaration:
    out, inside = fresh(module.out_features), fresh(module.in_features)
    return Declaration(
        {"weight": [out, inside], "bias": [out]}, {"out_features": out, "in_features": inside}
    )


def _batch_norm(module: Any, whole_groups: bool) -> Declaration:
    axis = fresh(module.num_features)
    names = ("weight", "bias", "running_mean", "running_var")
    return Declaration({name: [axis] for name in names}, {"num_features": axis})


def _group_norm(module: Any, whole_groups: bool) -> Declaration:
    groups, channels = module.num_groups, module.num_channels
    if groups > 1 and whole_groups:
        unit = (Segment(Var(groups), 1),)
        axis, attributes = scale(unit, channels // groups), {"num_groups": unit}
    else:
        axis, attributes = fresh(channels // groups) * groups, {}
    return Declaration({"weight": [axis], "bias": [axis]}, {"num_channels": axis, **attributes})


def _prelu(module: Any, whole_groups: bool) -> Declaration:
    axis = fresh(module.num_parameters)
    return Declaration({"weight": [axis]}, {"num_parameters": axis})


def _normalized_shape(module: Any, whole_groups: bool) -> Declaration:
    axes = [fresh(size) for size in module.normalized_shape]
    return Declaration({"weight": axes, "bias": axes}, {"normalized_shape": axes})


def _is_layer_norm(module: Any) -> bool:
    """Layer norms are often rewritten by hand; all of them keep torch's name for the shape."""
    shape, weight = getattr(module, "normalized_shape", None), getattr(module, "weight", None)
    return isinstance(shape, tuple) and (weight is None or tuple(weight.shape) == shape)


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda module: isinstance(module, kinds)


DECLARED: list[tuple[Callable[[Any], bool], Callable[[Any, bool], Declaration]]] = [
    (_is(_ConvNd), _conv),
    (_is(nn.Linear), _linear),
    (_is(_NormBase), _batch_norm),
    (_is(nn.GroupNorm), _group_norm),
    (_is(nn.PReLU), _prelu),
    (_is_layer_norm, _normalized_shape),
]
