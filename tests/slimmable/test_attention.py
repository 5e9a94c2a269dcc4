"""Attention in the styles that people write it in: heads, MLP and embedding are slimmed.

Every style is one attention module, put into the same small transformer. Children are compared with
the network run in place, multiply-adds with torch's counter, and a child with fewer heads with the
full network whose other heads are masked.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import joslim
from joslim.slimmable import running

WIDTH, HEADS, SIZE, TOKENS = 32, 4, 8, 9
SHAPE = (1, TOKENS, WIDTH)

STYLES: dict[str, type[nn.Module]] = {}


def style(cls: type[nn.Module]) -> type[nn.Module]:
    STYLES[cls.__name__] = cls
    return cls


class Attention(nn.Module):
    """Base of all styles, with sizes as attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.inner = HEADS, SIZE, HEADS * SIZE
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)


@style
class FusedUnbind(Attention):
    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(b, n, self.inner))


@style
class FusedChunk(Attention):
    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (
            part.view(b, n, self.num_heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        weights = (q @ k.transpose(-2, -1) * self.head_dim**-0.5).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


@style
class FusedTied(Attention):
    """The width of the input stands in the views, so that heads and embedding are one knob."""

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, c // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1)).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, c))


@style
class FusedHeadsOutside(Attention):
    """The parts of each head stand beside each other, and are split by literal sizes."""

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        qkv = self.qkv(x).transpose(1, 2).view(b, self.num_heads, self.head_dim * 3, n)
        q, k, v = qkv.split([self.head_dim, self.head_dim, self.head_dim], dim=2)
        x = v @ (q.transpose(-2, -1) @ k).softmax(-1).transpose(-2, -1)
        return self.proj(x.reshape(b, self.inner, n).transpose(1, 2))


class Transposed(nn.Module):
    """A linear layer with a transposed weight, which writes its width into a view."""

    def __init__(self, out: int, inside: int) -> None:
        super().__init__()
        self.nf = out
        self.weight = nn.Parameter(torch.randn(inside, out) * 0.1)
        self.bias = nn.Parameter(torch.randn(out))

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.size()[:-1], self.nf)
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(shape)


@style
class FusedSplit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.split_size, self.head_dim = WIDTH, SIZE
        self.qkv, self.proj = Transposed(3 * WIDTH, WIDTH), Transposed(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)
            for part in self.qkv(x).split(self.split_size, dim=2)
        )
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(x.transpose(1, 2).reshape(*x.shape[:1], TOKENS, -1))


class Separate(nn.Module):
    """Base of the styles with a layer for each of query, key and value."""

    shared = 1

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH)
        self.k, self.v = (nn.Linear(WIDTH, WIDTH // self.shared) for _ in range(2))
        self.proj = nn.Linear(WIDTH, WIDTH)

    def heads(self, x: Tensor) -> list[Tensor]:
        maps = (layer(x) for layer in (self.q, self.k, self.v))
        return [y.view(*x.shape[:2], -1, 8).transpose(1, 2) for y in maps]


@style
class LiteralSize(Separate):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        x = F.scaled_dot_product_attention(q, k, v).permute(0, 2, 1, 3).contiguous()
        return self.proj(x.view(*x.size()[:-2], x.size(2) * 8))


def rotated(x: Tensor) -> Tensor:
    angles = torch.outer(torch.arange(x.shape[2]).float(), 0.1 ** torch.arange(SIZE // 2))
    cos, sin = (torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return x * cos + torch.cat((-second, first), -1) * sin


@style
class GroupedQuery(Separate):
    shared = 2

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        x = F.scaled_dot_product_attention(rotated(q), rotated(k), v, enable_gqa=True)
        return self.proj(x.transpose(1, 2).flatten(2))


@style
class RepeatedKeys(Separate):
    shared = 2

    def forward(self, x: Tensor) -> Tensor:
        q, *others = self.heads(x)
        b, heads, n, size = others[0].shape
        k, v = (
            y[:, :, None].expand(b, heads, self.shared, n, size).reshape(b, heads * 2, n, size)
            for y in others
        )
        return self.proj(
            (rotated(q) @ rotated(k).mT).softmax(-1).matmul(v).transpose(1, 2).flatten(2)
        )


@style
class Windows(Attention):
    """Windows of three tokens, with a table of biases for each head and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, HEADS))
        place = torch.arange(3)
        self.register_buffer("index", place[:, None] - place[None, :] + 2)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        x = x.view(b * n // 3, 3, c)
        qkv = self.qkv(x).reshape(len(x), 3, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index.view(-1)].view(3, 3, -1).permute(2, 0, 1)
        weights = qkv[0] @ qkv[1].transpose(-2, -1) + bias.unsqueeze(0)
        mask = torch.zeros(n // 3, 3, 3).unsqueeze(1).unsqueeze(0)
        weights = weights.view(-1, n // 3, self.num_heads, 3, 3) + mask
        weights = weights.view(-1, self.num_heads, 3, 3).softmax(-1)
        return self.proj((weights @ qkv[2]).transpose(1, 2).reshape(len(x), 3, -1)).view(b, n, -1)


@style
class OfTorch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


@style
class OfTorchWithMemory(nn.Module):
    """Query, key and value of different widths, with the mask of a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, kdim=12, vdim=20)
        self.key, self.value = nn.Linear(WIDTH, 12), nn.Linear(WIDTH, 20)

    def forward(self, x: Tensor) -> Tensor:
        x, mask = x.transpose(0, 1), torch.ones(TOKENS, TOKENS).triu(1).bool()
        x, _ = self.attention(x, self.key(x), self.value(x), need_weights=False, attn_mask=mask)
        return x.transpose(0, 1)


class Block(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), attention
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.down(F.gelu(self.up(x)))


class Transformer(nn.Module):
    def __init__(self, attention: Callable[[], nn.Module], blocks: int = 1) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.Sequential(*(Block(attention()) for _ in range(blocks)))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean(1))


# Styles whose forward makes the embedding as wide as all heads together.
TIED = {"FusedTied", "OfTorch", "OfTorchWithMemory"}


def math_macs(model: nn.Module, *inputs: Any) -> int:
    """Multiply-adds by torch's counter, which does not know fused attention."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model(*inputs)
    torch.backends.mha.set_fastpath_enabled(fast)
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("name", STYLES)
def test_heads_mlp_and_embedding_are_knobs(name: str, assert_same: Any, children: Any) -> None:
    model, x = Transformer(STYLES[name]).eval(), torch.randn(2, TOKENS, WIDTH)
    with torch.no_grad():
        before = model(x)
        net = joslim.slim(model, SHAPE)
        assert torch.equal(net(x), before)
        heads = [dim for dim in net.space.dims if dim.heads]
        assert [dim.full // dim.step for dim in heads] == [
            HEADS // getattr(STYLES[name], "shared", 1)
        ]
        layers = [layer for dim in net.space.dims for layer in dim.layers]
        assert {"stem", "blocks.0.up", "blocks.0.down"} <= {*layers}
        assert ("stem" in heads[0].layers) == (name in TIED)
        assert [frozen.layer for frozen in net.frozen] == ["head"]
        macs = joslim.cost("macs", net)
        for widths in [net.space.full, *children(net.space)]:
            child = net.child(widths)
            with net.at(widths):
                assert_same(net(x), child(x))
            assert macs(widths) == math_macs(child, x[:1])
            assert joslim.cost("params", net)(widths) == sum(p.numel() for p in child.parameters())


@pytest.mark.parametrize("name", ["FusedUnbind", "FusedSplit", "GroupedQuery", "Windows"])
def test_a_child_with_fewer_heads_equals_the_full_network_without_the_others(
    name: str, assert_same: Any
) -> None:
    model, x = Transformer(STYLES[name]).eval(), torch.randn(2, TOKENS, WIDTH)
    net = joslim.slim(model, SHAPE)
    (heads,) = (at for at, dim in enumerate(net.space.dims) if dim.heads)
    counts = [*net.space.full.counts]
    counts[heads] //= 2
    with torch.no_grad():
        child = net.child(net.space.of_counts(counts))(x)
        # The second half of the heads stands last in the input of the projection.
        proj = net.blocks[0].attention.proj
        weight = proj.weight if isinstance(proj, Transposed) else proj.weight.T
        weight[WIDTH // 2 :] = 0
        assert_same(child, net(x))


def test_one_head_can_become_smaller(children: Any, assert_same: Any) -> None:
    class OneHead(Separate):
        def __init__(self) -> None:
            super().__init__()
            self.head_dim = WIDTH

        def forward(self, x: Tensor) -> Tensor:
            maps = (layer(x) for layer in (self.q, self.k, self.v))
            q, k, v = (y.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2) for y in maps)
            weights = (q @ k.transpose(-2, -1) / self.head_dim**0.5).softmax(-1)
            return self.proj((weights @ v).transpose(1, 2).flatten(2))

    net = joslim.slim(Transformer(OneHead), SHAPE)
    (dim,) = (dim for dim in net.space.dims if "blocks.0.attention.q" in dim.layers)
    assert (dim.full, dim.step, dim.heads) == (WIDTH, 1, False)


def test_weight_norm_and_a_masked_assignment(children: Any, assert_same: Any) -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=4)
            self.conv = nn.utils.parametrizations.weight_norm(conv, dim=2)
            self.mask = nn.Parameter(torch.randn(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            x = x.clone()
            x[torch.arange(TOKENS).eq(2).expand(x.shape[:2])] = self.mask
            return self.conv(x.transpose(1, 2)).transpose(1, 2)

    net = joslim.slim(Transformer(Positions).eval(), SHAPE)
    assert {dim.name for dim in net.space.dims} == {"stem", "blocks.0.up"}
    x = torch.randn(2, TOKENS, WIDTH)
    for widths in children(net.space):
        with torch.no_grad(), net.at(widths):
            assert_same(net(x), net.child(widths)(x))


def test_an_encoder_whose_output_is_the_embedding_keeps_only_that() -> None:
    net = joslim.slim(nn.Sequential(nn.Linear(WIDTH, WIDTH), Block(FusedUnbind())), SHAPE)
    assert {dim.name for dim in net.space.dims} == {"1.attention.qkv", "1.up"}
    assert {frozen.why for frozen in net.frozen} == {"it is an output of the network"}


def test_a_literal_number_and_size_of_heads_stay_frozen() -> None:
    class Literal(Attention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).reshape(1, TOKENS, 3, 4, 8).permute(2, 0, 3, 1, 4)
            return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    net = joslim.slim(Transformer(Literal), SHAPE)
    assert not any(dim.heads for dim in net.space.dims)
    why = {frozen.layer: frozen.why for frozen in net.frozen}["blocks.0.attention.qkv"]
    assert "a literal size of 8 in reshape" in why


def test_keys_and_values_of_the_past_may_have_fewer_heads() -> None:
    class Past:
        def __init__(self, *tensors: Tensor) -> None:
            self.tensors = tensors

    class Cached(LiteralSize):
        def forward(self, x: Tensor) -> Any:
            _, k, v = self.heads(x)
            return {"out": super().forward(x), "past": Past(k, v)}

    net = joslim.slim(Cached(), SHAPE)
    assert [dim.heads for dim in net.space.dims] == [True]
    with net.at(net.space.smallest):
        assert net(torch.randn(SHAPE))["past"].tensors[0].shape == (1, 1, TOKENS, SIZE)


@pytest.mark.parametrize("overwritten", [True, False])
def test_heads_of_a_table_that_is_kept_between_calls_freeze(overwritten: bool) -> None:
    class Keeping(Windows):
        cache: dict[str, Tensor] = {}

        def train(self, mode: bool = True) -> Any:
            self.cache = {}
            return super().train(mode)

        def forward(self, x: Tensor) -> Tensor:
            if overwritten or "table" not in self.cache:
                self.cache = {"table": self.table.exp()}
            return super().forward(x) * self.cache["table"].mean()

    net = joslim.slim(Transformer(Keeping).eval(), SHAPE)
    assert any(dim.heads for dim in net.space.dims) == overwritten


def test_attributes_that_are_no_sizes_keep_their_values() -> None:
    class Counting(FusedUnbind):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.layer = 32, 4

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x) * len(range(self.layer))

    net = joslim.slim(Transformer(Counting), SHAPE)
    attention: Any = net.blocks[0].attention
    before = attention.calls
    with net.at(net.space.smallest):
        net(torch.randn(SHAPE))
        assert (attention.num_heads, attention.head_dim, attention.inner) == (1, SIZE, SIZE)
    assert (attention.calls, attention.layer, attention.num_heads) == (before + 1, 4, HEADS)


def test_whole_heads_are_sorted(assert_same: Any) -> None:
    net = joslim.slim(Transformer(STYLES["FusedUnbind"]).eval(), SHAPE)
    attention: Any = net.blocks[0].attention
    x = torch.randn(2, TOKENS, WIDTH)
    with torch.no_grad():
        attention.proj.weight[:, :SIZE] *= 0.01  # the first head matters least
        last = attention.proj.weight[:, :SIZE].clone()
        before = net(x)
        assert joslim.sort_channels(net) == []
        assert_same(net(x), before)
        found = attention.proj.weight[:, -SIZE:].abs().sum(0)
        assert torch.allclose(found, last.abs().sum(0))


def test_whole_blocks_leave(assert_same: Any) -> None:
    net = joslim.slim(Transformer(STYLES["FusedUnbind"], blocks=3).eval(), SHAPE, depth=True)
    assert net.space.kinds.count("blocks") == 1
    x, rng = torch.randn(2, TOKENS, WIDTH), np.random.default_rng(0)
    for widths in (net.space.smallest, net.space.random(rng)):
        with torch.no_grad(), net.at(widths):
            assert_same(net(x), net.child(widths)(x))


def test_blocks_that_take_positions_leave(assert_same: Any) -> None:
    class Moved(Block):
        def forward(self, x: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
            return super().forward(x + 0 * positions[0] * positions[1])

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)
            self.layers = nn.ModuleList(Moved(LiteralSize()) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            places = torch.arange(x.shape[1]).float()[:, None]
            x, positions = self.stem(x), (places.cos(), places.sin())
            for layer in self.layers:
                x = layer(x, positions)
            return self.head(x)

    net = joslim.slim(Network().eval(), SHAPE, depth=True)
    assert [dim.full for dim in net.space.dims if dim.kind == "blocks"] == [3]
    x = torch.randn(SHAPE)
    with torch.no_grad(), net.at(net.space.smallest):
        assert_same(net(x), net.child(net.space.smallest)(x))


@pytest.mark.parametrize("suffix", ["pt2", "onnx"])
def test_a_child_with_fewer_heads_is_exported(suffix: str, tmp_path: Any) -> None:
    net = joslim.slim(Transformer(STYLES["GroupedQuery"]).eval(), SHAPE)
    path = tmp_path / f"child.{suffix}"
    # The export compares the file with the child.
    joslim.export(net, net.space.smallest, path, samples=torch.randn(4, TOKENS, WIDTH))
    assert path.exists()


@pytest.mark.parametrize("name", ["timm vit", "transformers llama", "torchvision vit"])
def test_real_networks(name: str, assert_same: Any, children: Any, package: Any) -> None:
    package(name.split()[0])
    zoo = importlib.import_module("zoo_families")
    family = next(f for f in zoo.families() if f"{f.package} {f.name}" == name)
    model, given = family.build()
    inputs = running.as_inputs(given)
    net = joslim.slim(model.eval(), inputs, depth=True)
    assert any(dim.heads for dim in net.space.dims)
    assert net.space.kinds.count("blocks") == 1
    for widths in children(net.space):
        with torch.no_grad(), net.at(widths):
            found = running.call(net, inputs), running.call(net.child(widths), inputs)
        assert_same(*map(running.tensors_in, found))
