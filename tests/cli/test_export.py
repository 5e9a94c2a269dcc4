"""`joslim export`: files, what is said of them, and bad input."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import joslim as package
from joslim.costs.device_file import Conditions, DeviceFile
from joslim.runs.driver import train
from joslim.runs.run import Run

Program = Callable[..., Any]


@pytest.fixture
def run(finished: Run) -> str:
    return str(finished.path)


def test_a_child_that_fits(run: str, finished: Run, tmp_path: Path, joslim: Program) -> None:
    out = tmp_path / "child.pt2"
    result = joslim("export", run, "--macs", "100K", "-o", str(out))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{out}: ")
    assert "classes agree on 32 of 32 samples" in result.stdout
    result = joslim("export", run, "--macs", "100K", "-o", str(out), "--overwrite", "--json")
    (facts,) = json.loads(result.stdout)
    assert facts["macs"] == finished.front.pick(macs=100e3).costs["macs"]
    assert facts["file"] == str(out)
    assert facts["bytes"] == out.stat().st_size
    assert facts["difference"] < 1e-4


def test_without_a_budget_the_full_network(run: str, tmp_path: Path, joslim: Program) -> None:
    assert joslim("export", run, "-o", str(tmp_path / "full")).returncode == 0
    child = package.load_child(tmp_path / "full")
    full = package.models.resnet8()
    assert [p.shape for p in child.parameters()] == [p.shape for p in full.parameters()]


def test_all_children(run: str, finished: Run, tmp_path: Path, joslim: Program) -> None:
    out = tmp_path / "all"
    result = joslim("export", run, "--all", "--format", "pt2", "-o", str(out))
    assert result.returncode == 0
    assert len(result.stdout.splitlines()) == len(finished.front) == len(list(out.glob("*.pt2")))


def test_a_child_for_each_budget(
    run: str, finished: Run, tmp_path: Path, joslim: Program, refused: Program
) -> None:
    out = tmp_path / "two"
    cheap = str(finished.front[0].costs["macs"])
    budgets = ("--macs", cheap, "--macs", "1M", "--memory", "1GB")
    command = ("export", run, *budgets, "--format", "pt2", "-o", str(out))
    facts = json.loads(joslim(*command, "--json").stdout)
    assert [row["file"] for row in facts] == [str(out / f"child-0{n}.pt2") for n in (1, 2)]
    points = [finished.front.pick(macs=cheap), finished.front.pick(macs=1e6)]
    assert [row["macs"] for row in facts] == [point.costs["macs"] for point in points]
    assert [row["memory"] for row in facts] == [point.costs["memory"] for point in points]
    assert f"{str(out)!r} exists; type another, or --overwrite" in refused(*command)


def test_on_a_device(run: str, finished: Run, tmp_path: Path, joslim: Program) -> None:
    conditions = Conditions("phone", 1, 1, "fp32", "eager", "2.0", ((1, 3, 8, 8),))
    children = tuple(point.widths for point in finished.front)
    ms = tuple(range(3, 3 + len(children)))
    DeviceFile(conditions, children, ms, (0.0,) * len(ms)).write(tmp_path / "phone.json")
    options = ("--latency-ms", "3", "--device-file", str(tmp_path / "phone.json"))
    result = joslim("export", run, *options, "-o", str(tmp_path / "child"))
    assert ", macs " in result.stdout
    assert ", latency 3.00 ms; " in result.stdout
    record = json.loads((tmp_path / "child" / "config.json").read_text())
    assert record["costs"]["latency_ms"] == 3


def test_eight_bits(run: str, tmp_path: Path, joslim: Program) -> None:
    pytest.importorskip("onnxscript")
    result = joslim("export", run, "--int8", "-o", str(tmp_path / "child.onnx"))
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert "; before quantization largest difference" in first
    assert second.startswith("8 bits: largest difference ")
    assert "classes agree on " in second
    assert " ms -> " in second
    assert "test error " in second


def test_the_whole_network(run: str, finished: Run, tmp_path: Path, joslim: Program) -> None:
    out = tmp_path / "whole"
    result = joslim("export", run, "--whole", "-o", str(out))
    assert result.returncode == 0
    assert result.stdout.endswith(
        f"{len(finished.front)} children on the front; joslim.load opens it\n"
    )
    assert package.load(out).front == finished.front


def test_a_model_of_ones_own_is_given_again(
    own: Path, tiny: dict[str, Any], joslim: Program, refused: Program
) -> None:
    train("nets:digits", out="run", **tiny)
    line = refused("export", "run", "-o", "child.pt2")
    assert "'nets:digits' is not imported because a file says so; type --model nets:digits" in line
    line = refused("export", "run", "-o", "child.pt2", "--model", "nets:three_outputs")
    assert "'nets:three_outputs' given, the run has 'nets:digits'" in line
    result = joslim("export", "run", "-o", "child.pt2", "--model", "nets:digits")
    assert result.returncode == 0, result.stderr
    assert (own / "child.pt2").is_file()


def test_a_mismatch(
    run: str, tmp_path: Path, joslim: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("joslim.deploy.exporting.TOLERANCE", -1.0)
    result = joslim("export", run, "-o", str(tmp_path / "child.pt2"))
    assert result.returncode == 1
    assert result.stderr.startswith("joslim: export: the file differs from the network: ")
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--macs", "-3"], "macs: '-3' is not positive"),
        (["--macs", "100KB"], "macs: '100KB' is in bytes, macs are counted; type 100K"),
        (["--macs", "1M", "--macs", "2M"], "several children go into a folder, 'child.pt2' given;"),
        (
            ["--macs", "1M", "--macs", "2M", *(["--params", "1M"] * 3)],
            "macs: 2 values for the 3 of --params; type --macs once, or 3 times",
        ),
        (["--model", "resnet20"], "model: 'resnet20' given, the run has 'resnet8'; type --model"),
        (["--device-file", "none.json"], "device_file: cannot read 'none.json': "),
        (["--whole", "--device-file", "a.json"], "device_file: it is for children; leave out --wh"),
        (["--whole", "-o", "a.onnx"], "out: --whole makes a folder, 'a.onnx' is the name of a fil"),
        (["--whole", "--int8"], "int8: it is for children; leave out --whole"),
        (["--macs", "20 apples"], "macs: '20 apples' is not a size"),
        (["--macs", "1"], "macs: no child of"),
        (["--latency-ms", "3"], "latency_ms: not measured for this front"),
        (["--macs", "1M", "--all"], "a budget and --all exclude each other"),
        (["--all", "--whole"], "--all and --whole exclude each other"),
        (["--format", "pt2"], "format: it is for several children"),
        (["--int8"], "int8: it goes with ONNX, 'child.pt2' given"),
        (["--int8", "--all", "--format", "pt2"], "int8: it goes with ONNX, 'pt2' given; type"),
        (["--all", "--format", "h5"], "format: unknown name 'h5'"),
        (["-o", "child.h5"], "out: 'child.h5' has an unknown suffix"),
        (["-o", "nowhere/child.pt2"], "no folder nowhere for 'child.pt2'; type mkdir nowhere"),
        (["-o", "."], "out: '.' is"),
    ],
)
def test_bad_input(
    options: list[str],
    message: str,
    run: str,
    tmp_path: Path,
    refused: Program,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused("export", run, "-o", "child.pt2", *options)
    assert not list(tmp_path.iterdir())


def test_runs_that_are_none(run: str, tmp_path: Path, refused: Program) -> None:
    out = ("-o", str(tmp_path / "child.pt2"))
    assert "does not exist" in refused("export", str(tmp_path / "none"), *out)
    assert "Missing option" in refused("export", run)
    shutil.copytree(run, tmp_path / "copy")
    (tmp_path / "copy" / "front.json").unlink()
    assert "has no front yet" in refused("export", str(tmp_path / "copy"), *out)
    assert [file.name for file in tmp_path.iterdir()] == ["copy"]
