"""`joslim.slim`: make an ordinary network slimmable."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from joslim.errors import UserError
from joslim.slimmable.axes import Algebra, Locked, Segment, is_fixed, variables
from joslim.slimmable.cutting import cut_out
from joslim.slimmable.declare import Declaration, declare, has_groups
from joslim.slimmable.layers import SlimmableLayer, undress
from joslim.slimmable.net import RESERVED, SlimmableNet, make_slimmable
from joslim.slimmable.planning import (
    DEFAULT_LOW,
    Frozen,
    Low,
    Options,
    Plan,
    Tie,
    freeze_kept,
    freeze_unused,
    make_plan,
)
from joslim.slimmable.tracing import (
    OpFailed,
    Tracer,
    first_line,
    tensors_in,
    trace,
    undisturbed,
)
from joslim.widths import Widths, WidthSpace

# How far a cut-out child may be from the sliced network, as a share of its largest output.
TOLERANCE = 1e-4


def slim(
    model: nn.Module,
    example_input: Any,
    *,
    low: Low | None = None,
    keep: Sequence[str] | None = None,
    tie: Tie | None = None,
    divisor: int | None = None,
) -> SlimmableNet:
    """Make `model` slimmable, in place, and return it.

    example_input: a tensor, or a tuple of the model's inputs.
    low: the smallest share of its channels that a layer may keep, or one per name (patterns work).
    keep: names of layers whose width is left alone.
    tie: groups of names that share one knob.
    divisor: round channel counts down to multiples of it.
    A model may carry defaults for these as `slim_defaults`; arguments win.
    """
    inputs = example_input if isinstance(example_input, tuple) else (example_input,)
    options = options_for(model, low=low, keep=keep, tie=tie, divisor=divisor)
    check_fits(model, inputs)
    analysis = Analysis(model, first_sample(model, inputs), options)
    plan = analysis.settled_plan()
    try:
        net = make_slimmable(model, plan, analysis.inputs)
        check_children(net)
    except BaseException:
        for module in model.modules():
            undress(module)
        raise
    return net


def options_for(model: nn.Module, **given: Any) -> Options:
    defaults = getattr(model, "slim_defaults", {})
    fallback = {"low": DEFAULT_LOW, "keep": (), "tie": (), "divisor": 1}
    values = {
        name: defaults.get(name, fallback[name]) if value is None else value
        for name, value in given.items()
    }
    for name in ("keep", "tie"):
        if isinstance(values[name], str):
            values[name] = [values[name]]
    lows = values["low"].values() if isinstance(values["low"], Mapping) else [values["low"]]
    for value in lows:
        if not isinstance(value, numbers.Real) or not 0 < float(value) <= 1:
            raise UserError(f"low: {value} is outside (0, 1]; type a share such as 0.25")
    for name in ("keep", "tie"):
        for item in values[name]:
            names = item if isinstance(item, (list, tuple)) else [item]
            if not names or not all(isinstance(n, str) for n in names):
                raise UserError(f"{name}: {item!r} is not a name; type names of layers: ['conv1']")
    if not isinstance(values["divisor"], int) or values["divisor"] < 1:
        raise UserError(f"divisor: {values['divisor']} is below 1; type 1 for no rounding, or 8")
    return Options(**values)


def check_fits(model: nn.Module, inputs: tuple[Any, ...]) -> None:
    """The model must run on its example, and must leave our names free."""
    if not isinstance(model, nn.Module):
        raise UserError(f"model: {type(model).__name__} given, a torch.nn.Module is needed")
    if any(isinstance(module, SlimmableLayer) for module in model.modules()):
        raise UserError("model: it is slimmable already; slim a fresh copy for other options")
    if taken := [name for name in RESERVED if hasattr(model, name)]:
        raise UserError(f"model: it has an attribute {taken[0]!r}, which joslim needs; rename it")
    try:
        with undisturbed(model, training=False):
            model(*inputs)
    except Exception as error:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors_in(inputs)) or repr(inputs)
        raise UserError(
            f"example_input: {type(model).__name__} does not run on {shapes}: {first_line(error)}"
        ) from error


def first_sample(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """One image is enough to trace with, and it is what costs are counted for."""
    sizes = {t.shape[0] if t.dim() else 0 for t in tensors_in(inputs)}
    if len(sizes) != 1 or sizes == {0} or sizes == {1}:
        return inputs
    one = tree_map(lambda leaf: leaf[:1] if isinstance(leaf, Tensor) else leaf, inputs)
    try:
        with undisturbed(model, training=False):
            model(*one)
    except Exception:
        return inputs
    return one


class Analysis:
    """What tracing found out about a model, and the plans that follow from it."""

    def __init__(self, model: nn.Module, inputs: tuple[Any, ...], options: Options) -> None:
        self.model = model
        self.inputs = inputs
        self.options = options
        self._trace(slim_in_groups=set())
        # Where dropping whole groups is impossible, slimming each group may still be.
        stuck = {m for m, d in self.declared.items() if has_groups(m) and groups_are_stuck(d)}
        if stuck:
            free = self._count_free()
            self._trace(slim_in_groups=stuck)
            if self._count_free() <= free:
                self._trace(slim_in_groups=set())

    def _trace(self, slim_in_groups: set[nn.Module]) -> None:
        self.algebra = Algebra()
        self.declared = {
            module: declare(module, whole_groups=module not in slim_in_groups)
            for module in self.model.modules()
            if not isinstance(module, torch.jit.ScriptModule)
        }
        self.tracers: list[Tracer] = []
        self.modes: list[bool] = []
        for training in (False, True):
            try:
                tracer = trace(self.model, self.inputs, self.declared, self.algebra, training)
            except OpFailed as error:
                if not training:
                    raise UserError(f"model: tracing failed: {error.why}") from error
                warnings.warn(
                    f"{type(self.model).__name__} does not run in train mode on its example "
                    f"({error.why}): what runs only in training was not seen",
                    stacklevel=4,
                )
                continue
            self.tracers.append(tracer)
            self.modes.append(training)

    def _count_free(self) -> int:
        return len({var for t in self.tracers for p in t.produced for var in variables(p.axis)})

    def settled_plan(self) -> Plan:
        """The plan under which children of several sizes run as foreseen."""
        produced = [p for tracer in self.tracers for p in tracer.produced]
        freeze_unused(self.declared, self.tracers, self.algebra)
        freeze_kept(produced, self.options.keep, self.algebra)
        while True:
            plan = make_plan(self.model, self.declared, self.tracers, self.options)
            if not len(plan.space):
                raise nothing_to_slim(self.model, plan.frozen)
            if (trouble := self._trouble(plan)) is None:
                return plan
            for var in trouble.variables:
                if var.bound is None:
                    self.algebra.freeze((Segment(var, 1),), trouble.why)

    def _trouble(self, plan: Plan) -> Locked | OpFailed | None:
        """Run children under the trace: each tensor must have the sizes that the plan foresees."""
        for widths in trial_children(plan.space):
            child = cut_out(self.model, plan.layers, widths.units)
            declared = self._declared_for(child)
            for training in self.modes:
                self.algebra.locked = True
                try:
                    with plan.sized(widths):
                        trace(child, self.inputs, declared, self.algebra, training)
                except (Locked, OpFailed) as error:
                    if not error.variables:
                        error.variables = set(plan.variables)
                    return error
                finally:
                    self.algebra.locked = False
        return None

    def _declared_for(self, child: nn.Module) -> dict[nn.Module, Declaration]:
        modules = dict(child.named_modules())
        return {
            modules[name]: self.declared[module]
            for name, module in self.model.named_modules()
            if module in self.declared
        }


def nothing_to_slim(model: nn.Module, frozen: list[Frozen]) -> UserError:
    layers = [f"{f.layer}: {f.why}" for f in frozen]
    reason = f"all of its {len(layers)} layers are frozen ({layers[0]})" if layers else "no weights"
    return UserError(f"model: {type(model).__name__} has nothing to slim: {reason}")


def groups_are_stuck(declaration: Declaration) -> bool:
    groups = declaration.attributes.get("groups", declaration.attributes.get("num_groups"))
    return groups is not None and is_fixed(groups)  # type: ignore[arg-type]


def trial_children(space: WidthSpace) -> list[Widths]:
    rng = np.random.default_rng(0)
    return [space.smallest, space.random(rng), space.random(rng)]


def check_children(net: SlimmableNet) -> None:
    """The sliced network and the cut-out child must agree."""
    for widths in trial_children(net.space):
        child = net._cut(widths)
        with undisturbed(net, training=False), net.at(widths):
            sliced = tensors_in(net(*net.example))
        with undisturbed(child, training=False):
            cut = tensors_in(child(*net.example))
        if len(sliced) != len(cut) or not all(map(agree, sliced, cut)):
            raise UserError(
                f"model: a child of {type(net).__name__} cut out differs from the same child "
                "run in place; its forward must keep state that slim() cannot see"
            )


def agree(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if not a.numel() or not a.is_floating_point():
        return True
    tolerance = TOLERANCE * float(b.abs().max())
    return torch.allclose(a, b, rtol=0, atol=tolerance, equal_nan=True)
