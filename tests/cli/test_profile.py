"""`joslim profile`: knobs, what is frozen and why, and what the sizes cost."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import joslim as library
from joslim.models import MODELS

Run = Callable[..., Any]
SIZES = ["smallest", "half", "full"]


def facts(result: Any) -> dict[str, Any]:
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    return json.loads(result.stdout)


def test_mobilenet_v2_from_the_shell(shell: Run) -> None:
    profile = facts(shell("-m", "joslim", "profile", "mobilenet_v2", "--json"))
    assert profile["model"] == "mobilenet_v2"
    assert profile["input"] == [3, 224, 224]
    assert len(profile["knobs"]) == 25
    assert profile["costs"]["macs"]["full"] == 300774272
    assert round(profile["costs"]["macs"]["smallest"] / 1e6, 2) == 59.56
    assert profile["costs"]["params"]["full"] == 3504872
    assert {knob["low"] for knob in profile["knobs"]} == {0.42}


def test_depth_and_resolution(joslim: Run) -> None:
    flags = ("--resolutions", "128,160,192,224", "--depth")
    profile = facts(joslim("profile", "mobilenet_v2", *flags, "--json"))
    kinds = [knob["kind"] for knob in profile["knobs"]]
    assert kinds == ["channels"] * 25 + ["blocks"] * 5 + ["pixels"]
    blocks = {knob["name"]: (knob["channels"], knob["lowest"]) for knob in profile["knobs"][25:]}
    assert blocks == {
        "features.2": ([2], [1]),
        "features.4": ([3], [1]),
        "features.7": ([4], [1]),
        "features.11": ([3], [1]),
        "features.14": ([3], [1]),
        "input": ([224], [128]),
    }
    assert profile["costs"]["macs"]["full"] == 300774272
    assert profile["costs"]["macs"]["smallest"] < 300774272 / 25
    table = joslim("profile", "mobilenet_v2", *flags).stdout
    assert "31 knobs: 25 of channels, 5 of blocks, 1 of pixels" in table
    assert "its output differs in size from its input" in " ".join(table.split())


def test_heads(joslim: Run) -> None:
    profile = facts(joslim("profile", "tiny_llama", "--depth", "--json"))
    heads = [knob for knob in profile["knobs"] if knob["kind"] == "heads"]
    assert [knob["name"] for knob in heads] == [f"blocks.{n}.attention.q" for n in range(4)]
    for knob in heads:  # four query heads of 32 channels, two for each key head
        assert [n // step for n, step in zip(knob["channels"], knob["step"])] == [2] * len(
            knob["step"]
        )
    table = " ".join(joslim("profile", "tiny_llama", "--depth").stdout.split())
    assert "10 knobs: 5 of channels, 4 of heads, 1 of blocks" in table
    assert table.count("│ 2 heads │ 1 │") == 4


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--resolutions", "160,x"],
            "resolutions: '160,x' are not sizes; type pixels: 160,192,224",
        ),
        (["--resolutions", "224,160"], r"resolutions: (224, 160) given; type at least two sizes"),
        (["--resolutions", "160,160,224"], "each once and the smallest first: (160, 192, 224)"),
        (["--resolutions", "224"], "type at least two sizes"),
        (["--resolutions", "160,256"], "the largest is 256, the images have 224x224 pixels; the"),
        (["--depth"], "depth: CifarResNet has no block to leave out; a block is a module that is"),
    ],
)
def test_knobs_that_are_refused(flags: list[str], words: str, joslim: Run) -> None:
    model = "resnet8" if flags == ["--depth"] else "mobilenet_v2"
    result = joslim("profile", model, *flags)
    assert result.returncode == 2
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_model_of_ones_own_from_the_shell(own: Path, shell: Run) -> None:
    profile = facts(
        shell("-m", "joslim", "profile", "own:tiny", "--input", "3x16x16", "--low", "0.5", "--json")
    )
    assert profile == {
        "model": "own:tiny",
        "input": [3, 16, 16],
        "knobs": [
            {
                "name": "0",
                "kind": "channels",
                "low": 0.5,
                "layers": ["0"],
                "channels": [8],
                "lowest": [4],
                "step": [1],
            }
        ],
        "frozen": [{"layer": "2", "channels": 4, "why": profile["frozen"][0]["why"]}],
        "costs": {
            "macs": {
                size: 14 * 14 * 27 * count + 12 * 12 * 36 * count
                for size, count in zip(SIZES, (4, 4, 8))
            },
            "params": {size: 28 * c + 36 * c + 4 for size, c in zip(SIZES, (4, 4, 8))},
            "memory": {size: 4 * memory_of_tiny(c) for size, c in zip(SIZES, (4, 4, 8))},
        },
        "uncounted": [],
    }
    assert "output" in profile["frozen"][0]["why"]


def memory_of_tiny(count: int) -> int:
    first = 3 * 16**2 + count * 14**2 + 27 * count
    second = count * 14**2 + 4 * 12**2 + 36 * count
    return max(first, second)


@pytest.mark.parametrize("name", ["resnet8", "resnet20"])
def test_json_holds_what_the_library_says(name: str, joslim: Run) -> None:
    profile = facts(joslim("profile", name, "--json"))
    net = library.slim(MODELS[name](), torch.zeros(1, 3, 32, 32))
    space = net.space
    assert [knob["name"] for knob in profile["knobs"]] == [knob.name for knob in space.knobs]
    for told, knob in zip(profile["knobs"], space.knobs):
        dims = [space.dims[position] for position in knob.dims]
        assert told["channels"] == [dim.full for dim in dims]
        assert told["lowest"] == [space.smallest.channels[dim.name] for dim in dims]
        assert told["layers"] == [layer for dim in dims for layer in dim.layers]
    assert [row["layer"] for row in profile["frozen"]] == ["fc"]
    children = [space.smallest, space.uniform(0.5), space.full]
    for cost in ("macs", "params", "memory"):
        price = library.cost(cost, net)
        assert profile["costs"][cost] == {s: price(c) for s, c in zip(SIZES, children)}


@pytest.mark.parametrize("name", MODELS)
def test_every_built_in_model(name: str, joslim: Run) -> None:
    shape = [16] if name == "tiny_llama" else [3, 32, 32]
    profile = facts(joslim("profile", name, "--input", "x".join(map(str, shape)), "--json"))
    assert profile["input"] == shape
    assert len(profile["knobs"]) >= 6
    for prices in profile["costs"].values():
        assert list(prices) == SIZES
        assert 0 < prices["smallest"] <= prices["half"] < prices["full"]


def test_input_and_low(joslim: Run) -> None:
    profile = facts(joslim("profile", "resnet8", "--input", "3x16x16", "--low", "0.5", "--json"))
    assert profile["input"] == [3, 16, 16]
    assert {knob["low"] for knob in profile["knobs"]} == {0.5}
    for prices in profile["costs"].values():
        assert prices["smallest"] == prices["half"] < prices["full"]


def test_a_low_of_one_leaves_one_child(joslim: Run) -> None:
    profile = facts(joslim("profile", "resnet8", "--input", "3x8x8", "--low", "1", "--json"))
    for prices in profile["costs"].values():
        assert len(set(prices.values())) == 1


def test_a_table_for_people(joslim: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    result = joslim("profile", "resnet20")
    assert result.returncode == 0
    assert not result.stderr
    printed = result.stdout
    assert "resnet20 at 3x32x32: 6 knobs" in printed
    assert "layer1.*.conv1" in printed
    assert "Frozen" in printed
    assert "fc" in printed
    assert "4.06M" in printed
    assert "40.6M" in printed
    assert "205.8 KB" in printed
    for word in ("macs", "params", "memory", *SIZES):
        assert word in printed


def test_a_small_network_has_whole_numbers(
    own: Path, joslim: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = "nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 1), nn.Flatten(), nn.Linear(8, 2)"
    (own / "small.py").write_text(
        f"from torch import nn\ndef net(): return nn.Sequential({layers})"
    )
    monkeypatch.delitem(sys.modules, "small", raising=False)
    rows = joslim("profile", "small:net", "--input", "1x2x2").stdout.splitlines()
    (macs,) = (row for row in rows if "macs" in row)
    assert macs.split()[3::2] == ["16", "16", str(4 * 2 + 4 * 2 * 2 + 8 * 2)]


def test_a_narrow_terminal_loses_no_name(joslim: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    printed = joslim("profile", "mobilenet_v2", "--input", "3x32x32").stdout
    assert max(len(line) for line in printed.splitlines()) <= 60
    assert "25 knobs" in " ".join(printed.split())
    assert "…" not in printed


# Bad input


@pytest.mark.parametrize("low", ["0", "2", "nan", "-0.5", "inf"])
def test_a_low_that_is_no_share(low: str, refused: Run) -> None:
    message = refused("profile", "resnet8", "--input", "3x8x8", "--low", low)
    assert f"low: {float(low)} is outside (0, 1]" in message


@pytest.mark.parametrize("shape", ["3,32,32", "32", "3x32", "0x32x32", "3x-1x3", "abc", "1x32x32"])
def test_an_input_that_does_not_fit(shape: str, refused: Run) -> None:
    message = refused("profile", "resnet8", "--input", shape)
    assert "input: " in message


def test_it_says_which_shape_did_not_fit(own: Path, refused: Run) -> None:
    assert "(1, 1, 9, 9)" in refused("profile", "own:tiny", "--input", "1x9x9")
    assert "does not run on (1, 3, 224, 224): wrong" in refused("profile", "own:multiline")


@pytest.mark.parametrize("shape", ["3x1000000x10000000", "3x99999999999x99999999999"])
def test_an_input_that_no_memory_holds(shape: str, refused: Run) -> None:
    assert "input: " in refused("profile", "resnet8", "--input", shape)


def test_an_empty_input(refused: Run) -> None:
    assert "input: '' is not a shape" in refused("profile", "resnet8", "--input", "")


@pytest.mark.parametrize("name", ["solid", "weightless"])
def test_nothing_to_slim(name: str, own: Path, refused: Run) -> None:
    assert "has nothing to slim: " in refused("profile", f"own:{name}")


def test_an_unknown_model_lists_the_models(refused: Run) -> None:
    message = refused("profile", "alexnet")
    assert "model: unknown name 'alexnet'" in message
    assert all(name in message for name in MODELS)


def test_bad_input_is_one_line_with_json_too(refused: Run) -> None:
    assert "unknown name" in refused("profile", "alexnet", "--json")


UNCOUNTED = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.rnn, self.last = nn.LSTM(8, 6, batch_first=True), nn.Linear(6, 4)

    def forward(self, x):
        x = self.second(self.first(x)).mean(3).transpose(1, 2)
        return self.last(torch.fft.fft(self.rnn(x)[0], dim=1).real)
"""


def test_what_no_price_holds_is_named(
    own: Path, joslim: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    (own / "uncounted.py").write_text(UNCOUNTED)
    monkeypatch.delitem(sys.modules, "uncounted", raising=False)
    with pytest.warns(UserWarning, match=r"too low: no count of fft_fft \(_fft_r2c\) in forward"):
        result = joslim("profile", "uncounted:Net", "--input", "3x8x8")
    assert result.returncode == 0
    table = result.stdout.partition("Not in these costs, which are too low")[2]
    assert "maps inside lstm" in table
    assert "fft_fft" in table
    told = json.loads(joslim("profile", "uncounted:Net", "--input", "3x8x8", "--json").stdout)
    assert [(row["cost"], row["layer"]) for row in told["uncounted"]] == [
        ("memory", "rnn"),
        ("macs", "forward"),
    ]
