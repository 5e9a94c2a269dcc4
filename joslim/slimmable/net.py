"""SlimmableNet: the model of the user, which can now run as any of its children (subnets).

`make_slimmable` applies a plan to a model; afterwards `at` and `use` switch the active child, and
`child` extracts one.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from joslim.errors import UserError
from joslim.slimmable.blueprint import Blueprint
from joslim.slimmable.extract import extract_child
from joslim.slimmable.layers import layer_state, make_layer_slimmable, refuse_written
from joslim.slimmable.plan import Frozen, LayerPlan, Plan
from joslim.slimmable.tracing import Uncounted
from joslim.space import Widths, WidthSpace

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
    example: tuple[Any, ...]
    layers: list[tuple[nn.Module, LayerPlan]]
    norms: dict[str, nn.Module]
    statistics: dict[Widths, dict[str, tuple[Tensor, Tensor]]] = field(default_factory=dict)
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
    def example(self) -> tuple[Any, ...]:
        """The input that costs are counted for: one sample, if the example is a batch."""
        return self._slim_net.example

    @property
    def active(self) -> Widths:
        """The child that `forward` runs now."""
        return self._slim_net.active

    @property
    def statistics(self) -> dict[Widths, dict[str, tuple[Tensor, Tensor]]]:
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
            self._warn_without_statistics(self.active, "call joslim.recalibrate(net, batches) now")

    def _switch(self, point: Any) -> None:
        widths = self._checked(getattr(point, "widths", point))
        state = self._slim_net
        copies: list[tuple[nn.Module, Any]] = []
        for (layer, _), attributes in zip(state.layers, self._states(widths)):
            if layer._slim_copies:
                copies.append((layer, layer._slim_copies))
            layer.__dict__.update(attributes, _slim_views={}, _slim_copies={})
        own = state.statistics.get(widths, {})
        all_full = widths == self.space.full
        for name, norm in state.norms.items():
            norm.__dict__.update(_slim_all_full=all_full, _slim_own=own.get(name))
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
        widths = self._checked(getattr(widths, "widths", widths))
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
        return extract_child(self, state.plans, widths.units, share, own, without=(state,))

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

    def _checked(self, widths: Any) -> Widths:
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


def make_slimmable(model: nn.Module, plan: Plan, example: tuple[Any, ...]) -> SlimmableNet:
    """Apply a plan: change the classes of the model and of its layers, in place."""
    modules = dict(model.named_modules())
    norms: dict[str, nn.Module] = {
        name: module
        for name, module in modules.items()
        if isinstance(module, _NormBase) and module._buffers.get("running_mean") is not None
    }
    for name, module in modules.items():
        if module is not model and (name in plan.layers or isinstance(module, _NormBase)):
            make_layer_slimmable(module, plan.layers.get(name))
    make_layer_slimmable(model, plan.layers.get(""), mixins=(SlimmableNet,))
    layers = [(modules[name], layer) for name, layer in plan.layers.items()]
    model._slim_net = NetState(  # type: ignore[assignment]
        plan.blueprint,
        plan.layers,
        plan.frozen,
        plan.uncounted,
        plan.space.full,
        example,
        layers,
        norms,
    )
    assert isinstance(model, SlimmableNet)
    return model
