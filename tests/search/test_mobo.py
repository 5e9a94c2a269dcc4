"""The paper's searches: their formulas by hand, BoTorch as the oracle, and what they visit."""

import json
import logging
from collections.abc import Callable

import numpy as np
import pytest
import torch

from joslim import Cost, UserError
from joslim.search import History
from joslim.search import mobo as module
from joslim.search.cost_targeting import cost_range
from joslim.search.gp import Surrogate
from joslim.search.mobo import (
    RandomScalarized,
    Scalarized,
    bisect,
    borrowed_generator,
    fit_botorch,
    fit_process,
    minimise,
    scalarize,
)

HistoryOf = Callable[..., History]
QUICK = {"restarts": 1, "raw_samples": 64, "iterations": 2, "fit_iterations": 20}


# Scalarization


def test_scalarization_by_hand() -> None:
    loss, cost = torch.tensor([0.0, 0.5, 1.0]), torch.tensor([1.0, 0.5, 0.0])
    # Weights 0.75 and 0.25.
    result = scalarize(0.25, loss, cost, rho=0.1)
    expected = [0.25 + 0.1 * 0.25, 0.375 + 0.1 * (0.375 + 0.125), 0.75 + 0.1 * 0.75]
    torch.testing.assert_close(result, torch.tensor(expected))


def test_a_weight_of_one_is_cost_alone_and_of_zero_is_loss_alone() -> None:
    loss, cost = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])
    assert scalarize(1.0, loss, cost, rho=0.05).argmin() == 1
    assert scalarize(0.0, loss, cost, rho=0.05).argmin() == 0


def test_botorch_scalarizes_alike() -> None:
    scalarization = pytest.importorskip("botorch.utils.multi_objective.scalarization")
    values = torch.rand(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = values * torch.tensor([3.0, 1e6]) + 1
    scaled = (values - values.min(0).values) / (values.max(0).values - values.min(0).values)
    for weight in (0.1, 0.5, 0.8):
        # Negative weights mean: to be minimised. What it returns is to be maximised.
        weights = -torch.tensor([1 - weight, weight], dtype=torch.float64)
        theirs = scalarization.get_chebyshev_scalarization(weights, values)(values)
        ours = scalarize(weight, *scaled.T, rho=0.05)
        torch.testing.assert_close(ours, -theirs)


def test_objectives_are_standardised_by_the_history(history_of: HistoryOf, macs: Cost) -> None:
    """As in the public code of the paper: deviations from the mean, above a point 3 below it."""
    history = history_of(macs, 12)
    scored = history.scored()
    search = Scalarized(beta=0.0, rho=0.0, **QUICK)
    problem = module._Problem(search, history, scored)
    x = torch.full((1, 6), 0.3, dtype=torch.float64)
    for weight, process, values in (
        (0, problem.loss, scored.losses),
        (1, problem.cost, scored.costs),
    ):
        standardised = (process.moments(x)[0] - values.mean()) / values.std(ddof=1) + 3
        torch.testing.assert_close(problem.scalarized_bounds(weight, x), standardised)


def test_equal_children_have_a_scale_too(history_of: HistoryOf, macs: Cost) -> None:
    history = history_of(macs, 5)
    history.record(dict.fromkeys(range(5), 1.0), 1)
    problem = module._Problem(Scalarized(**QUICK), history, history.scored())
    assert problem.scales[0] == (1.0, 1.0)


def test_minimisations_and_fits_are_as_long_as_botorch_lets_them() -> None:
    """The paper calls optimize_acqf; the restarts and samples are those of its public code."""
    search = Scalarized()
    assert (search.iterations, search.fit_iterations) == (None, None)
    assert (search.restarts, search.raw_samples) == (5, 1000)


# Bisection


def test_bisection_follows_algorithm_2() -> None:
    asked = []

    def solve(weight: float) -> tuple[str, float]:
        """More weight on the cost, less cost: 100 at 0, 0 at 1."""
        asked.append(weight)
        return f"at {weight}", 100 * (1 - weight)

    found = bisect(solve, target=30, full=100, epsilon=0.02, most=10)
    # 50 is too dear, 25 too cheap, 37.5 too dear, 31.25 is within 2.
    assert asked == [0.5, 0.75, 0.625, 0.6875]
    assert (found.child, found.tries) == ("at 0.6875", 4)
    assert found.miss == pytest.approx(0.0125)


def test_a_hit_at_once_asks_once() -> None:
    found = bisect(lambda weight: (weight, 50.0), target=51, full=100, epsilon=0.02, most=10)
    assert (found.child, found.tries) == (0.5, 1)


def test_a_failed_bisection_returns_the_last_child() -> None:
    """Algorithm 2 knows the child of the last bisection alone, though the fourth was nearer."""
    costs = iter([90.0, 10.0, 80.0, 20.0, 85.0])
    found = bisect(lambda weight: (weight, next(costs)), 40, full=100, epsilon=0.02, most=5)
    assert found.tries == 5
    assert found.miss == pytest.approx(0.45)
    # Too dear, too cheap, too dear, too cheap: 0.5, 0.75, 0.625, 0.6875, and the fifth weight.
    assert found.child == 0.65625


@pytest.mark.parametrize("most", [1, 2, 10])
def test_no_more_solutions_than_allowed(most: int) -> None:
    asked: list[float] = []
    bisect(lambda weight: (asked.append(weight), 0.0), 100, full=100, epsilon=0.02, most=most)
    assert len(asked) == most


# Gaussian processes


def data(count: int = 25) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).uniform(size=(count, 3))
    return x, 100 + 50 * np.sin(3 * x[:, 0]) + x[:, 1]


def test_the_process_is_botorchs() -> None:
    x, values = data()
    theirs, ours = fit_botorch(x, values, True, 50), fit_process(x, values, True, 50)
    points = torch.rand(30, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        posterior = theirs.posterior(points)
        mean, sigma = ours.moments(points)
    torch.testing.assert_close(mean, posterior.mean[:, 0], rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(sigma, posterior.variance[:, 0].sqrt(), rtol=0.02, atol=0.01)


def test_the_kernel_is_a_matern_in_double_precision() -> None:
    kernel = fit_botorch(*data(), ard=True, iterations=5).covar_module.base_kernel
    assert (type(kernel).__name__, kernel.nu) == ("MaternKernel", 2.5)
    assert kernel.lengthscale.dtype == torch.float64


@pytest.mark.parametrize(("ard", "scales"), [(True, 3), (False, 1)])
def test_one_length_scale_for_each_knob_or_one_for_all(ard: bool, scales: int) -> None:
    theta = fit_process(*data(), ard=ard, iterations=30).theta
    assert len(set(theta[:3])) == scales


@pytest.mark.parametrize("ard", [True, False])
def test_a_fit_starts_where_the_last_one_ended(ard: bool) -> None:
    x, values = data()
    last = fit_process(x, values, ard, 100)
    again = fit_process(x, values, ard, 2, last.theta)
    np.testing.assert_allclose(again.posterior(x)[0], last.posterior(x)[0], atol=0.5)
    other_network = fit_process(x, values, ard, 100, (0.0,))
    assert other_network.theta == last.theta


@pytest.mark.parametrize(("optimistic", "sign"), [(True, -1), (False, 1)])
def test_which_bound_a_search_takes(
    history_of: HistoryOf, macs: Cost, optimistic: bool, sign: int
) -> None:
    history = history_of(macs, 10)
    search = Scalarized(optimistic=optimistic, beta=0.25, **QUICK)
    problem = module._Problem(search, history, history.scored())
    x = torch.full((1, 6), 0.3, dtype=torch.float64)
    loss, cost = (
        (mean + sign * 0.5 * sigma - middle) / deviation + 3
        for (mean, sigma), (middle, deviation) in zip(
            (process.moments(x) for process in (problem.loss, problem.cost)), problem.scales
        )
    )
    assert problem.scalarized_bounds(0.3, x) == scalarize(0.3, loss, cost, search.rho)


def test_a_failed_fit_keeps_the_initial_parameters_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import botorch.fit

    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(botorch.fit, "fit_gpytorch_mll", fail)
    x, values = data()
    with caplog.at_level(logging.WARNING, logger="joslim"):
        process = fit_process(x, values, True, 50)
    assert "keeps its initial parameters: no" in caplog.text
    assert np.isfinite(process.posterior(x)[0]).all()


def test_minimise_finds_the_minimum() -> None:
    where = torch.tensor([0.2, 0.9, 1.0], dtype=torch.float64)
    with borrowed_generator(np.random.default_rng(0)):
        found = minimise(lambda x: (x - where).square().sum(1), 3, 2, 16, 50)
    np.testing.assert_allclose(found, where, atol=1e-3)


def test_the_generator_is_borrowed_and_put_back() -> None:
    state = torch.get_rng_state()
    draws = []
    for seed in (0, 0, 1):
        with borrowed_generator(np.random.default_rng(seed)):
            draws.append(torch.rand(1).item())
    assert draws[0] == draws[1] != draws[2]
    assert torch.equal(torch.get_rng_state(), state)


# Searches


def places(search: Scalarized, history: History, count: int) -> np.ndarray:
    """Where in the range of costs its children lie, in order."""
    low, full = cost_range(history.cost)
    children = search.propose(history, count, np.random.default_rng(0))
    return np.sort([(history.cost(child) - low) / (full - low) for child in children])


def unevenness(places: np.ndarray) -> float:
    """The Kolmogorov-Smirnov distance to the uniform distribution."""
    ideal = (np.arange(len(places)) + 0.5) / len(places)
    return float(np.abs(places - ideal).max())


def test_targets_make_costs_even_and_random_weights_do_not(
    history_of: HistoryOf, macs: Cost
) -> None:
    """Fig. 5b of the paper: lambda spread evenly does not spread the costs evenly."""
    history = history_of(macs, 30)
    targeted, drawn = Scalarized(**QUICK), RandomScalarized(**QUICK)
    even, uneven = (unevenness(places(s, history, 20)) for s in (targeted, drawn))
    assert even < 0.25
    assert uneven > even + 0.1
    assert targeted.sought == 20
    assert targeted.misses <= 6
    assert targeted.solved / targeted.sought < 8
    assert (drawn.sought, drawn.solved) == (0, 20)


def test_a_missed_target_is_counted_and_logged(
    history_of: HistoryOf, macs: Cost, caplog: pytest.LogCaptureFixture
) -> None:
    search = Scalarized(epsilon=1e-9, bisections=2, **QUICK)
    with caplog.at_level(logging.INFO, logger="joslim"):
        search.propose(history_of(macs, 10), 2, np.random.default_rng(0))
    assert (search.misses, search.sought, search.solved) == (2, 2, 4)
    assert "missed by" in caplog.text


def test_both_processes_are_fitted_once_for_all_children(
    history_of: HistoryOf, macs: Cost, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = []

    def counted(*arguments: object) -> Surrogate:
        fits.append(1)
        return fit_process(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "fit_process", counted)
    RandomScalarized(**QUICK).propose(history_of(macs, 10), 3, np.random.default_rng(0))
    assert len(fits) == 2


def test_counts_are_kept_in_the_state() -> None:
    search, resumed = Scalarized(), Scalarized()
    search.misses, search.sought, search.solved = 1, 2, 3
    search._thetas = [(0.1, 0.2), (0.3, 0.4)]
    resumed.load_state_dict(json.loads(json.dumps(search.state_dict())))
    assert resumed == search


def test_without_botorch_the_user_is_told_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is made, and not at the end of a training."""
    monkeypatch.setitem(__import__("sys").modules, "botorch", None)
    for search in (Scalarized, RandomScalarized):
        with pytest.raises(UserError, match=r"pip install 'joslim\[botorch\]'"):
            search()
