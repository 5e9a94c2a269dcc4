"""Counted costs against oracles: torch's flop counter, the paper's figures, its formula by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import joslim
from joslim import SlimmableNet, UserError
from joslim.models import MODELS

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
    shape = (3, 32, 32)
    net = joslim.slim(MODELS[name](), torch.zeros(1, *shape))
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
