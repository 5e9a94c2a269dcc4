"""`joslim latency`: measures a network or a run on this device, and writes a device file."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import joslim as library
from joslim import SlimmableNet, Widths
from joslim.costs import latency, timing
from joslim.costs.device_file import DeviceFile
from joslim.costs.timing import Setting, Times
from joslim.runs.run import Run as StoredRun

Run = Callable[..., Any]
FEW = ("--children", "10", "--repeats", "1")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Setting, int]]:
    """The settings and repeats that were asked for; a child takes 1 ms for 100 channels."""
    calls: list[tuple[Setting, int]] = []

    def measure(
        net: SlimmableNet,
        children: Sequence[Widths],
        setting: Setting,
        repeats: int,
        watch: Any = None,
    ) -> Times:
        calls.append((setting, repeats))
        if watch is not None:
            watch(1, 1)
        # The second time, when it is measured again, all is slower by a tenth.
        ms = np.array([sum(child.counts) / 100 for child in children])
        return Times(ms if len(calls) == 1 else 1.1 * ms, np.full(len(ms), 0.05))

    monkeypatch.setattr(latency, "measure", measure)
    monkeypatch.setattr(timing, "measure", measure)
    return calls


def is_quiet(stderr: str) -> bool:
    """But for the warning of a busy machine, which a test cannot help."""
    return all("the machine is busy" in line for line in stderr.splitlines())


def facts(result: Any) -> dict[str, Any]:
    assert result.returncode == 0, result.stderr
    assert is_quiet(result.stderr)
    return json.loads(result.stdout)


def test_a_real_measurement(own: Path, joslim: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    result = joslim("latency", "own:tiny", "--input", "3x8x8", *FEW, "-o", str(file), "--json")
    assert result.returncode == 0
    told = json.loads(result.stdout)
    assert told["file"] == str(file)
    assert told["sizes"]["full"]["ms"] > 0
    assert DeviceFile.read(file).conditions.inputs == ((1, 3, 8, 8),)


def test_figures(joslim: Run, tmp_path: Path, asked: list[tuple[Setting, int]]) -> None:
    file = tmp_path / "device.json"
    told = facts(joslim("latency", "resnet8", "-o", str(file), "--json"))
    assert asked == [(Setting(), 5)] * 2
    assert told["network"] == "resnet8"
    assert told["measured"] == 64
    assert told["front"] == []
    assert told["repeatability"] == pytest.approx(0.1)
    assert told["spread"] == 0.05
    assert 0 < told["held_out_error"] < 0.2
    measured = DeviceFile.read(file)
    assert told["conditions"] == measured.conditions.to_json()
    space = measured.space
    for name, child in (("smallest", space.smallest), ("full", space.full)):
        row = told["sizes"][name]
        assert row["channels"] == child.channels
        assert row["ms"] == sum(child.counts) / 100
    net = library.slim(library.models.resnet8(), torch.zeros(1, 3, 32, 32))
    price = library.cost("latency", net, device_file=file)(net.space.full)
    assert told["sizes"]["full"]["modelled_ms"] == price


def test_a_table_for_people(
    joslim: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[tuple[Setting, int]]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    result = joslim("latency", "resnet8")
    assert result.returncode == 0, result.stderr
    assert is_quiet(result.stderr)
    for words in ("smallest", "middle", "full", "measured", "modelled", "2.240 ms", "10.0 %"):
        assert words in result.stdout
    assert result.stdout.endswith("device file: latency.json\n")
    assert DeviceFile.read(tmp_path / "latency.json")


def test_options(joslim: Run, tmp_path: Path, asked: list[tuple[Setting, int]]) -> None:
    options = ["--threads", "2", "--batch", "4", "--precision", "bf16", "--backend", "compiled"]
    file = tmp_path / "device.json"
    where = ["--input", "3x16x16", "--low", "0.5", "-o", str(file)]
    told = facts(joslim("latency", "resnet8", *options, *where, *FEW, "--json"))
    assert asked[0] == (Setting(2, 4, "bf16", "compiled"), 1)
    assert told["measured"] == 10
    measured = DeviceFile.read(file)
    assert measured.conditions.inputs == ((1, 3, 16, 16),)
    assert {knob.low for knob in measured.space.knobs} == {0.5}


def test_a_run(
    finished: StoredRun, joslim: Run, tmp_path: Path, asked: list[tuple[Setting, int]]
) -> None:
    file = tmp_path / "device.json"
    told = facts(joslim("latency", str(finished.path), *FEW, "-o", str(file), "--json"))
    assert [row["channels"] for row in told["front"]] == [
        point.widths.channels for point in finished.front
    ]
    assert all(row["ms"] == sum(row["channels"].values()) / 100 for row in told["front"])
    again = joslim("latency", str(finished.path), *FEW, "-o", str(file))
    assert f"front, child {len(finished.front)}" in again.stdout
    assert library.cost("latency", finished.net, device_file=file)(finished.net.space.full) > 0
    assert not (finished.path / "latency.json").exists()


# Bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet9"], "model: unknown name 'resnet9'; allowed: "),
        (["no/run"], "run: 'no/run' does not exist; joslim train --out makes one"),
        (["own:tiny", "--input", "3x8x8", "--low", "1"], "latency: this network has one child"),
        (["own:nothing"], "model: unknown name 'nothing'"),
        (["own:solid", "--input", "3x8x8"], ""),
        (["resnet8", "--input", "3x"], "input: '3x' is not a shape"),
        (["resnet8", "--model", "own:tiny"], "model: 'resnet8' is no run; leave out --model"),
        (["resnet8", "--children", "3"], "children: 3 is not a whole number from 10 to 10000"),
        (["resnet8", "--repeats", "0"], "repeats: 0 is not a whole number from 1"),
        (["resnet8", "--threads", "0"], "threads: 0 is not a whole number"),
        (["resnet8", "--threads", "many"], ""),
        (["resnet8", "--batch", "-1"], "batch: -1 is not a whole number"),
        (["resnet8", "--precision", "int8"], "precision: unknown name 'int8'; allowed: fp32"),
        (["resnet8", "--backend", "tvm"], "backend: unknown name 'tvm'; allowed: eager"),
        (["resnet8", "--device", "abacus"], "device: 'abacus' cannot be used: "),
        (["resnet8", "-o", "."], "out: '.': a folder; type -o FILE"),
        (["resnet8", "-o", "no/device.json"], "out: 'no/device.json': its folder cannot be"),
    ],
)
def test_refused(
    arguments: list[str],
    message: str,
    own: Path,
    refused: Callable[..., str],
    asked: list[tuple[Setting, int]],
) -> None:
    assert refused("latency", *arguments).startswith(f"joslim: {message}")
    assert asked == []


def test_a_folder_without_a_run(tmp_path: Path, refused: Callable[..., str]) -> None:
    assert "has no config.json: not a run folder?" in refused("latency", str(tmp_path))


def test_options_that_a_run_has_of_its_own(
    finished: StoredRun, refused: Callable[..., str]
) -> None:
    message = refused("latency", str(finished.path), "--low", "0.5")
    assert message.startswith("joslim: low: a run has its own; leave out --low")


def test_without_onnxruntime(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("onnx", "onnxruntime", "onnxscript"):
        monkeypatch.setitem(sys.modules, package, None)
    message = refused("latency", "resnet8", "--backend", "onnxruntime")
    assert message == "joslim: backend: onnxruntime needs onnx; type pip install 'joslim[onnx]'\n"


def test_children_of_several_depths_and_sizes(
    asked: list[tuple[Setting, int]], joslim: Run, refused: Run, finished: StoredRun, tmp_path: Path
) -> None:
    file = str(tmp_path / "all.json")
    knobs = ("--resolutions", "8,16", "--depth")
    joslim("latency", "resnet20", "--input", "3x16x16", *knobs, *FEW, "-o", file)
    children = DeviceFile.read(file).children
    assert {child.pixels for child in children} == {8, 16}
    assert {child.channels["layer1"] for child in children} >= {1, 3}
    for flag in (knobs[:2], knobs[2:]):
        line = refused("latency", str(finished.path), *flag)
        assert f"a run has its own; leave out {flag[0]}" in line
