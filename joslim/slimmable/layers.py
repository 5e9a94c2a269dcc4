"""Slimmable layers: modules whose parameters read as those of the active child.

The last step of `slim` makes the layers of a plan slimmable: it changes the class of the same
object to a subclass in which each sliced tensor is a property. `forward` and the state-dict keys do
not change. The active sizes are plain integers on the layer, which torch.compile can leave
symbolic. The name of every added attribute starts with `_slim_`; extracted children have none.

Norms have two more abilities: a child may have running statistics of its own (see batchnorm.py),
and inside `norms_together` BatchNorm normalises by the images of all processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from joslim.distributed import world
from joslim.errors import UserError
from joslim.slimmable.blueprint import Layout
from joslim.slimmable.plan import LayerPlan
from joslim.slimmable.running import resized

PREFIX = "_slim_"


class SlimmableLayer(nn.Module):
    """Base class of every layer whose tensors are sliced, and of every norm."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class is made at run time, so its arguments are pickled instead.
        cls: Any = type(self)
        caches: dict[str, Any] = {PREFIX + "views": {}, PREFIX + "copies": {}}
        return rebuild, cls._slim_made_of, {**self.__dict__, **caches}


class Block(nn.Module):
    """Mixin of a module that a child may leave out: the input is then its output."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self.__dict__[PREFIX + "left_out"]:
            return super().forward(*args, **kwargs)
        given = next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        if world() > 1 and torch.is_grad_enabled():
            return ZeroGradients.apply(given, *self.parameters())
        return given


class ZeroGradients(torch.autograd.Function):
    """Returns its input, and gives parameters a gradient of zero.

    DistributedDataParallel averages gradients in the last of the passes of a step. It would not
    average those of parameters that are unused in that pass, although earlier passes used them.
    """

    @staticmethod
    def forward(ctx: Any, given: Tensor, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(*parameters)
        return given.view_as(given)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        needed = ctx.needs_input_grad[1:]
        zeros = (torch.zeros_like(p) if n else None for p, n in zip(ctx.saved_tensors, needed))
        return gradient, *zeros


class Resizing(nn.Module):
    """Mixin of a network whose children have inputs of several sizes: it resizes its input."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        # A slice of a Sequential has no state.
        if (pixels := self.__dict__.get(PREFIX + "pixels")) is not None:
            args, kwargs = resized((args, kwargs), pixels)
        return super().forward(*args, **kwargs)


class Missing(nn.Identity):
    """Stands for a block in a child that is called with more arguments than an Identity takes."""

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return input


def rebuild(base: type, names: tuple[str, ...], mixins: tuple[type, ...]) -> Any:
    """Make an empty layer for unpickling."""
    cls: Any = slimmable_class(base, names, mixins)
    return cls.__new__(cls)


@cache
def slimmable_class(base: type, names: tuple[str, ...], mixins: tuple[type, ...]) -> type:
    """Return a subclass of `base` in which the tensors of these names have the active sizes."""
    body: dict[str, Any] = {name: sliced_tensor(name) for name in names}
    if issubclass(base, _NormBase):
        body["running_mean"] = running_statistic("running_mean", 0)
        body["running_var"] = running_statistic("running_var", 1)
        body["track_running_stats"] = property(
            tracks_statistics,
            lambda norm, value: norm.__dict__.update(track_running_stats=value),
        )
        body["reset_running_stats"] = reset_statistics
    if getattr(base, "forward", None) is _BatchNorm.forward:
        body["forward"] = synchronisable_forward(base)
    body |= {"__module__": base.__module__, "_slim_made_of": (base, names, mixins)}
    return type(f"Slimmable{base.__name__}", (*mixins, SlimmableLayer, base), body)


def make_layer_slimmable(
    module: nn.Module, plan: LayerPlan | None, mixins: tuple[type, ...] = ()
) -> None:
    """Make a module slimmable, at full width."""
    plan = plan or LayerPlan({}, {})
    names = tuple(sorted(plan.tensors))
    module.__dict__.update(layer_state(plan, None, module))
    module._slim_views, module._slim_copies = {}, {}  # type: ignore[assignment]
    # For each tensor: (axis, number of its layout, attribute with its active size).
    numbers = {layout: i for i, layout in enumerate(layouts_of(plan))}
    module._slim_axes = {  # type: ignore[assignment]
        name: tuple(
            (axis, numbers[layout], f"{PREFIX}size{numbers[layout]}")
            for axis, layout in enumerate(plan.tensors[name])
            if layout.slimmable
        )
        for name in names
    }
    if isinstance(module, _NormBase):
        norm_state = {"all_full": True, "own": None, "collecting": False, "batch": False}
        module.__dict__.update({PREFIX + name: value for name, value in norm_state.items()})
    base: Any = type(module)
    module.__class__ = slimmable_class(base, names, mixins)


def original_class(module: nn.Module) -> Any:
    """Return the class that a module had before it was made slimmable."""
    return getattr(type(module), "_slim_made_of", (type(module),))[0]


def restore_layer(module: nn.Module) -> None:
    """Give a module its original class back, and remove everything that was added to it."""
    if isinstance(module, SlimmableLayer):
        cls: Any = type(module)
        module.__class__ = cls._slim_made_of[0]
    for name in [name for name in module.__dict__ if name.startswith(PREFIX)]:
        del module.__dict__[name]


def layouts_of(plan: LayerPlan) -> list[Layout]:
    """Return the distinct slimmable axes of a layer: a conv has two, its inputs and outputs."""
    layouts = (layout for axes in plan.tensors.values() for layout in axes if layout.slimmable)
    return list(dict.fromkeys(layouts))


def layer_state(
    plan: LayerPlan, units: tuple[int, ...] | None, module: nn.Module
) -> dict[str, Any]:
    """Return the attributes of a layer at some widths, where `None` is the full network.

    Only the full network needs no slicing. A layer with all its channels in a smaller child is
    sliced nevertheless: otherwise torch.compile would compile every combination of such layers.
    """
    layouts = layouts_of(plan)
    index: dict[int, Tensor] = {}
    if units is not None:
        for i, layout in enumerate(layouts):
            if len(runs := layout.runs(units)) > 1:
                tensors = (*module._parameters.values(), *module._buffers.values())
                device = next(tensor.device for tensor in tensors if tensor is not None)
                index[i] = torch.cat([torch.arange(*run, device=device) for run in runs])
    state: dict[str, Any] = {PREFIX + "full": units is None, PREFIX + "index": index}
    state |= {f"{PREFIX}size{i}": layout.size(units) for i, layout in enumerate(layouts)}
    return state | attributes_at(plan, units)


def attributes_at(plan: LayerPlan, units: tuple[int, ...] | None) -> dict[str, Any]:
    """Return `out_channels`, `groups`, `normalized_shape` and the like, at some widths."""
    return {
        name: tuple(x.size(units) for x in layout)
        if isinstance(layout, tuple)
        else layout.size(units)
        for name, layout in plan.attributes.items()
    }


def sliced_tensor(name: str) -> property:
    """Return the property that reads the active part of a tensor and refuses to be set."""

    def get(self: Any) -> Tensor:
        return active(self, name)

    def refuse(self: Any, value: Any) -> None:
        raise replaced_by_computation(self, name)

    return property(get, refuse)


def replaced_by_computation(layer: Any, name: str) -> UserError:
    """Return the error for a tensor that is computed before each pass, so it cannot be sliced."""
    return UserError(
        f"{name}: the one of this {type(layer).__name__} is replaced by a computed one (pruning, "
        "weight_norm, a parametrization), which cannot be slimmed; apply it before joslim.slim, or "
        "to a child: net.child(widths)"
    )


def active(layer: Any, name: str) -> Tensor:
    """Return the active part of a tensor: a view of its prefix, or a copy after a concat."""
    tensors = layer._parameters if name in layer._parameters else layer._buffers
    if name not in tensors:
        raise replaced_by_computation(layer, name)
    tensor: Tensor = tensors[name]
    if layer._slim_full or tensor is None:
        return tensor
    if torch.compiler.is_compiling():
        return cut(layer, name, tensor)
    if any(number in layer._slim_index for _, number, _ in layer._slim_axes[name]):
        refuse_written(layer, layer._slim_copies)
        part = cut(layer, name, tensor)
        if not part.is_inference():  # inference tensors have no version counter
            layer._slim_copies[name] = (part.detach(), part._version)
        return part
    if not torch.is_inference_mode_enabled():
        return prefix(layer, name, tensor)
    # In a small network, making views takes a good part of the time of a pass, so they are kept
    # until the next switch. A view shows every write to the weights. A copy would not, and torch
    # does not report all writes (`.data`, numpy, fused optimizers): it is made anew in every pass.
    place = (tensor.data_ptr(), tensor.stride())
    owner, owners_place, part = layer._slim_views.get(name, (None, None, None))
    if owner is not tensor or owners_place != place:
        part = cut(layer, name, tensor)
        layer._slim_views[name] = (tensor, place, part)
    return part


def cut(layer: Any, name: str, tensor: Tensor) -> Tensor:
    for axis, number, size in layer._slim_axes[name]:
        if number in layer._slim_index:
            tensor = tensor.index_select(axis, layer._slim_index[number])
        else:
            tensor = tensor.narrow(axis, 0, getattr(layer, size))
    return tensor


def prefix(layer: Any, name: str, tensor: Tensor) -> Tensor:
    """Cut a tensor of which the first entries of each axis are active, in one operation.

    Its gradient is written once, where that of one `narrow` for each axis is written twice.
    """
    if type(tensor) not in (Tensor, nn.Parameter):  # other kinds may not have strides
        return cut(layer, name, tensor)
    sizes = [*tensor.shape]
    for axis, _, size in layer._slim_axes[name]:
        sizes[axis] = getattr(layer, size)
    return tensor.as_strided(sizes, tensor.stride())


def refuse_written(layer: Any, copies: dict[str, tuple[Tensor, int]]) -> None:
    """Raise an error if a copy of weights was written to, because the weights did not change."""
    if written := [name for name, (copy, version) in copies.items() if copy._version != version]:
        copies.clear()
        raise UserError(
            f"{written[0]}: the one of a {type(layer).__name__} after a concat was written to; in "
            "a child it is a copy, so that would be lost: write to it at full width"
        )


def running_statistic(name: str, position: int) -> property:
    """Return the property that reads the child's own statistics, or part of the full network's."""

    def get(self: Any) -> Tensor | None:
        if self._slim_batch or (self.training and not tracks_statistics(self)):
            return None
        if self._slim_own is not None:
            return self._slim_own[position]
        return stored_statistic(self, name)

    return property(get)


def stored_statistic(norm: Any, name: str) -> Any:
    """Return the active part of the statistics of the full network."""
    return active(norm, name) if name in norm._slim_axes else norm._buffers[name]


def tracks_statistics(norm: Any) -> bool:
    """Tell whether a pass updates statistics: at full width, or while a child is recalibrated."""
    moves = (norm._slim_all_full or norm._slim_collecting) and not norm._slim_batch
    return norm.__dict__["track_running_stats"] and (moves or not norm.training)


def reset_statistics(norm: Any) -> None:
    """Reset as torch does, but only at full width: a child shares the full network's statistics."""
    if not (norm._slim_all_full or norm._slim_collecting):
        raise UserError(
            "net: a child is active, and these are the BatchNorm statistics of the full network; "
            "type joslim.recalibrate(net, batches) to give the child its own, or reset them (and "
            "update_bn) at full width"
        )
    type(norm)._slim_made_of[0].reset_running_stats(norm)


# --- BatchNorm over all processes -----------------------------------------------------------------

_together = False


@contextmanager
def norms_together(wanted: bool = True) -> Iterator[None]:
    """Synchronise the BatchNorm layers of slimmable networks inside a `with` block.

    It helps if a process has few images. Outside of the block, processes score and recalibrate
    children independently of each other.
    """
    global _together
    before, _together = _together, wanted and world() > 1
    try:
        yield
    finally:
        _together = before


def synchronisable_forward(base: Any) -> Any:
    """Return the forward of a BatchNorm class, synchronised inside `norms_together`."""

    def forward(self: Any, x: Tensor) -> Tensor:
        if not (_together and self.training):
            return base.forward(self, x)
        self._check_input_dim(x)
        return normalise_together(self, x)

    return forward


def normalise_together(norm: Any, x: Tensor) -> Tensor:
    """Normalise by the mean over processes, which have equal numbers of images.

    The gradients of the averages flow back to all processes. The running statistics are updated as
    torch does, with the unbiased variance.
    """

    def along_channels(values: Tensor) -> Tensor:
        return values.reshape(1, -1, *[1] * (x.ndim - 2))

    axes = [axis for axis in range(x.ndim) if axis != 1]
    mean = all_reduce(x.float().mean(axes)) / world()
    centred = x.float() - along_channels(mean)
    var = all_reduce(centred.square().mean(axes)) / world()
    if norm.track_running_stats and norm.running_mean is not None:
        count = x.numel() // x.shape[1] * world()
        with torch.no_grad():
            norm.num_batches_tracked += 1
            share = norm.momentum
            if share is None:
                share = 1 / int(norm.num_batches_tracked)
            norm.running_mean.lerp_(mean, share)
            norm.running_var.lerp_(var * (count / max(count - 1, 1)), share)
    y = centred * along_channels((var + norm.eps).rsqrt())
    if norm.weight is not None:
        y = y * along_channels(norm.weight) + along_channels(norm.bias)
    return y.to(x.dtype)
