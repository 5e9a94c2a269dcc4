"""From a trace to a plan: Dims and knobs, and how each layer is cut for a child."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from joslim.errors import UserError, unknown
from joslim.slimmable.axes import Algebra, Axis, Var, fixed, form, is_fixed, length, resolve
from joslim.slimmable.blueprint import Blueprint, Layer, Layout, Stretch, Term
from joslim.slimmable.declare import Declaration, own_tensors
from joslim.slimmable.tracing import Node, Op, Produced, Tracer
from joslim.widths import Dim, Knob, Widths, WidthSpace

DEFAULT_LOW = 0.25

Tie = Sequence[str | Sequence[str]]
Low = float | Mapping[str, float]


@dataclass(frozen=True)
class Options:
    """What the caller of `slim` may override."""

    low: Low
    keep: Sequence[str]
    tie: Tie
    divisor: int


@dataclass(frozen=True)
class LayerPlan:
    """How a module is cut: the layouts of its own tensors and of its size attributes."""

    tensors: dict[str, tuple[Layout, ...]]
    attributes: dict[str, Layout | tuple[Layout, ...]]


@dataclass(frozen=True)
class Frozen:
    """A layer whose width cannot be slimmed, and why."""

    layer: str
    channels: int
    why: str


@dataclass
class Plan:
    blueprint: Blueprint
    layers: dict[str, LayerPlan]
    frozen: list[Frozen]
    variables: list[Var]

    @property
    def space(self) -> WidthSpace:
        return self.blueprint.space

    @contextmanager
    def sized(self, widths: Widths) -> Iterator[None]:
        """While it lasts, every Var has the size that it has in this child."""
        for var, units in zip(self.variables, widths.units):
            var.units = units
        try:
            yield
        finally:
            for var in self.variables:
                var.units = var.full


def freeze_unused(
    declared: dict[nn.Module, Declaration], tracers: Sequence[Tracer], algebra: Algebra
) -> None:
    """Channels that no layer which ran produces have nobody to decide about them."""
    made = {var for tracer in tracers for p in tracer.produced for var in form(p.axis)[1]}
    for declaration in declared.values():
        for axis in declaration.axes():
            for var in set(form(axis)[1]) - made:
                algebra.bind(var, fixed(var.units, "it did not run on the example"), "")


def freeze_kept(produced: list[Produced], keep: Sequence[str], algebra: Algebra) -> None:
    for pattern in keep:
        for p in matching("keep", pattern, produced):
            algebra.freeze(p.axis, f"kept, as asked for by {pattern!r}")


def make_plan(
    model: nn.Module,
    declared: dict[nn.Module, Declaration],
    tracers: Sequence[Tracer],
    options: Options,
) -> Plan:
    """`tracers`: the run in eval mode first; its operations are the ones that cost something."""
    produced = [p for tracer in tracers for p in tracer.produced]
    makers = makers_of_variables(produced)
    variables = list(makers)
    dims = tuple(named_dims(makers, options.divisor))
    space = WidthSpace(dims, tuple(knobs(dims, produced, options)))
    layouts = Layouts(variables)
    layers = {
        name: layer
        for name, module in model.named_modules()
        if module in declared and (layer := layer_plan(declared[module], layouts))
    }
    blueprint = draw_blueprint(model, declared, tracers[0].ops, space, layouts)
    frozen = [*frozen_layers(produced), *silent_layers(model, declared, produced)]
    return Plan(blueprint, layers, frozen, variables)


def makers_of_variables(produced: list[Produced]) -> dict[Var, list[Produced]]:
    """Which layers make each free Var, in the order in which they ran."""
    makers: dict[Var, list[Produced]] = {}
    for p in produced:
        for segment in resolve(p.axis):
            if segment.var is not None and p not in (known := makers.setdefault(segment.var, [])):
                known.append(p)
    return makers


def named_dims(makers: dict[Var, list[Produced]], divisor: int) -> Iterator[Dim]:
    """A Dim is named after the first layer that makes it and nothing else, if there is one."""
    taken: set[str] = set()
    for var, layers in makers.items():
        alone = [p for p in layers if form(p.axis)[1].keys() == {var}]
        maker = (alone or layers)[0]
        name, copy = maker.module, 2
        while name in taken:
            name, copy = f"{maker.module}#{copy}", copy + 1
        taken.add(name)
        step = form(maker.axis)[1][var]
        names = tuple(dict.fromkeys(p.module for p in layers))
        yield Dim(name, full=var.units * step, step=step, divisor=divisor, layers=names)


def knobs(dims: tuple[Dim, ...], produced: list[Produced], options: Options) -> Iterator[Knob]:
    aliases = [{dim.name, *dim.layers} for dim in dims]
    groups: dict[int, tuple[str, tuple[int, ...]]] = {}
    for group in options.tie:
        patterns = [group] if isinstance(group, str) else list(group)
        members = tied(patterns, aliases, produced)
        if taken := [m for m in members if m in groups]:
            raise UserError(f"tie: {dims[taken[0]].name!r} stands in two groups")
        name = patterns[0] if len(patterns) == 1 else dims[members[0]].name
        groups |= dict.fromkeys(members, (name, members))
    lows = lowest(aliases, produced, options.low)
    for position, dim in enumerate(dims):
        name, members = groups.get(position, (dim.name, (position,)))
        if position == members[0]:
            yield Knob(name, members, max(lows[m] for m in members))


def tied(patterns: list[str], aliases: list[set[str]], produced: list[Produced]) -> tuple[int, ...]:
    members: set[int] = set()
    for pattern in patterns:
        names = {p.module for p in matching("tie", pattern, produced)}
        found = {i for i, known in enumerate(aliases) if known & names}
        if not found:
            why = next(f for f in frozen_layers(produced) if f.layer in names)
            raise UserError(f"tie: {why.layer!r} cannot be slimmed: {why.why}")
        members |= found
    return tuple(sorted(members))


def lowest(aliases: list[set[str]], produced: list[Produced], low: Low) -> list[float]:
    if not isinstance(low, Mapping):
        return [float(low)] * len(aliases)
    lows = [DEFAULT_LOW] * len(aliases)
    for pattern, value in low.items():
        names = {p.module for p in matching("low", pattern, produced)}
        lows = [float(value) if known & names else old for known, old in zip(aliases, lows)]
    return lows


def matching(option: str, pattern: str, produced: Iterable[Produced]) -> list[Produced]:
    """The layers with this name, below a module of this name, or that fit the pattern."""
    produced = list(produced)
    found = [
        p
        for p in produced
        if fnmatch.fnmatchcase(p.module, pattern) or p.module.startswith(f"{pattern}.")
    ]
    if not found:
        raise unknown(option, pattern, dict.fromkeys(p.module for p in produced))
    return found


def frozen_layers(produced: list[Produced]) -> list[Frozen]:
    found: dict[str, Frozen] = {}
    for p in produced:
        axis = resolve(p.axis)
        if is_fixed(axis) and p.module not in found:
            why = next((s.why for s in axis if s.why), "it has a single channel")
            found[p.module] = Frozen(p.module, length(axis), why)
    return list(found.values())


def silent_layers(
    model: nn.Module, declared: dict[nn.Module, Declaration], produced: list[Produced]
) -> Iterator[Frozen]:
    """Layers of which no output was seen: recurrent ones, for instance, or those that never ran."""
    known = {p.module for p in produced}
    for name, module in model.named_modules():
        if not name or name in known or module not in declared:
            continue
        tensors = declared[module].tensors
        weights = [axes for n, axes in tensors.items() if n in module._parameters and len(axes) > 1]
        if weights and all(is_fixed(axis) for axes in weights for axis in axes):
            segments = (segment for axis in weights[0] for segment in resolve(axis))
            why = next((s.why for s in segments if s.why), "it has a single channel")
            yield Frozen(name, length(weights[0][0]), why)


class Layouts:
    """Turns axes in terms of Vars into Layouts in terms of Dims."""

    def __init__(self, variables: list[Var]) -> None:
        self._dims = {var: position for position, var in enumerate(variables)}

    def of(self, axis: Axis) -> Layout:
        stretches = []
        for s in resolve(axis):
            dim = None if s.var is None else self._dims[s.var]
            stretches.append(Stretch(dim, s.inner if s.var else 0, s.length))
        return Layout(tuple(stretches))

    def term(self, axes: Iterable[Axis]) -> Term:
        times, slimmable = 1, []
        for axis in axes:
            if is_fixed(axis):
                times *= length(axis)
            else:
                slimmable.append(self.of(axis))
        return Term(times, tuple(slimmable))


def layer_plan(declaration: Declaration, layouts: Layouts) -> LayerPlan | None:
    """None if nothing about this module changes with the width."""
    if all(is_fixed(axis) for axis in declaration.axes()):
        return None
    tensors = {}
    for name, axes in declaration.tensors.items():
        plans = tuple(layouts.of(axis) for axis in axes)
        if any(layout.slimmable for layout in plans):
            tensors[name] = plans
    attributes: dict[str, Layout | tuple[Layout, ...]] = {}
    for name, axis in declaration.attributes.items():
        if isinstance(axis, list):
            attributes[name] = tuple(layouts.of(a) for a in axis)
        else:
            attributes[name] = layouts.of(axis)
    return LayerPlan(tensors, attributes)


def draw_blueprint(
    model: nn.Module,
    declared: dict[nn.Module, Declaration],
    ops: list[Op],
    space: WidthSpace,
    layouts: Layouts,
) -> Blueprint:
    memory = Maps(ops)
    layers = []
    for time, op in enumerate(ops):
        for m in op.multiplies:
            weight = m.weight or []
            out = op.writes[0].axes
            layers.append(
                Layer(
                    name=m.module,
                    op=op.name,
                    macs=layouts.term(m.macs),
                    weights=layouts.term(weight) if m.weight else Term(0),
                    kernel=tuple(length(axis) for axis in weight[2:]),
                    resolution=tuple(length(axis) for axis in out[2:]),
                    maps=memory.of(op),
                    skips=memory.alive_beside(time),
                )
            )
    # Parameters inside compiled modules are never cut; shared ones count once.
    parameters = {id(p): Term(p.numel()) for p in model.parameters()}
    for module, declaration in declared.items():
        for name, tensor in own_tensors(module).items():
            if id(tensor) in parameters:
                parameters[id(tensor)] = layouts.term(declaration.tensors[name])
    maps = tuple(layouts.term(node.axes) for node in memory.maps)
    return Blueprint(space, tuple(layers), maps, tuple(parameters.values()))


class Maps:
    """Which tensors share one stretch of memory, and from when to when it is needed.

    A view shares its input's, and so does an operation that can be done in place (an activation, a
    norm, an addition) on a map that nobody reads afterwards. A part of a map (a slice, a chunk)
    does not: what is kept is the part that is used.
    """

    def __init__(self, ops: list[Op]) -> None:
        self.ops = ops
        self.maps: list[Node] = []
        self._map_of: dict[int, int] = {}
        self._made: list[int] = []
        self._last_read: dict[int, int] = {}
        for time, op in enumerate(ops):
            for node in op.reads:
                self._last_read[node.number] = len(ops) if op.name == "output" else time
        self._needed_until: list[int] = []
        for time, op in enumerate(ops):
            for node in op.reads:
                if not node.constant and node.number not in self._map_of:
                    self._new(node, -1)
            for node in op.writes:
                self._place(node, op, time)

    def of(self, op: Op) -> tuple[int, ...]:
        """What the operation itself reads and writes: its first input that is a map, its output."""
        reads = [node for node in op.reads if not node.constant][:1]
        return tuple(self._map_of[node.number] for node in reads + op.writes[:1])

    def alive_beside(self, time: int) -> tuple[int, ...]:
        """The maps made before this time and read after it, the operation's own ones apart."""
        own = self.of(self.ops[time])
        return tuple(
            m
            for m, (made, last) in enumerate(zip(self._made, self._needed_until))
            if made < time < last and m not in own
        )

    def _place(self, node: Node, op: Op, time: int) -> None:
        if node.number in self._map_of:
            return
        if op.reuses:
            for source in op.reads:
                if not source.constant and self._can_take(source, node, op, time):
                    self._join(node, self._map_of[source.number])
                    return
        self._new(node, time)

    def _can_take(self, source: Node, node: Node, op: Op, time: int) -> bool:
        if op.reuses == "view":
            return True
        same_size = [form(a) for a in source.axes] == [form(a) for a in node.axes]
        return same_size and self._needed_until[self._map_of[source.number]] <= time

    def _new(self, node: Node, time: int) -> None:
        self.maps.append(node)
        self._made.append(time)
        self._needed_until.append(-1)
        self._join(node, len(self.maps) - 1)

    def _join(self, node: Node, position: int) -> None:
        self._map_of[node.number] = position
        last = self._last_read.get(node.number, -1)
        self._needed_until[position] = max(self._needed_until[position], last)
