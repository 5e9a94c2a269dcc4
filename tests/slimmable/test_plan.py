"""From a trace to knobs: names, ties, lowest shares, and what cannot be done."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import joslim
from joslim import UserError, models


class Stages(nn.Module):
    """Two stages of two convolutions, a residual connection in each."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.first = nn.ModuleList(self.block(16, 24) for _ in range(2))
        self.down = nn.Conv2d(16, 32, 3, 2, 1)
        self.second = nn.ModuleList(self.block(32, 40) for _ in range(2))
        self.fc = nn.Linear(32, 5)

    @staticmethod
    def block(channels, inner):
        return nn.ModuleDict(
            {
                "conv1": nn.Conv2d(channels, inner, 3, padding=1),
                "conv2": nn.Conv2d(inner, channels, 3, padding=1),
            }
        )

    def forward(self, x):
        x = self.stem(x)
        for block in self.first:
            x = x + block["conv2"](F.relu(block["conv1"](x)))
        x = self.down(x)
        for block in self.second:
            x = x + block["conv2"](F.relu(block["conv1"](x)))
        return self.fc(x.mean((2, 3)))


def slim(**options):
    return joslim.slim(Stages(), torch.randn(1, 3, 8, 8), **options)


def names(net):
    return [knob.name for knob in net.space.knobs]


ALL = ["stem", "first.0.conv1", "first.1.conv1", "down", "second.0.conv1", "second.1.conv1"]


def test_a_knob_is_named_after_the_first_layer_that_makes_it():
    net = slim()
    assert names(net) == ALL
    assert net.space.dims[0].layers == ("stem", "first.0.conv2", "first.1.conv2")
    assert [dim.full for dim in net.space.dims] == [16, 24, 24, 32, 40, 40]


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        (["stem"], ALL[1:]),
        (["first.1.conv2"], ALL[1:]),
        (["first.*.conv1"], [ALL[0], *ALL[3:]]),
        (["second"], ALL[:3]),
        ("stem", ALL[1:]),
        (["down", "first"], ALL[4:]),
        (["fc"], ALL),
    ],
)
def test_kept_layers_stay_as_they_are(keep, left):
    net = slim(keep=keep)
    assert names(net) == left
    assert set(names(net)) == set(ALL) - {f.layer for f in net.frozen}


def test_a_kept_layer_says_who_asked_for_it():
    frozen = {f.layer: f for f in slim(keep=["first"]).frozen}
    assert frozen["first.0.conv1"].channels == 24
    assert "kept, as asked for by 'first'" in frozen["first.0.conv1"].why


@pytest.mark.parametrize(
    ("tie", "knobs"),
    [
        (["first.*.conv1"], 5),
        (["first"], 4),
        ([["first.0.conv1", "second.0.conv1"]], 5),
        ([["first.*.conv1"], ["second.*.conv1"]], 4),
        (["*"], 1),
        ("second.*.conv1", 5),
    ],
)
def test_tied_layers_share_a_knob(tie, knobs):
    space = slim(tie=tie).space
    assert len(space) == knobs
    assert len(space.dims) == 6
    assert sorted(position for knob in space.knobs for position in knob.dims) == list(range(6))


def test_a_tie_turns_all_its_layers():
    net = slim(tie=[["first.0.conv1", "second.0.conv1"]])
    child = net.child(net.space.at([0.5 if len(k.dims) > 1 else 1.0 for k in net.space.knobs]))
    assert child.first[0]["conv1"].out_channels == 12
    assert child.second[0]["conv1"].out_channels == 20
    assert child.first[1]["conv1"].out_channels == 24


def test_lowest_shares_by_name():
    net = slim(low={"first": 0.5, "*.1.conv1": 0.75})
    lows = {knob.name: knob.low for knob in net.space.knobs}
    assert lows["first.0.conv1"] == 0.5
    assert lows["first.1.conv1"] == lows["second.1.conv1"] == 0.75
    assert lows["down"] == 0.25
    assert net.space.smallest.channels["first.0.conv1"] == 12


def test_one_lowest_share_for_all():
    assert np.allclose(slim(low=0.42).space.low, 0.42)
    assert slim(low=1).space.smallest == slim(low=1).space.full


def test_a_tie_has_the_highest_of_its_lowest_shares():
    net = slim(low={"first.0.conv1": 0.5, "first.1.conv1": 0.3}, tie=["first.*.conv1"])
    assert next(k.low for k in net.space.knobs if len(k.dims) == 2) == 0.5


@pytest.mark.parametrize("divisor", [1, 8, 16])
def test_counts_are_multiples_of_the_divisor(divisor):
    space = slim(divisor=divisor).space
    rng = np.random.default_rng(0)
    for _ in range(20):
        counts = space.random(rng).counts
        assert all(n % divisor == 0 or n == dim.full for n, dim in zip(counts, space.dims))
    assert all(count > 0 for count in space.smallest.counts)


def test_defaults_of_the_model_are_read_and_arguments_win():
    model = Stages()
    model.slim_defaults = {"low": 0.5, "tie": ["first"], "input": (3, 8, 8)}
    net = joslim.slim(model, torch.randn(1, 3, 8, 8), low=0.3)
    assert len(net.space) == 4
    assert np.allclose(net.space.low, 0.3)


BAD = {
    "unknown keep": ({"keep": ["secnd"]}, r"^keep: unknown name 'secnd'.*second\."),
    "unknown tie": ({"tie": [["stem", "dwon"]]}, r"^tie: unknown name 'dwon'.*down"),
    "unknown low": ({"low": {"stm": 0.5}}, r"^low: unknown name 'stm'.*stem"),
    "a frozen layer": ({"tie": [["stem", "fc"]]}, r"^tie: 'fc' cannot be slimmed: .*output"),
    "a kept layer": ({"keep": ["down"], "tie": [["stem", "down"]]}, r"^tie: 'down' cannot be"),
    "two ties": ({"tie": [["stem", "down"], ["down", "second"]]}, r"^tie: 'down' stands in two"),
    "all kept": ({"keep": ["*"]}, r"^model: Stages has nothing to slim.*kept"),
    "low of zero": ({"low": {"stem": 0.0}}, r"^low: 0.0 is outside \(0, 1\]"),
    "low of two": ({"low": 2}, r"^low: 2 is outside \(0, 1\]"),
    "divisor of zero": ({"divisor": 0}, r"^divisor: 0 is below 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_done_is_said_in_one_line(case):
    options, message = BAD[case]
    with pytest.raises(UserError, match=message) as caught:
        slim(**options)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "size", "knobs"),
    [
        ("resnet20", 32, 6),
        ("resnet18", 64, 12),
        ("mobilenet_v2", 32, 25),
        ("mobilenet_v3_large", 64, 22),
    ],
)
def test_networks_of_the_paper_have_its_knobs(name, size, knobs):
    model = getattr(models, name)(num_classes=10)
    net = joslim.slim(model, torch.randn(1, 3, size, size))
    assert len(net.space) == knobs


class Sometimes(nn.Module):
    """One layer never runs, another makes a single channel."""

    def __init__(self):
        super().__init__()
        self.a, self.unused = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1)
        self.mask, self.fc = nn.Conv2d(8, 1, 1), nn.Linear(8, 5)

    def forward(self, x):
        x = self.a(x)
        return self.fc((x * self.mask(x).sigmoid()).mean((2, 3)))


def test_layers_that_never_run_are_kept_whole():
    net = joslim.slim(Sometimes(), torch.randn(1, 3, 4, 4))
    child = net.child(net.space.smallest)
    assert names(net) == ["a"]
    assert child.unused.weight.shape == (8, 8, 1, 1)
    assert joslim.cost("params", net)(net.space.smallest) == sum(
        p.numel() for p in child.parameters()
    )


def test_frozen_layers_have_reasons():
    net = joslim.slim(Sometimes(), torch.randn(1, 3, 4, 4))
    whys = {f.layer: f.why for f in net.frozen}
    assert whys == {
        "mask": "it has a single channel",
        "fc": "it is an output of the network",
        "unused": "it did not run on the example",
    }
