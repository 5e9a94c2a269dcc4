"""The budgets of a command, and the device that they are for."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from joslim.cli.flags import budgets_of, sets_of
from joslim.costs.device_file import Conditions, DeviceFile
from joslim.errors import UserError
from joslim.front import Front, Point
from joslim.results.page.content import run_json
from joslim.results.record import read_record
from joslim.runs.config import config_of
from joslim.runs.folder import RunFolder
from joslim.runs.fronts import read_timed_front
from joslim.space import Dim, Knob, WidthSpace

Program = Callable[..., Any]

SPACE = WidthSpace((Dim("stem", 16),), (Knob("stem", (0,), 0.25),))
FRONT = Front(
    [
        Point(
            SPACE.uniform(share), {"macs": macs, "params": 9, "memory": 9}, 2 - share, 50 - macs / 9
        )
        for share, macs in ((0.25, 100), (0.5, 200), (1.0, 400))
    ],
    "macs",
    (100, 400),
)


def test_those_that_are_given() -> None:
    given = budgets_of(macs=["20M"], memory=None, latency_ms=["3"], params=[])
    assert given == {"macs": 20e6, "latency_ms": 3.0}
    assert budgets_of(macs=None) == {}


@pytest.mark.parametrize("text", ["-3", "0", "20 apples", "nan", "", "20KB"])
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(UserError, match=r"^params: "):
        budgets_of(macs=["1"], params=[text])


def test_one_set_takes_each_budget_once() -> None:
    with pytest.raises(UserError, match=r"^latency_ms: given 2 times; type --latency-ms only"):
        budgets_of(latency_ms=["1", "2"])


def test_several_sets() -> None:
    assert sets_of(macs=None) == [{}]
    assert sets_of(macs=["1K", "2K"]) == [{"macs": 1000}, {"macs": 2000}]
    assert sets_of(macs=["1K", "2K"], params=["5", "6"], memory=["1MB"]) == [
        {"macs": 1000, "params": 5, "memory": 1e6},
        {"macs": 2000, "params": 6, "memory": 1e6},
    ]


def test_sets_that_do_not_pair() -> None:
    with pytest.raises(UserError) as caught:
        sets_of(macs=["1", "2"], latency_ms=["1", "2", "3"])
    words = "macs: 2 values for the 3 of --latency-ms; type --macs once, or 3 times"
    assert str(caught.value) == words


# The device that budgets are for


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two runs of one network that were trained for multiply-adds."""
    folders = []
    for name in ("a", "b"):
        folder = RunFolder(tmp_path_factory.mktemp("runs") / name)
        folder.prepare()
        folder.write_config(config_of({"steps": 6}).to_json(), data={"shape": [3, 8, 8]})
        folder.write_front(FRONT, 6)
        folders.append(str(folder.path))
    return folders


@pytest.fixture(scope="module")
def phone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The middle child is the fastest."""
    path = tmp_path_factory.mktemp("device") / "phone's.json"
    conditions = Conditions("phone", 1, 1, "fp32", "eager", "2.0", ((1, 3, 8, 8),))
    DeviceFile(conditions, tuple(p.widths for p in FRONT), (2.0, 1.5, 7.0), (0.0,) * 3).write(path)
    return str(path)


def test_pick_on_a_device(runs: list[str], phone: str, joslim: Program, refused: Program) -> None:
    device = ("--device-file", phone)
    result = joslim("pick", runs[0], "--latency-ms", "6.5", *device, "--json")
    child = json.loads(result.stdout)
    assert (child["macs"], child["latency_ms"], child["margin"]) == (200, 1.5, {"latency_ms": 5})
    assert child["next_better"]["exceeds"] == {"latency_ms": 0.5}
    shown = joslim("pick", runs[0], "--latency-ms", "6.5", *device).stdout
    assert "latency 7.00 ms" in shown
    assert shown.endswith("latency on phone, 1 thread, batch 1, fp32, eager, torch 2.0\n")
    line = refused("pick", runs[0], "--latency-ms", "1", *device)
    assert "the cheapest costs 1.5ms; type 1.5ms or more" in line
    assert "--device-file device.json" in refused("pick", runs[0], "--latency-ms", "1")


def test_the_front_on_a_device(runs: list[str], phone: str, joslim: Program) -> None:
    record = json.loads(joslim("front", runs[0], "--device-file", phone, "--json").stdout)
    assert [child["latency_ms"] for child in record["children"]] == [2, 1.5, 7]
    assert record["cost"] == "macs"
    shown = joslim("front", runs[0], "--device-file", phone).stdout
    assert "7.00 ms" in shown
    assert shown.endswith("latency on phone, 1 thread, batch 1, fp32, eager, torch 2.0\n")


def test_an_allocation_on_devices(
    runs: list[str], phone: str, joslim: Program, refused: Program
) -> None:
    options = ("--latency-ms", "8.5", "--device-file", phone)
    record = json.loads(joslim("allocate", *runs, *options, "--json").stdout)
    assert sorted(network["child"]["latency_ms"] for network in record["networks"]) == [1.5, 7]
    twice = (*options, "--device-file", phone)
    assert "are of the same network; type one of them" in refused("allocate", *runs, *twice)


def test_a_page_on_a_device(
    runs: list[str], phone: str, tmp_path: Path, joslim: Program, refused: Program
) -> None:
    page, device = tmp_path / "page.html", ("--device-file", phone)
    assert joslim("report", *runs, "-o", str(page), *device).returncode == 0
    assert page.read_text().count('"latency_ms":1.5') == 2
    first, second = (
        run_json(read_record(run, read_timed_front(Path(run), phone), device_file=phone))
        for run in runs
    )
    assert [child["costs"]["latency_ms"] for child in first["front"]["children"]] == [2, 1.5, 7]
    command = shlex.split(second["export"]["before"] + " -o x" + second["export"]["after"])
    assert command == ["joslim", "export", runs[1], "-o", "x", "--device-file", phone]
    picture = refused("report", *runs, "-o", str(tmp_path / "a.svg"), *device)
    assert "device_file: it goes with a page; type -o NAME.html" in picture
    assert "leave out --watch" in refused("report", *runs, "-o", str(page), *device, "--watch")
