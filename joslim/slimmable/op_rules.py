"""Rules: the effect of each torch operation on the axes of its tensors, one function for each.

The tracer calls the rule of every operation that the network executes, with itself and the
arguments of the operation; `t.result` is the result. The rule equates axes that must agree, and
returns the axes of the result: a list for one tensor or for several equal ones, a tuple of lists
for different ones. An operation without a rule freezes the channels of its tensors, so a missing
rule costs knobs but never makes a child wrong. So does a rule that raises NoRule, or an error that
arguments of an unexpected form cause.

`reuses` says where the result can be stored: in the memory of its input ("view"), in the memory of
an input that is not needed afterwards ("in place"), or only in memory of its own ("").

To add an operation, write a function with the decorator `rule`. Its parameters are those of the
torch function, by the same names, after the tracer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from joslim.slimmable.symbolic_axes import Axis, fixed, form, full_length, is_fixed, length, scale
from joslim.slimmable.symbolic_int import SymbolicInt

if TYPE_CHECKING:
    from joslim.slimmable.tracing import Tracer

Axes = list[Axis]


class NoRule(Exception):
    """The rule does not cover this use of the operation: the channels of its tensors freeze."""


class Rule(NamedTuple):
    """A rule function, and where the result can be stored."""

    apply: Callable[..., Axes | tuple[Axes, ...]]
    reuses: str


RULES: dict[str, Rule] = {}


def rule(*names: str, reuses: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the rule of the operations of these names."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            RULES[name] = Rule(function, reuses)
        return function

    return register


def find(name: str) -> Rule | None:
    """Return the rule of an operation, or None if there is none."""
    if name not in RULES and is_pointwise(name):
        RULES[name] = RULES["pointwise"]
    return RULES.get(name)


@cache
def is_pointwise(name: str) -> bool:
    """Ask torch whether an operation is elementwise."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return False
    return any(torch.Tag.pointwise in getattr(packet, o).tags for o in packet.overloads())


# --- elementwise ----------------------------------------------------------------------------------


@rule(
    *("pointwise", "hardswish", "log_sigmoid", "softsign", "tanhshrink", "softmin", "rsub", "rdiv"),
    *("rpow", "rfloordiv", "copy", "clip", "iadd", "isub", "imul", "idiv", "radd", "rmul", "gelu"),
    *("floor_divide", "floordiv", "ifloordiv", "true_divide", "truediv", "mod", "rmod"),
    *("bernoulli", "masked_fill", "relu6"),
    reuses="in place",
)
def pointwise(t: Tracer, *args: Any, **kwargs: Any) -> Axes:
    operands = [t.axes(a) for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
    return broadcast(t, operands)


def broadcast(t: Tracer, operands: Sequence[Axes]) -> Axes:
    """Align axes on the right, and equate those that are not broadcast from a single entry."""
    result: Axes = []
    for back in range(1, max(map(len, operands), default=0) + 1):
        axes = [axes[-back] for axes in operands if len(axes) >= back]
        wide = [a for a in axes if not (is_fixed(a) and length(a) == 1)]
        for other in wide[1:]:
            t.unify(wide[0], other)
        result.insert(0, wide[0] if wide else fixed(1))
    return result


@rule(
    *("contiguous", "clone", "detach", "to", "float", "half", "double", "bfloat16"),
    *("type", "type_as", "cpu", "cuda", "requires_grad", "alias", "data", "log_softmax", "softmax"),
    *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"),
    *("native_dropout", "normalize", "zeros_like", "ones_like", "empty_like"),
    *("rand_like", "randn_like", "full_like", "cumsum", "cumprod", "roll", "flip"),
    *("sort", "long", "int", "bool", "rrelu", "local_response_norm", "gumbel_softmax", "positive"),
    *("uniform", "normal", "fill", "zero", "random", "as_tensor", "conj", "resolve_conj"),
    reuses="in place",
)
def same_shape(t: Tracer, input: Tensor, *_: Any, **__: Any) -> Axes:
    return t.axes(input)


@rule("compiled", reuses="in place")
def compiled(t: Tracer, *args: Any, **kwargs: Any) -> Axes:
    """Take TorchScript code that keeps the shape for an activation.

    This is a guess; the trial children would expose a wrong one.
    """
    inputs = [a for a in args if isinstance(a, Tensor)]
    if len(inputs) != 1 or not isinstance(t.result, Tensor) or t.result.shape != inputs[0].shape:
        raise NoRule
    return t.axes(inputs[0])


@rule("prelu", reuses="in place")
def prelu(t: Tracer, input: Tensor, weight: Tensor) -> Axes:
    axes, slope = t.axes(input), t.axes(weight)[0]
    if length(slope) > 1 or not is_fixed(slope):
        t.unify(axes[1] if len(axes) > 1 else axes[0], slope)
    return axes


@rule("glu")
def glu(t: Tracer, input: Tensor, dim: int = -1) -> Axes:
    axes = t.axes(input)
    return replaced(axes, dim, t.rows(axes[dim], 2))


# --- layers that multiply -------------------------------------------------------------------------


def equate_channels(t: Tracer, axis: Axis, *arguments: Any) -> None:
    """Equate an axis with the first axis of each argument that is a tensor."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            t.unify(axis, t.axes(argument)[0])


def group_axis(t: Tracer, axis: Axis, groups: int) -> Axis:
    """Return the axis of one of several equal groups; it is fixed if whole groups are dropped."""
    if not isinstance(groups, SymbolicInt):
        return t.rows(axis, groups)
    each = length(axis) // int(groups)
    t.unify(axis, scale(groups.axis(t.why), each))
    return fixed(each)


@rule("conv1d", "conv2d", "conv3d")
def conv(
    t: Tracer,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Axes:
    axes, (out, per_group, *kernel) = t.axes(input), t.axes(weight)
    *batch, channels = axes[: -len(kernel)]
    t.unify(group_axis(t, channels, groups), per_group)
    group_axis(t, out, groups)
    equate_channels(t, out, bias)
    if len(kernel) == 1 and keeps_length(weight.shape[2], stride, padding, dilation):
        spatial = axes[-1:]  # a conv along the channels, as in efficient channel attention
    else:
        spatial = t.unslimmable(axes[-len(kernel) :], t.result.shape[-len(kernel) :])
    t.layer(weight, out, [*batch, out, per_group, *kernel, *spatial])
    return [*batch, out, *spatial]


def keeps_length(kernel: int, *options: Any) -> bool:
    """Tell whether a conv along one axis keeps its length, whatever that length is."""
    stride, padding, dilation = (n[0] if isinstance(n, (tuple, list)) else n for n in options)
    return stride == 1 and (padding == "same" or 2 * padding == dilation * (kernel - 1))


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(
    t: Tracer,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Axes:
    axes, (inside, per_group, *kernel) = t.axes(input), t.axes(weight)
    *batch, channels = axes[: -len(kernel)]
    t.unify(channels, inside)
    group_axis(t, inside, groups)
    if isinstance(groups, SymbolicInt):
        out = scale(groups.axis(t.why), length(per_group))
    else:
        out = per_group * groups
    equate_channels(t, out, bias)
    spatial = t.unslimmable(axes[-len(kernel) :], t.result.shape[-len(kernel) :])
    t.layer(weight, out, [*batch, inside, per_group, *kernel, *axes[-len(kernel) :]])
    return [*batch, out, *spatial]


@rule("linear")
def linear(t: Tracer, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Axes:
    (*batch, last), (out, inside) = t.axes(input), t.axes(weight)
    t.unify(last, inside)
    equate_channels(t, out, bias)
    t.layer(weight, out, [*batch, out, inside])
    return [*batch, out]


@rule("matmul", "bmm", "mm", "mv")
def matmul(t: Tracer, input: Tensor, other: Tensor, **_: Any) -> Axes:
    left, right = t.axes(input), t.axes(other)
    # A vector has no rows if it is on the left, and no columns if it is on the right.
    rows, columns = left[-2:-1], right[-1:] if len(right) > 1 else []
    t.unify(left[-1], right[-2] if columns else right[-1])
    batch = broadcast(t, [left[:-2], right[:-2]])
    out = right[-1] if columns and t.node(other).constant else None
    if not (t.node(input).constant or t.node(other).constant):
        t.heads += batch
    t.layer(other, out, [*batch, *rows, left[-1], *columns], input)
    return [*batch, *rows, *columns]


@rule("addmm", "baddbmm")
def addmm(t: Tracer, input: Tensor, *factors: Tensor, **named: Any) -> Axes:
    factors += tuple(x for x in named.values() if isinstance(x, Tensor))
    return broadcast(t, [t.axes(input), matmul(t, *factors)])


@rule("einsum")
def einsum(t: Tracer, equation: str, *operands: Any) -> Axes:
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    if not arrow or "." in equation:
        raise NoRule
    letters: dict[str, Axis] = {}
    names = inputs.split(",")
    for word, operand in zip(names, operands, strict=True):
        for letter, axis in zip(word, t.axes(operand), strict=True):
            t.unify(letters.setdefault(letter, axis), axis)
    for position, factors in enumerate(products(names, output), 1):
        if factors:
            others = operands[:1] if position == 1 else ()
            t.layer(operands[position], None, [letters[x] for x in factors], *others)
    if len(operands) > 2:
        t.mark_uncounted("memory", "maps inside einsum")
    return [letters[letter] for letter in output]


def products(names: list[str], output: str) -> Iterator[list[str]]:
    """Yield the letters of each product, as torch goes through the operands from left to right.

    Letters that only one operand has are summed before the multiplication. A product over which
    nothing is summed is elementwise, so it has no letters.
    """
    left = names[0]
    for position, right in enumerate(names[1:], 2):
        needed = set(output).union(*names[position:])
        kept = [x for x in dict.fromkeys(left + right) if x in needed or (x in left and x in right)]
        yield kept if any(x not in needed for x in kept) else []
        left = "".join(x for x in kept if x in needed)


@rule("scaled_dot_product_attention")
def attention(
    t: Tracer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *_: Any,
    enable_gqa: bool = False,
    **__: Any,
) -> Axes:
    q, k, v = t.axes(query), t.axes(key), t.axes(value)
    t.unify(q[-1], k[-1])
    t.unify(k[-2], v[-2])
    if enable_gqa:  # several neighbouring heads of the query share a head of key and value
        for axes, shared in ((k, key), (v, value)):
            axes[-3] = scale(axes[-3], query.shape[-3] // shared.shape[-3])
    batch = broadcast(t, [q[:-2], k[:-2], v[:-2]])
    if attn_mask is not None:
        batch = broadcast(t, [[*batch, q[-2], k[-2]], t.axes(attn_mask)])[:-2]
    t.heads += batch
    t.layer(key, None, [*batch, q[-2], k[-2], q[-1]], query)
    t.layer(value, None, [*batch, q[-2], k[-2], v[-1]])
    return [*batch, q[-2], v[-1]]


@rule("embedding")
def embedding(t: Tracer, input: Tensor, weight: Tensor, *_: Any, **__: Any) -> Axes:
    rows, out = t.axes(weight)
    t.freeze(rows)
    t.produces(weight, out)
    return [*t.axes(input), out]


# --- normalisation --------------------------------------------------------------------------------


@rule("_weight_norm")
def weight_norm(t: Tracer, v: Tensor, g: Tensor, dim: int = 0) -> Axes:
    return broadcast(t, [t.axes(v), t.axes(g)])


@rule("batch_norm", "instance_norm", reuses="in place")
def batch_norm(t: Tracer, input: Tensor, *args: Any, **kwargs: Any) -> Axes:
    equate_channels(t, t.axes(input)[1], *args, *kwargs.values())
    return t.axes(input)


@rule("group_norm", reuses="in place")
def group_norm(t: Tracer, input: Tensor, num_groups: int, *args: Any, **kwargs: Any) -> Axes:
    axes = t.axes(input)
    group_axis(t, axes[1], num_groups)
    equate_channels(t, axes[1], *args, *kwargs.values())
    return axes


@rule("layer_norm", "rms_norm", reuses="in place")
def layer_norm(
    t: Tracer, input: Tensor, normalized_shape: Sequence[int], *args: Any, **kwargs: Any
) -> Axes:
    axes = t.axes(input)
    parameters = [t.axes(x) for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
    for back, size in enumerate(reversed(tuple(normalized_shape)), 1):
        t.follows(axes[-back], size)
        for parameter in parameters:
            t.unify(axes[-back], parameter[-back])
    return axes


# --- pooling and resizing -------------------------------------------------------------------------


@rule(
    *(f"{kind}_pool{n}d" for kind in ("max", "avg", "lp") for n in (1, 2, 3)),
    *(f"adaptive_{kind}_pool{n}d" for kind in ("max", "avg") for n in (1, 2, 3)),
    *(f"max_pool{n}d_with_indices" for n in (1, 2, 3)),
    *("interpolate", "upsample", "upsample_nearest", "upsample_bilinear", "grid_sample"),
)
def spatial(t: Tracer, input: Tensor, *_: Any, **__: Any) -> Axes:
    """Keep the two leading axes, and freeze the others."""
    axes = t.axes(input)
    shape = (t.result[0] if isinstance(t.result, tuple) else t.result).shape
    return [*axes[:2], *t.unslimmable(axes[2:], shape[2:])]


@rule("max_unpool1d", "max_unpool2d", "max_unpool3d")
def unpool(t: Tracer, input: Tensor, indices: Tensor, *_: Any, **__: Any) -> Axes:
    for a, b in zip(t.axes(input), t.axes(indices)):
        t.unify(a, b)
    return spatial(t, input)


@rule("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(t: Tracer, input: Tensor, groups: int) -> Axes:
    batch, channels, *rest = t.axes(input)
    return [batch, scale(t.rows(channels, groups), int(groups)), *rest]


@rule("pixel_shuffle")
def pixel_shuffle(t: Tracer, input: Tensor, upscale_factor: int) -> Axes:
    *batch, channels, height, width = t.axes(input)
    out = t.quotient(channels, upscale_factor**2)
    return [*batch, out, *t.unslimmable([height, width], t.result.shape[-2:])]


@rule("pixel_unshuffle")
def pixel_unshuffle(t: Tracer, input: Tensor, downscale_factor: int) -> Axes:
    *batch, channels, height, width = t.axes(input)
    out = scale(channels, downscale_factor**2)
    return [*batch, out, *t.unslimmable([height, width], t.result.shape[-2:])]


@rule("unfold")
def unfold(t: Tracer, input: Tensor, kernel_size: Any, *_: Any, **__: Any) -> Axes:
    if input.dim() != 4:
        raise NoRule
    batch, channels, *_rest = t.axes(input)
    times = t.result.shape[1] // input.shape[1]
    return [batch, scale(channels, times), fixed(t.result.shape[2])]


@rule("pad")
def pad(t: Tracer, input: Tensor, pad: Sequence[int], *_: Any, **__: Any) -> Axes:
    axes = t.axes(input)
    for back, (before, after) in enumerate(zip(pad[::2], pad[1::2]), 1):
        axes[-back] = padded(t, axes[-back], before, after)
    return axes


def padded(t: Tracer, axis: Axis, before: int, after: int) -> Axis:
    if int(before) == 0 and isinstance(after, SymbolicInt) and form(after.minus) == form(axis):
        # Padding by the difference of two widths makes one axis as long as the other.
        return after.plus
    if is_fixed(axis) and type(before) is int and type(after) is int:
        return fixed(length(axis) + before + after)
    if min(int(before), int(after)) < 0:
        raise NoRule
    ends = [t.length_axis(end) if int(end) else () for end in (before, after)]
    return ends[0] + axis + ends[1]


# --- joining and splitting ------------------------------------------------------------------------


@rule("cat", "concat", "concatenate")
def cat(t: Tracer, tensors: Sequence[Tensor], dim: int = 0, **kw: Any) -> Axes:
    dim = kw.get("axis", dim) % t.result.dim()
    parts = [t.axes(x) for x in tensors if not (x.dim() == 1 and x.numel() == 0)]
    joined: Axis = ()
    for axes in parts:
        joined += axes[dim]
    others = broadcast(t, [[*axes[:dim], fixed(1), *axes[dim + 1 :]] for axes in parts])
    return [*others[:dim], joined, *others[dim + 1 :]]


@rule("stack")
def stack(t: Tracer, tensors: Sequence[Tensor], dim: int = 0) -> Axes:
    axes = broadcast(t, [t.axes(x) for x in tensors])
    dim %= t.result.dim()
    return [*axes[:dim], fixed(len(tensors)), *axes[dim:]]


@rule("chunk")
def chunk(t: Tracer, input: Tensor, chunks: int, dim: int = 0) -> tuple[Axes, ...]:
    axes = t.axes(input)
    if is_fixed(axes[dim]):  # the last chunk may be smaller
        return tuple(replaced(axes, dim, fixed(part.shape[dim])) for part in t.result)
    return (replaced(axes, dim, t.rows(axes[dim], chunks)),) * len(t.result)


@rule("tensor_split")
def tensor_split(
    t: Tracer, input: Tensor, indices_or_sections: Any, dim: int = 0
) -> tuple[Axes, ...]:
    return chunk(t, input, indices_or_sections, dim)


@rule("split", "split_with_sizes")
def split(t: Tracer, input: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Axes, ...]:
    axes, sizes, parts = t.axes(input), split_size_or_sections, len(t.result)
    if isinstance(sizes, SymbolicInt) and int(sizes) * parts == length(axes[dim]):
        row = t.rows(axes[dim], parts)
        t.follows(row, sizes)
        return (replaced(axes, dim, row),) * parts
    rest, pieces = axes[dim], []
    for size in [sizes] * parts if isinstance(sizes, int) else sizes:
        piece, rest = t.cut(rest, int(size))
        t.follows(piece, size)
        pieces.append(replaced(axes, dim, piece))
    return tuple(pieces)


@rule("unbind")
def unbind(t: Tracer, input: Tensor, dim: int = 0) -> Axes:
    axes = t.axes(input)
    t.freeze(axes.pop(dim))
    return axes


def replaced(axes: Axes, dim: int, axis: Axis) -> Axes:
    result = list(axes)
    result[dim] = axis
    return result


def unpacked(sizes: Any) -> Any:
    """Return the sizes of a call that takes them either as one sequence or as several integers."""
    return sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes


# --- views ----------------------------------------------------------------------------------------


@rule("view", "reshape", "_unsafe_view", reuses="view")
def reshape(t: Tracer, input: Tensor, *sizes: Any, shape: Any = None) -> Axes:
    wanted = unpacked(sizes if shape is None else shape)
    if isinstance(wanted, torch.dtype):
        raise NoRule
    return regroup(t, t.axes(input), list(wanted), list(t.result.shape))


@rule("flatten", reuses="view")
def flatten(t: Tracer, input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Axes:
    axes = t.axes(input)
    start, stop = start_dim % len(axes), end_dim % len(axes) + 1
    return [*axes[:start], t.merge(axes[start:stop]), *axes[stop:]]


@rule("unflatten", reuses="view")
def unflatten(t: Tracer, input: Tensor, dim: int, sizes: Sequence[int]) -> Axes:
    axes = t.axes(input)
    dim %= len(axes)
    shape = list(t.result.shape[dim : dim + len(sizes)])
    return [*axes[:dim], *factored(t, axes[dim], list(sizes), shape), *axes[dim + 1 :]]


@rule("view_as", "reshape_as", reuses="view")
def reshape_as(t: Tracer, input: Tensor, other: Tensor) -> Axes:
    wanted = [SymbolicInt.of(t.algebra, axis) for axis in t.axes(other)]
    return regroup(t, t.axes(input), wanted, list(t.result.shape))


def regroup(t: Tracer, axes: Axes, wanted: list[int], shape: list[int]) -> Axes:
    """Read the same entries with other axes, as a view does."""
    wanted = [t.recall(size) for size in wanted]
    old = [full_length(axis) for axis in axes]
    new = [full_size(size) for size in wanted]
    if -1 in new:
        new[new.index(-1)] = math.prod(old) // -math.prod(new)
    result = Axes()
    for group, parts in matched(old, new):
        axis = t.merge(axes[group]) if axes[group] else fixed(1)
        result += factored(t, axis, wanted[parts], shape[parts])
    return result


def full_size(size: int) -> int:
    """Return a size at full width, also while a trial child is traced."""
    return size.full if isinstance(size, SymbolicInt) else int(size)


def matched(old: list[int], new: list[int]) -> Iterator[tuple[slice, slice]]:
    """Yield runs of old and new axes of equal total size.

    The sizes are those at full width, where no slimmable axis has a single entry, which could
    belong to either of two runs.
    """
    i = j = 0
    while i < len(old) or j < len(new):
        group, parts = i, j
        i, j = min(i + 1, len(old)), min(j + 1, len(new))
        while (size := math.prod(old[group:i])) != (target := math.prod(new[parts:j])):
            if (i if size < target else j) == len(old if size < target else new):
                raise NoRule
            i, j = (i + 1, j) if size < target else (i, j + 1)
        yield slice(group, i), slice(parts, j)


def factored(t: Tracer, axis: Axis, wanted: list[int], shape: list[int]) -> Axes:
    """Read one axis as several. -1 and symbolic sizes follow the width, literal ones do not."""
    wanted = [t.recall(size) for size in wanted]
    if not shape:
        return []
    if is_fixed(axis):
        for size in wanted:
            if isinstance(size, SymbolicInt):
                size.freeze(t.why)
        return [fixed(size) for size in shape]
    if len(shape) == 1:
        if int(wanted[0]) != -1:
            t.follows(axis, wanted[0])
        return [axis]
    if int(wanted[0]) == -1 and full_length(axis) == math.prod(map(full_size, wanted[1:])):
        return [fixed(1), *factored(t, axis, wanted[1:], shape[1:])]
    if isinstance(wanted[0], SymbolicInt) or int(wanted[0]) == -1:
        # Of (heads, size of a head) whole heads leave, and the size stays.
        for size in wanted[1:]:
            if isinstance(size, SymbolicInt):
                size.freeze(f"the size of a part that may leave as a whole, at {t.why}")
        if is_fixed(axis):
            return factored(t, axis, wanted, shape)
        outer = t.quotient(axis, math.prod(shape[1:]))
        return [*factored(t, outer, wanted[:1], shape[:1]), *(fixed(size) for size in shape[1:])]
    row = t.rows(axis, shape[0])
    return [fixed(shape[0]), *factored(t, row, wanted[1:], shape[1:])]


@rule("squeeze", reuses="view")
def squeeze(t: Tracer, input: Tensor, dim: Any = None) -> Axes:
    axes = t.axes(input)
    if dim is None:
        # A slimmable axis of one channel would vanish in a child; the trial children show that.
        return [axis for axis in axes if not (is_fixed(axis) and length(axis) == 1)]
    dims = {d % len(axes) for d in ((dim,) if isinstance(dim, int) else dim)}
    return [a for d, a in enumerate(axes) if d not in dims or length(a) > 1 or not is_fixed(a)]


@rule("expand", "broadcast_to", reuses="view")
def expand(t: Tracer, input: Tensor, *sizes: Any, **kw: Any) -> Axes:
    wanted = unpacked(kw.get("size", sizes))
    axes = [fixed(1)] * (t.result.dim() - input.dim()) + t.axes(input)
    for position, (axis, size) in enumerate(zip(axes, wanted, strict=True)):
        if is_fixed(axis) and length(axis) == 1:
            axes[position] = t.length_axis(t.result.shape[position] if int(size) == -1 else size)
        elif int(size) != -1:
            t.follows(axis, size)
    return axes


@rule("expand_as", reuses="view")
def expand_as(t: Tracer, input: Tensor, other: Tensor) -> Axes:
    return broadcast(t, [t.axes(input), t.axes(other)])


@rule("repeat", "tile")
def repeat(t: Tracer, input: Tensor, *sizes: Any) -> Axes:
    axes = [fixed(1)] * (t.result.dim() - input.dim()) + t.axes(input)
    for position, (axis, times) in enumerate(zip(axes, unpacked(sizes), strict=True)):
        if is_fixed(axis) and length(axis) == 1:
            axes[position] = t.length_axis(times)
        else:
            if isinstance(times, SymbolicInt):
                times.freeze(t.why)
            axes[position] = axis * int(times)
    return axes


@rule("repeat_interleave")
def repeat_interleave(
    t: Tracer, input: Tensor, repeats: Any, dim: int | None = None, **_: Any
) -> Axes:
    if not isinstance(repeats, int) or isinstance(repeats, SymbolicInt) or dim is None:
        raise NoRule
    axes = t.axes(input)
    return replaced(axes, dim, scale(axes[dim], repeats))


@rule("__getitem__")
def getitem(t: Tracer, input: Tensor, key: Any) -> Axes:
    keys = list(key) if isinstance(key, tuple) else [key]
    if any(not isinstance(k, (int, slice, type(None), type(...), Tensor)) for k in keys):
        raise NoRule
    tables = [k for k in keys if isinstance(k, Tensor)]
    if len(tables) > 1 or (tables and any(isinstance(k, int) for k in keys)):
        raise NoRule
    masked = sum(k.dim() - 1 for k in tables if k.dtype == torch.bool)
    given = sum(k is not None and k is not ... for k in keys) + masked
    if not any(k is ... for k in keys):
        keys.append(...)
    rest, result = t.axes(input), Axes()
    for k in keys:
        if k is None:
            result.append(fixed(1))
        elif k is ...:
            count = input.dim() - given
            result, rest = result + rest[:count], rest[count:]
        elif isinstance(k, int):
            axis = rest.pop(0)
            if int(k) not in (0, -1):
                t.freeze(axis)
        elif isinstance(k, Tensor):
            result += looked_up(t, rest, k)
        else:
            result.append(sliced(t, rest.pop(0), k))
    return result


def looked_up(t: Tracer, rest: Axes, index: Tensor) -> Axes:
    """Take the indexed axes from `rest`; their entries have positions, so they keep their size."""
    is_mask = index.dtype == torch.bool
    for axis in t.axes(index):
        t.freeze(axis)
    for _axis in range(index.dim() if is_mask else 1):
        t.freeze(rest.pop(0))
    return [fixed(int(index.sum()))] if is_mask else [fixed(size) for size in index.shape]


@rule("index_select")
def index_select(t: Tracer, input: Tensor, dim: int, index: Tensor) -> Axes:
    return getitem(t, input, (slice(None),) * (dim % input.dim()) + (index,))


@rule("select")
def select(t: Tracer, input: Tensor, dim: int, index: Any) -> Axes:
    return getitem(t, input, (slice(None),) * (dim % input.dim()) + (index,))


@rule("narrow")
def narrow(t: Tracer, input: Tensor, dim: int, start: int, length: int) -> Axes:
    return select(t, input, dim, slice(start, start + length))


@rule("__setitem__")
def setitem(t: Tracer, input: Tensor, key: Any, value: Any) -> Axes:
    target = getitem(t, input, key)
    if isinstance(value, Tensor):
        broadcast(t, [target, t.axes(value)])
    return t.axes(input)


def sliced(t: Tracer, axis: Axis, part: slice) -> Axis:
    bounds = [None if v is None else int(v) for v in (part.start, part.stop, part.step)]
    start, stop, step = slice(*bounds).indices(total := length(axis))
    if is_fixed(axis):
        return fixed(len(range(start, stop, step)))
    literal = None if isinstance(part.stop, SymbolicInt) else bounds[1]
    if step == 1 and start == 0 and (part.stop is None or (literal or 0) >= total):
        # The slice keeps everything, and at a smaller width there is even less to cut off.
        return axis
    if step != 1 or min(bound or 0 for bound in bounds) < 0:
        t.freeze(axis)
        return fixed(len(range(start, stop, step)))
    before, rest = t.cut(axis, start)
    if before:
        t.follows(before, part.start)
    if part.stop is None:
        return rest
    piece, _ = t.cut(rest, stop - start)
    t.follows(before + piece, part.stop)
    return piece


# --- permutations and reductions ------------------------------------------------------------------


@rule(
    *("mean", "sum", "prod", "amax", "amin", "std", "var", "var_mean", "std_mean", "logsumexp"),
    *("norm", "vector_norm", "linalg_vector_norm", "all", "any", "median"),
    *("nanmean", "nansum", "count_nonzero", "aminmax"),
)
@rule(
    *("permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "unsqueeze"),
    *("t", "T", "mT", "adjoint", "H", "mH"),
    reuses="view",
)
def probe(t: Tracer, input: Tensor, *args: Any, out: Any = None, **kwargs: Any) -> Axes:
    """Find where the axes go by a trial with a small tensor whose axes have different lengths."""
    trial = torch.empty(*range(2, input.dim() + 2), dtype=input.dtype, device="meta")
    result = t.func(trial, *args, **kwargs)
    t.counter.since_last_call()  # the trial itself does not count
    shape = (result[0] if isinstance(result, tuple) else result).shape
    axes = t.axes(input)
    return [axes[size - 2] if size > 1 else fixed(1) for size in shape]


@rule("argmax", "argmin")
def index_of_extreme(t: Tracer, input: Tensor, *args: Any, **kwargs: Any) -> Axes:
    axes = probe(t, input, *args, **kwargs)
    kept = list(axes)
    for axis in t.axes(input):
        if axis in kept:
            kept.remove(axis)
        else:  # the index of a channel has a meaning
            t.freeze(axis)
    return axes


@rule("max", "min")
def extreme(t: Tracer, input: Tensor, *args: Any, **kw: Any) -> Axes:
    if args and isinstance(args[0], Tensor):
        return pointwise(t, input, *args)
    return probe(t, input, *args, **kw)


# --- new tensors ----------------------------------------------------------------------------------


@rule(
    *("zeros", "ones", "empty", "rand", "randn", "full"),
    *("new_zeros", "new_ones", "new_empty", "new_full"),
)
def new(t: Tracer, *args: Any, size: Any = None, **_: Any) -> Axes:
    given = [argument for argument in args if not isinstance(argument, Tensor)]
    if size is None:  # a value follows the size of torch.full
        size = given[0] if t.op in ("full", "new_full") else unpacked(given)
    return [t.length_axis(n) for n in size]
