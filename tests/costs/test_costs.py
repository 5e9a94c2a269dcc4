"""`joslim.cost`: a cost by its name, or of somebody's own."""

from typing import Any

import pytest
from torch import nn

import joslim
from joslim import COSTS, Cost, SlimmableNet, UserError
from joslim.costs.function import FunctionCost


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
        unit = "channels"

        def _price(self, counts: Any) -> Any:
            return counts.sum(axis=1)

    monkeypatch.setitem(COSTS, "channels", Channels)
    cost = joslim.cost("channels", net)
    assert cost(net.space.full) == sum(net.space.full.counts)


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
