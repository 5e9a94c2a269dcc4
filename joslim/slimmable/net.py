"""SlimmableNet: the model of the user, which can now run as any of its children (subnets).

`make_slimmable` applies a plan to a model; afterwards `at` and `use` switch the active child, and
`child` extracts one as an ordinary module.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, MappingProxyType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_map_only

from joslim.errors import UserError, first_line
from joslim.slimmable.blocks import Place, left_out
from joslim.slimmable.blueprint import Blueprint, Layout
from joslim.slimmable.layer_specs import own_tensors
from joslim.slimmable.layers import (
    Block,
    Missing,
    Resizing,
    attributes_at,
    layer_state,
    make_layer_slimmable,
    original_class,
    refuse_written,
    restore_layer,
)
from joslim.slimmable.plan import Frozen, LayerPlan, Options, Plan
from joslim.slimmable.running import Inputs, resized
from joslim.slimmable.tracing import Uncounted
from joslim.space import Widths, WidthSpace

# Running mean and variance of each norm, by the norm's name.
Statistics = dict[str, tuple[Tensor, Tensor]]

# Number of children whose layer sizes are cached, so that a switch to them takes no computation.
REMEMBERED_CHILDREN = 256


@dataclass
class NetState:
    """All state of a slimmable network besides its weights; extracted children do not copy it."""

    blueprint: Blueprint
    plans: dict[str, LayerPlan]
    frozen: list[Frozen]
    uncounted: list[Uncounted]
    active: Widths
    # The input that costs are counted for: one sample, if the example is a batch.
    example: Inputs
    # Those that `slim` used, with which it makes the same space again.
    options: Options
    layers: list[tuple[nn.Module, LayerPlan]]
    norms: dict[str, nn.Module]
    # Modules that children may leave out: where they stand, by their names, and the modules.
    blocks: dict[str, Place]
    skippable: list[tuple[nn.Module, Place]]
    statistics: dict[Widths, Statistics] = field(default_factory=dict)
    recent: OrderedDict[Widths, list[dict[str, Any]]] = field(default_factory=OrderedDict)


class SlimmableNet(nn.Module):
    """A network (supernet) that can run as any of its children (subnets), which share its weights.

    `joslim.slim` adds this class to the class of a model, so that the network is still an instance
    of its own class. The active child is state of the network: use it from one thread at a time,
    and give other threads a child with `child(widths, share=True)`.

    Examples:
        >>> net = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 32, 32)).eval()
        >>> small, x = net.space.uniform(0.5), torch.zeros(8, 3, 32, 32)
        >>> with net.at(small):  # only inside the block
        ...     inside = net(x)
        >>> net.active == net.space.full
        True
        >>> with net.at(small):
        ...     joslim.recalibrate(net, [torch.randn(16, 3, 32, 32)])
        >>> net.use(small)  # from now on
        >>> child = net.child(small)  # an ordinary module
        >>> torch.allclose(net(x), child(x), atol=1e-5)
        True
    """

    _slim_net: NetState

    @property
    def space(self) -> WidthSpace:
        """Search space of this network: all its children."""
        return self._slim_net.blueprint.space

    @property
    def blueprint(self) -> Blueprint:
        """Summary of the computation graph, from which costs are computed."""
        return self._slim_net.blueprint

    @property
    def frozen(self) -> list[Frozen]:
        """Layers that cannot be slimmed, each with the reason."""
        return self._slim_net.frozen

    @property
    def uncounted(self) -> list[Uncounted]:
        """Parts of this network that costs leave out; empty if all costs are exact."""
        return self._slim_net.uncounted

    @property
    def example(self) -> Any:
        """The inputs that costs are counted for: one sample, if the example is a batch.

        A tuple, or a dictionary of keyword arguments.
        """
        return self._slim_net.example

    @property
    def active(self) -> Widths:
        """The child that `forward` runs now."""
        return self._slim_net.active

    @property
    def statistics(self) -> dict[Widths, Statistics]:
        """BatchNorm statistics of the children that have their own; see `joslim.recalibrate`."""
        return self._slim_net.statistics

    @contextmanager
    def at(self, widths: Widths) -> Iterator[SlimmableNet]:
        """Run as this child inside a `with` block, and as the child before it afterwards.

        Blocks may be nested. Only one thread at a time may use the network.

        Args:
            widths: A child of `space`, or a point of a front.

        Raises:
            UserError: The child belongs to another network.
        """
        before = self.active
        self._switch(widths)
        try:
            yield self
        finally:
            self._switch(before)

    def use(self, point: Any) -> None:
        """Run as this child from now on.

        In eval mode a warning appears if the child has no BatchNorm statistics of its own, because
        its outputs would then be close to chance.

        Args:
            point: A point of a front, or a child of `space`.

        Raises:
            UserError: The child belongs to another network.
        """
        self._switch(point)
        if not self.training:
            advice = (
                "call joslim.recalibrate(net, batches) now (net.state_dict() does not hold the "
                "statistics of children; joslim.save keeps them)"
            )
            self._warn_without_statistics(self.active, advice)

    def _switch(self, point: Any) -> None:
        state, widths = self._slim_net, self._checked(point)
        copies: list[tuple[nn.Module, Any]] = []
        for (layer, _), attributes in zip(state.layers, self._states(widths)):
            if layer._slim_copies:
                copies.append((layer, layer._slim_copies))
            layer.__dict__.update(attributes, _slim_views={}, _slim_copies={})
        own = state.statistics.get(widths, {})
        all_full = widths == self.space.full
        for name, norm in state.norms.items():
            norm.__dict__.update(_slim_all_full=all_full, _slim_own=own.get(name))
        for block, place in state.skippable:
            block.__dict__["_slim_left_out"] = widths.counts[place.dim] <= place.number
        if widths.pixels is not None:
            at_full_size = widths.pixels == self.space.full.pixels
            self.__dict__["_slim_pixels"] = None if at_full_size else widths.pixels
        state.active = widths
        for layer, of_layer in copies:
            refuse_written(layer, of_layer)

    def child(self, widths: Widths, share: bool = False) -> nn.Module:
        """Cut a child out as an ordinary module that equals this network at these widths.

        Args:
            widths: A child of `space`, or a point of a front.
            share: If true, the parameters of the child are views of the shared weights, so that
                several threads can run different children of one network. Weights behind a
                concatenation cannot be views: they are copies of the present values.

        Returns:
            A module without any slimmable layer.

        Raises:
            UserError: The child belongs to another network.
        """
        widths = self._checked(widths)
        advice = "call joslim.recalibrate(net, batches) at its widths first, or on the child"
        self._warn_without_statistics(widths, advice)
        return self._cut(widths, share)

    def _warn_without_statistics(self, widths: Widths, advice: str) -> None:
        state = self._slim_net
        if state.norms and widths not in state.statistics and widths != self.space.full:
            warnings.warn(
                "this child has the BatchNorm statistics of the full network, which do not fit it: "
                f"{advice}",
                stacklevel=3,
            )

    def _cut(self, widths: Widths, share: bool = False) -> nn.Module:
        """Extract a child without a warning."""
        state = self._slim_net
        own = state.statistics.get(widths)
        gone = left_out(state.blocks, widths.counts)
        return extract_child(self, state.plans, widths.units, share, own, (state,), gone)

    def _example_of(self, widths: Widths) -> Any:
        """Return the inputs that the costs of a child are counted for: the example in its size."""
        return resized(self._slim_net.example, widths.pixels)

    def _states(self, widths: Widths) -> list[dict[str, Any]]:
        """Return the attributes of every layer at these widths, from the cache if possible."""
        recent = self._slim_net.recent
        if widths not in recent:
            layers = self._slim_net.layers
            units = None if widths == self.space.full else widths.units
            recent[widths] = [layer_state(plan, units, layer) for layer, plan in layers]
            if len(recent) > REMEMBERED_CHILDREN:
                recent.popitem(last=False)
        recent.move_to_end(widths)
        return recent[widths]

    def _checked(self, point: Any) -> Widths:
        """Return the widths of a child of this network or of a point of a front."""
        widths = getattr(point, "widths", point)
        if not isinstance(widths, Widths):
            raise UserError(
                f"widths: {type(widths).__name__} given, Widths needed; type net.space.at([...])"
            )
        if widths.space != self.space:
            raise UserError(
                f"widths: they belong to another network ({len(widths.space)} knobs, "
                f"this one has {len(self.space)}); take them from net.space"
            )
        return widths

    def _load_from_state_dict(self, *args: Any) -> None:
        """Forget the statistics of children, which do not fit new weights. (Wrappers call this.)"""
        super()._load_from_state_dict(*args)
        if "_slim_net" in self.__dict__:  # a slice of a Sequential has no state
            self.statistics.clear()
            self._switch(self.active)

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Move the statistics of children and the indices to another device, too."""
        result = super()._apply(fn, *args, **kwargs)
        if "_slim_net" not in self.__dict__:  # a slice of a Sequential has no state
            return result
        state = self._slim_net
        device = next((p.device for p in self.parameters()), torch.device("meta"))
        if device.type != "meta":  # by `to_empty`, a network without values gets some
            state.example = tree_map_only(
                Tensor,
                lambda t: torch.zeros_like(t, device=device) if t.is_meta else t,
                state.example,
            )
        for own in state.statistics.values():
            for name, (mean, var) in own.items():
                own[name] = (fn(mean), fn(var))
        state.recent.clear()
        self._switch(state.active)
        return result


RESERVED = (
    *("space", "blueprint", "frozen", "uncounted", "example", "active", "statistics"),
    *("at", "use", "child"),
)


def make_slimmable(model: nn.Module, plan: Plan, example: Inputs, options: Options) -> SlimmableNet:
    """Apply a plan: change the classes of the model and of its layers, in place."""
    modules = dict(model.named_modules())
    norms: dict[str, nn.Module] = {
        name: module
        for name, module in modules.items()
        if isinstance(module, _NormBase) and module._buffers.get("running_mean") is not None
    }
    for name, module in modules.items():
        is_block = name in plan.blocks
        if module is not model and (
            name in plan.layers or isinstance(module, _NormBase) or is_block
        ):
            make_layer_slimmable(module, plan.layers.get(name), (Block,) if is_block else ())
        if is_block:
            module.__dict__["_slim_left_out"] = False
    mixins = (Resizing, SlimmableNet) if options.resolutions else (SlimmableNet,)
    make_layer_slimmable(model, plan.layers.get(""), mixins=mixins)
    layers = [(modules[name], layer) for name, layer in plan.layers.items()]
    model._slim_net = NetState(  # type: ignore[assignment]
        plan.blueprint,
        plan.layers,
        plan.frozen,
        plan.uncounted,
        plan.space.full,
        example,
        options,
        layers,
        norms,
        plan.blocks,
        [(modules[name], place) for name, place in plan.blocks.items()],
    )
    assert isinstance(model, SlimmableNet)
    return model


# --- extracting a child ---------------------------------------------------------------------------


def extract_child(
    model: nn.Module,
    plans: Mapping[str, LayerPlan],
    units: tuple[int, ...],
    share: bool = False,
    statistics: Statistics | None = None,
    without: tuple[Any, ...] = (),
    gone: Mapping[str, Place] = MappingProxyType({}),
) -> nn.Module:
    """Return a copy of the model with every tensor cut to the size of the child.

    The copy is made by `deepcopy` with the cut tensors already in its memo, so that the full
    weights are never copied. `share` makes parameters views of the shared weights where a view can
    express the cut; `without` are objects that are not copied, and `gone` has the blocks that the
    child leaves out.
    """
    modules = dict(model.named_modules())
    memo: dict[int, Any] = {id(value): None for value in without}
    memo |= {id(modules[name]): identity_for(modules[name]) for name in gone}
    if share:
        memo |= {id(parameter): parameter for parameter in model.parameters()}
    # deepcopy refuses tensors that are part of a graph; forward or a hook may have stored some.
    memo |= {id(tensor): tensor.detach() for tensor in tensors_with_graph(model, without)}
    for name, plan in plans.items():
        tensors = own_tensors(modules[name])
        for tensor_name, layouts in plan.tensors.items():
            if (tensor := tensors.get(tensor_name)) is not None:
                memo[id(tensor)] = cut_tensor(tensor, layouts, units, share)
    try:
        child = copy.deepcopy(model, memo)
    except Exception as error:  # attributes of users may raise anything
        raise UserError(
            f"model: {type(model).__name__} cannot be copied, so no child can be cut out: "
            f"{first_line(error)}; take off the model what it or a hook keeps"
        ) from error
    for name, place in gone.items():
        if place.removable:
            parent, _, key = name.rpartition(".")
            del child.get_submodule(parent)._modules[key]
    for name, module in child.named_modules():
        restore_layer(module)
        if name in plans:
            module.__dict__.update(attributes_at(plans[name], units))
    for name, (mean, var) in (statistics or {}).items():
        norm: Any = child.get_submodule(name)
        norm.running_mean, norm.running_var = mean.clone(), var.clone()
    return child


def identity_for(block: nn.Module) -> nn.Module:
    """Return what stands in a child for a block that it leaves out, unless that can go, too."""
    arguments = inspect.signature(original_class(block).forward).parameters
    return nn.Identity() if len(arguments) == 2 else Missing()  # self and the input


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
