"""The same children, re-priced in measured milliseconds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import joslim.paper.latency as module
from joslim.costs.device_file import DeviceFile
from joslim.costs.latency import measure_device, with_both_ends
from joslim.costs.timing import Setting
from joslim.errors import UserError
from joslim.paper.latency import Clock, draw_latency
from joslim.paper.panels import Panel, panels_of
from joslim.results.record import Record, read_record
from joslim.runs.run import Run, load

Made = Callable[..., Record]


@pytest.fixture(scope="module")
def panels(finished: Run) -> list[Panel]:
    return panels_of([read_record(finished.path)])


@pytest.fixture(scope="module")
def device_file(finished: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import numpy as np

    net = load(finished.path).net
    front = {point.widths for point in finished.front}
    some = with_both_ends(net, 12, np.random.default_rng(0))
    chosen = [child for child in some if child not in front]
    path = tmp_path_factory.mktemp("device") / "device.json"
    measure_device(net, chosen, Setting(threads=1, batch=3), repeats=1).write(path)
    return path


def test_children_are_measured_once(
    panels: list[Panel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def counted(net: Any, children: Any, setting: Setting, watch: Any = None) -> DeviceFile:
        calls.append(setting)
        return measure_device(net, children, setting, repeats=1)

    monkeypatch.setattr(module, "measure_device", counted)
    clock = Clock(device="cpu", batch=2, threads=1, kept=tmp_path / "kept.json")
    figure, numbers = draw_latency(panels, clock)
    again = draw_latency(panels, clock)[1]
    assert again == numbers
    assert calls == [Setting(threads=1, batch=2)]
    measured = DeviceFile.read(tmp_path / "kept.json")
    children = {point.widths for point in panels[0].front}
    assert {*measured.children} == children
    (panel,) = numbers["panels"]
    assert panel["cost"] == "latency_ms"
    assert panel["budgets"][-1] == max(measured.ms)
    assert numbers["conditions"][0]["batch"] == 2
    device = numbers["conditions"][0]["device"]
    assert figure.axes[0].get_xlabel() == f"latency of a batch of 2\n{device}"
    draw_latency(panels, Clock(device="cpu", batch=1, threads=1, kept=tmp_path / "kept.json"))
    assert len(calls) == 2, "another batch is measured anew"


def test_a_file_of_another_device_prices_all_children(
    panels: list[Panel], device_file: Path
) -> None:
    from joslim.costs import cost

    _, numbers = draw_latency(panels, Clock(device_file=str(device_file)))
    price = cost("latency", load(panels[0].first.path).net, device_file=device_file)
    prices = [float(price(point.widths)) for point in panels[0].front]
    budgets = numbers["panels"][0]["budgets"]
    assert (budgets[0], budgets[-1]) == (min(prices), max(prices))
    assert numbers["conditions"][0]["batch"] == 3


def test_one_network_at_a_time(made: Made, tmp_path: Path) -> None:
    runs = [made("a"), made("b", data="cifar10")]
    with pytest.raises(UserError, match="one network at a time"):
        draw_latency(panels_of(runs), Clock(kept=tmp_path / "x.json"))
