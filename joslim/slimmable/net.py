"""The slimmable network: the user's own model, which can run as any of its children."""

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
from joslim.slimmable.cutting import cut_out
from joslim.slimmable.layers import dress, layer_state
from joslim.slimmable.planning import Frozen, LayerPlan, Plan
from joslim.widths import Widths, WidthSpace

# Switching among this many children is instant; a switch to another one computes its sizes anew.
REMEMBERED_CHILDREN = 256


@dataclass
class NetState:
    """What a network knows besides its weights. One object, so that a child can leave it behind."""

    blueprint: Blueprint
    plans: dict[str, LayerPlan]
    frozen: list[Frozen]
    active: Widths
    # One sample: what costs are counted for.
    example: tuple[Any, ...]
    layers: list[tuple[nn.Module, LayerPlan]]
    norms: dict[str, nn.Module]
    statistics: dict[Widths, dict[str, tuple[Tensor, Tensor]]] = field(default_factory=dict)
    recent: OrderedDict[Widths, list[dict[str, Any]]] = field(default_factory=OrderedDict)


class SlimmableNet(nn.Module):
    """Mixed into the class of a model by `joslim.slim`: the shared weights, and what is active."""

    _slim_net: NetState

    @property
    def space(self) -> WidthSpace:
        """All children of this network."""
        return self._slim_net.blueprint.space

    @property
    def blueprint(self) -> Blueprint:
        return self._slim_net.blueprint

    @property
    def frozen(self) -> list[Frozen]:
        """The layers that cannot be slimmed, and why."""
        return self._slim_net.frozen

    @property
    def example(self) -> tuple[Any, ...]:
        """The sample that costs are counted for: the first of the example input."""
        return self._slim_net.example

    @property
    def active(self) -> Widths:
        """The child that `forward` runs now."""
        return self._slim_net.active

    @property
    def statistics(self) -> dict[Widths, dict[str, tuple[Tensor, Tensor]]]:
        """The BatchNorm statistics of children that have their own: see `joslim.recalibrate`."""
        return self._slim_net.statistics

    @contextmanager
    def at(self, widths: Widths) -> Iterator[SlimmableNet]:
        """Run as this child inside the `with` block. Blocks nest; for one thread at a time."""
        before = self.active
        self._switch(widths)
        try:
            yield self
        finally:
            self._switch(before)

    def use(self, point: Any) -> None:
        """Run as this child from now on. `point`: Widths, or anything that has `widths`.

        With a warning if nobody has recalibrated the child's statistics: its answers would be
        near chance.
        """
        self._switch(point)
        if not self.training:
            self._warn_without_statistics(self.active, "call joslim.recalibrate(net, batches) now")

    def _switch(self, point: Any) -> None:
        widths = self._checked(getattr(point, "widths", point))
        state = self._slim_net
        for (layer, _), attributes in zip(state.layers, self._states(widths)):
            layer.__dict__.update(attributes, _slim_kept={})
        own = state.statistics.get(widths, {})
        all_full = widths == self.space.full
        for name, norm in state.norms.items():
            norm.__dict__.update(_slim_all_full=all_full, _slim_own=own.get(name))
        state.active = widths

    def child(self, widths: Widths, share: bool = False) -> nn.Module:
        """The child as an ordinary module, equal to this network at these widths.

        `share=True`: its parameters are views on the shared storage, so that several threads can
        run different children of one network. What follows a concat cannot be a view, and is a copy
        of the weights as they are now.
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
        """`child` without a warning."""
        state = self._slim_net
        own = state.statistics.get(widths)
        return cut_out(self, state.plans, widths.units, share, own, without=(state,))

    def _states(self, widths: Widths) -> list[dict[str, Any]]:
        """The attributes of every layer at these widths."""
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

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Moving the network to another device takes the statistics and indices along."""
        result = super()._apply(fn, *args, **kwargs)
        if "_slim_net" not in self.__dict__:  # a slice of a Sequential has its class, but no state
            return result
        state = self._slim_net
        for own in state.statistics.values():
            for name, (mean, var) in own.items():
                own[name] = (fn(mean), fn(var))
        state.recent.clear()
        self._switch(state.active)
        return result


RESERVED = ("space", "blueprint", "frozen", "example", "active", "statistics", "at", "use", "child")


def make_slimmable(model: nn.Module, plan: Plan, example: tuple[Any, ...]) -> SlimmableNet:
    """Change the classes of the model and of its layers, in place."""
    modules = dict(model.named_modules())
    norms: dict[str, nn.Module] = {
        name: module
        for name, module in modules.items()
        if isinstance(module, _NormBase) and module._buffers.get("running_mean") is not None
    }
    for name, module in modules.items():
        if module is not model and (name in plan.layers or isinstance(module, _NormBase)):
            dress(module, plan.layers.get(name))
    dress(model, plan.layers.get(""), mixins=(SlimmableNet,))
    layers = [(modules[name], layer) for name, layer in plan.layers.items()]
    model._slim_net = NetState(  # type: ignore[assignment]
        plan.blueprint, plan.layers, plan.frozen, plan.space.full, example, layers, norms
    )
    assert isinstance(model, SlimmableNet)
    return model
