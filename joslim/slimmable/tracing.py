"""Tracing: run a network once, and find which of its channels go together.

This is the first step of `slim`. The network is executed as it is, under a `TorchFunctionMode` that
sees each torch call and carries the axes of every tensor along by the rules of op_rules.py. So
data-dependent control flow, reused modules and functional layers need no special care. plan.py
turns the result into Dims and knobs.

The multiply-adds that the rules give are compared with those of torch's `FlopCounterMode`, which
knows matrix products, convolutions and most attention kernels, and silently ignores all others. The
end of this file adds some formulas, and names every kernel that multiplies and has no formula.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count
from torch.utils.weak import WeakIdKeyDictionary

from joslim.errors import UserError, first_line
from joslim.slimmable import op_rules
from joslim.slimmable.layer_specs import LayerSpec, own_tensors
from joslim.slimmable.running import Inputs, call, no_side_effects, tensors_in
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
from joslim.slimmable.symbolic_int import (
    DerivedInt,
    Product,
    Shape,
    SymbolicInt,
    plain,
    settled,
    torch_layer,
)

Axes = list[Axis]
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
    """A tensor seen while tracing: a parameter or buffer of its owner, or a feature map."""

    number: int
    axes: Axes
    owner: str = ""

    @property
    def constant(self) -> bool:
        return self.owner != ""


@dataclass
class Multiply:
    """The multiply-adds of one product, as the product of these axes.

    `weight` has the axes of the weight that stays in memory, and `factor` is the number of its
    node, which then does not count as a map.
    """

    module: str
    macs: Axes
    weight: Axes | None = None
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


@dataclass(frozen=True)
class Call:
    """A call of a module: the operations from `start` to `stop`, and the tensors at both ends."""

    module: str
    start: int
    stop: int
    inputs: list[Node]
    outputs: list[Node]


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
        self.calls: list[Call] = []
        self.uncounted: list[Uncounted] = []
        # The axes that count attention heads.
        self.heads: Axes = []
        # The modules in which a literal size froze an axis.
        self.with_literals: set[str] = set()
        self.counter = Counter()
        self.failure: OpFailed | None = None
        # Names of the modules that are running, the innermost last.
        self.stack = [""]
        self.modules: dict[str, nn.Module] = {}
        # The operation that is running, for the rules.
        self.op = ""
        self.why = ""
        self.func: Any = None
        self.result: Any = None
        self._current = Op("", "", [], [], "")
        self.nodes: Any = WeakIdKeyDictionary()
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
        size = settled(size)
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
            if isinstance(size, DerivedInt):
                size.freeze(self.why)
            self.with_literals.add(self.stack[-1])
            self.algebra.freeze(axis, f"a literal size of {int(size)} in {self.why}")
        elif not size.counts(axis):
            self.unify(axis, size.axis(self.why))

    def recall(self, size: int) -> int:
        """Guess which symbolic integer a plain one comes from.

        int(c / 2) is a plain integer, of which only the value of c / 2 is known. A wrong guess
        would be found by the trial children.
        """
        return self.algebra.shares.get(size, size) if type(size) is int else settled(size)

    def unslimmable(self, axes: Axes, sizes: Sequence[int]) -> Axes:
        """Freeze axes whose length the operation changes by its own arithmetic."""
        for axis in axes:
            self.freeze(axis)
        return [fixed(size) for size in sizes]

    def layer(self, weight: Tensor, out: Axis | None, macs: Axes, *others: Tensor) -> None:
        """Record a product of `weight` and others. Tensors that a module owns count as weights."""
        constants = [x for x in (weight, *others) if self.node(x).constant]
        if len(constants) > 1:
            self.mark_uncounted("memory", f"the second weight of {self.op}")
        node = self.node(constants[0] if constants else weight)
        name = node.owner or self._current.module or "forward"
        is_weight = node.constant or out is not None
        self._current.multiplies.append(
            Multiply(name, macs, node.axes, node.number) if is_weight else Multiply(name, macs)
        )
        if out is not None:
            self.produces(weight, out)

    def produces(self, weight: Tensor, axis: Axis) -> None:
        """Record the output channels of a layer."""
        name = self.node(weight).owner or self._current.module or "forward"
        self.produced.append(Produced(name, axis))

    def mark_uncounted(self, cost: str, what: str) -> None:
        """Record that a cost of this network is not exact."""
        found = Uncounted(cost, self.stack[-1] or "forward", what)
        if found not in self.uncounted:
            self.uncounted.append(found)

    def freeze_outside_torch(self, name: str, tensors: list[Tensor]) -> None:
        """Freeze tensors that are processed outside of torch, at an unknown cost."""
        for axis in (axis for x in tensors for axis in self.axes(x)):
            self.algebra.freeze(axis, f"{name} computes outside of torch")
        self.mark_uncounted("macs", f"{name}, which computes outside of torch")

    # Tensors.

    def node(self, tensor: Tensor) -> Node:
        known = self.nodes.get(tensor)
        return known or self.remember(tensor, [fixed(size) for size in tensor.shape])

    def remember(self, tensor: Tensor, axes: Axes, owner: str = "") -> Node:
        node = Node(self._numbers, axes, owner)
        self._numbers += 1
        self.nodes[tensor] = node
        return node

    def last_variables(self) -> set[Var]:
        """Return the Vars of the last operation that has any."""
        for op in reversed(self.ops):
            if found := variables_of(op.reads + op.writes):
                return found
        return set()

    # The mode itself.

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = op_name(func)
        self.op, self.func = name, func
        self.why = f"{name} in {self.stack[-1] or 'forward'}"
        for leaf in tree_leaves((args, kwargs)):
            if type(leaf) is DerivedInt:
                leaf.freeze(self.why)
        args, kwargs = tree_map(settled, (args, kwargs))
        if func is F.multi_head_attention_forward:
            with self, without_overrides():
                return func(*args, **kwargs)
        plain_args, plain_kwargs = tree_map(without_symbols, (args, kwargs))
        self.check_unseen_kernels()
        with self._noting_failure(args, kwargs):
            result = func(*plain_args, **plain_kwargs)
        if name in ("shape", "size") and args and isinstance(args[0], Tensor):
            sizes = Shape(SymbolicInt.of(self.algebra, axis) for axis in self.axes(args[0]))
            dims = [*args[1:], *kwargs.values()]
            return sizes[dims[0]] if dims and dims[0] is not None else sizes
        self._visit(args, kwargs, result, *self.counter.since_last_call())
        for leaf in tree_leaves(tree_map(settled, (args, kwargs))):
            if isinstance(leaf, Product):  # no rule has found which of its factors is fixed
                leaf.freeze(self.why)
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

    def _visit(self, args: Any, kwargs: Any, result: Any, macs: int, unknown: list[str]) -> None:
        """Apply the rule of an operation, and record the axes of its result.

        `macs` and `unknown` are its multiply-adds as torch counts them, and the kernels that torch
        cannot count.
        """
        self.result = result
        outputs, inputs = tensors_in(result), tensors_in((args, kwargs))
        reads = [self.node(tensor) for tensor in inputs]
        if self.op in LEAVING and not all(node.constant for node in reads):
            self.freeze_outside_torch(self.op, inputs)
        if not outputs and self.op != "__setitem__":
            return
        found = op_rules.find(self.op)
        self._current = Op(self.op, self.stack[-1], reads, [], found.reuses if found else "")
        try:
            if found is None:
                raise op_rules.NoRule
            answer = found.apply(self, *args, **kwargs)
            each = answer if isinstance(answer, tuple) else (answer,) * len(outputs)
            for tensor, axes in zip(outputs, each, strict=True):
                if [length(axis) for axis in axes] != list(tensor.shape):
                    raise op_rules.NoRule
            self._compare_counts(macs, unknown)
        except (op_rules.NoRule, IndexError, ValueError, TypeError, KeyError, AttributeError):
            each = self._freeze_all(outputs, inputs, macs, unknown)
        # A transposed weight is a weight, as in `x @ weight.T`.
        owner = reads[0].owner if found is not None and found.apply is op_rules.probe else ""
        for tensor, axes in zip(outputs, each):
            if any(tensor is x for x in inputs):
                node = self.node(tensor)
                node.axes = axes
            else:
                node = self.remember(tensor, axes, owner)
            self._current.writes.append(node)
        self.ops.append(self._current)

    def _compare_counts(self, macs: int, unknown: list[str]) -> None:
        """Check that the rule counts the same multiply-adds as torch, where torch can count."""
        ruled = sum(math.prod(map(length, m.macs)) for m in self._current.multiplies)
        if unknown and not ruled:
            self.mark_uncounted("macs", f"{self.op} ({', '.join(unknown)})")
        elif not unknown and ruled != macs and self.counter.active:
            self.mark_uncounted(
                "macs", f"{self.op}: {ruled:,} counted, {macs:,} by torch's counter"
            )

    def _freeze_all(
        self, outputs: list[Tensor], inputs: list[Tensor], macs: int, unknown: list[str]
    ) -> tuple[Axes, ...]:
        """Freeze the inputs of an operation without a rule; its result and cost are fixed then."""
        reasons = [f"no rule for {self.why}"] * 3
        layer = torch_layer(self.modules.get(self.stack[-1]))
        if layer and not self.op.startswith("compiled"):
            relations = ("feeds", "part of", "joined with")
            reasons = [f"{relation} {layer}, which needs a fixed size" for relation in relations]
        for constant, why in zip((False, True), reasons):
            touched = (x for x in inputs if self.node(x).constant == constant)
            axes = (axis for x in touched for axis in self.axes(x))
            self.algebra.freeze(tuple(segment for axis in axes for segment in axis), why)
        self._current.multiplies = []
        if macs:
            weights = {id(x): x.numel() for x in inputs if self.node(x).constant}
            kept = [fixed(sum(weights.values()))]
            module = self._current.module or "forward"
            self._current.multiplies.append(Multiply(module, [fixed(macs)], kept))
            if not self.counter.is_kernel(self.op):
                self.mark_uncounted("memory", f"maps inside {self.op}")
        if unknown:
            self.mark_uncounted("macs", f"{self.op} ({', '.join(unknown)})")
        return tuple([fixed(size, reasons[2]) for size in tensor.shape] for tensor in outputs)


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
def without_overrides() -> Iterator[None]:
    """Run a composite function of torch step by step, instead of showing it to modes as a whole."""
    module: Any = F
    original, module.has_torch_function = module.has_torch_function, lambda tensors: False
    try:
        yield
    finally:
        module.has_torch_function = original


@contextmanager
def without_fast_attention() -> Iterator[None]:
    """Switch fused encoder layers off, which hide their products."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


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
def record_calls(model: nn.Module, tracer: Tracer) -> Iterator[None]:
    """Record in `tracer.calls` which tensors each module takes and returns, and when."""
    handles, starts = [], []

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        with torch._C.DisableTorchFunction():
            given = tensors_in((args, kwargs), objects=False)
            starts.append((len(tracer.ops), [tracer.node(tensor) for tensor in given]))

    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue

        def leave(module: nn.Module, args: Any, kwargs: Any, out: Any, name: str = name) -> None:
            start, inputs = starts.pop()
            with torch._C.DisableTorchFunction():
                outputs = [tracer.node(tensor) for tensor in tensors_in(out)]
            tracer.calls.append(Call(name, start, len(tracer.ops), inputs, outputs))

        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave, with_kwargs=True))
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
        with torch._C.DisableTorchFunction():
            given = {x.untyped_storage().data_ptr() for x in inputs}
            new = [y for y in outputs if y.untyped_storage().data_ptr() not in given]
        if not all(y in tracer.nodes for y in new):
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
    inputs: Inputs,
    specs: dict[nn.Module, LayerSpec],
    algebra: Algebra,
    training: bool,
    calls: bool = False,
) -> Tracer:
    """Run the model, or a trial child, once and equate axes.

    `specs` has the axes of the tensors of its modules. Outputs freeze, because they must keep their
    shape. Once the algebra is locked, the trace only checks, and raises Locked where axes differ
    from the final plan. OpFailed is raised where the model raised an error. `calls`: record the
    calls of all modules.
    """
    tracer = Tracer(algebra)
    tracer.modules = dict(model.named_modules())
    names = {module: name for name, module in model.named_modules()}
    for module, spec in specs.items():
        for name, tensor in own_tensors(module).items():
            axes = spec.tensors[name]
            if known := tracer.nodes.get(tensor):  # several modules share it
                for a, b in zip(known.axes, axes):
                    algebra.unify(a, b, "shared by two modules")
            else:
                tracer.remember(tensor, axes, owner=names[module] or name)
    buffers = [
        (module, name, buffer, buffer._version)
        for module in specs
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        with (
            no_side_effects(model, training),
            without_fast_attention(),
            intercept_torchscript(tracer),
            intercept_autograd_functions(tracer),
            track_modules(model, tracer.stack),
            record_calls(model, tracer) if calls else nullcontext(),
            symbolic_attributes(specs, algebra),
            # Costs are those of the run in eval mode.
            nullcontext() if training or algebra.locked else tracer.counter,
            tracer,
        ):
            output = call(model, inputs)
            tracer.check_unseen_kernels()
            for module, name, buffer, version in buffers:
                if module._buffers.get(name) is not buffer or buffer._version != version:
                    # In place, a child would leave a smaller buffer behind.
                    for axis in specs[module].tensors[name]:
                        algebra.freeze(axis, f"forward changes the buffer {name!r}")
    except Locked:
        raise
    except Exception as error:
        raise tracer.failure or OpFailed(tracer.last_variables(), first_line(error)) from error
    for name, tensor in [] if training else kept_tensors(model, inputs, tracer):
        for axis in tracer.axes(tensor):
            algebra.freeze(axis, f"forward keeps a tensor in {name!r} for the next call")
    tracer.op, tracer.why = "output", "it is an output of the network"
    if not tensors_in(output):
        raise UserError(
            f"model: {type(model).__name__} returns no tensor, so nothing can be checked"
        )
    for tensor in tensors_in(output, objects=False):
        for axis in tracer.axes(tensor):
            tracer.freeze(axis)
        tracer.ops.append(Op("output", "", [tracer.node(tensor)], [], ""))
    return tracer


def kept_tensors(model: nn.Module, inputs: Inputs, tracer: Tracer) -> list[tuple[str, Tensor]]:
    """Return traced tensors that forward has put into attributes and uses again in the next call.

    Another child would find those of this one. An attribute that every call overwrites is harmless.
    """

    def stored() -> list[tuple[str, Tensor]]:
        places = [(n, v) for m in model.modules() for n, v in vars(m).items() if n[0] != "_"]
        found = [(name, t) for name, v in places for t in tensors_in(v, objects=False)]
        return [(name, t) for name, t in found if not isinstance(t, nn.Parameter)]

    kept = [(name, t) for name, t in stored() if variables_of([tracer.node(t)])]
    if kept:
        with no_side_effects(model, training=None):
            call(model, inputs)
        still = {id(tensor) for _, tensor in stored()}
        kept = [(name, tensor) for name, tensor in kept if id(tensor) in still]
    return kept


# --- the multiply-adds as torch counts them -------------------------------------------------------

Sizes = Sequence[int]

# Words in the names of aten's kernels that mean sums of products.
MULTIPLYING = re.compile(
    r"[a-z]*mm|[a-z]*mv|[a-z]*dot|matmul|linear|trilinear|conv(olution|\dd|tbc)?|attention|rnn|lstm|"
    r"gru|fft|linalg|cdist|pdist|euclidean|inverse|solve|cholesky|qr|svd|lu|[a-z]+qr|geqrf|"
    r"transformer"
)
# Kernels whose names contain such a word although they only resize, index or work elementwise.
WITHOUT_PRODUCTS = re.compile(
    r"_?upsample_.*|.*vector_norm|linalg_(cross|diagonal)|_thnn_fused_(lstm|gru)_cell|lu_unpack|"
    r"slice_inverse|_linalg_check_errors|_cudnn_rnn_flatten_weight|fft_(r?fftfreq|i?fftshift)"
)
# Namespaces of torch's own operators.
OF_TORCH = {"aten", "prims", "prim", "profiler", "c10d", "_c10d_functional", "c10d_functional"}
POOLING = {f"torchvision::{name}" for name in ("nms", "roi_align", "roi_pool", "ps_roi_align")}


class _Untracked(nullcontext[None]):
    """Stands for torch's `ModuleTracker` where only the total counts."""

    parents = frozenset({"Global"})

    def __exit__(self, *error: object) -> None:
        pass


class Counter(TorchDispatchMode):
    """Counts the multiply-adds of everything that runs inside its `with` block."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self._flops = FlopCounterMode(display=False, custom_mapping=FORMULAS)
        # Its hooks for figures of each module, which nobody reads, fail for views of parameters.
        self._flops.mod_tracker = _Untracked()  # type: ignore[assignment]
        self.active = False
        self._reported = 0
        self._unknown: list[str] = []

    def __enter__(self) -> Counter:
        # Fused encoder layers hide their products; without the fast path they run step by step.
        self._fused_layers = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        super().__enter__()
        # The innermost mode runs first: it decomposes some kernels, and this mode sees the rest.
        self._flops.__enter__()
        self._reported, self.active = 0, True
        return self

    def __exit__(self, *error: Any) -> None:
        self.active = False
        self._flops.__exit__(*error)
        super().__exit__(*error)
        torch.backends.mha.set_fastpath_enabled(self._fused_layers)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        packet = getattr(func, "_overloadpacket", func)
        if packet not in self._flops.flop_registry and multiplies(func):
            self._unknown.append(name_of(func))
        return func(*args, **(kwargs or {}))

    def is_kernel(self, name: str) -> bool:
        """Tell whether an operation is a single kernel, so that it makes no intermediate maps."""
        return getattr(torch.ops.aten, name, None) in self._flops.flop_registry

    def since_last_call(self) -> tuple[int, list[str]]:
        """Return the multiply-adds since the last call, and the kernels without a formula."""
        total = self._flops.get_total_flops() // 2
        macs, self._reported = total - self._reported, total
        unknown, self._unknown = list(dict.fromkeys(self._unknown)), []
        return macs, unknown


def name_of(func: Any) -> str:
    """Return the name of a kernel, without the namespace if it is `aten`."""
    schema = getattr(func, "_schema", None)
    name = schema.name if schema is not None else str(func)
    return name.removeprefix("aten::")


def multiplies(func: Any) -> bool:
    """Guess from namespace and name whether a kernel computes sums of products."""
    name = name_of(func)
    if name in POOLING:
        return False
    if getattr(func, "namespace", "") not in OF_TORCH:
        return True
    if torch.Tag.pointwise in func.tags or WITHOUT_PRODUCTS.fullmatch(name):
        return False
    words = name.rpartition("::")[2].split("_")
    return name.startswith("matrix_exp") or any(map(MULTIPLYING.fullmatch, words))


def bilinear(first: Sizes, weight: Sizes, *_: Any, **__: Any) -> int:
    """Count the product with the first input, then the product with the second."""
    return 2 * first[0] * (math.prod(weight) + weight[0] * weight[2])


def recurrent(input: Sizes, weights: Sequence[Sizes], *_: Any, **__: Any) -> int:
    """Count each matrix of each layer and direction once for every time step."""
    return 2 * math.prod(input[:-1]) * sum(math.prod(w) for w in weights if len(w) == 2)


aten = torch.ops.aten
# Floating-point operations from the shapes of the arguments, two for each multiply-add. For kernels
# outside of torch, see `torch.utils.flop_counter.register_flop_formula`.
FORMULAS: dict[Any, Any] = {
    **dict.fromkeys(
        [aten.mv, aten.dot, aten.vdot],
        lambda matrix, *_, **__: 2 * math.prod(matrix),
    ),
    **dict.fromkeys(
        [aten.addmv, aten.addmv_],
        lambda added, matrix, *_, **__: 2 * math.prod(matrix),
    ),
    **dict.fromkeys(
        [aten.addmm_, aten.addbmm, aten.addbmm_, aten.baddbmm_, aten._addmm_activation],
        lambda added, first, second, *_, **__: 2 * math.prod(first) * second[-1],
    ),
    **dict.fromkeys(
        [
            aten._scaled_dot_product_flash_attention_for_cpu,
            aten._scaled_dot_product_fused_attention_overrideable,
        ],
        lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value),
    ),
    aten._trilinear: bilinear,
    aten.mkldnn_rnn_layer: lambda x, inputs, hidden, *_, **__: recurrent(x, [inputs, hidden]),
    **dict.fromkeys([aten._cudnn_rnn, aten.miopen_rnn], recurrent),
}
