"""A layer at run time: the same module, whose parameters read as the active child's.

A layer becomes slimmable by changing the class of the same object to a subclass in which each
sliced tensor is a property; `forward` is untouched, whoever wrote it, and so are the state-dict
keys. The active sizes are plain integers on the layer, which torch.compile can leave symbolic.
All that is added to a layer has a name that starts with `_slim_`, and goes when it is cut out.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from joslim.slimmable.blueprint import Layout
from joslim.slimmable.planning import LayerPlan
from joslim.slimmable.synchronised import forward_of

PREFIX = "_slim_"


class SlimmableLayer(nn.Module):
    """Mixed into the class of every layer whose tensors are sliced, and of every norm."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class is made on the fly, so it is pickled as what it was made from.
        cls: Any = type(self)
        return rebuild, cls._slim_made_of, {**self.__dict__, PREFIX + "kept": {}}


def rebuild(base: type, names: tuple[str, ...], mixins: tuple[type, ...]) -> Any:
    cls: Any = slimmable_class(base, names, mixins)
    return cls.__new__(cls)


@cache
def slimmable_class(base: type, names: tuple[str, ...], mixins: tuple[type, ...]) -> type:
    """A subclass of `base` in which the tensors of these names are cut to the active sizes."""
    body: dict[str, Any] = {name: sliced_tensor(name) for name in names}
    if issubclass(base, _NormBase):
        body["running_mean"] = running_statistic("running_mean", 0)
        body["running_var"] = running_statistic("running_var", 1)
        body["track_running_stats"] = property(tracks_statistics, set_tracks_statistics)
    if getattr(base, "forward", None) is _BatchNorm.forward:
        body["forward"] = forward_of(base)
    body |= {"__module__": base.__module__, "_slim_made_of": (base, names, mixins)}
    return type(f"Slimmable{base.__name__}", (*mixins, SlimmableLayer, base), body)


def dress(module: nn.Module, plan: LayerPlan | None, mixins: tuple[type, ...] = ()) -> None:
    """Make the module slimmable, at full width."""
    names = tuple(sorted(plan.tensors)) if plan else ()
    module.__dict__.update(layer_state(plan, None, module) if plan else {})
    module._slim_kept = {}  # type: ignore[assignment]
    module._slim_axes = axes_of(plan) if plan else {}  # type: ignore[assignment]
    if isinstance(module, _NormBase):
        norm_state = {"all_full": True, "own": None, "collecting": False, "batch": False}
        module.__dict__.update({PREFIX + name: value for name, value in norm_state.items()})
    base: Any = type(module)
    module.__class__ = slimmable_class(base, names, mixins)


def undress(module: nn.Module) -> None:
    """Turn a slimmable module back into what it was."""
    if isinstance(module, SlimmableLayer):
        cls: Any = type(module)
        module.__class__ = cls._slim_made_of[0]
    for name in [name for name in module.__dict__ if name.startswith(PREFIX)]:
        del module.__dict__[name]


def layouts_of(plan: LayerPlan) -> list[Layout]:
    """The distinct slimmable axes of a layer: a conv has two, its input and output channels."""
    layouts = (layout for axes in plan.tensors.values() for layout in axes if layout.slimmable)
    return list(dict.fromkeys(layouts))


def axes_of(plan: LayerPlan) -> dict[str, tuple[tuple[int, int, str], ...]]:
    """For each tensor: the axes to cut, the number of the layout, where its active size stands."""
    numbers = {layout: i for i, layout in enumerate(layouts_of(plan))}
    return {
        name: tuple(
            (axis, numbers[layout], f"{PREFIX}size{numbers[layout]}")
            for axis, layout in enumerate(layouts)
            if layout.slimmable
        )
        for name, layouts in plan.tensors.items()
    }


def layer_state(
    plan: LayerPlan, units: tuple[int, ...] | None, module: nn.Module
) -> dict[str, Any]:
    """The attributes of a layer at some widths.

    `None` is the full network, which needs no slicing. A layer that is full in a smaller child is
    sliced all the same, or torch.compile would compile each combination of such layers anew.
    """
    layouts = layouts_of(plan)
    sizes = [layout.full if units is None else layout.size(units) for layout in layouts]
    index: dict[int, Tensor] = {}
    if units is not None:
        for i, layout in enumerate(layouts):
            if len(runs := layout.runs(units)) > 1:
                positions = torch.cat([torch.arange(*run) for run in runs])
                index[i] = positions.to(device_of(module))
    state: dict[str, Any] = {f"{PREFIX}size{i}": size for i, size in enumerate(sizes)}
    state |= {PREFIX + "whole": units is None, PREFIX + "index": index}
    return state | attributes(plan, units)


def device_of(module: nn.Module) -> torch.device:
    tensors = (*module._parameters.values(), *module._buffers.values())
    return next(tensor.device for tensor in tensors if tensor is not None)


def attributes(plan: LayerPlan, units: tuple[int, ...] | None) -> dict[str, Any]:
    """`out_channels`, `groups`, `normalized_shape` and the like."""

    def size(layout: Layout) -> int:
        return layout.full if units is None else layout.size(units)

    return {
        name: tuple(map(size, layout)) if isinstance(layout, tuple) else size(layout)
        for name, layout in plan.attributes.items()
    }


def sliced_tensor(name: str) -> property:
    def get(self: Any) -> Tensor:
        return active(self, name)

    return property(get)


def active(layer: Any, name: str) -> Tensor:
    """The entries of a tensor that the active child has: a prefix, or an index after a concat."""
    tensor = layer._parameters[name] if name in layer._parameters else layer._buffers[name]
    if layer._slim_whole or tensor is None:
        return tensor
    if torch.compiler.is_compiling():
        return cut(layer, name, tensor)
    if keeps(layer, tensor):
        return kept(layer, name, tensor)
    # A training step may follow, and fused optimizers do not tell a tensor that it has changed.
    layer._slim_kept.clear()
    return cut(layer, name, tensor)


def cut(layer: Any, name: str, tensor: Tensor) -> Tensor:
    for axis, number, size in layer._slim_axes[name]:
        if number in layer._slim_index:
            tensor = tensor.index_select(axis, layer._slim_index[number])
        else:
            tensor = tensor.narrow(axis, 0, getattr(layer, size))
    return tensor


def keeps(layer: Any, tensor: Tensor) -> bool:
    """Whether a part may be kept from one pass to the next: where nothing is being trained.

    The kernels want weights in one piece, and would copy a part of a tensor at every pass: for one
    image that takes as long as a good part of the convolution.
    """
    return (
        torch.is_inference_mode_enabled()
        and not layer.training
        and tensor.is_contiguous()
        and not tensor.is_inference()  # it would not tell when it changes
    )


def kept(layer: Any, name: str, tensor: Tensor) -> Tensor:
    """The part in one piece, made anew when the tensor has changed; a switch forgets it."""
    mark = (tensor, tensor.data_ptr(), tensor._version)
    old_mark, piece = layer._slim_kept.get(name, (None, None))
    if old_mark is None or old_mark[0] is not tensor or old_mark[1:] != mark[1:]:
        piece = cut(layer, name, tensor).contiguous()
        layer._slim_kept[name] = (mark, piece)
    return piece


def running_statistic(name: str, position: int) -> property:
    """A child's own statistics if they are known, else the prefix of the full network's."""

    def get(self: Any) -> Tensor | None:
        if self._slim_batch or (self.training and not tracks_statistics(self)):
            return None
        if self._slim_own is not None:
            return self._slim_own[position]
        return stored_statistic(self, name)

    return property(get)


def stored_statistic(norm: Any, name: str) -> Any:
    """The active part of the full network's."""
    return active(norm, name) if name in norm._slim_axes else norm._buffers[name]


def tracks_statistics(norm: Any) -> bool:
    """Only full-width passes move running statistics, or a recalibration the child's own."""
    moves = (norm._slim_all_full or norm._slim_collecting) and not norm._slim_batch
    return norm.__dict__["track_running_stats"] and (moves or not norm.training)


def set_tracks_statistics(norm: Any, value: bool) -> None:
    norm.__dict__["track_running_stats"] = value
