"""`joslim front`: the table of a run, and its two figures."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from joslim.front import Front, Point
from joslim.space import Dim, Knob, WidthSpace

Run = Callable[..., Any]

SPACE = WidthSpace(
    (Dim("stem", 16), Dim("body", 32)), (Knob("stem", (0,), 0.25), Knob("body", (1,), 0.25))
)
CHILDREN = [
    Point(
        SPACE.uniform(share),
        {"macs": macs, "params": macs // 100, "memory": macs // 200, "latency_ms": share * 8},
        train_loss=2 - share,
        val_error=61 - 40 * share,
        test_error=60 - 40 * share,
    )
    for share, macs in ((0.25, 4_055_240), (0.5, 12_000_000), (1.0, 40_551_000))
]
FRONT = Front(CHILDREN, "macs", (4_055_240, 40_551_000))


def written(folder: Path, front: Front) -> str:
    (folder / "front.json").write_text(json.dumps(front.to_json()))
    return str(folder)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def test_a_table_for_people(joslim: Run, tmp_path: Path) -> None:
    result = joslim("front", written(tmp_path, FRONT))
    assert (result.returncode, result.stderr) == (0, "")
    header = next(line for line in result.stdout.splitlines() if "train loss" in line)
    titles = [title.strip() for title in header.strip("┃").split("┃")]
    costs = ["macs", "params", "memory", "latency"]
    assert titles == [*costs, "train loss", "val error", "test error"]
    assert (
        result.stdout.index("4.06M") < result.stdout.index("12.0M") < result.stdout.index("40.6M")
    )
    for words in ("202.8 KB", "405.5K", "8.00 ms", "1.0000", "20.00 %", "3 children by macs"):
        assert words in result.stdout
    assert f"area under the curve {FRONT.area():.2f} % test error (lower is" in result.stdout
    assert f"hypervolume {FRONT.hypervolume():.4f} (higher is better)" in result.stdout


def test_json(joslim: Run, tmp_path: Path) -> None:
    result = joslim("front", written(tmp_path, FRONT), "--json")
    assert json.loads(result.stdout) == {
        "cost": "macs",
        "span": [4_055_240, 40_551_000],
        "error": "test_error",
        "metric": {"label": "error", "unit": "%"},
        "area": FRONT.area(),
        "loss_area": FRONT.area("train_loss"),
        "hypervolume": FRONT.hypervolume(),
        "children": FRONT.to_json()["children"],
    }


def test_the_cost_of_the_front_comes_first(joslim: Run, tmp_path: Path) -> None:
    front = Front(CHILDREN, "latency", (2.0, 8.0))
    printed = joslim("front", written(tmp_path, front)).stdout
    assert printed.index("latency") < printed.index("macs") < printed.index("train loss")
    assert "smallest 2.00 ms, full 8.00 ms" in printed


def test_errors_of_validation_only(joslim: Run, tmp_path: Path) -> None:
    front = Front([replace(p, test_error=None) for p in CHILDREN], "macs", FRONT.span)
    folder = written(tmp_path, front)
    printed = joslim("front", folder).stdout
    assert "test error" not in printed
    assert f"{front.area('val_error'):.2f} % val error" in printed
    assert json.loads(joslim("front", folder, "--json").stdout)["error"] == "val_error"


def test_no_errors_at_all(joslim: Run, tmp_path: Path) -> None:
    bare = [replace(p, val_error=None, test_error=None) for p in CHILDREN]
    folder = written(tmp_path, Front(bare, "macs", FRONT.span))
    printed = joslim("front", folder).stdout
    assert "val error" not in printed
    assert "no error is known" in printed
    told = json.loads(joslim("front", folder, "--json").stdout)
    assert (told["error"], told["area"], told["hypervolume"]) == (None, None, None)


def test_it_needs_no_torch(shell: Run, tmp_path: Path) -> None:
    folder = written(tmp_path, FRONT)
    for command in (["front", folder], ["pick", folder, "--macs", "20M"]):
        result = shell("-X", "importtime", "-m", "joslim", *command)
        assert result.returncode == 0
        imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
        assert not {name for name in imported if name.split(".")[0] in ("torch", "matplotlib")}


@pytest.mark.parametrize("command", [["front"], ["pick", "--macs", "20M"]])
def test_folders_that_hold_no_front(command: list[str], refused: Run, tmp_path: Path) -> None:
    name, *options = command
    assert "does not exist; joslim train makes one" in refused(name, "nowhere", *options)
    assert "is not a run folder" in refused(name, str(tmp_path), *options)
    (tmp_path / "config.json").write_text('{"joslim": "0.2.0", "format": 4}')
    assert "has no front yet" in refused(name, str(tmp_path), *options)
    (tmp_path / "front.json").write_text('{"cost": ')
    assert "broken JSON" in refused(name, str(tmp_path), *options, "--json")
    (tmp_path / "front.json").write_text('{"cost": "macs", "span": [1, NaN]}')
    assert "front.space: missing" in refused(name, str(tmp_path), *options)


def test_a_run_is_needed(refused: Run) -> None:
    assert "'run'" in refused("front").lower()
