"""`joslim allocate`: one budget, many networks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from joslim.front import Front, Point
from joslim.space import Dim, Knob, WidthSpace

Run = Callable[..., Any]

SPACE = WidthSpace((Dim("stem", 16),), (Knob("stem", (0,), 0.25),))


def written(folder: Path, errors: tuple[float, ...], latency: bool = True) -> str:
    points = [
        Point(
            SPACE.uniform(share),
            {"macs": int(40e6 * share), "params": 100, "memory": int(1e5 * share)}
            | ({"latency_ms": 8 * share} if latency else {}),
            error / 20,
            error,
            error + 0.5,
        )
        for share, error in zip((0.25, 0.5, 1.0), errors)
    ]
    folder.mkdir()
    (folder / "front.json").write_text(json.dumps(Front(points, "macs", (1e7, 4e7)).to_json()))
    return str(folder)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COLUMNS", "200")
    return [written(tmp_path / "[red]signs", (50, 20, 10)), written(tmp_path / "b", (30, 28, 25))]


def answer(joslim: Run, *arguments: str) -> dict[str, Any]:
    result = joslim("allocate", *arguments, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    record = json.loads(result.stdout)
    assert isinstance(record, dict)
    return record


def test_a_table_for_people(runs: list[str], joslim: Run) -> None:
    result = joslim("allocate", *runs, "--latency-ms", "7")
    assert (result.returncode, result.stderr) == (0, "")
    for words in ("[red]signs", "total cost, mean error", "6.00 ms", "25.00 %", "25.50 %"):
        assert words in result.stdout
    assert "left: 1.00 ms of 7.00 ms latency" in result.stdout
    assert "The curve" not in result.stdout


@pytest.mark.parametrize(
    ("options", "error", "latencies"),
    [
        (["--latency-ms", "7"], 50, [4, 2]),
        (["--latency-ms", "10"], 40, [8, 2]),
        (["--latency-ms", "10", "--weight", "0.1", "--weight", "5"], 130, [2, 8]),
        (["--macs", "30M"], 50, [4, 2]),
        (["--memory", "60KB", "--memory-as", "max"], 48, [4, 4]),
        (["--memory", "80KB", "--memory-as", "sum", "--params", "1K"], 50, [4, 2]),
        (["--macs", "60M", "--latency-ms", "7"], 50, [4, 2]),
    ],
)
def test_the_best_combination(
    options: list[str], error: float, latencies: list[float], runs: list[str], joslim: Run
) -> None:
    record = answer(joslim, *runs, *options)
    assert record["error"] == pytest.approx(error)
    assert [n["child"]["latency_ms"] for n in record["networks"]] == latencies
    assert [n["run"] for n in record["networks"]] == runs
    assert min(record["margin"].values()) >= 0


def test_the_curve_and_its_picture(runs: list[str], joslim: Run, tmp_path: Path) -> None:
    picture = tmp_path / "curve.png"
    options = ("--latency-ms", "7", "--curve", "--picture", str(picture))
    result = joslim("allocate", *runs, *options)
    assert "The curve: 6 steps" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    record = answer(joslim, *runs, *options)
    steps = [(step["costs"]["latency_ms"], step["error"]) for step in record["curve"]]
    assert steps == [(4, 80), (6, 50), (8, 48), (10, 40), (12, 38), (16, 35)]


def test_names_that_would_speak_to_a_terminal(
    tmp_path: Path, joslim: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    name = written(tmp_path / "\x1b[31mred", (50, 20, 10))
    picture = tmp_path / "curve.svg"
    result = joslim("allocate", name, "--macs", "30M", "--picture", str(picture))
    assert "\x1b" not in result.stdout + picture.read_text()
    assert "\\x1b[31mred" in result.stdout
    assert answer(joslim, name, "--macs", "30M")["networks"][0]["run"] == name


def test_the_same_run_twice(runs: list[str], joslim: Run) -> None:
    record = answer(joslim, runs[0], runs[0], "--latency-ms", "6")
    assert record["error"] == 70


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "budget: none given; type --macs"),
        (
            ["--latency-ms", "3"],
            "latency_ms: no combination of 2 networks fits 3ms, their",
        ),
        (["--latency-ms", "-3"], "latency_ms: '-3' is not positive"),
        (["--macs", "1G", "--macs", "2G"], "macs: given 2 times; type --macs only once"),
        (
            ["--macs", "1G", "--memory-as", "max"],
            "memory_as: 'max' is for a budget of memory;",
        ),
        (["--macs", "3X"], "macs: '3X' is not a size"),
        (["--macs", "1G", "--weight", "1"], "weights: 1 given for 2 networks"),
        (["--macs", "1G", "--weight", "1", "--weight", "-1"], "weights[1]: -1.0 is below zero"),
        (["--macs", "1G", "--weight", "x"], "--weight"),
        (["--macs", "1G", "--memory-as", "mean"], "memory_as: unknown name 'mean'"),
        (
            ["--macs", "1G", "--params", "1G", "--curve"],
            "curve: it is over one budget, macs, param",
        ),
        (["--macs", "1G", "--picture", "a.gif"], "picture: 'a.gif' ends in none of"),
        (
            ["--macs", "1G", "--picture", "no/such/a.png"],
            "picture: cannot write 'no/such/a.png': No such file",
        ),
    ],
)
def test_what_is_refused(options: list[str], words: str, runs: list[str], refused: Run) -> None:
    assert words in refused("allocate", *runs, *options)


def test_runs_that_are_refused(runs: list[str], refused: Run, tmp_path: Path) -> None:
    assert "RUN..." in refused("allocate", "--macs", "1M")
    assert "does not exist; joslim train makes one" in refused("allocate", "no", "--macs", "1M")
    started = tmp_path / "started"
    started.mkdir()
    (started / "config.json").write_text('{"joslim": "0.2.0", "format": 4}')
    assert "has no front yet" in refused("allocate", runs[0], str(started), "--macs", "1M")
    other = written(tmp_path / "other", (3, 2, 1), latency=False)
    message = refused("allocate", runs[0], other, "--latency-ms", "9")
    assert "network 2 of 2: latency_ms: not measured" in message
