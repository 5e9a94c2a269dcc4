"""Each rule on a tiny network, at widths drawn by hypothesis."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import joslim
from joslim.slimmable import op_rules

CHANNELS = {"a": 8, "b": 8, "c": 12}


class Tiny(nn.Module):
    """Convolutions a, b and c, as many as `op` takes; what it gives is averaged and classified.

    The two layers behind them stay free, so that there is something to slim in any case.
    """

    def __init__(self, op: Callable[..., Tensor]) -> None:
        super().__init__()
        self.op = op
        call = op.forward if isinstance(op, nn.Module) else op
        self.names = list(inspect.signature(call).parameters)
        for name in self.names:
            self.add_module(name, nn.Conv2d(3, CHANNELS[name], 3, padding=1))
        with torch.no_grad():
            features = self.features(torch.zeros(1, 3, 6, 6)).shape[1]
        self.neck, self.throat, self.fc = nn.Linear(features, 6), nn.Linear(6, 6), nn.Linear(6, 5)

    def features(self, x: Tensor) -> Tensor:
        y = self.op(*(getattr(self, name)(x) for name in self.names))
        return y.mean(tuple(range(2, y.dim()))) if y.dim() > 2 else y

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.throat(F.relu(self.neck(self.features(x))))))


class Module(nn.Module):
    """A layer in the middle, under the name that says what it is given."""

    def __init__(self, layer: nn.Module, around: Callable[..., Tensor] | None = None) -> None:
        super().__init__()
        self.layer = layer
        self.around = around or (lambda layer, a: layer(a))

    def forward(self, a: Tensor) -> Tensor:
        return self.around(self.layer, a)


def shuffle(a: Tensor, groups: int) -> Tensor:
    n, c, h, w = a.shape
    return a.view(n, groups, c // groups, h, w).transpose(1, 2).reshape(n, -1, h, w)


def pooled(a: Tensor) -> Tensor:
    y, where = F.max_pool2d(a, 2, return_indices=True)
    return F.max_unpool2d(y, where, 2)


def filled(a: Tensor, b: Tensor) -> Tensor:
    y = torch.zeros_like(a)
    y[:, :, 1:] = b[:, :, :-1]
    return y


def attention(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    q, k, v = (x.flatten(2).transpose(1, 2) for x in (a, b, c))
    return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2)


def branches(c: Tensor) -> Tensor:
    if c.shape[1] % 4 == 0 and c.size(2) == 6:
        return c.view(c.size(0), 4, -1, 6, 6).sum(1)
    return c


def with_length(c: Tensor) -> Tensor:
    small, large = c.split([c.shape[1] // 4, c.shape[1] - c.shape[1] // 4], dim=1)
    return torch.cat([large, small], 1)


# name: (at least so many knobs, the operation)
POINTWISE: dict[str, tuple[int, Any]] = {
    "add": (1, lambda a, b: a + b),
    "add_in_place": (1, lambda a, b: a.add_(b)),
    "augmented": (1, lambda a, b: exec("a += b") or a.mul(b)),
    "sub_div": (1, lambda a, b: (a - b) / (b.abs() + 1)),
    "numbers": (1, lambda a: 2 - 1 / (1 + torch.exp(-a)) ** 2),
    "floor_division": (1, lambda a: a // 2),
    "negated": (1, lambda a: -a.abs()),
    "gate": (1, lambda a, b: a * b.mean((2, 3), keepdim=True).sigmoid()),
    "place_gate": (2, lambda a, c: a * c.amax(1, keepdim=True)),
    "where": (1, lambda a, b: torch.where(a > b, a, b.square())),
    "maximum": (1, lambda a, b: torch.maximum(a, b) + torch.min(a, b)),
    "lerp": (1, lambda a, b: torch.lerp(a, b, 0.3)),
    "masked": (1, lambda a: a.masked_fill(a < 0, 0.5).clamp(max=1.0)),
    "addcmul": (1, lambda a, b: torch.addcmul(a, a, b, value=0.5)),
    "by_name": (1, lambda a, b: torch.add(input=a, other=b, alpha=2)),
    "scalar": (1, lambda a: a * torch.tensor(3.0) + a.mean()),
    "softmax": (1, lambda a: a.softmax(1) + F.log_softmax(a, dim=1)),
    "normalized": (1, lambda a: F.normalize(a, dim=1)),
    "dropout": (1, lambda a: F.dropout2d(F.dropout(a, 0.5, False), 0.5, False)),
    "cast": (1, lambda a: a.double().to(torch.float32).type_as(a).contiguous().clone()),
    "cumulated": (1, lambda a: a.cumsum(1) + a.flip(1) + a.roll(1, dims=1)),
    "sorted": (1, lambda a: a.sort(dim=1).values),
    "prelu": (1, Module(nn.PReLU(8))),
    "prelu_single": (1, Module(nn.PReLU())),
    "glu": (1, lambda c: F.glu(c, dim=1)),
    "no_tensor": (1, lambda a: a * (len(a) + a.dim() + a.numel() * 0)),
}
ACTIVATIONS = (
    *("relu", "relu6", "leaky_relu", "elu", "selu", "celu", "silu", "mish", "gelu", "hardswish"),
    *("hardsigmoid", "hardtanh", "softplus", "softsign", "tanhshrink", "hardshrink", "softshrink"),
    *("logsigmoid", "rrelu", "sigmoid", "tanh"),
)
LAYERS: dict[str, tuple[int, Any]] = {
    "conv": (2, Module(nn.Conv2d(8, 10, 3))),
    "conv_circular": (2, Module(nn.Conv2d(8, 10, 3, padding=1, padding_mode="circular"))),
    "conv_same": (2, Module(nn.Conv2d(8, 10, 3, padding="same", dilation=2))),
    "conv_grouped": (1, Module(nn.Conv2d(8, 12, 3, groups=4))),
    "conv_depthwise": (1, Module(nn.Conv2d(8, 8, 5, padding=2, groups=8))),
    "conv_multiplied": (1, Module(nn.Conv2d(8, 24, 3, groups=8))),
    "conv_of_one_image": (2, Module(nn.Conv2d(8, 10, 3), lambda f, a: f(a[0])[None])),
    "conv1d": (2, Module(nn.Conv1d(8, 10, 3), lambda f, a: f(a.flatten(2)))),
    "conv3d": (2, Module(nn.Conv3d(8, 10, 1), lambda f, a: f(a[:, :, None]))),
    "transposed": (2, Module(nn.ConvTranspose2d(8, 10, 4, 2, 1))),
    "transposed_no_bias": (2, Module(nn.ConvTranspose2d(8, 10, 3, bias=False))),
    "transposed_grouped": (1, Module(nn.ConvTranspose2d(8, 12, 2, 2, groups=4))),
    "transposed_depthwise": (1, Module(nn.ConvTranspose2d(8, 8, 2, 2, groups=8))),
    "transposed1d": (2, Module(nn.ConvTranspose1d(8, 10, 2, 2), lambda f, a: f(a.flatten(2)))),
    "linear_on_flat": (2, Module(nn.Linear(8 * 36, 10), lambda f, a: f(a.flatten(1)))),
    "linear_channels_last": (
        2,
        Module(nn.Linear(8, 10), lambda f, a: f(a.permute(0, 2, 3, 1)).movedim(-1, 1)),
    ),
    "linear_no_bias": (2, Module(nn.Linear(8, 10, bias=False), lambda f, a: f(a.mean((2, 3))))),
    "linear_on_places": (1, Module(nn.Linear(6, 4))),
    "gram": (2, lambda a, c: a.flatten(2) @ c.flatten(2).transpose(1, 2)),
    "bmm": (1, lambda a, b: torch.bmm(a.flatten(2).mT, b.flatten(2)).flatten(2).mean(2)[:, None]),
    "einsum": (2, lambda a, c: torch.einsum("nchw,ndhw->ncd", a, c)),
    "einsum_list": (1, lambda a, b: torch.einsum("nchw, nchx -> nwx", [a, b])),
    "attention": (2, attention),
    "blur": (
        1,
        lambda a: F.conv2d(a, torch.ones(1, 1, 3, 3).repeat(a.size(1), 1, 1, 1), groups=a.size(1)),
    ),
    "blur_expanded": (
        1,
        lambda a: F.conv2d(
            a, torch.ones(1, 1, 3, 3).expand(a.shape[1], -1, -1, -1), groups=a.shape[1]
        ),
    ),
}
NORMS: dict[str, tuple[int, Any]] = {
    "batch": (1, Module(nn.BatchNorm2d(8))),
    "batch_plain": (1, Module(nn.BatchNorm2d(8, affine=False))),
    "batch_untracked": (1, Module(nn.BatchNorm2d(8, track_running_stats=False))),
    "batch1d": (1, Module(nn.BatchNorm1d(8), lambda f, a: f(a.flatten(2)))),
    "instance": (1, Module(nn.InstanceNorm2d(8))),
    "instance_tracked": (1, Module(nn.InstanceNorm2d(8, affine=True, track_running_stats=True))),
    "group": (1, Module(nn.GroupNorm(4, 8))),
    "group_single": (1, Module(nn.GroupNorm(1, 8))),
    "group_each": (1, Module(nn.GroupNorm(8, 8))),
    "group_plain": (1, Module(nn.GroupNorm(2, 8, affine=False))),
    "group_functional": (1, lambda a: F.group_norm(a, 4)),
    "layer": (1, Module(nn.LayerNorm(8), lambda f, a: f(a.movedim(1, -1)).movedim(-1, 1))),
    "layer_whole": (1, Module(nn.LayerNorm([8, 6, 6]))),
    "layer_places": (1, Module(nn.LayerNorm([6, 6]))),
    "layer_plain": (1, Module(nn.LayerNorm([8, 6, 6], elementwise_affine=False))),
    "layer_by_shape": (1, lambda a: F.layer_norm(a, a.shape[1:])),
    "rms": (1, Module(nn.RMSNorm(8), lambda f, a: f(a.transpose(1, 3)).transpose(1, 3))),
    "local_response": (1, Module(nn.LocalResponseNorm(3))),
}
SPATIAL: dict[str, tuple[int, Any]] = {
    "max": (1, lambda a: F.max_pool2d(a, 3, 2, 1)),
    "max_indices": (1, pooled),
    "average": (1, lambda a: F.avg_pool2d(a, a.size()[2:])),
    "power": (1, lambda a: F.lp_pool2d(a.abs(), 2, 2)),
    "adaptive": (1, lambda a: F.adaptive_avg_pool2d(a, (2, None))),
    "adaptive_max": (1, lambda a: F.adaptive_max_pool2d(a, 1)),
    "pool1d": (1, lambda a: F.avg_pool1d(a.flatten(2), 4)),
    "nearest": (1, lambda a: F.interpolate(a, scale_factor=2)),
    "bilinear": (1, lambda a: F.interpolate(a, size=a.shape[2:], mode="bilinear")),
    "grid": (1, lambda a: F.grid_sample(a, torch.zeros(a.size(0), 3, 3, 2), align_corners=True)),
    "pixel_shuffle": (1, lambda c: F.pixel_shuffle(c, 2)),
    "pixel_unshuffle": (1, lambda a: F.pixel_unshuffle(a, 3)),
    "unfold": (1, lambda a: F.unfold(a, 3, padding=1)),
    "pad": (1, lambda a: F.pad(a, (1, 2, 0, 1), mode="reflect")),
    "crop": (1, lambda a: F.pad(a, (-1, -1, 0, 0))),
    "pad_channels": (1, lambda a: F.pad(a, (0, 0, 0, 0, 2, 3))),
    "pad_to_literal": (0, lambda a, b: torch.cat([b, F.pad(a, (0,) * 5 + (12 - a.size(1),))], 1)),
    "pad_difference": (
        2,
        lambda a, c: c + F.pad(a, (0, 0, 0, 0, 0, c.shape[1] - a.shape[1])),
    ),
    "crop_difference": (
        2,
        lambda a, c: a + F.pad(c, (0, 0, 0, 0, 0, a.shape[1] - c.shape[1])),
    ),
    "pad_before": (0, lambda a, b, c: torch.cat(
        [b, c + F.pad(a, (0, 0, 0, 0, c.shape[1] - a.shape[1], 0))], 1)),
}  # fmt: skip
JOINING: dict[str, tuple[int, Any]] = {
    "cat": (2, lambda a, c: torch.cat([a, c], 1)),
    "cat_axis": (2, lambda a, c: torch.concat((a, c), axis=-3)),
    "cat_twice": (1, lambda a: torch.cat([a, a * 2], dim=1)),
    "cat_places": (1, lambda a, b: torch.cat([a, b], dim=3)),
    "cat_zeros": (1, lambda a: torch.cat([a, a.new_zeros(a.size(0), 4, 6, 6)], dim=1)),
    "cat_added": (2, lambda a, b, c: torch.cat([a, c], 1) + torch.cat([c, b], 1)),
    "stack": (1, lambda a, b: torch.stack([a, b], dim=2)),
    "chunk": (1, lambda c: torch.mul(*c.chunk(2, 1))),
    "chunk_three": (1, lambda c: sum(torch.chunk(c, 3, dim=1))),
    "chunk_uneven": (1, lambda a, c: torch.cat([a.chunk(3, 1)[0], c], 1)),
    "split_even": (1, lambda c: sum(c.split(c.shape[1] // 2, dim=1))),
    "split_literal": (0, lambda c: torch.cat(c.split([3, 9], dim=1)[::-1], 1)),
    "split_lengths": (0, with_length),
    "tensor_split": (1, lambda c: sum(c.tensor_split(3, dim=1))),
    "unbind": (1, lambda a: sum(a.unbind(3))),
    "shuffle": (1, lambda c: shuffle(c, 3)),
    "chunk_then_shuffle": (2, lambda a, c: shuffle(torch.cat([*c.chunk(2, 1), a], 1), 2)),
}
VIEWS: dict[str, tuple[int, Any]] = {
    "view_sized": (1, lambda a: a.view(a.size(0), -1)),
    "view_pooled": (1, lambda a: F.adaptive_avg_pool2d(a, 1).view(a.size(0), -1)),
    "view_gate": (
        1,
        lambda a: a * F.avg_pool2d(a, 6).view(*a.size()[:2]).view(*a.size()[:2], 1, 1),
    ),
    "view_all_sized": (1, lambda a: a.view(*a.shape[:2], a.shape[2] * a.shape[3])),
    "view_multiplied": (1, lambda a: a.reshape(a.size(0), a.size(1) * a.size(2) * a.size(3))),
    "view_literal": (0, lambda a, b: torch.cat([b.flatten(1), a.view(-1, 288)], 1)),
    "view_pairs": (1, lambda a: a.view(a.shape[0], a.shape[1] // 2, 2, 6, 6).amax(2)),
    "view_heads": (1, lambda c: c.view(c.size(0), 4, c.size(1) // 4, 36).mean(1)),
    "view_unknown_heads": (1, lambda c: c.reshape(-1, 2, c.shape[1] // 2, 36).mean(1)),
    "view_divided": (1, branches),
    "flatten": (1, lambda a: torch.flatten(a, 1)),
    "flatten_batch": (1, lambda a: a.flatten(0, 1).view(a.size(0), a.size(1), 6, 6)),
    "unflatten": (1, lambda c: c.unflatten(1, (-1, 3)).mean(2)),
    "as_other": (1, lambda a, b: a.flatten(2).view_as(b) * b),
    "permute": (1, lambda a: a.permute(0, 2, 3, 1).permute((0, 3, 1, 2))),
    "transposes": (1, lambda a: a.swapaxes(1, 2).transpose(-3, -2).mT),
    "movedim": (1, lambda a: a.movedim(1, -1).moveaxis(-1, 1)),
    "squeezes": (1, lambda a: a.mean((2, 3), keepdim=True).squeeze(-1).squeeze(-1).unsqueeze(-1)),
    "squeeze_dims": (1, lambda a: a.mean((2, 3), keepdim=True).squeeze((2, 3))),
    "squeeze_all": (1, lambda a, b: torch.cat(
        [b.mean((2, 3)), a.mean((2, 3), keepdim=True).squeeze().reshape(b.size(0), -1)], 1)),
    "expand": (1, lambda a: a.mean((2, 3), keepdim=True).expand(-1, a.size(1), 6, 6) * a),
    "expand_new": (2, lambda a, c: a.mean(1, keepdim=True).expand(-1, c.size(1), -1, -1) + c),
    "expand_as": (1, lambda a, b: a.amax(2, keepdim=True).expand_as(b) + b),
    "repeat": (1, lambda a: a.repeat(1, 3, 1, 2)),
    "repeat_one": (2, lambda a, c: a.mean(1, keepdim=True).repeat(1, c.shape[1], 1, 1) * c),
    "interleave": (1, lambda a: a.repeat_interleave(2, dim=1)),
    "index_places": (1, lambda a: a[..., 1:4, 2]),
    "index_none": (1, lambda a: a[:, :, None][:, :, 0]),
    "index_first": (1, lambda a: torch.cat([a, a[:, :1], a[:, -1][:, None]], 1)),
    "slice_literal": (2, lambda a, b, c: torch.cat([a[:, :4], b, c], 1)),
    "slice_rest": (1, lambda c: torch.cat([c[:, 5:], c[:, :5]], 1)),
    "slice_half": (1, lambda c: c[:, : c.shape[1] // 2] + c[:, c.shape[1] // 2 :]),
    "slice_beyond": (1, lambda a: a[:, :100]),
    "slice_strided": (1, lambda a, c: torch.cat([a[:, ::2], c], 1)),
    "slice_negative": (1, lambda a, c: torch.cat([a[:, -3:], c], 1)),
    "slice_to_smaller": (1, lambda a, c: torch.cat([a, c[:, : a.shape[1]]], 1)),
    "narrow": (0, lambda c: c.narrow(1, 0, c.shape[1] // 2) * c.narrow(1, c.shape[1] // 2, 6)),
    "select": (1, lambda a: a.select(2, 3).select(-1, 0)),
    "mask": (1, lambda a, c: torch.cat([a[:, torch.arange(8) % 2 == 0], c], 1)),
    "setitem": (1, filled),
}  # fmt: skip
REDUCING: dict[str, tuple[int, Any]] = {
    "mean_places": (1, lambda a: a.mean(3).mean(2)),
    "sums": (1, lambda a: torch.sum(a, (2,), True).sum(dim=(2, 3)) + a.prod(2).sum(-1)),
    "spread": (1, lambda a: a.std((2, 3)) + a.var(dim=(2, 3), unbiased=False)),
    "var_mean": (1, lambda a: torch.var_mean(a, dim=(2, 3))[1]),
    "extremes": (1, lambda a: a.amax((2, 3)) - a.amin((2, 3)) + a.max(3)[0].min(2).values),
    "log_sum": (1, lambda a: a.logsumexp((2, 3))),
    "norms": (1, lambda a: a.norm(dim=(2, 3)) + torch.linalg.vector_norm(a, 2, (2, 3))),
    "over_channels": (1, lambda a: torch.cat([a.mean(1, True), a.max(1, True)[0], a], 1)),
    "argmax": (0, lambda a: a * a.argmax(1, keepdim=True)),
    "all_of_it": (1, lambda a: a / a.abs().max() + a.sum() * 0.01),
    "median": (1, lambda a: a.flatten(2).median(-1).values),
}
NEW: dict[str, tuple[int, Any]] = {
    "zeros": (2, lambda a, c: torch.cat([torch.zeros(a.size(0), a.size(1), 6, 6), c], 1) + 1
              + torch.cat([a, c], 1)),
    "like": (1, lambda a: torch.ones_like(a) * a + torch.full_like(a, 2.0)),
    "shaped": (1, lambda a: torch.zeros(a.shape) + a.new_ones(a.size()) * a),
    "full": (1, lambda a: torch.full(a.shape, 0.5) * a + a.new_full(a.shape, 2.0)),
    "missing_zeros": (1, lambda a, b, c: torch.cat(
        [b, c + torch.cat([a, a.new_zeros(a.size(0), c.size(1) - a.size(1), 6, 6)], 1)], 1)),
}  # fmt: skip
NO_RULE: dict[str, tuple[int, Any]] = {
    "fft": (1, lambda a, c: torch.cat([torch.fft.fft(a, dim=1).real, c], 1)),
    "topk": (1, lambda a, c: torch.cat([a.topk(3, dim=1).values, c], 1)),
    "gather": (1, lambda a, c: torch.cat([a.index_select(1, torch.tensor([0, 5])), c], 1)),
    "bilinear": (1, Module(nn.Sequential(nn.Bilinear(8, 8, 4), nn.Linear(4, 6)), lambda f, a: f[1](
        f[0](a.mean((2, 3)), a.amax((2, 3)))))),
    "constant": (1, lambda a, c: torch.cat([a + torch.arange(8.0).view(1, 8, 1, 1), c], 1)),
    "many_heads": (0, Module(nn.MultiheadAttention(8, 2, batch_first=True), lambda f, a: f(
        *[a.flatten(2).mT] * 3)[0].mT.repeat(1, 1, 1))),
}  # fmt: skip

FAMILIES = {
    "pointwise": POINTWISE,
    "activation": {name: (1, getattr(torch, name, getattr(F, name, None))) for name in ACTIVATIONS},
    "layer": LAYERS,
    "norm": NORMS,
    "spatial": SPATIAL,
    "joining": JOINING,
    "view": VIEWS,
    "reduction": REDUCING,
    "new": NEW,
    "no_rule": NO_RULE,
}
CASES = {
    f"{family}-{name}": case for family, cases in FAMILIES.items() for name, case in cases.items()
}
EXAMPLE = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(3))


def activation(function: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda a: function(a)


@cache
def slimmed(case: str, low: float = 0.25) -> Any:
    torch.manual_seed(0)
    op = copy.deepcopy(CASES[case][1])
    model = Tiny(activation(op) if case.startswith("activation") else op).eval()
    return joslim.slim(model, EXAMPLE, low=low)


def free(net: Any) -> int:
    """How many knobs there are besides those of the two layers behind."""
    return sum(not {"neck", "throat"} & {dim.name} for dim in net.space.dims)


@pytest.mark.parametrize("case", list(CASES))
def test_enough_channels_stay_free(case):
    assert free(slimmed(case)) >= CASES[case][0]


@pytest.mark.parametrize("case", list(CASES))
def test_a_single_channel_is_as_good_as_several(case, assert_same):
    net = slimmed(case, low=0.1)
    check_child(net, net.space.smallest, assert_same)
    # squeeze() would take a single channel away, so there it is frozen.
    assert free(net) == free(slimmed(case)) or case == "view-squeeze_all"


def check_child(net: Any, widths: Any, assert_same: Callable[..., None]) -> None:
    child = net.child(widths).eval()
    with torch.no_grad(), net.at(widths):
        assert_same(net(EXAMPLE), child(EXAMPLE))
    assert joslim.cost("macs", net)(widths) == macs_of(child, *net.example)


def macs_of(child: nn.Module, *inputs: Tensor) -> int:
    """By torch's counter, with attention as the matrix products that it is."""

    def bilinear(x: Any, weight: Any, y: Any, *_: Any, **__: Any) -> int:
        return 2 * x[0] * weight[0] * (weight[1] + 1) * weight[2]

    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten._trilinear: bilinear})
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), counter, torch.no_grad():
            child.eval()(*inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("case", CASES)
def test_children_run_and_agree_at_any_width(case, assert_same):
    net = slimmed(case)

    @settings(max_examples=6, database=None)
    @given(st.lists(st.floats(0, 1), min_size=len(net.space), max_size=len(net.space)))
    def check(shares: list[float]) -> None:
        low = net.space.low
        check_child(net, net.space.at(low + (1 - low) * shares), assert_same)

    check_child(net, net.space.smallest, assert_same)
    check()


@pytest.mark.parametrize("case", CASES)
def test_layers_have_the_sizes_that_the_blueprint_foresees(case, children):
    net = slimmed(case)
    widths = children(net.space, 1)[1]
    child, sizes = net.child(widths).eval(), {}
    for name, module in child.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_forward_hook(lambda m, i, out, name=name: sizes.update({name: out}))
    with torch.no_grad():
        child(*net.example)
    seen = 0
    for layer in net.blueprint.layers:
        if layer.name in sizes:
            term = net.blueprint.maps[layer.maps[-1]]
            foreseen = term.times
            for layout in term.layouts:
                foreseen *= layout.size(widths.units)
            assert foreseen == sizes[layer.name].numel()
            seen += 1
    assert seen >= 2


# --- what a rule must not do ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "layer", "why"),
    [
        ("no_rule-fft", "a", "no rule for fft_fft"),
        ("no_rule-topk", "a", "no rule for topk"),
        ("reduction-argmax", "a", "argmax in"),
        ("no_rule-gather", "a", "index_select in forward"),
        ("no_rule-constant", "a", "add"),
        ("view-view_literal", "a", "a literal size of 288 in view"),
        ("view-slice_strided", "a", "__getitem__"),
        ("joining-chunk_uneven", "a", "chunk"),
        ("joining-split_literal", "c", "a literal size of 3 in split"),
    ],
)
def test_what_freezes_a_layer_is_named(case, layer, why):
    frozen = {f.layer: f.why for f in slimmed(case).frozen}
    assert why in frozen[layer]


def test_a_literal_slice_freezes_no_more_than_it_takes():
    net = slimmed("view-slice_literal")
    assert next(dim.full for dim in net.space.dims if dim.name == "a") == 4
    assert net.child(net.space.smallest).a.out_channels == 5


def test_padding_by_a_difference_keeps_both_widths_free():
    space = slimmed("spatial-pad_difference").space
    assert {"a": 8, "c": 12}.items() <= {dim.name: dim.full for dim in space.dims}.items()


def test_halves_of_a_chunk_come_and_go_together():
    dim = slimmed("joining-chunk").space.dims[0]
    assert (dim.full, dim.step) == (12, 2)


def test_grouped_convolutions_drop_whole_groups():
    net = slimmed("layer-conv_grouped")
    child = net.child(net.space.smallest)
    assert (child.op.layer.groups, tuple(child.op.layer.weight.shape)) == (1, (3, 2, 3, 3))
    assert child.a.out_channels == 2


def test_group_norms_keep_the_size_of_their_groups():
    net = slimmed("norm-group")
    child = net.child(net.space.smallest)
    assert (child.op.layer.num_groups, child.op.layer.num_channels) == (1, 2)


class CropsToOther(nn.Module):
    """`y[:, :x.shape[1]]`, where x and y happen to be equally wide."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, 1)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x, y = self.first(x), self.second(x)
        return self.fc(torch.cat([x, y[:, : x.shape[1]]], 1).mean((2, 3)))


def test_a_crop_to_the_width_of_another_tensor_holds_at_every_width(assert_same):
    net = joslim.slim(CropsToOther(), torch.randn(1, 3, 4, 4))
    x = torch.randn(2, 3, 4, 4)
    for shares in ([0.25] * len(net.space), [0.25] + [1.0] * (len(net.space) - 1)):
        widths = net.space.at(shares)
        with torch.no_grad(), net.at(widths):
            assert_same(net(x), net.child(widths)(x))


def test_an_einsum_that_sums_first_is_priced_as_torch_counts_it():
    net = joslim.slim(Tiny(lambda a, c: torch.einsum("nchw,ndxy->ncd", a, c)), EXAMPLE)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net.child(net.space.full)(EXAMPLE[:1])
    assert 2 * joslim.cost("macs", net)(net.space.full) == counter.get_total_flops()


def test_every_rule_can_be_called_with_what_torch_passes():
    for name, found in op_rules.RULES.items():
        assert next(iter(inspect.signature(found.apply).parameters)) == "t", name
        assert found.reuses in ("", "view", "in place"), name


def test_the_index_along_one_of_two_equal_axes_freezes():
    def likest(a):
        return torch.einsum("nchw,ndhw->ncd", a, a).argmax(2).float()

    net = joslim.slim(Tiny(likest), EXAMPLE)
    assert "a" in {frozen.layer for frozen in net.frozen}


def test_axes_that_move_in_pairs_are_followed():
    net = joslim.slim(Tiny(lambda a: a.movedim((1, 2), (2, 3)).movedim((2, 3), (1, 2))), EXAMPLE)
    assert "a" in {dim.name for dim in net.space.dims}


@pytest.mark.parametrize("name", ["relu", "sigmoid", "erf", "add", "pow", "atan2"])
def test_torch_knows_what_goes_element_by_element(name):
    assert op_rules.is_pointwise(name)
    assert op_rules.find(name) is not None


@pytest.mark.parametrize("name", ["topk", "fft_fft", "conv2d", "no such operation"])
def test_and_what_does_not(name):
    assert not op_rules.is_pointwise(name)


class ChannelAttention(nn.Module):
    """A conv along the channels, which keeps their number."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 4, 1)
        self.along = nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def forward(self, x):
        x = self.first(x)
        gate = self.along(x.mean((2, 3))[:, None])
        return self.last(x * gate.transpose(1, 2)[..., None].sigmoid())


class Matrices(nn.Module):
    """Linear layers written by hand."""

    def __init__(self):
        super().__init__()
        self.w, self.v = nn.Parameter(torch.randn(3, 8)), nn.Parameter(torch.randn(8, 6))
        self.bias, self.last = nn.Parameter(torch.randn(6)), nn.Linear(6, 2)

    def forward(self, x):
        return self.last(torch.addmm(self.bias, torch.relu(x.mean((2, 3)) @ self.w), self.v))


class Shuffled(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.shuffle = nn.Conv2d(3, 12, 1), nn.ChannelShuffle(3)
        self.last = nn.Conv2d(12, 4, 1)

    def forward(self, x):
        return self.last(self.shuffle(self.first(x)))


@pytest.mark.parametrize(
    ("model", "full"),
    [(ChannelAttention, {"first": 16}), (Matrices, {"w": 8, "v": 6}), (Shuffled, {"first": 12})],
)
def test_channels_stay_free_and_children_agree(model, full, assert_same):
    net = joslim.slim(model(), EXAMPLE)
    assert {dim.name.split("#")[0]: dim.full for dim in net.space.dims} == full
    check_child(net, net.space.smallest, assert_same)
    check_child(net, net.space.uniform(0.7), assert_same)
