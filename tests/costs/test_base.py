"""The exam that every cost takes: pure, and the same for one child as for thousands."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import joslim
from joslim import COSTS, Cost, SlimmableNet, UserError, Widths
from joslim.costs.base import ROWS

COUNTED = ["macs", "params", "memory"]
OPTIONS = {"latency": {"children": 4, "repeats": 1}}


class NothingRuns(TorchDispatchMode):
    """Any operation of torch fails."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was run")


@pytest.fixture(params=[*COSTS, "own"])
def cost(request: pytest.FixtureRequest, net: SlimmableNet) -> Cost:
    if request.param == "own":
        return joslim.cost(lambda widths: sum(widths.counts) / 7, net)
    return joslim.cost(request.param, net, **OPTIONS.get(request.param, {}))


def children(net: SlimmableNet, count: int = 5) -> np.ndarray:
    """[count + 2, knobs]: random multipliers, and both ends."""
    rng = np.random.default_rng(0)
    ends = [net.space.low, np.ones(len(net.space))]
    return np.array([*ends, *rng.uniform(net.space.low, 1.0, (count, len(net.space)))])


def test_one_child_equals_its_row_in_a_matrix(cost: Cost, net: SlimmableNet) -> None:
    matrix = children(net)
    prices = cost.of(matrix)
    assert prices.shape == (len(matrix),)
    assert prices.tolist() == [cost(net.space.at(row)) for row in matrix]
    assert cost.of_counts(net.space.counts(matrix)).tolist() == prices.tolist()


def test_prices_are_plain_numbers(cost: Cost, net: SlimmableNet) -> None:
    price = cost(net.space.smallest)
    assert type(price) is (int if cost.name in COUNTED else float)
    assert price > 0
    kind = np.integer if cost.name in COUNTED else np.floating
    assert np.issubdtype(cost.of(children(net)).dtype, kind)


def test_asking_for_a_cost_changes_nothing(cost: Cost, net: SlimmableNet) -> None:
    active = net.space.uniform(0.7)
    net.train()
    net.layer1.eval()
    state = copy.deepcopy(net.state_dict())
    modes = [module.training for module in net.modules()]
    identities = [(id(parameter), parameter.requires_grad) for parameter in net.parameters()]
    classes = [type(module) for module in net.modules()]
    generator = torch.get_rng_state()
    with net.at(active):
        cost(net.space.smallest)
        cost.of(children(net))
        assert net.active == active
    assert net.active == net.space.full
    assert [module.training for module in net.modules()] == modes
    assert [type(module) for module in net.modules()] == classes
    assert [(id(p), p.requires_grad) for p in net.parameters()] == identities
    assert all(parameter.grad is None for parameter in net.parameters())
    assert torch.equal(torch.get_rng_state(), generator)
    after = net.state_dict()
    assert after.keys() == state.keys()
    assert all(torch.equal(after[name], state[name]) for name in state)


@pytest.mark.parametrize("name", COUNTED)
def test_counted_costs_run_nothing(
    name: str, net: SlimmableNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(*inputs: Any) -> Any:
        raise AssertionError("forward was run")

    for module in net.modules():
        monkeypatch.setattr(module, "forward", forward, raising=False)
    with NothingRuns():
        cost = joslim.cost(name, net)
        assert cost(net.space.smallest) < cost(net.space.full)
        assert len(cost.of(children(net))) == 7


@pytest.mark.parametrize("name", COUNTED)
def test_prices_do_not_depend_on_what_is_active(name: str, net: SlimmableNet) -> None:
    matrix = children(net)
    expected = joslim.cost(name, net).of(matrix).tolist()
    with net.at(net.space.smallest):
        assert joslim.cost(name, net).of(matrix).tolist() == expected


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("rows", [1, ROWS - 1, ROWS, ROWS + 1, 3 * ROWS + 5])
def test_thousands_at_once(name: str, rows: int, net: SlimmableNet) -> None:
    rng = np.random.default_rng(rows)
    matrix = rng.uniform(net.space.low, 1.0, (rows, len(net.space)))
    cost = joslim.cost(name, net)
    prices = cost.of(matrix)
    assert prices.shape == (rows,)
    for row in {0, rows // 2, max(0, rows - 2), rows - 1}:
        assert prices[row] == cost(net.space.at(matrix[row]))


def test_no_children_cost_nothing(cost: Cost, net: SlimmableNet) -> None:
    assert cost.of(np.zeros((0, len(net.space)))).shape == (0,)


def test_a_matrix_may_be_lists_or_a_tensor(net: SlimmableNet) -> None:
    cost = joslim.cost("macs", net)
    expected = [cost(net.space.full)] * 2
    ones = [[1.0] * len(net.space)] * 2
    assert cost.of(ones).tolist() == cost.of(torch.tensor(ones)).tolist() == expected


def test_more_channels_never_cost_less(cost: Cost, net: SlimmableNet) -> None:
    steps = np.linspace(net.space.low, 1.0, 50)
    assert (np.diff(cost.of(steps)) >= 0).all()


# Bad input


def test_children_of_another_network_are_refused(cost: Cost) -> None:
    other = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 8, 8), low=0.5)
    with pytest.raises(UserError, match=rf"^widths: {cost.name} prices children of its own [^\n]*"):
        cost(other.space.full)


@pytest.mark.parametrize("widths", [None, 0.5, [0.5] * 6, "full"])
def test_what_is_no_child_is_refused(cost: Cost, widths: Any) -> None:
    with pytest.raises(UserError, match=r"^widths: [^\n]*$"):
        cost(widths)


def test_a_matrix_of_the_wrong_width_is_refused(cost: Cost) -> None:
    with pytest.raises(UserError, match=r"^widths: 5 multipliers given, [^\n]* has 6 knobs$"):
        cost.of(np.ones((3, 5)))


def test_multipliers_outside_are_refused(cost: Cost, net: SlimmableNet) -> None:
    matrix = children(net)
    matrix[3, 1] = 0.1
    with pytest.raises(UserError, match=r"0.1 for knob 'layer1.\*.conv1' is outside \[0.316, 1\]$"):
        cost.of(matrix)


# A user's own function as a cost


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
