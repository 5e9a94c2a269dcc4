"""Running a network under the trace: what is seen, and that nothing is left behind."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.flop_counter import FlopCounterMode

import joslim
from joslim.slimmable import op_rules
from joslim.slimmable.layer_specs import layer_spec
from joslim.slimmable.symbolic_axes import Algebra, Locked, fixed, fresh, is_fixed, length
from joslim.slimmable.symbolic_int import SymbolicInt
from joslim.slimmable.tracing import (
    Counter,
    OpFailed,
    Tracer,
    multiplies,
    op_name,
    trace,
    without_symbols,
)


def traced(model, *inputs, training=False):
    specs = {module: layer_spec(module, True) for module in model.modules()}
    algebra = Algebra()
    return trace(model, inputs, specs, algebra, training), specs


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 1)

    def forward(self, x):
        return self.two(F.relu(self.one(x)))


def test_layers_are_seen_in_the_order_in_which_they_run():
    tracer, _ = traced(Two(), torch.randn(1, 3, 5, 5))
    assert [p.module for p in tracer.produced] == ["one", "two"]
    assert [length(p.axis) for p in tracer.produced] == [8, 6]


def test_outputs_are_frozen_and_say_so():
    tracer, _ = traced(Two(), torch.randn(1, 3, 5, 5))
    one, two = tracer.produced
    assert not is_fixed(one.axis)
    assert is_fixed(two.axis)


def test_joined_layers_share_their_axes():
    _, specs = traced(model := Two(), torch.randn(1, 3, 5, 5))
    out = specs[model.one].tensors["weight"][0]
    inside = specs[model.two].tensors["weight"][1]
    out[0].var.units = inside[0].var.units = 5
    assert length(out) == length(inside) == 5


class Failing(nn.Module):
    def __init__(self, message):
        super().__init__()
        self.conv, self.message = nn.Conv2d(3, 8, 1), message

    def forward(self, x):
        x = self.conv(x)
        if self.message:
            raise RuntimeError(self.message)
        return x + torch.zeros(1, 5, 1, 1)


@pytest.mark.parametrize("message", ["first line\nsecond line", ""])
def test_a_forward_that_fails_names_what_it_touched(message):
    with pytest.raises(OpFailed) as caught:
        traced(Failing(message), torch.randn(1, 3, 4, 4))
    assert caught.value.variables
    assert len(caught.value.why.splitlines()) == 1


@pytest.mark.parametrize("message", ["it fails", ""])
def test_a_failure_leaves_the_model_as_it_was(message):
    model = Failing(message).train()
    with pytest.raises(OpFailed):
        traced(model, torch.randn(1, 3, 4, 4))
    assert type(model.conv.out_channels) is int
    assert model.training
    assert not model.conv._forward_hooks
    assert not model.conv._forward_pre_hooks
    assert torch.is_grad_enabled()
    assert type(torch.zeros(2).shape[0]) is int


def test_sizes_know_what_they_count_while_tracing():
    algebra, axis = Algebra(), fresh(8)
    tracer, x = Tracer(algebra), torch.zeros(2, 8)
    tracer.remember(x, [fixed(2), axis])
    with tracer:
        assert type(x.shape[0]) is int
        assert isinstance(x.shape[1], SymbolicInt)
        assert isinstance(x.size(1), SymbolicInt)
        assert isinstance(x.size(dim=-1), SymbolicInt)
        assert isinstance(x.size()[1], SymbolicInt)
        assert [int(size) for size in x.shape] == [2, 8]
    assert type(x.shape[1]) is int


def test_an_operation_without_a_rule_freezes_and_is_named():
    algebra, axis = Algebra(), fresh(8)
    tracer, x = Tracer(algebra), torch.zeros(2, 8)
    tracer.remember(x, [fixed(2), axis])
    with tracer:
        torch.topk(x, 3)
    assert is_fixed(axis)
    assert axis[0].var.bound[0].why == "no rule for topk in forward"


def test_an_operation_without_a_rule_is_locked_out_later():
    algebra, axis = Algebra(), fresh(8)
    tracer, x = Tracer(algebra), torch.zeros(2, 8)
    tracer.remember(x, [fixed(2), axis])
    algebra.locked = True
    with pytest.raises(Locked, match="no rule for topk"), tracer:
        torch.topk(x, 3)


@pytest.mark.parametrize(
    ("func", "name"),
    [
        (torch.relu_, "relu"),
        (torch.Tensor.add_, "add"),
        (torch.Tensor.__add__, "add"),
        (torch.Tensor.__getitem__, "__getitem__"),
        (torch.Tensor.mT.__get__, "mT"),
        (F.conv2d, "conv2d"),
    ],
)
def test_one_name_for_all_forms_of_an_operation(func, name):
    assert op_name(func) == name


def test_torch_gets_integers_that_forgot_what_a_length_counts():
    number = SymbolicInt.of(Algebra(), fresh(8))
    assert type(without_symbols(number)) is int
    assert type(without_symbols(slice(None, number)).stop) is int
    assert type(without_symbols(torch.Size([2, number]))[1]) is int
    assert without_symbols("text") == "text"


def test_skipped_layers_are_not_seen():
    model = Two()
    model.extra = nn.Conv2d(8, 8, 1)
    tracer, _ = traced(model, torch.randn(1, 3, 5, 5))
    assert "extra" not in [p.module for p in tracer.produced]


def test_a_compiled_module_is_priced_once():
    inner = torch.jit.script(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()))
    model = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), inner, nn.Conv2d(8, 6, 1), nn.Conv2d(6, 2, 1)
    )
    net = joslim.slim(model, torch.zeros(1, 3, 6, 6))
    assert [dim.name for dim in net.space.dims] == ["0", "3"]
    child = net.child(net.space.smallest)
    with FlopCounterMode(display=False) as counter:
        child(torch.zeros(1, 3, 6, 6))
    assert 2 * joslim.cost("macs", net)(net.space.smallest) == counter.get_total_flops()


def test_a_rule_that_miscounts_is_named(monkeypatch):
    linear = op_rules.RULES["linear"]

    def twice(t, *arguments):
        axes = linear.apply(t, *arguments)
        t._current.multiplies *= 2
        return axes

    wrong = op_rules.Rule(twice, linear.reuses)
    monkeypatch.setitem(op_rules.RULES, "linear", wrong)
    model = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2))
    with pytest.warns(UserWarning, match="linear: 48 counted, 24 by torch's counter in 0"):
        net = joslim.slim(model, torch.zeros(1, 3))
    assert [u.layer for u in net.uncounted] == ["0", "1"]


def test_products_outside_of_all_operations_are_named():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)

        def forward(self, x):
            x = self.first(x)
            with torch._C.DisableTorchFunction():
                torch.ones(2, 3) @ torch.ones(3, 5)
            return self.last(x)

    with pytest.warns(UserWarning, match="30 multiply-adds outside of all operations"):
        joslim.slim(Hidden(), torch.zeros(1, 3))


# --- the counter: arithmetic by hand; kernels that multiply are named, and no others --------------

COUNTED = {
    "mm": (lambda: torch.zeros(2, 3) @ torch.zeros(3, 5), 30),
    "mv": (lambda: torch.zeros(2, 3) @ torch.zeros(3), 6),
    "dot": (lambda: torch.zeros(7) @ torch.zeros(7), 7),
    "vdot": (lambda: torch.vdot(torch.zeros(7), torch.zeros(7)), 7),
    "addmv": (lambda: torch.addmv(torch.zeros(2), torch.zeros(2, 3), torch.zeros(3)), 6),
    "addmm_": (lambda: torch.zeros(2, 5).addmm_(torch.zeros(2, 3), torch.zeros(3, 5)), 30),
    "addmv_": (lambda: torch.zeros(2).addmv_(torch.zeros(2, 3), torch.zeros(3)), 6),
    "baddbmm_": (
        lambda: torch.zeros(4, 2, 5).baddbmm_(torch.zeros(4, 2, 3), torch.zeros(4, 3, 5)),
        120,
    ),
    "addbmm": (
        lambda: torch.addbmm(torch.zeros(2, 5), torch.zeros(4, 2, 3), torch.zeros(4, 3, 5)),
        120,
    ),
    "bilinear": (
        lambda: F.bilinear(torch.zeros(2, 3), torch.zeros(2, 5), torch.zeros(4, 3, 5)),
        2 * 4 * 3 * 5 + 2 * 4 * 5,
    ),
    "attention": (
        lambda: F.scaled_dot_product_attention(
            torch.zeros(2, 3, 5, 8), torch.zeros(2, 3, 7, 8), torch.zeros(2, 3, 7, 8)
        ),
        2 * (2 * 3) * 5 * 7 * 8,
    ),
    "lstm": (lambda: nn.LSTM(6, 4)(torch.zeros(7, 2, 6)), 7 * 2 * 4 * 4 * (6 + 4)),
    "lstm of two layers, both ways": (
        lambda: nn.LSTM(6, 4, num_layers=2, bidirectional=True)(torch.zeros(7, 2, 6)),
        7 * 2 * 2 * 4 * 4 * ((6 + 4) + (2 * 4 + 4)),
    ),
    "lstm with projections": (
        lambda: nn.LSTM(6, 4, proj_size=3)(torch.zeros(7, 2, 6)),
        7 * 2 * (4 * 4 * (6 + 3) + 3 * 4),
    ),
    "lstm of packed sequences": (
        lambda: nn.LSTM(6, 4)(pack_padded_sequence(torch.zeros(7, 2, 6), [7, 5])),
        (7 + 5) * 4 * 4 * (6 + 4),
    ),
    "gru": (lambda: nn.GRU(6, 4)(torch.zeros(7, 2, 6)), 7 * 2 * 3 * 4 * (6 + 4)),
    "attention layer": (
        lambda: nn.MultiheadAttention(8, 2, batch_first=True)(*[torch.zeros(3, 5, 8)] * 3),
        3 * (5 * 8 * 8 * 4 + 2 * 5 * 5 * 8),
    ),
    "attention layer of other inputs": (
        lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=4)(
            torch.zeros(5, 3, 8), torch.zeros(7, 3, 6), torch.zeros(7, 3, 4), need_weights=False
        ),
        3 * (5 * 8 * 8 + 7 * 6 * 8 + 7 * 4 * 8 + 2 * 5 * 7 * 8 + 5 * 8 * 8),
    ),
    "encoder in training": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2)(
            torch.zeros(5, 3, 8)
        ),
        2 * 3 * (5 * 8 * 8 * 4 + 2 * 5 * 5 * 8 + 2 * 5 * 8 * 16),
    ),
    "lstm_cell": (lambda: nn.LSTMCell(6, 4)(torch.zeros(2, 6)), 2 * 4 * 4 * (6 + 4)),
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()(torch.zeros(3, 5, 8)),
        3 * (5 * 8 * 8 * 4 + 2 * 5 * 5 * 8 + 2 * 5 * 8 * 16),
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_products_are_counted(name):
    run, by_hand = COUNTED[name]
    with Counter() as counter, torch.no_grad():
        run()
    assert counter.since_last_call() == (by_hand, [])
    assert torch.backends.mha.get_fastpath_enabled()


def test_each_asking_begins_anew():
    with Counter() as counter:
        torch.zeros(2, 3) @ torch.zeros(3, 5)
        assert counter.since_last_call() == (30, [])
        torch.fft.fft(torch.zeros(8))
        torch.zeros(2, 3) @ torch.zeros(3, 7)
        assert counter.since_last_call() == (42, ["_fft_r2c"])
    assert counter.since_last_call() == (0, [])
    with counter:
        torch.zeros(2, 3) @ torch.zeros(3, 5)
    assert counter.since_last_call() == (30, [])


FREE = {
    "pointwise": lambda x: F.gelu(x * x + 1).pow(2).lgamma(),
    "pooling": lambda x: F.adaptive_avg_pool2d(F.max_pool2d(x, 2), 1),
    "resizing": lambda x: [
        F.interpolate(x, scale_factor=2, mode=mode, antialias=antialias)
        for mode, antialias in [("nearest", False), ("bilinear", False), ("bicubic", True)]
    ],
    "resizing a line": lambda x: F.interpolate(x[0], scale_factor=2, mode="linear"),
    "resizing a volume": lambda x: F.interpolate(x[None], scale_factor=2, mode="trilinear"),
    "sampling": lambda x: F.grid_sample(x, torch.zeros(2, 4, 4, 2), align_corners=False),
    "normalising": lambda x: F.layer_norm(
        F.group_norm(F.batch_norm(x, None, None, training=True), 2), x.shape[1:]
    ),
    "indexing": lambda x: x[torch.tensor([1, 0])].gather(1, x.long().abs()).topk(1).values,
    "embedding": lambda x: F.embedding(torch.tensor([0, 1]), x[0, 0]),
    "bags": lambda x: F.embedding_bag(torch.tensor([[0, 1]]), x[0, 0]),
    "reducing": lambda x: x.norm(dim=1).var(0) + torch.linalg.vector_norm(x).cumsum(0),
    "softmax": lambda x: x.softmax(-1).logsumexp(0),
    "unfolding": lambda x: F.fold(F.unfold(x, 2), x.shape[2:], 2),
    "making": lambda x: torch.linspace(0, 1, 5) + torch.arange(5) + torch.fft.fftfreq(5),
    "sorting": lambda x: x.sort().values.cummax(0).values.unique(),
    "inner products of width one": lambda x: torch.outer(x.flatten(), x.flatten()),
    "weight norm": lambda x: torch._weight_norm(x, x[:, :1, :1, :1]),
}


@pytest.mark.parametrize("name", FREE)
def test_what_costs_nothing_is_not_named(name):
    x = torch.rand(2, 4, 4, 4)
    with Counter() as counter, torch.no_grad():
        FREE[name](x)
    assert counter.since_last_call() == (0, [])


@torch.library.custom_op("joslim_tests::product", mutates_args=())
def own_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(a.numpy() @ b.numpy())


UNKNOWN = {
    "_fft_r2c": lambda x: torch.fft.rfft2(x),
    "_linalg_svd": lambda x: torch.linalg.svd(x),
    "linalg_inv_ex": lambda x: torch.linalg.inv(x),
    "_cdist_forward": lambda x: torch.cdist(x, x, p=1.0),
    "joslim_tests::product": lambda x: own_product(x, x),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_kernels_that_multiply_and_cannot_be_counted_are_named(name):
    x = torch.eye(4)
    with Counter() as counter, torch.no_grad():
        UNKNOWN[name](x)
    macs, unknown = counter.since_last_call()
    assert macs == 0
    assert name in unknown


def test_all_fused_kernels_of_torch_are_known_to_multiply():
    aten = torch.ops.aten
    for packet in (aten._native_multi_head_attention, aten._transformer_encoder_layer_fwd):
        assert multiplies(packet.default)
    assert not multiplies(aten._thnn_fused_lstm_cell.default)


def test_a_kernel_makes_no_maps_on_the_way():
    counter = Counter()
    assert counter.is_kernel("vdot")
    assert not counter.is_kernel("lstm")
    assert not counter.is_kernel("no such operation")


def test_a_view_of_a_parameter_that_is_handed_to_a_module():
    class WithToken(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.randn(1, 8))
            self.fc1, self.fc2 = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x):
            return self.fc2(self.fc1(self.token.expand(len(x), -1)))

    net = joslim.slim(WithToken(), torch.randn(1, 3))
    assert joslim.cost("macs", net)(net.space.full) == 8 * 8 + 8 * 4


def test_a_product_with_a_transposed_weight_is_a_layer():
    """As in the Falcon of transformers, whose costs are those of an ordinary linear layer."""

    class Product(nn.Linear):
        def forward(self, x):
            return x @ self.weight.T + self.bias

    x = torch.randn(2, 6)
    own, usual = (
        joslim.slim(nn.Sequential(kind(6, 16), nn.ReLU(), kind(16, 4)), x)
        for kind in (Product, nn.Linear)
    )
    assert own.space.dims == usual.space.dims
    for name in ("macs", "params", "memory"):
        costs = [joslim.cost(name, net)(net.space.uniform(0.5)) for net in (own, usual)]
        assert costs[0] == costs[1], name
