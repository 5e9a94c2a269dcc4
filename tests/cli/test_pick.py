"""`joslim pick`: the child that fits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from joslim.front import Front, Point
from joslim.space import Dim, Knob, WidthSpace

Run = Callable[..., Any]

# A name that rich would take for markup.
SPACE = WidthSpace(
    (Dim("stem", 16), Dim("[red]body", 32)), (Knob("stem", (0,), 0.25), Knob("body", (1,), 0.25))
)
FRONT = Front(
    [
        Point(
            SPACE.uniform(share),
            {"macs": macs, "params": macs // 100, "memory": macs // 200},
            train_loss=2 - share,
            val_error=None,
            test_error=60 - 40 * share,
        )
        for share, macs in ((0.25, 4_055_240), (0.5, 13_107_200), (1.0, 40_551_000))
    ],
    "macs",
    (4_055_240, 40_551_000),
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "front.json").write_text(json.dumps(FRONT.to_json()))
    return str(tmp_path)


@pytest.mark.parametrize(
    ("options", "position"),
    [
        (["--macs", "20M"], 1),
        (["--macs", "40551000"], 2),
        (["--macs", "40.551M"], 2),
        (["--macs", "40.550999M"], 1),
        (["--macs", "1G"], 2),
        (["--memory", "64KiB"], 1),
        (["--memory", "64KB"], 0),
        (["--params", "131072"], 1),
        (["--params", "1M", "--macs", "5e6"], 0),
        (["--macs", "20M", "--memory", "1MB", "--params", "1M"], 1),
    ],
)
def test_the_child_that_fits(options: list[str], position: int, run: str, joslim: Run) -> None:
    result = joslim("pick", run, *options, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    record = json.loads(result.stdout)
    assert min(record.pop("margin").values()) >= 0
    assert (record.pop("next_better") is None) == (position == 2)
    assert record.pop("by") == "train_loss"
    assert record == FRONT.to_json()["children"][position]


def test_what_is_left_and_what_the_next_better_child_takes(run: str, joslim: Run) -> None:
    options = ["--macs", "20M", "--params", "500K", "--memory", "70KB"]
    record = json.loads(joslim("pick", run, *options, "--json").stdout)
    assert record["margin"] == {"macs": 6_892_800, "params": 368_928, "memory": 4464}
    better = record["next_better"]
    assert better.pop("exceeds") == {"macs": 20_551_000, "memory": 132_755}
    assert better == FRONT.to_json()["children"][2]
    shown = joslim("pick", run, *options).stdout
    assert "left: 6.89M of 20.0M macs, 368.9K of 500.0K params, 4.46 KB of 70.0 KB mem" in shown
    assert (
        "next better child by train loss: macs 40.6M (20.6M over), memory 202.8 KB (132.8 KB "
        "over) for" in shown
    )
    assert "for train loss 1.0000, test error 20.00 %" in shown
    assert "next better child by train loss: none" in joslim("pick", run, "--macs", "1G").stdout


def test_the_choice_is_by_validation_error_unless_another_measure_is_typed(
    run: str, joslim: Run
) -> None:
    record = FRONT.to_json()
    record["val_images"] = 1000
    for child, error in zip(record["children"], (20.0, 30.0, 10.0)):
        child["val_error"] = error
    (Path(run) / "front.json").write_text(json.dumps(record))
    picked = json.loads(joslim("pick", run, "--macs", "20M", "--json").stdout)
    assert (picked["macs"], picked["by"]) == (4_055_240, "val_error")
    assert picked["next_better"]["macs"] == 40_551_000
    result = joslim("pick", run, "--macs", "20M", "--by", "train_loss", "--json")
    assert json.loads(result.stdout)["macs"] == 13_107_200
    result = joslim("pick", run, "--macs", "20M", "--by", "test_error")
    assert result.returncode == 2
    assert "by: unknown name 'test_error'; allowed: val_error, train_loss" in result.stderr


def test_a_table_for_people(run: str, joslim: Run) -> None:
    result = joslim("pick", run, "--macs", "20M")
    assert (result.returncode, result.stderr) == (0, "")
    for words in ("Child 2 of 3", "13.1M", "131.1K", "65.5 KB", "1.5000", "40.00 %", "40.6M"):
        assert words in result.stdout
    rows = [line.strip("│ ").split() for line in result.stdout.splitlines()]
    assert ["stem", "│", "8", "│", "16"] in rows
    assert ["[red]body", "│", "16", "│", "32"] in rows
    assert "val error" not in result.stdout


def test_latency(tmp_path: Path, joslim: Run) -> None:
    record = FRONT.to_json()
    for child, latency in zip(record["children"], (1.5, 3, 7.25)):
        child["latency_ms"] = latency
    (tmp_path / "front.json").write_text(json.dumps(record))
    result = joslim("pick", str(tmp_path), "--latency-ms", "3", "--json")
    assert json.loads(result.stdout)["latency_ms"] == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "budget: none given; give at least one of: macs, params, memory, latency_ms"),
        (
            ["--macs", "4M"],
            "macs: no child of 3 fits 4M, the cheapest costs 4.056M; type 4.056M",
        ),
        (["--memory", "1KB"], "memory: no child of 3 fits 1KB, the cheapest costs 20.28KB; type"),
        (
            ["--latency-ms", "3"],
            "latency_ms: not measured for this front; type joslim latency RUN -o device.json, then",
        ),
        (["--macs", "20M", "--macs", "30M"], "macs: given 2 times; type --macs only once"),
        (["--macs", "20M", "--model", "own:net"], "model: it goes with a device file"),
        (["--macs", "150KB"], "macs: '150KB' is in bytes, macs are counted; type 150K"),
        (["--latency-ms", "8s"], "latency_ms: '8s' is not a number of ms; type 8 or 8.5"),
        (["--macs", "20X"], "macs: '20X' is not a size; type"),
        (["--macs", "-5"], "macs: '-5' is not positive; type"),
        (["--macs", "0"], "macs: '0' is not a positive finite number"),
        (["--latency-ms", "nan"], "latency_ms: 'nan' is not a number of ms"),
        (["--macs"], "--macs"),
        (["--flops", "3"], "--flops"),
    ],
)
def test_budgets_that_are_refused(options: list[str], words: str, run: str, refused: Run) -> None:
    assert words in refused("pick", run, *options)
