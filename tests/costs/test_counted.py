"""Counted costs against oracles: torch's flop counter, the paper's figures, its formula by hand."""

import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode, register_flop_formula

import joslim
from joslim import SlimmableNet, UserError
from joslim.costs.counted import Pricer
from joslim.models import MODELS
from joslim.slimmable.blueprint import Blueprint, Layout, Stretch, Term
from joslim.space import Dim, Knob, WidthSpace

Counted = Callable[[nn.Module, tuple[int, ...]], tuple[float, int]]

# model, its arguments, knobs, low, multiply-adds in millions at all-low and at full, digits printed
PUBLISHED = [
    ("resnet20", {}, 6, 0.316, 4.055, 40.551, 3),
    ("resnet32", {}, 6, 0.316, 6.820, 68.863, 3),
    ("resnet44", {}, 6, 0.316, 9.585, 97.174, 3),
    ("resnet56", {}, 6, 0.316, 12.350, 125.486, 3),
    ("resnet20_2x", {"num_classes": 100}, 6, 0.316, 15.948, 161.330, 3),
    ("resnet20_3x", {"num_classes": 100}, 6, 0.316, 35.672, 362.319, 3),
    ("resnet20_4x", {"num_classes": 100}, 6, 0.316, 63.230, 643.524, 3),
    ("resnet20_5x", {"num_classes": 100}, 6, 0.316, 99.229, 1004.945, 3),
    ("resnet18", {}, 12, 0.42, 338.87, 1814.07, 2),
    ("mobilenet_v2", {}, 25, 0.42, 59.56, 300.77, 2),
    ("mobilenet_v3_large", {}, 22, 0.42, 43.40, 216.59, 2),
]


@pytest.mark.parametrize(
    ("name", "arguments", "knobs", "low", "smallest", "full", "digits"), PUBLISHED
)
def test_published_figures(
    name: str,
    arguments: dict[str, int],
    knobs: int,
    low: float,
    smallest: float,
    full: float,
    digits: int,
) -> None:
    model: Any = MODELS[name](**arguments)
    net = joslim.slim(model, torch.zeros(1, *model.slim_defaults["input"]))
    cost = joslim.cost("macs", net)
    assert len(net.space) == knobs
    assert net.space.low.tolist() == [low] * knobs
    assert round(cost(net.space.smallest) / 1e6, digits) == smallest
    assert round(cost(net.space.full) / 1e6, digits) == full
    for knob in net.space.knobs:
        for dim in (net.space.dims[position] for position in knob.dims):
            assert net.space.smallest.channels[dim.name] == int(low * dim.full)


@pytest.mark.parametrize("name", MODELS)
def test_macs_and_params_equal_what_torch_counts(name: str, counted: Counted) -> None:
    shape, kind = ((16,), torch.long) if name == "tiny_llama" else ((3, 32, 32), torch.float32)
    net = joslim.slim(MODELS[name](), torch.zeros(1, *shape, dtype=kind))
    macs, params = joslim.cost("macs", net), joslim.cost("params", net)
    rng = np.random.default_rng(0)
    for widths in [net.space.smallest, *(net.space.random(rng) for _ in range(3)), net.space.full]:
        assert (macs(widths), params(widths)) == counted(net.child(widths), shape)


@pytest.mark.parametrize("options", [{"divisor": 8}, {"low": 0.05}, {"keep": ["conv1"]}])
def test_and_so_they_do_under_every_option(options: dict[str, Any], counted: Counted) -> None:
    net = joslim.slim(MODELS["resnet8"](), torch.zeros(1, 3, 8, 8), **options)
    macs, params = joslim.cost("macs", net), joslim.cost("params", net)
    rng = np.random.default_rng(0)
    for widths in [net.space.smallest, *(net.space.random(rng) for _ in range(5)), net.space.full]:
        assert (macs(widths), params(widths)) == counted(net.child(widths), (3, 8, 8))


@pytest.mark.parametrize("name", ["macs", "params", "memory"])
def test_costs_are_for_one_image_whatever_the_example(name: str) -> None:
    one, many = (
        joslim.slim(joslim.models.resnet8(), torch.zeros(batch, 3, 8, 8)) for batch in (1, 5)
    )
    widths = [[0.5] * 6, [0.8] * 6, [1.0] * 6]
    assert joslim.cost(name, one).of(widths).tolist() == joslim.cost(name, many).of(widths).tolist()


# Memory


def footprint_by_hand(channels: dict[str, int]) -> int:
    """Appendix E of the paper for ResNet20 at 32 px, in elements, layer by layer.

    The largest of input map + output map + weights + skip. The second conv of a block keeps the
    block's shortcut. In a block of stride 2 that is every other pixel of its input, taken before
    its first conv, so both convs keep it, at the channel count of the stage before.
    """
    block_inputs = channels["conv1"]
    layers = [3 * 32**2 + block_inputs * 32**2 + 3 * block_inputs * 9]
    for stage, pixels in ((1, 32**2), (2, 16**2), (3, 8**2)):
        outputs = channels["conv1"] if stage == 1 else channels[f"layer{stage}.0.conv2"]
        for block in range(3):
            inner = channels[f"layer{stage}.{block}.conv1"]
            shrinks = stage > 1 and block == 0
            shortcut = block_inputs * pixels
            first = block_inputs * pixels * (4 if shrinks else 1) + inner * pixels
            second = inner * pixels + outputs * pixels
            layers.append(first + 9 * block_inputs * inner + (shortcut if shrinks else 0))
            layers.append(second + 9 * inner * outputs + shortcut)
            block_inputs = outputs
    layers.append(block_inputs + 10 + 10 * block_inputs)
    return max(layers)


def test_memory_equals_the_formula_by_hand(resnet20: SlimmableNet) -> None:
    space, memory = resnet20.space, joslim.cost("memory", resnet20)
    rng = np.random.default_rng(0)
    # Squared, most multipliers are low: then layers other than the usual ones are the largest.
    shares = np.concatenate([rng.random((300, 6)), rng.random((300, 6)) ** 4])
    matrix = [*(space.low + (1 - space.low) * shares), space.low, np.ones(6)]
    children = [space.at(row) for row in matrix]
    expected = [4 * footprint_by_hand(child.channels) for child in children]
    assert memory.of(matrix).tolist() == expected


def test_the_formula_is_tried_where_each_stage_decides(resnet20: SlimmableNet) -> None:
    """Children whose largest layer lies in stage 2 or 3, or is the stem."""
    space, memory = resnet20.space, joslim.cost("memory", resnet20)
    low = 0.316
    for multipliers in (
        [low, low, 1, 1, low, low],
        [low, low, low, low, 1, 1],
        [low, low, low, 1, 1, 1],
        [1, low, low, low, low, low],
        [1, low, 1, low, low, low],
    ):
        child = space.at(multipliers)
        assert memory(child) == 4 * footprint_by_hand(child.channels)


def test_full_footprint_of_resnet20(resnet20: SlimmableNet) -> None:
    assert joslim.cost("memory", resnet20)(resnet20.space.full) == 51456 * 4


def test_scaling_all_knobs_together_jumps(resnet20: SlimmableNet) -> None:
    """From one integer width to the next: the counts change at multiples of 1/64."""
    memory, low = joslim.cost("memory", resnet20), 0.316
    shares = [low, *(k / 64 for k in range(1, 65) if k / 64 > low)]
    prices = memory.of([[share] * 6 for share in shares])
    jump = np.diff(prices).max() / memory(resnet20.space.full)
    assert 100 * jump == pytest.approx(6.5, abs=0.05)


def test_layer_wise_widths_fill_the_jumps(resnet20: SlimmableNet) -> None:
    """Over all integer widths the gaps are at most 2.3%; three of the knobs are enough."""
    space, memory, low = resnet20.space, joslim.cost("memory", resnet20), 0.316
    grid = [
        [max(low, a / 16), max(low, b / 16), low, low, max(low, c / 64), low]
        for a in range(5, 17)
        for b in range(5, 17)
        for c in range(20, 65, 4)
    ]
    prices = np.unique(memory.of(grid))
    assert prices[0] == memory(space.smallest)
    assert prices[-1] == memory(space.full)
    assert 100 * np.diff(prices).max() / memory(space.full) == pytest.approx(2.3, abs=0.05)


def test_many_knobs_can_be_raised_at_no_cost(resnet20: SlimmableNet) -> None:
    memory = joslim.cost("memory", resnet20)
    assert len(set(memory.of([[1, 1, 1, 1, share, 0.5] for share in (0.4, 0.5, 0.7)]))) == 1


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_bytes_per_element(width: int, resnet20: SlimmableNet) -> None:
    memory = joslim.cost("memory", resnet20, bytes_per_element=width)
    assert memory(resnet20.space.full) == 51456 * width
    assert isinstance(memory(resnet20.space.full), int)


def test_memory_of_a_chain_by_hand() -> None:
    net = joslim.slim(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)), torch.zeros(1, 3, 6, 6)
    )
    memory = joslim.cost("memory", net)
    for count in range(2, 9):
        first = 3 * 36 + count * 16 + 27 * count
        second = count * 16 + 4 * 16 + count * 4
        assert memory(net.space.of_counts([count])) == 4 * max(first, second)


def test_memory_keeps_what_a_concat_still_reads() -> None:
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1)
            self.c = nn.Conv2d(8, 8, 1)
            self.head = nn.Conv2d(16, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = self.a(x)
            return self.head(torch.cat([a, self.c(self.b(a))], 1))

    net = joslim.slim(Dense(), torch.zeros(1, 3, 4, 4))
    assert list(net.space.full.channels) == ["a", "b", "c"]
    memory, pixels = joslim.cost("memory", net), 16
    rng = np.random.default_rng(0)
    for child in [net.space.smallest, net.space.full, *(net.space.random(rng) for _ in range(10))]:
        a, b, c = child.counts
        layers = [
            3 * pixels + a * pixels + 3 * a,
            a * pixels + b * pixels + a * b,
            b * pixels + c * pixels + b * c + a * pixels,
            (a + c) * pixels + 2 * pixels + 2 * (a + c),
        ]
        assert memory(child) == 4 * max(layers)


def test_costs_of_other_networks_are_refused(resnet20: SlimmableNet, net: SlimmableNet) -> None:
    assert len(resnet20.space) == len(net.space), "as many knobs, and yet another network"
    with pytest.raises(UserError, match="own network"):
        joslim.cost("memory", resnet20)(net.space.full)


# Operations of all kinds, each between slimmable layers


class Between(nn.Module):
    """x -> two linear layers -> `core` -> two linear layers; channels are last."""

    def __init__(self, core: Any, out: int = 12, modules: tuple[nn.Module, ...] = ()) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 10), nn.Linear(10, 12)
        self.core, self.modules_of_core = core, nn.ModuleList(modules)
        self.third, self.last = nn.Linear(out, 8), nn.Linear(8, 3)
        self.weight = nn.Parameter(torch.randn(12, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.core(self, self.second(torch.relu(self.first(x))), *self.modules_of_core)
        return self.last(torch.relu(self.third(y)))


def through(*modules: nn.Module, out: int = 12) -> Between:
    """A network whose core is these modules, of which only the first of several outputs counts."""

    def core(net: nn.Module, x: torch.Tensor, *modules: nn.Module) -> torch.Tensor:
        for module in modules:
            x = module(x)
            x = x[0] if isinstance(x, tuple) else x
        return x

    return Between(core, out, modules)


def channels_first(layer: nn.Module, out: int, *shape: int) -> Between:
    """A network whose core is a convolution over places of this shape."""

    def core(net: nn.Module, x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        y = layer(x.transpose(1, 2).unflatten(2, shape))
        return y.flatten(2).transpose(1, 2)

    return Between(core, out, (layer,))


def attending(need_weights: bool) -> Between:
    def core(net: nn.Module, x: torch.Tensor, module: nn.Module) -> torch.Tensor:
        return module(x, x, x, need_weights=need_weights)[0]

    return Between(core, 12, (nn.MultiheadAttention(12, 3, batch_first=True),))


def by(function: Callable[[Any, torch.Tensor], torch.Tensor], out: int = 12) -> Between:
    return Between(lambda net, x: function(net.weight, x), out)


def recurrent(kind: type[nn.RNNBase], **options: Any) -> Between:
    size = options.get("proj_size") or 7
    layer = kind(12, 7, batch_first=True, **options)
    return through(layer, out=size * (2 if options.get("bidirectional") else 1))


def encoder(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(12, 3, 20, batch_first=True, **options)


# Inputs are (1, 8 places, 6 channels).
OPERATIONS: dict[str, Callable[[], nn.Module]] = {
    "conv1d": lambda: channels_first(nn.Conv1d(12, 9, 3, padding=1), 9, 8),
    "conv2d": lambda: channels_first(nn.Conv2d(12, 9, 3, stride=2, padding=1), 9, 2, 4),
    "conv3d": lambda: channels_first(nn.Conv3d(12, 9, (1, 3, 2), padding=1), 9, 2, 2, 2),
    "conv grouped": lambda: channels_first(nn.Conv2d(12, 8, 3, padding=1, groups=4), 8, 2, 4),
    "conv depthwise": lambda: channels_first(nn.Conv1d(12, 12, 3, groups=12), 12, 8),
    "conv dilated": lambda: channels_first(nn.Conv1d(12, 9, 3, dilation=2), 9, 8),
    "transposed 1d": lambda: channels_first(nn.ConvTranspose1d(12, 9, 3, stride=2), 9, 8),
    "transposed 2d": lambda: channels_first(nn.ConvTranspose2d(12, 9, 3, stride=2), 9, 2, 4),
    "transposed 3d": lambda: channels_first(nn.ConvTranspose3d(12, 9, 2), 9, 2, 2, 2),
    "transposed grouped": lambda: channels_first(nn.ConvTranspose2d(12, 8, 3, groups=4), 8, 2, 4),
    "linear": lambda: through(nn.Linear(12, 9), nn.Linear(9, 12)),
    "matmul": lambda: by(lambda w, x: x @ w),
    "matmul of two maps": lambda: by(lambda w, x: x @ x.transpose(1, 2) @ x),
    "matmul from the left": lambda: by(lambda w, x: (w @ x.transpose(1, 2)).transpose(1, 2)),
    "matmul with a vector": lambda: by(lambda w, x: x * (x @ w[0])[..., None]),
    "matmul of a vector": lambda: by(lambda w, x: x + (w[0] @ x.transpose(1, 2))[..., None]),
    "dot": lambda: by(lambda w, x: x * (x[0, 0] @ x[0, 1])),
    "mm": lambda: by(lambda w, x: torch.mm(x[0], w)[None]),
    "bmm": lambda: by(lambda w, x: torch.bmm(torch.bmm(x, x.transpose(1, 2)), x)),
    "addmm": lambda: by(lambda w, x: torch.addmm(w[0], x[0], w)[None]),
    "baddbmm": lambda: by(
        lambda w, x: torch.baddbmm(x, torch.bmm(x, x.transpose(1, 2)), x, alpha=0.5)
    ),
    "addbmm": lambda: by(lambda w, x: torch.addbmm(x[0], x @ x.transpose(1, 2), x)[None]),
    "tensordot": lambda: by(lambda w, x: torch.tensordot(x, w, dims=1)),
    "einsum of two": lambda: by(lambda w, x: torch.einsum("bti,oi->bto", x, w)),
    "einsum of two maps": lambda: by(
        lambda w, x: torch.einsum("bts,bsc->btc", torch.einsum("btc,bsc->bts", x, x), x)
    ),
    "einsum of three": lambda: by(lambda w, x: torch.einsum("bti,io,op->btp", x, w, w)),
    "einsum of three, summed late": lambda: by(
        lambda w, x: torch.einsum("btc,bsc,bsd->btd", x, x, x)
    ),
    "einsum of four": lambda: by(lambda w, x: torch.einsum("bti,bsi,bsj,jo->bto", x, x, x, w)),
    "einsum by elements": lambda: by(lambda w, x: torch.einsum("btc,btc->btc", x, x)),
    "attention": lambda: by(
        lambda w, x: (
            nn.functional.scaled_dot_product_attention(
                *(x.unflatten(2, (3, -1)).transpose(1, 2) for _ in range(3))
            )
            .transpose(1, 2)
            .flatten(2)
        )
    ),
    "causal attention": lambda: by(
        lambda w, x: nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    ),
    "MultiheadAttention": lambda: attending(need_weights=False),
    "MultiheadAttention with weights": lambda: attending(need_weights=True),
    "encoder layer": lambda: through(encoder()),
    "encoder layer, norm first": lambda: through(encoder(norm_first=True)),
    "encoder": lambda: through(nn.TransformerEncoder(encoder(), 2)),
    "autograd function": lambda: by(lambda w, x: Squared.apply(x)),
    "autograd function that does nothing": lambda: by(lambda w, x: Identity.apply(x)),
    "RNN": lambda: recurrent(nn.RNN),
    "RNN of relu": lambda: recurrent(nn.RNN, num_layers=2, nonlinearity="relu"),
    "GRU": lambda: recurrent(nn.GRU),
    "GRU both ways": lambda: recurrent(nn.GRU, num_layers=2, bidirectional=True),
    "LSTM": lambda: recurrent(nn.LSTM),
    "LSTM of three": lambda: recurrent(nn.LSTM, num_layers=3, bias=False),
    "LSTM both ways": lambda: recurrent(nn.LSTM, num_layers=2, bidirectional=True),
    "LSTM projected": lambda: recurrent(nn.LSTM, num_layers=2, proj_size=5),
    "LSTM projected both ways": lambda: recurrent(nn.LSTM, proj_size=5, bidirectional=True),
}
# Torch's counter does not know these kernels: multiply-adds of one vector with another.
VECTORS = {
    torch.ops.aten.mv: lambda matrix, vector, **_: 2 * matrix.numel(),
    torch.ops.aten.dot: lambda a, b, **_: 2 * a.numel(),
    torch.ops.aten.addbmm: lambda added, a, b, **_: 2 * a.numel() * b.shape[2],
}
for formula in VECTORS.values():
    formula._get_raw = True  # type: ignore[attr-defined]  # it takes tensors, not shapes


def torch_counts(module: nn.Module, *inputs: torch.Tensor) -> float:
    """Without fused kernels, which torch's counter passes over."""
    torch.backends.mha.set_fastpath_enabled(False)
    counter = FlopCounterMode(display=False, custom_mapping=VECTORS)
    try:
        with (
            torch.backends.mkldnn.flags(enabled=False),
            sdpa_kernel(SDPBackend.MATH),
            torch.no_grad(),
            counter,
        ):
            module.eval()(*inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    return counter.get_total_flops() / 2


@pytest.mark.parametrize("name", OPERATIONS)
def test_multiply_adds_of_every_operation(name: str) -> None:
    inputs = torch.randn(1, 8, 6)
    net = joslim.slim(OPERATIONS[name](), inputs)
    macs, params = joslim.cost("macs", net), joslim.cost("params", net)
    assert macs.uncounted == [], "nothing is left out, and nothing is named without need"
    rng = np.random.default_rng(0)
    for widths in [net.space.smallest, *(net.space.random(rng) for _ in range(3)), net.space.full]:
        child = net.child(widths)
        assert macs(widths) == torch_counts(child, inputs)
        assert params(widths) == sum(p.numel() for p in child.parameters())


def linears(steps: int, *sizes: int) -> int:
    return steps * sum(a * b for a, b in pairwise(sizes))


# hidden size 7, 12 inputs, 8 time steps, between the linear layers 6-10-12 and out-8-3
RECURRENT_BY_HAND = {
    "RNN": 8 * 7 * (12 + 7) + linears(8, 7, 8, 3),
    "RNN of relu": 8 * 7 * (12 + 7 + 7 + 7) + linears(8, 7, 8, 3),
    "GRU": 8 * 3 * 7 * (12 + 7) + linears(8, 7, 8, 3),
    "GRU both ways": 8 * 2 * 3 * 7 * (12 + 7 + 14 + 7) + linears(8, 14, 8, 3),
    "LSTM": 8 * 4 * 7 * (12 + 7) + linears(8, 7, 8, 3),
    "LSTM of three": 8 * 4 * 7 * (12 + 5 * 7) + linears(8, 7, 8, 3),
    "LSTM both ways": 8 * 2 * 4 * 7 * (12 + 7 + 14 + 7) + linears(8, 14, 8, 3),
    "LSTM projected": 8 * (4 * 7 * (12 + 3 * 5) + 2 * 5 * 7) + linears(8, 5, 8, 3),
    "LSTM projected both ways": 8 * 2 * (4 * 7 * (12 + 5) + 5 * 7) + linears(8, 10, 8, 3),
}


@pytest.mark.parametrize("name", RECURRENT_BY_HAND)
@pytest.mark.parametrize("batch_first", [True, False])
def test_recurrent_layers_by_hand(name: str, batch_first: bool) -> None:
    torch.manual_seed(0)  # outputs that are all zero would not tell time from samples
    model: Any = OPERATIONS[name]()
    model.modules_of_core[0].batch_first = batch_first
    shape = (1, 8, 6) if batch_first else (8, 1, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first axis is time, and that is said
        net = joslim.slim(model, torch.zeros(shape))
    by_hand = linears(8, 6, 10, 12) + RECURRENT_BY_HAND[name]
    assert joslim.cost("macs", net)(net.space.full) == by_hand


@pytest.mark.parametrize("name", ["MultiheadAttention", "MultiheadAttention with weights"])
def test_attention_layers_by_hand(name: str) -> None:
    net = joslim.slim(OPERATIONS[name](), torch.zeros(1, 8, 6))
    projections, products = 4 * 8 * 12 * 12, 2 * 8 * 8 * 12
    by_hand = linears(8, 6, 10, 12) + projections + products + linears(8, 12, 8, 3)
    assert joslim.cost("macs", net)(net.space.full) == by_hand


def test_bilinear_layers_by_hand() -> None:
    layer = nn.Bilinear(12, 12, 5)
    net = joslim.slim(Between(lambda n, x, f: f(x, x), 5, (layer,)), torch.zeros(1, 8, 6))
    by_hand = linears(8, 6, 10, 12) + 8 * 5 * 12 * (12 + 1) + linears(8, 5, 8, 3)
    assert joslim.cost("macs", net)(net.space.full) == by_hand


# What cannot be counted


class Extension(torch.autograd.Function):
    """Computes unseen, as extensions in C++ do."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            return torch.from_numpy(x.numpy() * 2)


class Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x @ x.transpose(1, 2) @ x


@torch.library.custom_op("joslim_costs::product", mutates_args=())
def own_kernel(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


UNCOUNTED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "fourier": (lambda: by(lambda w, x: torch.fft.fft(x, dim=1).real), "fft_fft"),
    "decomposition": (
        lambda: by(lambda w, x: x * torch.linalg.svdvals(w[:3, :3])[0]),
        "linalg_svdvals",
    ),
    "numpy": (lambda: by(lambda w, x: torch.from_numpy(x.numpy() * 2)), "numpy"),
    "extension": (lambda: by(lambda w, x: Extension.apply(x)), "Extension"),
    "own kernel": (lambda: by(lambda w, x: own_kernel(x)), "joslim_costs::product"),
}


@pytest.mark.parametrize("case", UNCOUNTED)
def test_what_cannot_be_counted_is_named(case: str) -> None:
    make, what = UNCOUNTED[case]
    with pytest.warns(UserWarning, match=rf"^model: its macs and memory are too low: .*{what}"):
        net = joslim.slim(make(), torch.randn(1, 8, 6))
    for name in ("macs", "memory"):
        (missing,) = joslim.cost(name, net).uncounted
        assert what in missing.what
        assert missing.layer == "forward"
    assert joslim.cost("params", net).uncounted == []


def test_a_formula_of_ones_own_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = torch.ops.joslim_costs.product
    register_flop_formula(kernel)(lambda x, out_shape=None: 2 * 1000)
    monkeypatch.setitem(flop_counter.flop_registry, kernel, flop_counter.flop_registry.pop(kernel))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net = joslim.slim(UNCOUNTED["own kernel"][0](), torch.randn(1, 8, 6))
    by_hand = linears(8, 6, 10, 12, 8, 3) + 1000
    # The path goes through 12 channels once: nothing is multiplied by the parameter.
    assert joslim.cost("macs", net)(net.space.full) == by_hand
    assert joslim.cost("macs", net).uncounted == []


# Memory of products of maps


def test_memory_counts_both_maps_of_a_product() -> None:
    """16 places, 64 channels: scores are 16 x 16 and are multiplied by the wide map."""
    net = joslim.slim(
        Between(lambda n, x, f: (x @ x.transpose(1, 2)) @ f(x), 256, (nn.Linear(12, 256),)),
        torch.zeros(1, 16, 6),
        keep=["modules_of_core.0"],
    )
    memory = joslim.cost("memory", net)
    assert memory.uncounted == []
    # scores, the wide map, and the result of the same size; nothing else is needed later
    product = 16 * 16 + 16 * 256 + 16 * 256
    third = 16 * 256 + 16 * 8 + 256 * 8
    wide = 16 * 12 + 16 * 256 + 12 * 256 + 16 * 16
    assert memory(net.space.full) == 4 * max(product, third, wide)


def test_memory_counts_all_maps_of_attention() -> None:
    def core(net: nn.Module, x: torch.Tensor, *layers: nn.Module) -> torch.Tensor:
        q, k, v = (layer(x) for layer in layers)
        return nn.functional.scaled_dot_product_attention(q, k, v)

    layers = tuple(nn.Linear(12, 40) for _ in range(3))
    net = joslim.slim(Between(core, 40, layers), torch.zeros(1, 64, 6))
    assert joslim.cost("memory", net)(net.space.full) == 4 * 64 * 40 * 4


def test_memory_counts_the_weight_on_the_left() -> None:
    net = joslim.slim(
        by(lambda w, x: (w @ x.transpose(1, 2)).transpose(1, 2)), torch.zeros(1, 1, 6)
    )
    assert joslim.cost("memory", net)(net.space.full) == 4 * (12 + 12 + 12 * 12)


def test_memory_of_an_operation_without_a_rule_is_that_of_one_layer_and_says_so() -> None:
    net = joslim.slim(recurrent(nn.LSTM), torch.zeros(1, 1, 6))
    memory = joslim.cost("memory", net)
    weights = 4 * 7 * (12 + 7 + 1 + 1)
    # the states that begin and end are maps as well
    assert memory(net.space.full) == 4 * (12 + 2 * 7 + 7 + 2 * 7 + weights)
    assert [(u.cost, u.layer, u.what) for u in memory.uncounted] == [
        ("memory", "modules_of_core.0", "maps inside lstm")
    ]


# Terms, evaluated for many children at once

STEPS = (1, 4, 1)
UNITS = (16, 6, 2048)


def blueprint() -> Blueprint:
    dims = tuple(Dim(f"d{i}", units * s, step=s) for i, (units, s) in enumerate(zip(UNITS, STEPS)))
    knobs = tuple(Knob(dim.name, (i,), 0.01) for i, dim in enumerate(dims))
    return Blueprint(WidthSpace(dims, knobs), (), (), ())


stretches = st.one_of(
    st.builds(lambda length: Stretch(None, 0, length), st.integers(1, 50)),
    st.builds(
        lambda dim, each: Stretch(dim, each, UNITS[dim] * each),
        st.integers(0, 2),
        st.integers(1, 9),
    ),
)
layouts = st.builds(lambda s: Layout(tuple(s)), st.lists(stretches, min_size=1, max_size=4))
terms = st.lists(
    st.builds(lambda n, ls: Term(n, tuple(ls)), st.integers(0, 50), st.lists(layouts, max_size=3)),
    max_size=5,
)
children = st.lists(st.tuples(*(st.integers(1, units) for units in UNITS)), max_size=4)


@given(terms, children)
def test_a_term_is_the_product_of_its_axes(terms: list[Term], units: list[tuple[int, ...]]) -> None:
    counts = np.array(units, dtype=np.int64).reshape(-1, 3) * STEPS
    prices = Pricer(blueprint(), terms)(counts)
    assert prices.shape == (len(terms), len(units))
    for row, child in zip(prices.T, units):
        for price, term in zip(row, terms):
            expected = term.times
            for layout in term.layouts:
                expected *= layout.size(child)
            assert price == expected


def test_large_counts_stay_exact() -> None:
    """Odd, and past what single precision holds: the last unit would be lost."""
    wide = Layout((Stretch(2, 1, 2048),))
    odd = Layout((Stretch(2, 4001, 2048 * 4001), Stretch(None, 0, 1)))
    term = Term(224 * 224 - 1, (wide, odd))
    counts = np.array([[16, 24, 2047]])
    assert int(Pricer(blueprint(), [term])(counts)[0, 0]) == 50175 * 2047 * (2047 * 4001 + 1)


def test_counts_are_not_changed() -> None:
    counts = np.array([[3, 8, 5]])
    Pricer(blueprint(), [Term(7, (Layout((Stretch(1, 1, 6),)),))])(counts)
    assert counts.tolist() == [[3, 8, 5]]


class Everything(nn.Module):
    """Groups, a concat, a transposed conv, a module used twice, a flatten, and tied parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.scale = nn.Parameter(torch.ones(12, 1, 1))
        self.grouped = nn.Conv2d(12, 12, 3, padding=1, groups=4)
        self.side = nn.Conv2d(12, 7, (1, 5), padding=(0, 2), bias=False)
        self.up = nn.ConvTranspose2d(19, 8, 2, stride=2)
        self.twice = nn.Conv2d(8, 8, 3, padding=1)
        self.hidden = nn.Linear(8 * 16 * 16, 9)
        self.tied, self.same = nn.Linear(9, 9, bias=False), nn.Linear(9, 9, bias=False)
        self.same.weight = self.tied.weight
        self.head = nn.Linear(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x)) * self.scale
        x = self.up(torch.cat([x, self.side(self.grouped(x))], 1))
        x = self.hidden(self.twice(self.twice(x)).flatten(1))
        return self.head(self.same(F.relu(self.tied(x))))


class Attention(nn.Module):
    """Products of two maps, which have no weights."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, 1)
        self.v, self.out = nn.Conv2d(3, 10, 1), nn.Conv2d(10, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).flatten(2) for layer in (self.q, self.k, self.v))
        mixed = v @ torch.softmax(q.transpose(1, 2) @ k, -1).transpose(1, 2)
        return self.out(mixed.unflatten(2, x.shape[2:]))


class Signal(nn.Module):
    """One-dimensional convs, strided and dilated."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv1d(3, 8, 3, dilation=2), nn.Conv1d(8, 6, 3, stride=2, bias=False)
        self.c = nn.Conv1d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(F.relu(self.b(F.relu(self.a(x)))))


@pytest.mark.parametrize(
    ("make", "shape", "knobs"),
    [(Everything, (3, 8, 8), 4), (Attention, (3, 4, 4), 2), (Signal, (3, 20), 2)],
)
def test_blueprints_of_all_kinds_of_layers(
    make: Callable[[], nn.Module],
    shape: tuple[int, ...],
    knobs: int,
    counted: Callable[[nn.Module, tuple[int, ...]], tuple[float, int]],
) -> None:
    net = joslim.slim(make(), torch.zeros(1, *shape))
    assert len(net.space) == knobs
    macs, params = joslim.cost("macs", net), joslim.cost("params", net)
    rng = np.random.default_rng(0)
    for child in [net.space.smallest, net.space.full, *(net.space.random(rng) for _ in range(8))]:
        assert (macs(child), params(child)) == counted(net.child(child), shape)


def test_a_single_channel_that_is_flattened(
    counted: Callable[[nn.Module, tuple[int, ...]], tuple[float, int]],
) -> None:
    layers = nn.Conv2d(3, 6, 3, padding=1), nn.Flatten(), nn.Linear(6 * 64, 9)
    net = joslim.slim(nn.Sequential(*layers), torch.zeros(1, 3, 8, 8), low=0.25)
    smallest = net.space.smallest
    assert smallest.counts == (1,)
    expected = counted(net.child(smallest), (3, 8, 8))
    assert (joslim.cost("macs", net)(smallest), joslim.cost("params", net)(smallest)) == expected
