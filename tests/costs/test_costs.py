"""`joslim.cost`: a cost by its name, or of somebody's own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import joslim
from joslim import COSTS, Cost, SlimmableNet, UserError
from joslim.costs import CostInfo
from joslim.costs.base import FunctionCost
from joslim.units import parse_size


def test_the_table_holds_the_published_names() -> None:
    assert list(COSTS) == ["macs", "params", "memory", "latency"]


@pytest.mark.parametrize("name", COSTS)
def test_a_cost_by_name(name: str, net: SlimmableNet) -> None:
    cost = joslim.cost(name, net)
    assert isinstance(cost, Cost)
    assert cost.name == name
    assert cost.unit
    assert cost.space == net.space


def test_a_function_becomes_a_cost(net: SlimmableNet) -> None:
    assert isinstance(joslim.cost(len, net), FunctionCost)


def test_a_cost_is_added_in_one_place(net: SlimmableNet, monkeypatch: pytest.MonkeyPatch) -> None:
    class Channels(Cost):
        def _price(self, counts: Any) -> Any:
            return counts.sum(axis=1)

    info = CostInfo("channels", Channels, unit="channels")
    monkeypatch.setitem(COSTS, "channels", info)
    cost = joslim.cost("channels", net)
    assert cost(net.space.full) == sum(net.space.full.counts)
    assert cost.unit == "channels"


@pytest.mark.parametrize("name", ["flops", "MACs", "", None])
def test_an_unknown_name_lists_the_names(name: Any, net: SlimmableNet) -> None:
    with pytest.raises(UserError) as caught:
        joslim.cost(name, net)
    message = str(caught.value)
    assert message == f"cost: unknown name '{name}'; allowed: macs, params, memory, latency"


def test_a_network_must_be_slimmable() -> None:
    with pytest.raises(UserError, match=r"^net: Conv2d is not slimmable; type joslim.slim\(...\)"):
        joslim.cost("macs", nn.Conv2d(3, 8, 3))  # type: ignore[arg-type]


def test_an_unknown_option_is_refused(net: SlimmableNet) -> None:
    with pytest.raises((TypeError, UserError), match="bytes_per_element"):
        joslim.cost("macs", net, bytes_per_element=2)


def test_an_option_of_a_function_is_refused(net: SlimmableNet) -> None:
    with pytest.raises((TypeError, UserError), match="bytes_per_element"):
        joslim.cost(lambda widths: 1.0, net, bytes_per_element=2)


# One file and one row: all that a new cost takes.

ENERGY = """
from joslim.costs.base import Cost

class Energy(Cost):
    def _price(self, counts):
        return 0.02 * counts.sum(axis=1)
"""
# The commands of the lines that it is given, one after the other, in one process.
WITH_ENERGY = """
import shlex, sys
from joslim.costs import COSTS, CostInfo

COSTS["energy"] = CostInfo("energy", "energy:Energy", unit="mJ")

from joslim.cli import main

for line in sys.argv[1:]:
    print("$", line)
    try:
        main(shlex.split(line))
    except SystemExit as stopped:
        assert stopped.code == 0, line
"""


def test_a_new_cost_goes_from_training_to_export(
    shell: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("energy.py").write_text(ENERGY)
    Path("program.py").write_text(WITH_ENERGY)
    tiny = "--steps 2 --batch 32 --every 1 --front-images 64 --threads 1"
    result = shell(
        "program.py",
        f"train --cost energy --out run {tiny}",
        "front run",
        "pick run --energy 3",
        "pick run --energy 3mJ --json",
        "allocate run run --energy 6",
        "report run",
        "export run --energy 3 -o child",
        "pick --help",
    )
    assert result.returncode == 0, result.stderr
    _, train, front, pick, as_json, allocate, _, export, usage = result.stdout.split("$ ")
    assert "by energy" in train
    assert "smallest" in front.split("full ")[0]
    assert front.split("full ")[1].split("\n")[0] == "4.48 mJ"
    assert "of 3.00 mJ energy" in pick
    picked = json.loads(as_json.partition("\n")[2])
    assert picked["energy"] <= 3
    assert picked["margin"] == {"energy": 3 - picked["energy"]}
    assert "of 6.00 mJ energy" in allocate
    described = '"energy":{"label":"energy","axis":"energy","unit":"mJ","symbol":"mJ","flag":'
    assert f'{described}"--energy"}}' in Path("run/report.html").read_text()
    assert "mJ; largest difference" in export
    assert json.loads(Path("child/config.json").read_text())["costs"]["energy"] == picked["energy"]
    assert "--energy MJ" in " ".join(usage.split())


def test_a_front_that_lacks_a_new_cost_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COSTS, "energy", CostInfo("energy", unit="mJ"))
    space = joslim.WidthSpace((joslim.Dim("stem", 4),), (joslim.Knob("stem", (0,), 0.5),))
    costs = {"macs": 1.0, "params": 1.0, "memory": 1.0}
    front = joslim.Front([joslim.Point(space.full, costs, 1.0)], "macs", (1, 1))
    words = r"^energy: not measured for this front; type joslim train --cost energy$"
    with pytest.raises(UserError, match=words):
        front.pick(energy=3)
    with pytest.raises(UserError, match=r"^energy: '3J' is not a number of mJ; type 8 or 8.5$"):
        parse_size("energy", "3J")
