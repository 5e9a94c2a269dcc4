"""Kernels against arithmetic by hand; what multiplies is named, and nothing else is."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from joslim.slimmable.counter import Counter, multiplies

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
