"""A user's own function as a cost."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import joslim
from joslim import SlimmableNet, UserError, Widths


def channels(widths: Widths) -> int:
    return sum(widths.channels.values())


def test_for_one_child_and_for_a_matrix(net: SlimmableNet) -> None:
    cost = joslim.cost(channels, net)
    rng = np.random.default_rng(0)
    some = [net.space.random(rng) for _ in range(20)]
    expected = [channels(child) for child in some]
    assert [cost(child) for child in some] == expected
    assert cost.of([child.multipliers for child in some]).tolist() == expected


def test_the_function_gets_the_child_itself(net: SlimmableNet) -> None:
    seen: list[Widths] = []

    def record(widths: Widths) -> float:
        seen.append(widths)
        return 0.5

    child = net.space.uniform(0.6)
    assert joslim.cost(record, net)(child) == 0.5
    assert seen == [child]
    assert seen[0].channels == child.channels


def test_it_is_named_after_the_function(net: SlimmableNet) -> None:
    class Priced:
        def __call__(self, widths: Widths) -> float:
            return 1.0

    assert joslim.cost(channels, net).name == "channels"
    assert joslim.cost(Priced(), net).name == "function"


def test_it_may_be_made_of_other_costs(net: SlimmableNet) -> None:
    macs, params = joslim.cost("macs", net), joslim.cost("params", net)
    both = joslim.cost(lambda widths: macs(widths) / 1e6 + params(widths) / 1e3, net)
    full = net.space.full
    assert both(full) == macs(full) / 1e6 + params(full) / 1e3


def test_what_it_raises_is_one_line(net: SlimmableNet) -> None:
    def broken(widths: Widths) -> float:
        raise ZeroDivisionError("mine\nand more")

    with pytest.raises(UserError) as caught:
        joslim.cost(broken, net)(net.space.full)
    assert (
        str(caught.value)
        == f"cost: broken of {net.space.full} fails: ZeroDivisionError: mine and more"
    )
    assert isinstance(caught.value.__cause__, ZeroDivisionError), "for whoever looks for the line"


@pytest.mark.parametrize(
    "price", [None, "3", b"3", [], {}, math.nan, math.inf, -1, 1e19, 10**400, 1j, np.ones(2)]
)
def test_what_is_no_price(price: Any, net: SlimmableNet) -> None:
    def energy(widths: Widths) -> Any:
        return price

    with pytest.raises(UserError, match=r"^cost: energy of .* is .*; a number from 0 to 1e\+18"):
        joslim.cost(energy, net)(net.space.smallest)


@pytest.mark.parametrize("price", [0, 3, np.float32(3), np.int64(3), torch.tensor(3.0), 1e18])
def test_numbers_of_all_kinds_are_prices(price: Any, net: SlimmableNet) -> None:
    assert joslim.cost(lambda widths: price, net)(net.space.full) == float(price)


def test_it_prices_children_of_its_own_network_only(
    net: SlimmableNet, resnet20: SlimmableNet
) -> None:
    with pytest.raises(UserError, match="channels prices children of its own network only"):
        joslim.cost(channels, net)(resnet20.space.full)


def test_any_multipliers_can_be_priced() -> None:
    tie = [["conv1", "layer3.0.conv2"]]
    tied = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 8, 8), tie=tie, low=0.25)
    matrix = np.full((1, len(tied.space)), 0.5 - 3e-11)
    assert joslim.cost(channels, tied).of(matrix) > 0
