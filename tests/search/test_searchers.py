"""The exam that every search takes, those of the future included."""

import copy
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import joslim
from joslim import Cost, SlimmableNet, UserError, Widths
from joslim.search import SEARCHERS, History, Searcher, searcher

HistoryOf = Callable[..., History]

# The exam is about manners, not about quality.
BOTORCH = {"restarts": 1, "raw_samples": 8, "iterations": 5, "fit_iterations": 5, "bisections": 2}
QUICK: dict[str, dict[str, Any]] = {
    "targeted": {"rounds": 2},
    "mobo-ts2": BOTORCH,
    "mobo-rs": BOTORCH,
}
# pymoo and BoTorch are loaded by the first who needs them.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def make(name: str) -> Searcher:
    return searcher(name, **QUICK.get(name, {}))


def propose(name: str, history: History, count: int = 2, seed: int = 0) -> list[Widths]:
    return make(name).propose(history, count, np.random.default_rng(seed))


def check(children: list[Widths], history: History, count: int) -> None:
    assert len(children) == count
    for child in children:
        assert isinstance(child, Widths)
        assert child.space == history.space
        assert history.space.of_counts(child.counts) == child
        assert math.isfinite(history.cost(child))


@pytest.fixture(params=list(SEARCHERS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 50])
def test_it_works_with_histories_of_any_size(
    name: str, size: int, history_of: HistoryOf, macs: Cost
) -> None:
    history = history_of(macs, size)
    check(propose(name, history), history, 2)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_it_proposes_as_many_as_asked(
    name: str, count: int, history_of: HistoryOf, macs: Cost
) -> None:
    for size in (0, 12):
        history = history_of(macs, size)
        check(propose(name, history, count), history, count)


@pytest.mark.parametrize("size", [0, 20])
def test_the_seed_decides(name: str, size: int, history_of: HistoryOf, macs: Cost) -> None:
    history = history_of(macs, size)
    first = propose(name, history, 3, seed=1)
    assert propose(name, history, 3, seed=1) == first
    assert propose(name, history, 3, seed=2) != first


@pytest.mark.parametrize("size", [0, 20])
def test_global_generators_stay_as_they_are(
    name: str, size: int, history_of: HistoryOf, macs: Cost
) -> None:
    history = history_of(macs, size)
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    propose(name, history)
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert (np.random.get_state()[1] == numpy_before).all()


def test_global_generators_have_no_say(name: str, history_of: HistoryOf, macs: Cost) -> None:
    history = history_of(macs, 20)
    first = propose(name, history)
    with torch.random.fork_rng():
        torch.manual_seed(12345)
        assert propose(name, history) == first


def test_the_history_stays_as_it_is(name: str, history_of: HistoryOf, macs: Cost) -> None:
    history = history_of(macs, 20)
    before = copy.deepcopy((history.visits, history.scorings, history._latest))
    propose(name, history)
    assert (history.visits, history.scorings, history._latest) == before


@pytest.mark.parametrize(
    "losses",
    [lambda i: 1.0, lambda i: 1e6 if i == 5 else 1.0 + i / 20, lambda i: 0.0, lambda i: -float(i)],
    ids=["equal", "outlier", "zero", "negative"],
)
def test_odd_losses_are_no_trouble(
    name: str, losses: Callable[[int], float], history_of: HistoryOf, macs: Cost
) -> None:
    history = history_of(macs, 20)
    history.record({i: losses(i) for i in range(len(history))}, 1)
    check(propose(name, history), history, 2)


def test_children_without_a_loss_are_no_trouble(
    name: str, history_of: HistoryOf, macs: Cost
) -> None:
    history, rng = history_of(macs, 12), np.random.default_rng(9)
    for _ in range(5):
        history.visit(macs.space.random(rng), 1)
    history.record({0: math.nan, 3: math.inf}, 2)
    check(propose(name, history), history, 2)


def test_nothing_scored_at_all_is_no_trouble(name: str, macs: Cost) -> None:
    history, rng = History(macs), np.random.default_rng(9)
    for _ in range(20):
        history.visit(macs.space.random(rng), 1)
    check(propose(name, history), history, 2)


@pytest.mark.parametrize("size", [2, 20])
@pytest.mark.parametrize("which", ["one_knob", "many_knobs"])
def test_one_knob_or_many(
    name: str, which: str, size: int, history_of: HistoryOf, request: pytest.FixtureRequest
) -> None:
    history = history_of(joslim.cost("macs", request.getfixturevalue(which)), size)
    check(propose(name, history), history, 2)


def by_hand(widths: Widths) -> float:
    return float(sum(widths.counts))


@pytest.mark.parametrize("cost", ["params", "memory", "latency", by_hand])
def test_every_cost_will_do(
    name: str,
    cost: str | Callable[[Widths], float],
    history_of: HistoryOf,
    net: SlimmableNet,
    request: pytest.FixtureRequest,
) -> None:
    options = {"children": 8, "repeats": 1} if cost == "latency" else {}
    history = history_of(joslim.cost(cost, net, **options), 12)
    check(propose(name, history), history, 2)


def test_a_resumed_search_goes_on(name: str, history_of: HistoryOf, macs: Cost) -> None:
    history, search, resumed = history_of(macs, 20), make(name), make(name)
    search.propose(history, 2, np.random.default_rng(0))
    resumed.load_state_dict(search.state_dict())
    one, two = (s.propose(history, 2, np.random.default_rng(1)) for s in (search, resumed))
    assert one == two


# The table


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(UserError, match="searcher: unknown name 'tpe'; allowed: targeted, mobo"):
        searcher("tpe")


def test_an_unknown_option_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"nonsense: searcher {name} has none; leave it out$"):
        searcher(name, nonsense=1)


def test_an_option_of_another_search_says_whose_it_is() -> None:
    words = (
        "bisections: searcher targeted has none; leave it out, or type --searcher mobo-ts2 or "
        "mobo-rs$"
    )
    with pytest.raises(UserError, match=words):
        searcher("targeted", log_share=0.5, bisections=3)


def test_options_are_attributes() -> None:
    search: Any = searcher("targeted", beta=0.5, epsilon=0.01)
    assert (search.beta, search.epsilon) == (0.5, 0.01)


@pytest.mark.parametrize("name", ["mobo-ts2", "mobo-rs"])
def test_the_paper_is_two_options_away(name: str) -> None:
    search: Any = searcher(name)
    assert (search.beta, search.epsilon, search.bisections) == (0.1, 0.02, 10)
    assert (search.optimistic, search.ard) == (True, True)


def test_importing_the_searches_loads_neither_botorch_nor_pymoo() -> None:
    code = """
import sys, joslim.search
sys.exit(str({"botorch", "gpytorch", "pymoo", "scipy"} & {*sys.modules} or ""))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert result.stderr.strip() == b"", result.stderr
