"""Knobs of depth and resolution: which blocks are found, and children that are exact with both."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import joslim
from joslim import SlimmableNet, UserError, Widths
from joslim.models import MODELS
from joslim.slimmable.layers import SlimmableLayer
from joslim.slimmable.running import resized


class Residual(nn.Module):
    """What it adds has a width of its own; `step` changes the size, so that it must stay."""

    def __init__(self, channels: int, made: int | None = None, step: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, 10, 3, step, 1),
            nn.BatchNorm2d(10),
            nn.ReLU(),
            nn.Conv2d(10, made or channels, 1),
        )
        self.short = nn.Conv2d(channels, made, 1, step) if made else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.short(x))


class Listed(nn.Module):
    """Stages in a list, which forward goes through by number."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList([Residual(8), Residual(8), Residual(8, 12, 2), Residual(12)])
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for number in range(4):
            x = self.blocks[number](x)
        return self.head(x.mean((2, 3)))


class Patches(nn.Module):
    """A transformer of torch's own layers, which are called with more than their input."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        layer = nn.TransformerEncoderLayer(16, 2, 24, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.encoder(tokens).mean(1))


class PreActivated(nn.Module):
    """Normalised first, gated, and added in place."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.gate = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv(torch.relu(self.norm(x)))
        out = out * torch.sigmoid(self.gate(out.mean((2, 3), keepdim=True)))
        out += x
        return out


def in_sequence(*blocks: nn.Module) -> nn.Sequential:
    pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Sequential(*blocks), *pool)


def own(name: str) -> nn.Module:
    if name == "listed":
        return Listed()
    if name == "patches":
        return Patches()
    return in_sequence(*(PreActivated(8) for _ in range(3)))


# Name of the network, sizes of its input, and the blocks of each stage.
NETWORKS: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "listed": ((8, 12, 16), {"blocks.0": 2, "blocks.2": 2}),
    "patches": ((8, 16), {"encoder.layers": 3}),
    "preactivated": ((8, 12), {"1": 3}),
    "resnet20": ((8, 16, 20), {"layer1": 3, "layer2": 3, "layer3": 3}),
    "resnet50": ((32, 48), {"layer1": 3, "layer2": 4, "layer3": 6, "layer4": 3}),
    "mobilenet_v2": (
        (32, 64),
        {"features.2": 2, "features.4": 3, "features.7": 4, "features.11": 3, "features.14": 3},
    ),
    "mobilenet_v3_large": (
        (32, 64),
        {"features.2": 2, "features.4": 3, "features.7": 4, "features.11": 2, "features.13": 3},
    ),
}


def slimmed(name: str, **options: Any) -> SlimmableNet:
    sizes, _ = NETWORKS[name]
    model = MODELS[name](num_classes=10) if name in MODELS else own(name)
    options = {"resolutions": sizes, "depth": True, **options}
    return joslim.slim(model, torch.zeros(1, 3, sizes[-1], sizes[-1]), **options).eval()


def outputs(net: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        found: Tensor = net(x)
    return found


def children_of(net: SlimmableNet, count: int) -> list[Widths]:
    rng = np.random.default_rng(0)
    return [net.space.smallest, *(net.space.random(rng) for _ in range(count))]


@pytest.mark.parametrize("name", NETWORKS)
def test_children_with_knobs_of_every_kind_are_exact(name: str) -> None:
    """In place equals cut out; costs are those that torch and the child's own trace count."""
    net, (sizes, stages) = slimmed(name), NETWORKS[name]
    found = {dim.name: dim.full for dim in net.space.dims if dim.kind == "blocks"}
    assert found == stages
    assert net.space.full.pixels == sizes[-1]
    assert {*net.space.kinds} == {"channels", "blocks", "pixels"}
    macs, params, memory = (joslim.cost(cost, net) for cost in ("macs", "params", "memory"))
    images = torch.randn(2, 3, sizes[-1], sizes[-1])
    for widths in children_of(net, 1 if name in MODELS else 5):
        child, own_images = net.child(widths), resized(images, widths.pixels)
        assert own_images.shape[-1] == widths.pixels
        with net.at(widths):
            in_place = outputs(net, images)
        torch.testing.assert_close(
            in_place, (cut_out := outputs(child, own_images)), rtol=0,
            atol=1e-4 * float(cut_out.abs().max()),
        )  # fmt: skip
        with FlopCounterMode(display=False) as counter:
            outputs(child, own_images[:1])
        if name != "patches":  # torch does not count its fused attention
            assert macs(widths) == counter.get_total_flops() // 2
        assert params(widths) == sum(p.numel() for p in child.parameters())
        again = joslim.slim(copy.deepcopy(child), own_images[:1], low=1.0)
        assert memory(widths) == joslim.cost("memory", again)(again.space.full)
        assert macs(widths) == joslim.cost("macs", again)(again.space.full)


def test_costs_never_fall_when_a_knob_rises() -> None:
    net = slimmed("listed")
    rng = np.random.default_rng(0)
    low = rng.uniform(net.space.low, 1, (200, len(net.space)))
    high = np.minimum(low + rng.uniform(0, 0.5, low.shape) * (rng.random(low.shape) < 0.3), 1)
    for name in ("macs", "params", "memory"):
        price = joslim.cost(name, net)
        assert (price.of(low) <= price.of(high)).all()
        assert price.of(low).tolist() == [price(net.space.at(row)) for row in low]


def test_blocks_that_are_left_out_are_gone_from_the_child() -> None:
    net = slimmed("resnet20")
    child = net.child(net.space.smallest)
    assert [len(stage) for stage in (child.layer1, child.layer2, child.layer3)] == [1, 1, 1]
    assert not [name for name in child.state_dict() if name.startswith("layer2.1")]
    assert not any(isinstance(module, SlimmableLayer) for module in child.modules())
    listed = slimmed("listed")
    child = listed.child(listed.space.smallest)
    assert [type(block) for block in child.blocks] == [Residual, nn.Identity] * 2
    assert len(pickle.loads(pickle.dumps(child)).state_dict()) == len(child.state_dict())


def test_nothing_is_left_out_and_resized_at_full_width() -> None:
    model = MODELS["resnet20"](num_classes=10).eval()
    images = torch.randn(2, 3, 20, 20)
    before = outputs(model, images)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    net = joslim.slim(model, images[:1], resolutions=(8, 16, 20), depth=True)
    assert torch.equal(outputs(net, images), before)
    assert list(net.state_dict()) == list(state)
    with net.at(net.space.smallest):
        small = outputs(net, images)
        assert torch.equal(outputs(copy.deepcopy(net), images), small)
        assert torch.equal(outputs(pickle.loads(pickle.dumps(net)), images), small)
    assert torch.equal(outputs(net, images), before)
    assert torch.equal(outputs(net.child(net.space.full), images), before)


def test_without_these_options_there_is_no_trace_of_them() -> None:
    net = joslim.slim(Listed(), torch.zeros(1, 3, 16, 16))
    assert {*net.space.kinds} == {"channels"}
    assert net.space.full.pixels is None
    assert type(net.blocks[1]) is Residual
    assert "kind" not in net.space.to_json()["dims"][0]
    assert all(not term.at_sizes and term.block is None for term in net.blueprint.maps)


def test_gradients_reach_only_the_blocks_that_are_there() -> None:
    net = slimmed("listed").train()
    with net.at(net.space.smallest):
        net(torch.randn(4, 3, 16, 16)).sum().backward()
    with_gradient = {n for n, p in net.named_parameters() if p.grad is not None}
    assert not [name for name in with_gradient if name.startswith(("blocks.1", "blocks.3"))]
    assert "blocks.2.short.weight" in with_gradient


def test_statistics_of_a_child_are_those_of_its_blocks_and_its_size() -> None:
    net = slimmed("listed")
    small, images = net.space.smallest, torch.randn(16, 3, 16, 16)
    with net.at(small):
        joslim.recalibrate(net, [images])
    assert {*net.statistics[small]} == {"blocks.0.body.1", "blocks.2.body.1"}
    child = net.child(small)
    joslim.recalibrate(child, [resized(images, 8)])
    with net.at(small):
        torch.testing.assert_close(outputs(net, images), outputs(child, resized(images, 8)))


def test_options_keep_blocks() -> None:
    def least(**options: Any) -> dict[str, int]:
        net = slimmed("resnet20", **options)
        return {dim.name: dim.least for dim in net.space.dims if dim.kind == "blocks"}

    assert least() == {"layer1": 1, "layer2": 1, "layer3": 1}
    assert least(depth={"layer3": 2}) == {"layer1": 1, "layer2": 1, "layer3": 2}
    assert least(depth={"layer*": 2, "layer1": 3}) == {"layer2": 2, "layer3": 2}
    assert least(keep=["layer2.1"]) == {"layer1": 1, "layer2": 2, "layer3": 1}
    frozen = {f.layer: f.why for f in slimmed("resnet20", depth={"layer3": 2}).frozen}
    assert frozen["layer1.0"] == "it is the first block of its stage"
    assert frozen["layer2.0"] == "its output differs in size from its input"
    assert frozen["layer3.1"] == "kept, as asked for"
    assert "layer3.2" not in frozen


class Shared(nn.Module):
    """Its first block runs twice, its second is read inside, its third shares weights."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(PreActivated(8) for _ in range(6)))
        self.blocks[4].conv.weight = self.blocks[5].conv.weight
        self.stem, self.head = nn.Conv2d(3, 8, 1), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](self.stem(x))
        x = self.blocks[1](self.blocks[1](x))
        early = x
        x = self.blocks[3](self.blocks[2](x))
        x = self.blocks[5](self.blocks[4](x))
        return self.head(torch.cat([x, early], 1)).mean((2, 3))


def test_blocks_that_cannot_be_left_out_say_why() -> None:
    net = joslim.slim(Shared(), torch.zeros(1, 3, 8, 8), depth=True)
    assert [dim.layers for dim in net.space.dims if dim.kind == "blocks"] == [
        ("blocks.2", "blocks.3")
    ]
    why = {f.layer: f.why for f in net.frozen if not f.channels}
    assert why["blocks.1"] == "it is called more than once"
    assert why["blocks.2"] == "a tensor before its end is read after it"
    assert why["blocks.4"] == why["blocks.5"] == "it shares weights with others"


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 4)
        self.positions = nn.Parameter(torch.zeros(8, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.conv(x) + self.positions).mean((2, 3)))


def dense() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1))


def flattening() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 196, 4))


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (flattening, {"resolutions": (8, 16)}, "^resolutions: Sequential cannot take images of 8"),
        (Positions, {"resolutions": (8, 16)}, "^resolutions: Positions cannot take images of 8"),
        (dense, {"resolutions": (8, 16)}, r"^resolutions: the outputs are \[\(1, 4, 6, 6\)\] for"),
        (Listed, {"resolutions": (16, 8)}, r"^resolutions: \(16, 8\) given; type at least two"),
        (Listed, {"resolutions": (16,)}, "^resolutions: .* type at least two sizes in pixels"),
        (Listed, {"resolutions": (8, 8, 16)}, "^resolutions: .* each once and the smallest first"),
        (Listed, {"resolutions": (0, 16)}, "^resolutions: .* type at least two sizes"),
        (Listed, {"resolutions": 16}, "^resolutions: 16 given"),
        (
            Listed,
            {"resolutions": (8, 32)},
            "^resolutions: the largest is 32, the images have 16x16",
        ),
        (flattening, {"depth": True}, "^depth: Sequential has no block to leave out; a block is"),
        (Listed, {"depth": {"layer9": 1}}, "^depth: unknown name 'layer9'; allowed"),
        (Listed, {"depth": {"blocks.0": 3}}, "^depth: 3 for 'blocks.0', which has 2 blocks; type"),
        (Listed, {"depth": 2}, "^depth: 2 given; type True, or the least number"),
        (Listed, {"depth": {"blocks.0": 1.5}}, "^depth: .* given; type True, or the least"),
    ],
)
def test_options_that_are_refused(model: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        joslim.slim(model(), torch.zeros(1, 3, 16, 16), **options)
    assert len(str(error.value).splitlines()) == 1


def test_only_batches_of_images_can_be_resized() -> None:
    line = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    with pytest.raises(UserError, match=r"^resolutions: the network takes \(1, 4\), one batch of"):
        joslim.slim(line, torch.zeros(1, 4), resolutions=(2, 4))


def test_a_child_of_other_knobs_is_refused() -> None:
    net, plain = slimmed("listed"), joslim.slim(Listed(), torch.zeros(1, 3, 16, 16))
    with pytest.raises(UserError, match=r"^widths: they belong to another network"):
        net.use(plain.space.smallest)
    with pytest.raises(UserError, match="is not a child of this network"):
        net.space.of_counts([*net.space.full.counts[:-1], 9])


def test_latency_is_measured_at_the_size_of_the_child() -> None:
    net = slimmed("listed")
    latency = joslim.cost("latency", net, children=8, repeats=1)
    assert 0 < latency(net.space.smallest) <= latency(net.space.full)
