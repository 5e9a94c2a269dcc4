"""Tracing: run a network once, and find which of its channels go together.

This is the first step of `slim`. The network is executed as it is, under a `TorchFunctionMode` that
sees each torch call and carries the axes of every tensor along by the rules of op_rules.py. So
data-dependent control flow, reused modules and functional layers need no special care. plan.py
turns the result into Dims and knobs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from joslim.errors import UserError, first_line
from joslim.slimmable import op_rules
from joslim.slimmable.counter import Counter
from joslim.slimmable.layer_specs import LayerSpec, own_tensors
from joslim.slimmable.running import no_side_effects, tensors_in
from joslim.slimmable.symbolic_axes import (
    Algebra,
    Axis,
    Locked,
    Var,
    fixed,
    is_fixed,
    length,
    resolve,
    variables,
)
from joslim.slimmable.symbolic_int import DerivedInt, Shape, SymbolicInt, plain

Axes = list[Axis]
# All buffers, and how often each has been written to.
BufferVersions = dict[tuple[nn.Module, str], tuple[Tensor, int]]

# Operations by which a tensor leaves torch, so that further computation is not seen.
LEAVING = {"numpy", "array", "dlpack", "data_ptr"}

# Names that keep their underscores. Others lose them: x + 1, 1 + x and x += 1 are all an addition.
INDEXING = {"__getitem__", "__setitem__"}


class OpFailed(Exception):
    """An operation raised an error; `variables` are the Vars of its tensors."""

    def __init__(self, variables: set[Var], why: str) -> None:
        super().__init__(why)
        self.variables = variables
        self.why = why


@dataclass
class Node:
    """A tensor seen while tracing. Constants are parameters and buffers; all others are maps."""

    number: int
    axes: Axes
    constant: bool = False


@dataclass
class Multiply:
    """The multiply-adds of one product, as the product of these axes.

    `weight` has the axes of the weight that stays in memory, and `factor` is the number of its
    node, which then does not count as a map.
    """

    module: str
    macs: Axes
    weight: Axes | None
    factor: int | None = None


@dataclass(frozen=True)
class Uncounted:
    """A part of the network that a cost leaves out: which cost, in which layer, and what."""

    cost: str
    layer: str
    what: str


@dataclass
class Op:
    """One torch call: the tensors that it reads and writes, and where its result can live."""

    name: str
    module: str
    reads: list[Node]
    writes: list[Node]
    reuses: str
    multiplies: list[Multiply] = field(default_factory=list)


@dataclass
class Produced:
    """The output channels of a layer, with the name of the module that owns the weights."""

    module: str
    axis: Axis


class Tracer(TorchFunctionMode):
    """Carries axes from tensor to tensor, and records the operations."""

    def __init__(self, algebra: Algebra) -> None:
        super().__init__()
        self.algebra = algebra
        self.ops: list[Op] = []
        self.produced: list[Produced] = []
        self.uncounted: list[Uncounted] = []
        self.counter = Counter()
        self.failure: OpFailed | None = None
        self.stack: list[str] = []
        self.op = ""
        self.why = ""
        self._nodes: Any = WeakIdKeyDictionary()
        self._owners: dict[int, str] = {}
        self._current: Op | None = None
        self._numbers = 0

    # Methods for the rules.

    def axes(self, tensor: Any) -> Axes:
        return [resolve(axis) for axis in self.node(tensor).axes]

    def unify(self, a: Axis, b: Axis) -> None:
        self.algebra.unify(a, b, self.why)

    def freeze(self, axis: Axis) -> None:
        self.algebra.freeze(axis, self.why)

    def rows(self, axis: Axis, count: int) -> Axis:
        return self.algebra.rows(axis, int(count), self.why)

    def cut(self, axis: Axis, at: int) -> tuple[Axis, Axis]:
        return self.algebra.cut(axis, at, self.why)

    def quotient(self, axis: Axis, by: int) -> Axis:
        return self.algebra.quotient(axis, by, self.why)

    def merge(self, axes: Axes) -> Axis:
        return self.algebra.merge(axes, self.why)

    def length_axis(self, size: int) -> Axis:
        """Return the axis of a new tensor of this size."""
        if not isinstance(size, SymbolicInt):
            return fixed(int(size))
        if not size.is_one_axis:
            size.freeze(self.why)
            return fixed(int(size))
        return size.axis(self.why)

    def follows(self, axis: Axis, size: int) -> None:
        """Require that the axis has this size at every width: a literal size freezes it."""
        if is_fixed(axis):
            return
        size = self.recall(size)
        if not isinstance(size, SymbolicInt) or not size.is_one_axis:
            self.algebra.freeze(axis, f"a literal size of {int(size)} in {self.why}")
        elif not size.counts(axis):
            self.unify(axis, size.axis(self.why))

    def recall(self, size: int) -> int:
        """Guess which symbolic integer a plain one comes from.

        int(c / 2) is a plain integer, of which only the value of c / 2 is known. A wrong guess
        would be found by the trial children.
        """
        return self.algebra.shares.get(size, size) if type(size) is int else size

    def unslimmable(self, axes: Axes, sizes: Sequence[int]) -> Axes:
        """Freeze axes whose length the operation changes by its own arithmetic."""
        for axis in axes:
            self.freeze(axis)
        return [fixed(size) for size in sizes]

    def layer(self, weight: Tensor, out: Axis | None, macs: Axes, *others: Tensor) -> None:
        """Record a product of `weight` and others. Tensors that a module owns count as weights."""
        assert self._current is not None
        constants = [x for x in (weight, *others) if self.is_constant(x)]
        if len(constants) > 1:
            self.mark_uncounted("memory", f"the second weight of {self.op}")
        chosen = constants[0] if constants else weight
        node = self.node(chosen)
        name = self._owners.get(node.number) or self._current.module or "forward"
        kept = node.axes if node.constant or out is not None else None
        factor = node.number if kept is not None else None
        self._current.multiplies.append(Multiply(name, macs, kept, factor))
        if out is not None:
            self.produces(weight, out)

    def mark_uncounted(self, cost: str, what: str) -> None:
        """Record that a cost of this network is not exact."""
        layer = self.stack[-1] if self.stack else ""
        found = Uncounted(cost, layer or "forward", what)
        if found not in self.uncounted:
            self.uncounted.append(found)

    def made_by_torch(self, inputs: list[Tensor], outputs: list[Tensor]) -> bool:
        """Tell whether the outputs come from operations that were seen, or are the inputs."""
        with torch._C.DisableTorchFunction():
            given = {x.untyped_storage().data_ptr() for x in inputs}
            new = [y for y in outputs if y.untyped_storage().data_ptr() not in given]
        return all(y in self._nodes for y in new)

    def freeze_outside_torch(self, name: str, tensors: list[Tensor]) -> None:
        """Freeze tensors that are processed outside of torch, at an unknown cost."""
        for axis in (axis for x in tensors for axis in self.axes(x)):
            self.algebra.freeze(axis, f"{name} computes outside of torch")
        self.mark_uncounted("macs", f"{name}, which computes outside of torch")

    def is_constant(self, tensor: Tensor) -> bool:
        return self.node(tensor).constant

    def produces(self, weight: Tensor, axis: Axis) -> None:
        assert self._current is not None
        name = self._owners.get(self.node(weight).number) or self._current.module or "forward"
        self.produced.append(Produced(name, axis))

    # Tensors.

    def node(self, tensor: Tensor) -> Node:
        known = self._nodes.get(tensor)
        return known or self.remember(tensor, [fixed(size) for size in tensor.shape])

    def remember(self, tensor: Tensor, axes: Axes, constant: bool = False) -> Node:
        node = Node(self._numbers, axes, constant)
        self._numbers += 1
        self._nodes[tensor] = node
        return node

    def remember_constant(self, tensor: Tensor, axes: Axes, owner: str) -> None:
        """Register a parameter or buffer. If several modules share it, it has one set of axes."""
        if known := self._nodes.get(tensor):
            for a, b in zip(known.axes, axes):
                self.algebra.unify(a, b, "shared by two modules")
        else:
            self._owners[self.remember(tensor, axes, constant=True).number] = owner

    def last_variables(self) -> set[Var]:
        """Return the Vars of the last operation that has any."""
        for op in reversed(self.ops):
            if found := variables_of(op.reads + op.writes):
                return found
        return set()

    def freeze_written(self, specs: dict[nn.Module, LayerSpec], before: BufferVersions) -> None:
        """Freeze the buffers that forward has changed: a child would leave a smaller one behind."""
        for (module, name), (buffer, version) in before.items():
            if module._buffers.get(name) is not buffer or buffer._version != version:
                for axis in specs[module].tensors[name]:
                    self.algebra.freeze(axis, f"forward changes the buffer {name!r}")

    # The mode itself.

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = op_name(func)
        self.op = name
        self.why = f"{name} in {self.stack[-1] or 'forward'}" if self.stack else name
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, DerivedInt):
                leaf.freeze(self.why)
        plain_args, plain_kwargs = tree_map(without_symbols, (args, kwargs))
        self.check_unseen_kernels()
        with self._noting_failure(args, kwargs):
            result = func(*plain_args, **plain_kwargs)
        if name in ("shape", "size") and args and isinstance(args[0], Tensor):
            return self._measured(*args, **kwargs)
        self._visit(args, kwargs, result, *self.counter.since_last_call())
        return result

    def check_unseen_kernels(self) -> None:
        """Record kernels that ran since the last operation, outside of any operation."""
        macs, unknown = self.counter.since_last_call()
        if macs or unknown:
            what = ", ".join(unknown) or f"{macs:,} multiply-adds"
            self.mark_uncounted("macs", f"{what} outside of all operations of torch")

    @contextmanager
    def _noting_failure(self, args: Any, kwargs: Any) -> Iterator[None]:
        """If the operation raises an error, remember the Vars of its tensors."""
        try:
            yield
        except Exception as error:
            nodes = [self.node(tensor) for tensor in tensors_in((args, kwargs))]
            touched = variables_of(nodes) or self.last_variables()
            self.failure = OpFailed(touched, f"{self.why} fails ({first_line(error)})")
            raise

    def _measured(self, tensor: Tensor, dim: int | None = None) -> Any:
        axes = self.axes(tensor)
        if dim is not None:
            return SymbolicInt.of(self.algebra, axes[dim])
        return Shape(SymbolicInt.of(self.algebra, axis) for axis in axes)

    def _visit(self, args: Any, kwargs: Any, result: Any, macs: int, unknown: list[str]) -> None:
        """Apply the rule of an operation.

        Args:
            args: Positional arguments of the operation.
            kwargs: Keyword arguments of the operation.
            result: Its result.
            macs: Its multiply-adds as torch counts them.
            unknown: Kernels that multiply and that torch cannot count.
        """
        outputs = tensors_in(result)
        inputs = tensors_in((args, kwargs))
        reads = [self.node(tensor) for tensor in inputs]
        if self.op in LEAVING and not all(node.constant for node in reads):
            self.freeze_outside_torch(self.op, inputs)
        if not outputs and self.op != "__setitem__":
            return
        found = op_rules.find(self.op)
        module = self.stack[-1] if self.stack else ""
        self._current = Op(self.op, module, reads, [], found.reuses if found else "")
        try:
            if found is None:
                raise op_rules.NoRule
            answer = found(self, result, args, kwargs)
            self._write(outputs, inputs, answer)
            self._compare(macs, unknown)
        except (op_rules.NoRule, IndexError, ValueError, TypeError, KeyError, AttributeError):
            self._freeze_all(outputs, inputs, macs)
            if unknown:
                self.mark_uncounted("macs", f"{self.op} ({', '.join(unknown)})")
        self.ops.append(self._current)

    def _compare(self, macs: int, unknown: list[str]) -> None:
        """Check that the rule counts the same multiply-adds as torch, where torch can count."""
        assert self._current is not None
        parts = [[length(axis) for axis in m.macs] for m in self._current.multiplies]
        ruled = sum(map(math.prod, parts))
        if unknown and not ruled:
            self.mark_uncounted("macs", f"{self.op} ({', '.join(unknown)})")
        elif not unknown and ruled != macs and self.counter.active:
            self.mark_uncounted(
                "macs", f"{self.op}: {ruled:,} counted, {macs:,} by torch's counter"
            )

    def run_compiled(self, call: Any, args: Any, kwargs: Any) -> Any:
        """Run compiled code as one operation, because its inside is not seen."""
        self.op, self.why = "compiled", f"compiled code in {self.stack[-1] or 'forward'}"
        self.check_unseen_kernels()
        with torch._C.DisableTorchFunction():
            with (
                self._noting_failure(args, kwargs),
                nullcontext() if self.counter.active else self.counter,
            ):
                result = call(*args, **kwargs)
            macs, unknown = self.counter.since_last_call()
            if macs or unknown:
                self.op = "compiled_layer"  # not an activation, so there is no rule
            self._visit(args, kwargs, result, macs, unknown)
        return result

    def _write(self, outputs: list[Tensor], inputs: list[Tensor], answer: Any) -> None:
        each = answer if isinstance(answer, tuple) else (answer,) * len(outputs)
        for tensor, axes in zip(outputs, each, strict=True):
            if [length(axis) for axis in axes] != list(tensor.shape):
                raise op_rules.NoRule
        for tensor, axes in zip(outputs, each):
            self._wrote(tensor, inputs, axes)

    def _wrote(self, tensor: Tensor, inputs: list[Tensor], axes: Axes) -> None:
        assert self._current is not None
        if any(tensor is x for x in inputs):
            node = self.node(tensor)
            node.axes = axes
        else:
            node = self.remember(tensor, axes)
        self._current.writes.append(node)

    def _freeze_all(self, outputs: list[Tensor], inputs: list[Tensor], macs: int) -> None:
        """Freeze the inputs of an operation without a rule; its result and cost are fixed then."""
        assert self._current is not None
        self._current.multiplies = []
        why = f"no rule for {self.why}"
        touched = (segment for x in inputs for axis in self.axes(x) for segment in axis)
        self.algebra.freeze(tuple(touched), why)
        if macs:
            weights = {id(x): x.numel() for x in inputs if self.is_constant(x)}
            kept = [fixed(sum(weights.values()))]
            module = self._current.module or "forward"
            self._current.multiplies.append(Multiply(module, [fixed(macs)], kept))
            if not self.counter.is_kernel(self.op):
                self.mark_uncounted("memory", f"maps inside {self.op}")
        for tensor in outputs:
            self._wrote(tensor, inputs, [fixed(size, why) for size in tensor.shape])


def variables_of(nodes: list[Node]) -> set[Var]:
    return {var for node in nodes for axis in node.axes for var in variables(axis)}


def op_name(func: Any) -> str:
    """Return one name for a function, its method, its operator and its in-place form."""
    name = getattr(func, "__name__", type(func).__name__)
    if name == "__get__":
        return str(getattr(func.__self__, "__name__", name))
    if name in INDEXING:
        return name
    if name.startswith("__") and name.endswith("__"):
        return name.strip("_")
    name = name.split(".")[0]
    return name[:-1] if name.endswith("_") and not name.startswith("_") else name


def without_symbols(value: Any) -> Any:
    """Replace symbolic integers by plain ones, because torch's own code compares sizes freely."""
    if isinstance(value, (Shape, torch.Size)):
        return torch.Size([int(size) for size in value])
    if isinstance(value, slice):
        return slice(plain(value.start), plain(value.stop), plain(value.step))
    return plain(value)


@contextmanager
def track_modules(model: nn.Module, stack: list[str]) -> Iterator[None]:
    """Keep the names of the running modules on a stack, the innermost last."""
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue

        def enter(module: nn.Module, args: Any, name: str = name) -> None:
            stack.append(name)

        def leave(module: nn.Module, args: Any, result: Any) -> None:
            stack.pop()

        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def intercept_torchscript(tracer: Tracer) -> Iterator[None]:
    """Show calls of TorchScript to the tracer, which a TorchFunctionMode does not see."""
    kinds: tuple[Any, ...] = (torch._C.ScriptFunction, torch._C.ScriptMethod)
    originals = [kind.__call__ for kind in kinds]

    def watched(original: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            return tracer.run_compiled(partial(original, self), args, kwargs)

        return call

    for kind, original in zip(kinds, originals):
        kind.__call__ = watched(original)
    try:
        yield
    finally:
        for kind, original in zip(kinds, originals):
            kind.__call__ = original


@contextmanager
def intercept_autograd_functions(tracer: Tracer) -> Iterator[None]:
    """Detect autograd functions whose results no torch operation has made, as in extensions."""
    kind: Any = torch.autograd.function._SingleLevelFunction

    def apply(function: Any, *args: Any, **kwargs: Any) -> Any:
        result = super(kind, function).apply(*args, **kwargs)
        inputs, outputs = tensors_in((args, kwargs)), tensors_in(result)
        if not tracer.made_by_torch(inputs, outputs):
            tracer.freeze_outside_torch(function.__name__, inputs)
        return result

    kind.apply = classmethod(apply)
    try:
        yield
    finally:
        del kind.apply


@contextmanager
def symbolic_attributes(specs: dict[nn.Module, LayerSpec], algebra: Algebra) -> Iterator[None]:
    """Make `conv.out_channels` and similar attributes symbolic while tracing."""
    saved = []
    for module, spec in specs.items():
        for name, axes in spec.attributes.items():
            saved.append((module, name, getattr(module, name)))
            if isinstance(axes, list):
                value: Any = tuple(SymbolicInt.of(algebra, axis) for axis in axes)
            else:
                value = SymbolicInt.of(algebra, axes)
            setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in saved:
            setattr(module, name, value)


def trace(
    model: nn.Module,
    inputs: tuple[Any, ...],
    specs: dict[nn.Module, LayerSpec],
    algebra: Algebra,
    training: bool,
) -> Tracer:
    """Run the model once and equate axes. Outputs freeze, because they must keep their shape.

    Args:
        model: The model, or a trial child.
        inputs: Inputs of the model.
        specs: The axes of the tensors of its modules.
        algebra: Binds the Vars of the axes; once locked, the trace only checks.
        training: Whether to run in train mode.

    Raises:
        OpFailed: The model raised an error.
        Locked: Some axes differ from the final plan.
    """
    tracer = Tracer(algebra)
    names = {module: name for name, module in model.named_modules()}
    for module, spec in specs.items():
        for name, tensor in own_tensors(module).items():
            owner = names[module] or name
            tracer.remember_constant(tensor, spec.tensors[name], owner)
    buffers: BufferVersions = {
        (module, name): (buffer, buffer._version)
        for module in specs
        for name, buffer in module._buffers.items()
        if buffer is not None
    }
    try:
        with (
            no_side_effects(model, training),
            intercept_torchscript(tracer),
            intercept_autograd_functions(tracer),
            track_modules(model, tracer.stack),
            symbolic_attributes(specs, algebra),
            # Costs are those of the run in eval mode.
            nullcontext() if training or algebra.locked else tracer.counter,
            tracer,
        ):
            output = model(*inputs)
            tracer.check_unseen_kernels()
            tracer.freeze_written(specs, buffers)
    except Locked:
        raise
    except Exception as error:
        raise tracer.failure or OpFailed(tracer.last_variables(), first_line(error)) from error
    tracer.op, tracer.why = "output", "it is an output of the network"
    if not tensors_in(output):
        raise UserError(
            f"model: {type(model).__name__} returns no tensor, so nothing can be checked"
        )
    for tensor in tensors_in(output):
        for axis in tracer.axes(tensor):
            tracer.freeze(axis)
        tracer.ops.append(Op("output", "", [tracer.node(tensor)], [], ""))
    return tracer
