"""Specifications of torch's layers: which axes of their own tensors and attributes belong together.

Tracing starts from these. A spec says which axes of the parameters of a layer must agree (the
weight and the bias of a conv), and which attributes repeat their lengths (`out_channels`, `groups`,
`normalized_shape`). Everything else is found by running the network. Parameters of modules without
a spec start with unrelated axes.

To add a layer whose attributes follow the width, write a function here and add a row to `SPECS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from joslim.slimmable.symbolic_axes import Axis, Segment, Var, fixed, fresh, length, scale

Axes = list[Axis]


@dataclass
class LayerSpec:
    """The axes of the tensors of a module and of its attributes (a list for a tuple of sizes).

    `groups` is set where whole groups are dropped, and each group could be slimmed instead.
    """

    tensors: dict[str, Axes] = field(default_factory=dict)
    attributes: dict[str, Axis | Axes] = field(default_factory=dict)
    groups: Axis | None = None

    def axes(self) -> Iterator[Axis]:
        for axes in self.tensors.values():
            yield from axes
        for axis in self.attributes.values():
            yield from axis if isinstance(axis, list) else [axis]


def layer_spec(module: nn.Module, whole_groups: bool, sizes: bool = False) -> LayerSpec:
    """Return the spec of a module; a grouped one drops whole groups, or channels in each group.

    `sizes`: Every integer attribute of a module that is not in `SPECS` may be a size, such as a
    number of heads, and so may those in a tuple, such as the shape of a scale. Tracing finds the
    axis whose length it is, if there is one.
    """
    make = next((make for applies, make in SPECS if applies(module)), None)
    spec = make(module, whole_groups) if make else LayerSpec()
    if sizes and make is None:
        numbers = {n: v for n, v in vars(module).items() if type(v) is int and v > 1}
        spec.attributes |= {name: fresh(value) for name, value in numbers.items()}
        tuples = {n: v for n, v in vars(module).items() if type(v) is tuple and is_shape(v)}
        spec.attributes |= {
            name: [fresh(size) if size > 1 else fixed(size) for size in shape]
            for name, shape in tuples.items()
        }
    known, spec.tensors = spec.tensors, {}
    for name, tensor in own_tensors(module).items():
        axes = known.get(name, [])
        fits = [length(axis) for axis in axes] == list(tensor.shape)
        spec.tensors[name] = axes if fits else [fresh(size) for size in tensor.shape]
    return spec


def is_shape(value: tuple[Any, ...]) -> bool:
    return all(type(size) is int for size in value) and any(size > 1 for size in value)


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module itself, without its submodules."""
    tensors = {**module._parameters, **module._buffers}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def _conv(module: Any, whole_groups: bool) -> LayerSpec:
    inside, out, groups = module.in_channels, module.out_channels, module.groups
    kernel = [fixed(size) for size in module.kernel_size]
    attributes: dict[str, Any] = {}
    unit: Axis | None = None
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
    slimmable_inside = unit if groups != inside else None
    return LayerSpec({"weight": weight, "bias": [out_axis]}, attributes, slimmable_inside)


def _linear(module: Any, whole_groups: bool) -> LayerSpec:
    out, inside = fresh(module.out_features), fresh(module.in_features)
    return LayerSpec(
        {"weight": [out, inside], "bias": [out]}, {"out_features": out, "in_features": inside}
    )


def _batch_norm(module: Any, whole_groups: bool) -> LayerSpec:
    axis = fresh(module.num_features)
    names = ("weight", "bias", "running_mean", "running_var")
    return LayerSpec({name: [axis] for name in names}, {"num_features": axis})


def _group_norm(module: Any, whole_groups: bool) -> LayerSpec:
    groups, channels = module.num_groups, module.num_channels
    if groups > 1 and whole_groups:
        unit = (Segment(Var(groups), 1),)
        axis = scale(unit, channels // groups)
        attributes: dict[str, Any] = {"num_channels": axis, "num_groups": unit}
        return LayerSpec({"weight": [axis], "bias": [axis]}, attributes, unit)
    axis = fresh(channels // groups) * groups
    return LayerSpec({"weight": [axis], "bias": [axis]}, {"num_channels": axis})


def _attention(module: Any, whole_groups: bool) -> LayerSpec:
    heads, size = module.num_heads, module.head_dim
    attributes: dict[str, Any] = {}
    unit: Axis | None = None
    if heads > 1 and whole_groups:
        unit = (Segment(Var(heads), 1),)
        axis = scale(unit, size)
        attributes["num_heads"] = unit
    else:
        head = fresh(size)
        axis = head * heads
        attributes["head_dim"] = head
    keys, values = fresh(module.kdim), fresh(module.vdim)
    if module._qkv_same_embed_dim:
        keys = values = axis
    attributes |= {"embed_dim": axis, "kdim": keys, "vdim": values}
    one = fixed(1)
    tensors = {
        "in_proj_weight": [axis * 3, axis],
        "in_proj_bias": [axis * 3],
        "q_proj_weight": [axis, axis],
        "k_proj_weight": [axis, keys],
        "v_proj_weight": [axis, values],
        "bias_k": [one, one, axis],
        "bias_v": [one, one, axis],
    }
    return LayerSpec(tensors, attributes, unit)


def _prelu(module: Any, whole_groups: bool) -> LayerSpec:
    axis = fresh(module.num_parameters)
    return LayerSpec({"weight": [axis]}, {"num_parameters": axis})


def _normalized_shape(module: Any, whole_groups: bool) -> LayerSpec:
    axes = [fresh(size) for size in module.normalized_shape]
    return LayerSpec({"weight": axes, "bias": axes}, {"normalized_shape": axes})


def _is_layer_norm(module: Any) -> bool:
    """Recognise layer norms, also hand-written ones, by torch's name for their shape."""
    shape, weight = getattr(module, "normalized_shape", None), getattr(module, "weight", None)
    return isinstance(shape, tuple) and (weight is None or tuple(weight.shape) == shape)


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda module: isinstance(module, kinds)


SPECS: list[tuple[Callable[[Any], bool], Callable[[Any, bool], LayerSpec]]] = [
    (_is(_ConvNd), _conv),
    (_is(nn.Linear), _linear),
    (_is(_NormBase), _batch_norm),
    (_is(nn.GroupNorm), _group_norm),
    (_is(nn.MultiheadAttention), _attention),
    (_is(nn.PReLU), _prelu),
    (_is_layer_norm, _normalized_shape),
]
