"""Run a network once and find out which of its channels go together.

The network is executed as it is, under a `TorchFunctionMode` that sees each torch call and carries
the axes of every tensor along (`rules.py`). So data-dependent control flow, reused modules and
functional layers need no special care: what is executed is what is seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.weak import WeakIdKeyDictionary

from joslim.errors import UserError
from joslim.slimmable import rules
from joslim.slimmable.axes import (
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
from joslim.slimmable.declare import Declaration, own_tensors
from joslim.slimmable.lengths import Derived, Length, Shape, plain

Axes = list[Axis]

# These keep their underscores; others lose them, since x + 1, 1 + x and x += 1 are all an addition.
INDEXING = {"__getitem__", "__setitem__"}


class OpFailed(Exception):
    """An operation raised: these are the Vars that it touched."""

    def __init__(self, variables: set[Var], why: str) -> None:
        super().__init__(why)
        self.variables = variables
        self.why = why


@dataclass
class Node:
    """A tensor seen while tracing. Constants are parameters and buffers, not maps."""

    number: int
    axes: Axes
    constant: bool = False


@dataclass
class Multiply:
    """Multiply-adds: the product of these axes. `weight`: the axes of what stays in memory."""

    module: str
    macs: Axes
    weight: Axes | None


@dataclass
class Op:
    name: str
    module: str
    reads: list[Node]
    writes: list[Node]
    reuses: str
    multiplies: list[Multiply] = field(default_factory=list)


@dataclass
class Produced:
    """The output channels of a layer, under the name of the module that has the weights."""

    module: str
    axis: Axis


class Tracer(TorchFunctionMode):
    """Carries axes from tensor to tensor, and writes down what was computed."""

    def __init__(self, algebra: Algebra) -> None:
        super().__init__()
        self.algebra = algebra
        self.ops: list[Op] = []
        self.produced: list[Produced] = []
        self.failure: OpFailed | None = None
        self.stack: list[str] = []
        self.op = ""
        self.why = ""
        self._nodes: Any = WeakIdKeyDictionary()
        self._owners: dict[int, str] = {}
        self._current: Op | None = None
        self._numbers = 0

    # What the rules use.

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
        """The axis of a tensor that is made with this size."""
        if not isinstance(size, Length):
            return fixed(int(size))
        if not size.single:
            size.freeze(self.why)
            return fixed(int(size))
        return size.axis(self.why)

    def follows(self, axis: Axis, size: int) -> None:
        """The axis has this size at every width: a literal one freezes it."""
        if is_fixed(axis):
            return
        size = self.recall(size)
        if not isinstance(size, Length) or not size.single:
            self.algebra.freeze(axis, f"a literal size of {int(size)} in {self.why}")
        elif not size.counts(axis):
            self.unify(axis, size.axis(self.why))

    def recall(self, size: int) -> int:
        """A plain integer may be int(c / 2), of which no trace is left but the value of c / 2.

        Taking it for a Length is a guess; the trial children would expose a wrong one.
        """
        return self.algebra.shares.get(size, size) if type(size) is int else size

    def unslimmable(self, axes: Axes, sizes: Sequence[int]) -> Axes:
        """Axes that an operation shortens or lengthens by its own arithmetic."""
        for axis in axes:
            self.freeze(axis)
        return [fixed(size) for size in sizes]

    def layer(self, weight: Tensor, out: Axis | None, macs: Axes) -> None:
        assert self._current is not None
        node = self.node(weight)
        name = self._owners.get(node.number) or self._current.module or "forward"
        kept = node.axes if node.constant or out is not None else None
        self._current.multiplies.append(Multiply(name, macs, kept))
        if out is not None:
            self.produces(weight, out)

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
        """A parameter or buffer; one that several modules share has one set of axes."""
        if known := self._nodes.get(tensor):
            for a, b in zip(known.axes, axes):
                self.algebra.unify(a, b, "shared by two modules")
        else:
            self._owners[self.remember(tensor, axes, constant=True).number] = owner

    def last_variables(self) -> set[Var]:
        """What the last operation touched that touched anything slimmable."""
        for op in reversed(self.ops):
            if found := variables_of(op.reads + op.writes):
                return found
        return set()

    def freeze_written(self, declared: dict[nn.Module, Declaration], before: Buffers) -> None:
        """A buffer that forward changes must keep its size: a child would leave its own behind."""
        for (module, name), (buffer, version) in before.items():
            if module._buffers.get(name) is not buffer or buffer._version != version:
                for axis in declared[module].tensors[name]:
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
            if isinstance(leaf, Derived):
                leaf.freeze(self.why)
        plain_args, plain_kwargs = tree_map(forgotten, (args, kwargs))
        counter = FlopCounterMode(display=False) if rules.may_give_up(name) else nullcontext()
        with self._blamed(args, kwargs), counter:
            result = func(*plain_args, **plain_kwargs)
        if name in ("shape", "size") and args and isinstance(args[0], Tensor):
            return self._measured(*args, **kwargs)
        self._visit(args, kwargs, result, counter)
        return result

    @contextmanager
    def _blamed(self, args: Any, kwargs: Any) -> Iterator[None]:
        """If the operation raises, remember which Vars it touched."""
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
            return Length.of(self.algebra, axes[dim])
        return Shape(Length.of(self.algebra, axis) for axis in axes)

    def _visit(self, args: Any, kwargs: Any, result: Any, counter: Any) -> None:
        outputs = tensors_in(result)
        inputs = tensors_in((args, kwargs))
        if not outputs and self.op != "__setitem__":
            return
        reads = [self.node(tensor) for tensor in inputs]
        found = rules.find(self.op)
        module = self.stack[-1] if self.stack else ""
        self._current = Op(self.op, module, reads, [], found.reuses if found else "")
        try:
            if found is None:
                raise rules.NoRule
            answer = found(self, result, args, kwargs)
            self._write(outputs, inputs, answer)
        except (rules.NoRule, IndexError, ValueError, TypeError, KeyError, AttributeError):
            flops = counter.get_total_flops() if isinstance(counter, FlopCounterMode) else 0
            self._give_up(outputs, inputs, flops)
        self.ops.append(self._current)

    def run_compiled(self, call: Any, args: Any, kwargs: Any) -> Any:
        """Compiled code, of which nothing is seen inside, has a rule like any operation."""
        self.op, self.why = "compiled", f"compiled code in {self.stack[-1] or 'forward'}"
        with torch._C.DisableTorchFunction():
            with self._blamed(args, kwargs), FlopCounterMode(display=False) as counter:
                result = call(*args, **kwargs)
            if counter.get_total_flops():
                self.op = "compiled_layer"  # not an activation, so there is no rule
            self._visit(args, kwargs, result, counter)
        return result

    def _write(self, outputs: list[Tensor], inputs: list[Tensor], answer: Any) -> None:
        each = answer if isinstance(answer, tuple) else (answer,) * len(outputs)
        for tensor, axes in zip(outputs, each, strict=True):
            if [length(axis) for axis in axes] != list(tensor.shape):
                raise rules.NoRule
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

    def _give_up(self, outputs: list[Tensor], inputs: list[Tensor], flops: int) -> None:
        """No rule: nothing that went in may be slimmed, so the result and its cost are fixed."""
        assert self._current is not None
        self._current.multiplies = []
        if flops:
            multiply = Multiply(self._current.module, [fixed(flops // 2)], None)
            self._current.multiplies.append(multiply)
        why = f"no rule for {self.why}"
        touched = (segment for x in inputs for axis in self.axes(x) for segment in axis)
        self.algebra.freeze(tuple(touched), why)
        for tensor in outputs:
            self._wrote(tensor, inputs, [fixed(size, why) for size in tensor.shape])


def variables_of(nodes: list[Node]) -> set[Var]:
    return {var for node in nodes for axis in node.axes for var in variables(axis)}


def op_name(func: Any) -> str:
    """One name for a function, its method, its operator and its in-place form."""
    name = getattr(func, "__name__", type(func).__name__)
    if name == "__get__":
        return str(getattr(func.__self__, "__name__", name))
    if name in INDEXING:
        return name
    if name.startswith("__") and name.endswith("__"):
        return name.strip("_")
    name = name.split(".")[0]
    return name[:-1] if name.endswith("_") and not name.startswith("_") else name


def forgotten(value: Any) -> Any:
    """Without Lengths, for torch's own code, which compares sizes freely."""
    if isinstance(value, (Shape, torch.Size)):
        return torch.Size([int(size) for size in value])
    if isinstance(value, slice):
        return slice(plain(value.start), plain(value.stop), plain(value.step))
    return plain(value)


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def tensors_in(tree: Any, depth: int = 8) -> list[Tensor]:
    """All tensors in nested containers and in the attributes of objects."""
    if isinstance(tree, Tensor):
        return [tree]
    if depth == 0 or isinstance(tree, (str, bytes, type, nn.Module)):
        return []
    if isinstance(tree, Mapping):
        parts: list[Any] = list(tree.values())
    elif isinstance(tree, (Sequence, Set)):
        parts = list(tree)
    else:
        slots = (name for kind in type(tree).__mro__ for name in getattr(kind, "__slots__", ()))
        parts = [getattr(tree, name, None) for name in slots]
        parts += vars(tree).values() if hasattr(tree, "__dict__") else []
    return [tensor for part in parts for tensor in tensors_in(part, depth - 1)]


@contextmanager
def announced(model: nn.Module, stack: list[str]) -> Iterator[None]:
    """Keep the names of the modules that are running, the innermost last."""
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
def compiled_code_seen(tracer: Tracer) -> Iterator[None]:
    """Calls of TorchScript functions and methods do not reach a TorchFunctionMode by themselves."""
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
def measured_attributes(declared: dict[nn.Module, Declaration], algebra: Algebra) -> Iterator[None]:
    """While tracing, `conv.out_channels` and its like know which channels they count."""
    saved = []
    for module, declaration in declared.items():
        for name, axes in declaration.attributes.items():
            saved.append((module, name, getattr(module, name)))
            if isinstance(axes, list):
                value: Any = tuple(Length.of(algebra, axis) for axis in axes)
            else:
                value = Length.of(algebra, axes)
            setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in saved:
            setattr(module, name, value)


@contextmanager
def undisturbed(model: nn.Module, training: bool) -> Iterator[None]:
    """Run in this mode without a trace: modes, buffers and generators are put back.

    Norms stay in eval mode, since a batch of one has no variance to normalise by.
    """
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        if not isinstance(module, torch.jit.ScriptModule)
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    model.train(training)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=devices_of(model)):
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        with torch.no_grad():
            for module, name, buffer, value in buffers:
                module._buffers[name] = buffer.copy_(value)


def devices_of(model: nn.Module) -> list[torch.device]:
    return list({p.device for p in model.parameters() if p.device.type == "cuda"})


Buffers = dict[tuple[nn.Module, str], tuple[Tensor, int]]


def versions(declared: dict[nn.Module, Declaration]) -> Buffers:
    """All buffers, and how often each has been written to."""
    return {
        (module, name): (buffer, buffer._version)
        for module in declared
        for name, buffer in module._buffers.items()
        if buffer is not None
    }


def trace(
    model: nn.Module,
    inputs: tuple[Any, ...],
    declared: dict[nn.Module, Declaration],
    algebra: Algebra,
    training: bool,
) -> Tracer:
    """Run the model once, equating axes; its outputs may not change their shape, so they freeze."""
    tracer = Tracer(algebra)
    names = {module: name for name, module in model.named_modules()}
    for module, declaration in declared.items():
        for name, tensor in own_tensors(module).items():
            owner = names[module] or name
            tracer.remember_constant(tensor, declaration.tensors[name], owner)
    attributes = measured_attributes(declared, algebra)
    try:
        with (
            undisturbed(model, training),
            compiled_code_seen(tracer),
            announced(model, tracer.stack),
            attributes,
            tracer,
        ):
            written = versions(declared)
            output = model(*inputs)
            tracer.freeze_written(declared, written)
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
