"""The plan: Dims and knobs of a traced network, and how each layer is cut for a child.

This is the second step of `slim`. The Vars that tracing left unbound become Dims, the options of
the user turn Dims into knobs, and the axes of all layers become Layouts in terms of Dims.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count

from torch import nn

from joslim.errors import UserError, unknown
from joslim.slimmable.blocks import Depth, Place, Stage, parent_of
from joslim.slimmable.blueprint import Blueprint, Layer, Layout, Stretch, Term
from joslim.slimmable.layer_specs import LayerSpec, own_tensors
from joslim.slimmable.symbolic_axes import (
    Axis,
    Var,
    form,
    is_fixed,
    length,
    resolve,
)
from joslim.slimmable.symbolic_axes import variables as vars_of
from joslim.slimmable.tracing import Node, Op, Produced, Tracer, Uncounted
from joslim.space import BLOCKS, PIXELS, Dim, Knob, Widths, WidthSpace, lowest_share

DEFAULT_LOW = 0.25

Tie = Sequence[str | Sequence[str]]
Low = float | Mapping[str, float]


@dataclass(frozen=True)
class Options:
    """The options of `slim`."""

    low: Low
    keep: Sequence[str]
    tie: Tie
    divisor: int
    resolutions: tuple[int, ...] = ()
    depth: Depth = False


@dataclass(frozen=True)
class LayerPlan:
    """How a module is cut: the layouts of its tensors and of its size attributes."""

    tensors: dict[str, tuple[Layout, ...]]
    attributes: dict[str, Layout | tuple[Layout, ...]]


@dataclass(frozen=True)
class Frozen:
    """A layer whose width cannot be slimmed, and the reason; or a block that must stay.

    Attributes:
        layer: Name of the layer or block.
        channels: Number of its channels; 0 for a block.
        why: The reason.
    """

    layer: str
    channels: int
    why: str


@dataclass
class Plan:
    """Everything that is needed to make a network slimmable."""

    blueprint: Blueprint
    layers: dict[str, LayerPlan]
    frozen: list[Frozen]
    uncounted: list[Uncounted]
    variables: list[Var]
    # The blocks that may be left out, by their names.
    blocks: dict[str, Place]

    @property
    def space(self) -> WidthSpace:
        return self.blueprint.space

    @contextmanager
    def sized(self, widths: Widths) -> Iterator[None]:
        """Give every Var its size in this child inside a `with` block."""
        for var, units in zip(self.variables, widths.units):
            var.units = units
        try:
            yield
        finally:
            for var in self.variables:
                var.units = var.full


def make_plan(
    model: nn.Module,
    specs: dict[nn.Module, LayerSpec],
    tracers: Sequence[Tracer],
    options: Options,
    stages: Sequence[Stage] = (),
    sized: Sequence[Tracer] = (),
) -> Plan:
    """Make a plan from traces, of which the first one, in eval mode, determines the costs.

    `sized` has a trace in eval mode for each size of the input, if these are a knob.
    """
    produced = [p for tracer in tracers for p in tracer.produced]
    # The layers that make each free Var, in the order in which they ran.
    makers: dict[Var, list[Produced]] = {}
    for p in produced:
        for segment in resolve(p.axis):
            if segment.var is not None and p not in (known := makers.setdefault(segment.var, [])):
                known.append(p)
    variables = list(makers)
    heads = {var for tracer in tracers for axis in tracer.heads for var in vars_of(axis)}
    dims = tuple(named_dims(makers, options.divisor, heads))
    listed = tuple(listed_dims(dims, stages, options.resolutions))
    others = [Knob(d.name, (at,), lowest_share(d)) for at, d in enumerate(listed, len(dims))]
    space = WidthSpace((*dims, *listed), (*knobs(dims, produced, options), *others))
    called = {call.module for call in tracers[0].calls}
    blocks: dict[str, Place] = {}
    for at, stage in enumerate(stages, len(dims)):
        for number, name in [*enumerate(stage.blocks)][stage.least :]:
            parent = model.get_submodule(parent_of(name))
            plain = type(parent).forward is nn.Sequential.forward
            blocks[name] = Place(at, number, plain and parent_of(name) in called)
    layouts = Layouts(variables)
    layers = {
        name: layer
        for name, module in model.named_modules()
        if module in specs and (layer := layer_plan(specs[module], layouts))
    }
    drawing = Drawing(layouts, blocks)
    parameters = drawing.parameters(model, specs)
    blueprint = Blueprint(space, *drawing.layers_and_maps(tracers[0]), parameters)
    if sized:
        blueprint = at_all_sizes(blueprint, [drawing.layers_and_maps(tracer) for tracer in sized])
    frozen = [*frozen_layers(produced), *unseen_layers(model, specs, produced)]
    return Plan(blueprint, layers, frozen, tracers[0].uncounted, variables, blocks)


def listed_dims(
    dims: Sequence[Dim], stages: Sequence[Stage], resolutions: tuple[int, ...]
) -> Iterator[Dim]:
    """Make a Dim for the blocks of each stage, and one for the pixels of the input."""
    taken = {dim.name for dim in dims}

    def free(name: str) -> str:
        return (
            name
            if name not in taken
            else next(new for copy in count(2) if (new := f"{name}#{copy}") not in taken)
        )

    for stage in stages:
        full = len(stage.blocks)
        values = tuple(range(stage.least, full + 1))
        yield Dim(free(stage.name), full, layers=stage.blocks, kind=BLOCKS, values=values)
    if resolutions:
        yield Dim(free("input"), resolutions[-1], kind=PIXELS, values=resolutions)


def named_dims(makers: dict[Var, list[Produced]], divisor: int, heads: set[Var]) -> Iterator[Dim]:
    """Name each Dim after a layer that makes it, preferably one that makes no other Dim."""
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
        full, is_heads = var.units * step, var in heads
        yield Dim(name, full, step=step, divisor=divisor, layers=names, heads=is_heads)


def knobs(dims: tuple[Dim, ...], produced: list[Produced], options: Options) -> Iterator[Knob]:
    """Make one knob for each group of tied Dims, and one for each other Dim."""
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
    """Return the positions of the Dims that these patterns name."""
    members: set[int] = set()
    for pattern in patterns:
        names = matching("tie", pattern, produced)
        found = {i for i, known in enumerate(aliases) if known & names}
        if not found:
            why = next(f for f in frozen_layers(produced) if f.layer in names)
            raise UserError(f"tie: {why.layer!r} cannot be slimmed: {why.why}")
        members |= found
    return tuple(sorted(members))


def lowest(aliases: list[set[str]], produced: list[Produced], low: Low) -> list[float]:
    """Return the lowest multiplier of each Dim."""
    if not isinstance(low, Mapping):
        return [float(low)] * len(aliases)
    lows = [DEFAULT_LOW] * len(aliases)
    for pattern, value in low.items():
        names = matching("low", pattern, produced)
        lows = [float(value) if known & names else old for known, old in zip(aliases, lows)]
    return lows


def matching(option: str, pattern: str, produced: list[Produced]) -> set[str]:
    """Return the names of layers that match the pattern, or that are in a module of this name."""
    names = dict.fromkeys(p.module for p in produced)
    prefix = f"{pattern}."
    found = {n for n in names if fnmatch.fnmatchcase(n, pattern) or n.startswith(prefix)}
    if not found:
        raise unknown(option, pattern, names)
    return found


def frozen_layers(produced: list[Produced]) -> list[Frozen]:
    """Return the layers whose output channels cannot be slimmed."""
    found: dict[str, Frozen] = {}
    for p in produced:
        if is_fixed(p.axis) and p.module not in found:
            found[p.module] = Frozen(p.module, length(p.axis), reason([p.axis]))
    return list(found.values())


def unseen_layers(
    model: nn.Module, specs: dict[nn.Module, LayerSpec], produced: list[Produced]
) -> Iterator[Frozen]:
    """Yield frozen layers whose output was not seen: recurrent ones, or ones that never ran."""
    known = {"", *(p.module for p in produced)}
    for name, module in model.named_modules():
        if name in known or module not in specs:
            continue
        tensors = specs[module].tensors
        weights = [axes for n, axes in tensors.items() if n in module._parameters and len(axes) > 1]
        if weights and all(is_fixed(axis) for axes in weights for axis in axes):
            yield Frozen(name, length(weights[0][0]), reason(weights[0]))


def reason(axes: list[Axis]) -> str:
    """Return why fixed axes cannot be slimmed."""
    segments = (segment for axis in axes for segment in resolve(axis))
    return next((s.why for s in segments if s.why), "it has a single channel")


class Layouts:
    """Turns axes in terms of Vars into Layouts in terms of Dims."""

    def __init__(self, variables: list[Var]) -> None:
        self._dims = {var: position for position, var in enumerate(variables)}

    def of(self, axis: Axis) -> Layout:
        return Layout(
            tuple(
                Stretch(None, 0, s.length)
                if s.var is None
                else Stretch(self._dims[s.var], s.inner, s.length)
                for s in resolve(axis)
            )
        )

    def term(self, axes: Iterable[Axis]) -> Term:
        """Return the product of the lengths of these axes."""
        times, slimmable = 1, []
        for axis in axes:
            if is_fixed(axis):
                times *= length(axis)
            else:
                slimmable.append(self.of(axis))
        return Term(times, tuple(slimmable))


def layer_plan(spec: LayerSpec, layouts: Layouts) -> LayerPlan | None:
    """Return how a module is cut, or None if nothing about it changes with the width."""
    if all(is_fixed(axis) for axis in spec.axes()):
        return None
    tensors = {}
    for name, axes in spec.tensors.items():
        plans = tuple(layouts.of(axis) for axis in axes)
        if any(layout.slimmable for layout in plans):
            tensors[name] = plans
    attributes = {
        name: tuple(map(layouts.of, axis)) if isinstance(axis, list) else layouts.of(axis)
        for name, axis in spec.attributes.items()
        if not all(is_fixed(a) for a in (axis if isinstance(axis, list) else [axis]))
    }
    return LayerPlan(tensors, attributes)


@dataclass(frozen=True)
class Drawing:
    """Summarises traces in terms of Dims. `blocks` are those that may be left out."""

    layouts: Layouts
    blocks: Mapping[str, Place]

    def layers_and_maps(self, tracer: Tracer) -> tuple[tuple[Layer, ...], tuple[Term, ...]]:
        """Return the multiplications and the feature maps of a trace."""
        memory, layers = Maps(tracer.ops), []
        inside = [(c.start, c.stop, c.module) for c in tracer.calls if c.module in self.blocks]
        for time, op in enumerate(tracer.ops):
            names = [name for start, stop, name in inside if start <= time < stop]
            block = self.blocks[names[0]][:2] if names else None
            for m in op.multiplies:
                weight = m.weight or []
                out = op.writes[0].axes
                layers.append(
                    Layer(
                        name=m.module,
                        op=op.name,
                        macs=replace(self.layouts.term(m.macs), block=block),
                        weights=replace(
                            self.layouts.term(weight) if m.weight else Term(0), block=block
                        ),
                        kernel=tuple(length(axis) for axis in weight[2:]),
                        resolution=tuple(length(axis) for axis in out[2:]),
                        maps=memory.of(op),
                        skips=memory.alive_beside(time),
                    )
                )
        return tuple(layers), tuple(self.layouts.term(node.axes) for node in memory.maps)

    def parameters(self, model: nn.Module, specs: dict[nn.Module, LayerSpec]) -> tuple[Term, ...]:
        """Return the sizes of all parameters.

        Parameters in compiled modules have no spec and are never cut; shared ones count once.
        """
        found = {id(p): Term(p.numel()) for p in model.parameters()}
        for module, spec in specs.items():
            for name, tensor in own_tensors(module).items():
                if id(tensor) in found:
                    found[id(tensor)] = self.layouts.term(spec.tensors[name])
        for name, place in self.blocks.items():
            for p in model.get_submodule(name).parameters():
                found[id(p)] = replace(found[id(p)], block=place[:2])
        return tuple(found.values())


def at_all_sizes(
    blueprint: Blueprint, sized: Sequence[tuple[tuple[Layer, ...], tuple[Term, ...]]]
) -> Blueprint:
    """Give every term its value at each size of the input.

    Raises:
        UserError: The network computes something else at another size, so that terms do not match.
    """

    def joined(terms: Sequence[Term]) -> Term:
        if any(replace(term, times=0) != replace(terms[0], times=0) for term in terms):
            raise UserError(different)
        times = tuple(term.times for term in terms)
        return replace(terms[-1], at_sizes=times if len({*times}) > 1 else ())

    different = "resolutions: this network does other operations at other sizes; leave them out"
    layers, maps = zip(*sized)
    if len({len(each) for each in layers}) > 1 or len({len(each) for each in maps}) > 1:
        raise UserError(different)
    joined_layers = []
    for layer, same in zip(blueprint.layers, zip(*layers)):
        if any(
            (x.name, x.op, x.maps, x.skips) != (layer.name, layer.op, layer.maps, layer.skips)
            for x in same
        ):
            raise UserError(different)
        macs, weights = joined([x.macs for x in same]), joined([x.weights for x in same])
        joined_layers.append(replace(layer, macs=macs, weights=weights))
    return replace(
        blueprint,
        layers=tuple(joined_layers),
        maps=tuple(joined(terms) for terms in zip(*maps)),
    )


class Maps:
    """The feature maps: which tensors share memory, and for how long it is needed.

    A view shares the memory of its input. So does an operation that can be done in place (an
    activation, a norm, an addition) on a map that nothing reads afterwards. A part of a map (a
    slice, a chunk) has memory of its own.
    """

    def __init__(self, ops: list[Op]) -> None:
        self.ops = ops
        self.maps: list[Node] = []
        self._map_of: dict[int, int] = {}
        self._made: list[int] = []
        self._needed_until: list[int] = []
        self._last_read: dict[int, int] = {}
        for time, op in enumerate(ops):
            for node in op.reads:
                self._last_read[node.number] = len(ops) if op.name == "output" else time
        for time, op in enumerate(ops):
            for node in op.reads:
                if not node.constant and node.number not in self._map_of:
                    self._place(node, len(self.maps), -1)
            for node in op.writes:
                if node.number not in self._map_of:
                    self._place(node, self._home(node, op, time), time)

    def of(self, op: Op) -> tuple[int, ...]:
        """Return the maps that an operation reads and writes, without its weights."""
        weights = {m.factor for m in op.multiplies}
        reads = [n for n in op.reads if not n.constant and n.number not in weights]
        return tuple(dict.fromkeys(self._map_of[node.number] for node in reads + op.writes))

    def alive_beside(self, time: int) -> tuple[int, ...]:
        """Return the other maps that are made before this operation and read after it."""
        own = self.of(self.ops[time])
        return tuple(
            m
            for m, (made, last) in enumerate(zip(self._made, self._needed_until))
            if made < time < last and m not in own
        )

    def _home(self, node: Node, op: Op, time: int) -> int:
        """Return the map whose memory a result takes, or the number of a new map."""
        for source in op.reads if op.reuses else ():
            if not source.constant:
                position = self._map_of[source.number]
                same_size = [form(a) for a in source.axes] == [form(a) for a in node.axes]
                if op.reuses == "view" or (same_size and self._needed_until[position] <= time):
                    return position
        return len(self.maps)

    def _place(self, node: Node, position: int, time: int) -> None:
        if position == len(self.maps):
            self.maps.append(node)
            self._made.append(time)
            self._needed_until.append(-1)
        self._map_of[node.number] = position
        last = self._last_read.get(node.number, -1)
        self._needed_until[position] = max(self._needed_until[position], last)
