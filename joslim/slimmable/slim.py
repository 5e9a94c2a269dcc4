"""`joslim.slim`: make an ordinary network slimmable.

The flow: check the arguments, trace the network (tracing.py), make a plan (plan.py), prove it with
trial children, and change the classes of the layers (net.py).
"""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from joslim.errors import UserError, first_line
from joslim.slimmable.blocks import Depth, Stage, find_stages, left_out
from joslim.slimmable.layer_specs import layer_spec
from joslim.slimmable.layers import SlimmableLayer, restore_layer
from joslim.slimmable.net import RESERVED, SlimmableNet, extract_child, make_slimmable
from joslim.slimmable.plan import (
    DEFAULT_LOW,
    Frozen,
    Low,
    Options,
    Plan,
    Tie,
    make_plan,
    matching,
)
from joslim.slimmable.running import (
    Inputs,
    agree,
    all_agree,
    as_inputs,
    call,
    is_real,
    no_side_effects,
    outputs_of,
    resized,
    tensors_in,
)
from joslim.slimmable.symbolic_axes import (
    Algebra,
    Locked,
    Segment,
    is_fixed,
    length,
    variables,
)
from joslim.slimmable.tracing import Counter, OpFailed, Tracer, trace
from joslim.space import Widths, WidthSpace


def slim(
    model: nn.Module,
    example_input: Any,
    *,
    low: Low | None = None,
    keep: Sequence[str] | None = None,
    tie: Tie | None = None,
    divisor: int | None = None,
    resolutions: Sequence[int] | None = None,
    depth: Depth | None = None,
) -> SlimmableNet:
    """Make a network slimmable, in place, and return it.

    The network is traced on the example input. Channels that must have one count everywhere become
    one `Dim` of the search space; a layer that cannot be slimmed keeps its width and is listed with
    a reason in `net.frozen`. Names of modules, state-dict keys and `forward` stay as they are, and
    at full width the network computes what it computed before.

    Args:
        model: Any `nn.Module`. It may carry defaults for the options below in an attribute
            `slim_defaults`, a dictionary; arguments take precedence.
        example_input: One input tensor, a tuple of the inputs of the model, or a dictionary of its
            keyword arguments. A tuple of integers is the shape of one input of real numbers. Costs
            are counted for the first sample.
        low: Smallest share of its channels that a layer may keep, in (0, 1]; or one share per layer
            name, where patterns such as "layer3.*" work.
        keep: Names of layers that keep their full width.
        tie: Groups of layer names that share one coordinate of the search (knob).
        divisor: Channel counts are rounded down to multiples of this number.
        resolutions: Sizes in pixels of the square images that children take, in rising order. The
            last one is that of the example. The network resizes a batch to the size of the active
            child; a child that is cut out takes images of its own size.
        depth: Whether children may leave out residual blocks: they keep the first ones of each
            stage, at least one. A dictionary has the least number of blocks by the name of a stage,
            such as {"layer3": 2}.

    Returns:
        The same module, which is now also a `SlimmableNet`.

    Raises:
        UserError: The model does not run on the example, is slimmable already, or has no layer that
            can be slimmed; or an option is not valid.

    Examples:
        >>> net = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 32, 32), low=0.25)
        >>> len(net.space)
        6
        >>> with net.at(net.space.uniform(0.5)):
        ...     net(torch.zeros(8, 3, 32, 32)).shape
        torch.Size([8, 10])
        >>> print(net.frozen[0].layer, "because", net.frozen[0].why)
        fc because it is an output of the network
    """
    options = options_for(
        model, low=low, keep=keep, tie=tie, divisor=divisor, resolutions=resolutions, depth=depth
    )
    inputs = example_of(model, example_input)
    check_fits(model, inputs)
    check_resolutions(options.resolutions, inputs)
    analysis = Analysis(model, first_sample(model, inputs), options)
    plan = analysis.settled_plan()
    try:
        net = make_slimmable(model, plan, analysis.inputs, options)
        check_children(net, analysis.modes)
        warn_of_uncounted(net)
    except BaseException:
        for module in model.modules():
            restore_layer(module)
        raise
    return net


def options_for(model: nn.Module, **given: Any) -> Options:
    """Complete the arguments of `slim` by the defaults of the model, and check them."""
    defaults = getattr(model, "slim_defaults", {})
    fallback = {
        **{"low": DEFAULT_LOW, "keep": (), "tie": (), "divisor": 1},
        **{"resolutions": (), "depth": False},
    }
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
    sizes = values["resolutions"]
    rising = isinstance(sizes, Sequence) and all(type(size) is int and size > 0 for size in sizes)
    if not rising or len(sizes) == 1 or sorted({*sizes}) != [*sizes]:
        raise UserError(
            f"resolutions: {sizes!r} given; type at least two sizes in pixels, each once and the "
            "smallest first: (160, 192, 224)"
        )
    values["resolutions"] = tuple(sizes)
    depth = values["depth"]
    least = depth.values() if isinstance(depth, Mapping) else ()
    if not isinstance(depth, (bool, Mapping)) or not all(type(n) is int for n in least):
        raise UserError(
            f"depth: {depth!r} given; type True, or the least number of blocks of a stage: "
            "{'layer3': 2}"
        )
    return Options(**values)


def check_resolutions(sizes: tuple[int, ...], inputs: Inputs) -> None:
    """Check that the example is a batch of square images of the largest size."""
    if not sizes:
        return
    images = tensors_in(inputs)
    if len(images) != 1 or images[0].dim() != 4 or not images[0].is_floating_point():
        raise UserError(
            f"resolutions: the network takes {described(inputs)}, one batch of images is needed: "
            "(n, channels, height, width)"
        )
    height, width = images[0].shape[2:]
    if (height, width) != (sizes[-1], sizes[-1]):
        raise UserError(
            f"resolutions: the largest is {sizes[-1]}, the images have {height}x{width} pixels; "
            "the largest must be their size: type other ones, or resize the images (--size)"
        )


def example_of(model: nn.Module, given: Any) -> Inputs:
    """Return the inputs of the model; a shape stands for zeros of the type of its parameters."""
    if isinstance(given, (tuple, list)) and given and all(type(size) is int for size in given):
        tensors = chain(model.parameters(), model.buffers()) if isinstance(model, nn.Module) else ()
        like = next((t for t in tensors if t.is_floating_point()), torch.empty(0))
        try:
            return (like.new_zeros(given),)
        except RuntimeError as error:
            raise UserError(f"example_input: {given} is no shape: {first_line(error)}") from error
    return as_inputs(given)


def check_fits(model: nn.Module, inputs: Inputs) -> None:
    """Check that the model runs on its example, and that it has none of our attribute names."""
    if not isinstance(model, nn.Module):
        raise UserError(f"model: {type(model).__name__} given, a torch.nn.Module is needed")
    if any(isinstance(module, SlimmableLayer) for module in model.modules()):
        raise UserError("model: it is slimmable already; slim a fresh copy for other options")
    if isinstance(model, torch.jit.ScriptModule):
        raise UserError("model: it is TorchScript, which has no layers to slim; slim the original")
    if any(
        type(module).__name__ == "OptimizedModule"  # torch.compile(module)
        or getattr(module, "_compiled_call_impl", None) is not None  # module.compile()
        for module in model.modules()
    ):
        raise UserError("model: it is compiled; slim it first: torch.compile(joslim.slim(m, x))")
    # Networks on the meta device are traced without values.
    on_meta = {tensor.is_meta for tensor in chain(model.parameters(), model.buffers())}
    if len(on_meta) > 1:
        raise UserError(
            "model: some of its tensors are on the meta device and have no values; type "
            "model.to_empty(device='cpu') and load its weights first"
        )
    for tensor in tensors_in(inputs):
        if on_meta and tensor.is_meta not in on_meta:
            wanted = "meta" if on_meta == {True} else "cpu"
            raise UserError(
                f"example_input: it is on the device {tensor.device}, the model is not; type "
                f"torch.zeros(shape, device={wanted!r})"
            )
    if taken := [name for name in RESERVED if hasattr(model, name)]:
        raise UserError(f"model: it has an attribute {taken[0]!r}, which joslim needs; rename it")
    try:
        with no_side_effects(model, training=False):
            call(model, inputs)
    except Exception as error:
        advice = ""
        own = next((p.dtype for p in model.parameters() if is_real(p)), None)
        if isinstance(inputs, dict) and isinstance(error, TypeError):
            advice = "; keys are keyword arguments, type ({...},) if it takes one dictionary"
        elif own and any(is_real(t) and t.dtype != own for t in tensors_in(inputs)):
            advice = f"; its parameters are {own}, type example.to({own})"
        raise UserError(
            f"example_input: {type(model).__name__} does not run on {described(inputs)}: "
            f"{first_line(error)}{advice}"
        ) from error


def described(inputs: Inputs) -> str:
    """Return the shapes of the inputs, and the types of those without tensors."""
    parts = []
    for key, value in inputs.items() if isinstance(inputs, dict) else enumerate(inputs):
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors_in(value))
        name = f"{key}=" if isinstance(inputs, dict) else ""
        parts.append(name + (shapes or type(value).__name__))
    return ", ".join(parts) or "no input"


def first_sample(model: nn.Module, inputs: Inputs) -> Inputs:
    """Return the first sample of the example, for which costs are counted.

    The first axis of an example may also be time, or points that attend to each other. Therefore
    samples are run alone, and must give their part of the outputs of the whole example. If they do
    not, the example stays as it is.
    """
    sizes = {t.shape[0] for t in tensors_in(inputs) if t.dim()}
    if sizes <= {1}:
        return inputs
    if len(sizes) == 1 and samples_are_independent(model, inputs, max(sizes)):
        return samples(inputs, 0, 1)
    if len(sizes) > 1:
        why = "the first axis is no batch: the inputs differ in its length"
    elif any(t.is_meta for t in tensors_in(inputs)):
        why = "without values it cannot be told whether samples depend on each other; give one"
    else:
        why = (
            "the first axis is no batch: "
            "its parts along it do not give the same parts of the outputs when they run alone"
        )
    warnings.warn(
        f"example_input: costs are for all of {described(inputs)}, since {why}",
        stacklevel=3,
    )
    return inputs


def samples(inputs: Inputs, start: int, stop: int) -> Inputs:
    def sliced(leaf: Any) -> Any:
        return leaf[start:stop] if isinstance(leaf, Tensor) and leaf.dim() else leaf

    return tree_map(sliced, inputs)


def samples_are_independent(model: nn.Module, inputs: Inputs, count: int) -> bool:
    """Tell whether the first and the last sample give the same outputs when they run alone.

    The first sample is not enough: in a recurrent network it does not depend on the others either.
    """

    def outputs_and_macs(inputs: Inputs) -> tuple[list[Tensor], int]:
        with no_side_effects(model, training=False), Counter() as counter:
            outputs = tensors_in(call(model, inputs))
        return outputs, counter.since_last_call()[0]

    try:
        inputs = tree_map(made_distinct, inputs)
        outputs, macs = outputs_and_macs(inputs)
        for start in (0, count - 1):
            alone, own_macs = outputs_and_macs(samples(inputs, start, start + 1))
            if count * own_macs != macs or len(alone) != len(outputs):
                return False
            if not all(is_part(a, b, start, count) for a, b in zip(alone, outputs)):
                return False
    except Exception:  # the model does not take single samples
        return False
    return True


def made_distinct(leaf: Any) -> Any:
    """Make equal samples different: an example of zeros would hide that samples interact."""
    if not isinstance(leaf, Tensor) or not leaf.dim() or not leaf.is_floating_point():
        return leaf
    if not torch.equal(leaf, leaf[:1].expand_as(leaf)):
        return leaf
    generator = torch.Generator().manual_seed(0)
    return leaf + torch.rand(leaf.shape, generator=generator).to(leaf)


def is_part(alone: Tensor, whole: Tensor, position: int, count: int) -> bool:
    """Tell whether the output of a sample is its part of the whole output, or equal to it."""
    if alone.shape == whole.shape:
        return agree(alone, whole)
    axes = [axis for axis, (a, b) in enumerate(zip(alone.shape, whole.shape)) if a != b]
    if alone.dim() != whole.dim() or len(axes) != 1 or whole.shape[axes[0]] % count:
        return False
    each = whole.shape[axes[0]] // count
    return agree(alone, whole.narrow(axes[0], position * each, each))


class Analysis:
    """The traces of a model, and the plans that follow from them."""

    def __init__(self, model: nn.Module, inputs: Inputs, options: Options) -> None:
        self.model = model
        self.inputs = inputs
        self.options = options
        self.with_sizes: set[str] = set()
        self._trace(slim_in_groups=set())
        self._find_sizes()
        # Where whole groups cannot be dropped, it may still be possible to slim each group.
        stuck = {
            module
            for module, spec in self.specs.items()
            if spec.groups is not None and is_fixed(spec.groups)
        }
        if stuck:
            free = self._count_free()
            self._trace(slim_in_groups=stuck)
            if self._count_free() <= free:
                self._trace(slim_in_groups=set())

    def _trace(self, slim_in_groups: set[nn.Module]) -> None:
        self.algebra = Algebra()
        self.specs = {
            module: layer_spec(module, module not in slim_in_groups, name in self.with_sizes)
            for name, module in self.model.named_modules()
            if not isinstance(module, torch.jit.ScriptModule)
        }
        self.tracers: list[Tracer] = []
        self.modes: list[bool] = []
        calls = bool(self.options.depth)
        for training in (False, True):
            try:
                tracer = trace(self.model, self.inputs, self.specs, self.algebra, training, calls)
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
        # One trace in eval mode for each size, from which the costs of the size follow.
        self.sized: list[Tracer] = []
        for size in self.options.resolutions[:-1]:
            inputs = resized(self.inputs, size)
            try:
                tracer = trace(self.model, inputs, self.specs, self.algebra, False, calls)
            except OpFailed as error:
                raise UserError(
                    f"resolutions: {type(self.model).__name__} cannot take images of {size} pixels "
                    f"({error.why}); type larger ones, or leave resolutions out"
                ) from error
            if (found := output_sizes(tracer)) != (full := output_sizes(self.tracers[0])):
                raise UserError(
                    f"resolutions: the outputs are {found} for images of {size} pixels and {full} "
                    "for the largest, from which children learn; leave resolutions out"
                )
            self.sized.append(tracer)
        if self.sized:
            self.sized.append(self.tracers[0])

    def _find_sizes(self) -> None:
        """Let attributes be sizes that follow the width, where that frees more than it freezes.

        These are the attributes of modules that multiply feature maps, such as the number of heads
        of an attention layer, and of modules in which a literal size froze channels.
        """
        while True:
            free, before = self._count_free(), self.with_sizes
            found = {name for tracer in self.tracers for name in tracer.with_literals}
            found |= {
                op.module
                for tracer in self.tracers
                for op in tracer.ops
                if any(multiply.weight is None for multiply in op.multiplies)
            }
            if found <= before:
                return
            self.with_sizes = before | found
            self._trace(slim_in_groups=set())
            if self._count_free() < free:
                self.with_sizes = before
                return self._trace(slim_in_groups=set())

    def _count_free(self) -> int:
        return len({var for t in self.tracers for p in t.produced for var in variables(p.axis)})

    def settled_plan(self) -> Plan:
        """Return a plan under which trial children have the expected sizes."""
        produced = [p for tracer in self.tracers for p in tracer.produced]
        made = {var for p in produced for var in variables(p.axis)}
        for axis in (axis for spec in self.specs.values() for axis in spec.axes()):
            for var in variables(axis) - made:
                self.algebra.freeze((Segment(var, 1),), "it did not run on the example")
        for pattern in self.options.keep:
            names = matching("keep", pattern, produced)
            for p in produced:
                if p.module in names:
                    self.algebra.freeze(p.axis, f"kept, as asked for by {pattern!r}")
        stages: list[Stage] = []
        stay: dict[str, str] = {}
        if depth := self.options.depth:
            tracers = [*self.tracers, *self.sized[:-1]]
            stages, stay = find_stages(self.model, tracers, depth, self.options.keep)
            self._check_stages(stages)
        while True:
            plan = make_plan(self.model, self.specs, self.tracers, self.options, stages, self.sized)
            plan.frozen += [Frozen(name, 0, why) for name, why in stay.items()]
            if not len(plan.space):
                reason = "no weights"
                if frozen := plan.frozen:
                    first = f"{frozen[0].layer}: {frozen[0].why}"
                    reason = f"all of its {len(frozen)} layers are frozen ({first})"
                name = type(self.model).__name__
                raise UserError(f"model: {name} has nothing to slim: {reason}")
            if (failure := self._failure_of_children(plan)) is None:
                return plan
            free = [var for var in failure.variables if var.bound is None]
            if not free:
                raise UserError(f"model: a child of {type(self.model).__name__}: {failure.why}")
            for var in free:
                self.algebra.freeze((Segment(var, 1),), failure.why)

    def _check_stages(self, stages: list[Stage]) -> None:
        """Check that the network runs at full width with the least blocks of each stage.

        Its forward may use what only the block has, such as an attribute.
        """
        plan = make_plan(self.model, self.specs, self.tracers, self.options, stages)
        for at, stage in enumerate(stages, len(plan.variables)):
            gone = {name: place for name, place in plan.blocks.items() if place.dim == at}
            child = extract_child(self.model, {}, (), gone=gone)
            try:
                with no_side_effects(child, training=False):
                    call(child, self.inputs)
            except Exception as error:
                raise UserError(
                    f"depth: {type(self.model).__name__} fails without blocks of {stage.name!r} "
                    f"({first_line(error)}); type depth={{{stage.name!r}: {len(stage.blocks)}}}"
                ) from error

    def _failure_of_children(self, plan: Plan) -> Locked | OpFailed | None:
        """Trace trial children: each of their tensors must have the sizes of the plan."""
        for widths in trial_children(plan.space):
            gone = left_out(plan.blocks, widths.counts)
            child = extract_child(self.model, plan.layers, widths.units, gone=gone)
            modules = dict(child.named_modules())
            specs = {
                modules[name]: self.specs[module]
                for name, module in self.model.named_modules()
                if module in self.specs and name in modules and name not in gone
            }
            inputs = resized(self.inputs, widths.pixels)
            for training in self.modes:
                self.algebra.locked = True
                try:
                    with plan.sized(widths):
                        trace(child, inputs, specs, self.algebra, training)
                except (Locked, OpFailed) as error:
                    if not error.variables:
                        error.variables = set(plan.variables)
                    return error
                finally:
                    self.algebra.locked = False
        return None


def output_sizes(tracer: Tracer) -> list[tuple[int, ...]]:
    """Return the shapes of the outputs of a traced network."""
    outputs = [node for op in tracer.ops if op.name == "output" for node in op.reads]
    return [tuple(map(length, node.axes)) for node in outputs]


def trial_children(space: WidthSpace) -> list[Widths]:
    """Return the smallest child and two random ones."""
    rng = np.random.default_rng(0)
    return [space.smallest, space.random(rng), space.random(rng)]


def check_children(net: SlimmableNet, modes: Sequence[bool]) -> None:
    """Check that children run in place equal the extracted ones, in eval and in train mode."""

    def outputs_in_place(widths: Widths, training: bool) -> list[Tensor]:
        with no_side_effects(net, training), net.at(widths):
            return outputs_of(net, net.example)

    for widths in trial_children(net.space):
        child = net._cut(widths)
        for training in modes:
            in_place = outputs_in_place(widths, training)
            with no_side_effects(child, training):
                cut_out = outputs_of(child, net._example_of(widths))
            if all_agree(in_place, cut_out):
                continue
            if training and not all_agree(outputs_in_place(widths, training), in_place):
                continue  # the outputs are random, so that nothing can be compared
            raise UserError(
                f"model: a child of {type(net).__name__} cut out differs from the same child "
                "run in place; its forward must keep state that slim() cannot see"
            )


def warn_of_uncounted(net: SlimmableNet) -> None:
    if missing := [f"{u.what} in {u.layer}" for u in net.uncounted if u.cost == "macs"]:
        more = f" and {len(missing) - 3} more (net.uncounted)" if len(missing) > 3 else ""
        warnings.warn(
            f"model: its macs and memory are too low: no count of {'; '.join(missing[:3])}{more}; "
            "type torch.utils.flop_counter.register_flop_formula for a kernel of your own",
            stacklevel=3,
        )
