"""The Gaussian process against torch's autograd, GPyTorch, and functions that are known."""

import logging

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from joslim.search import gp as module
from joslim.search.gp import (
    Hyperparameters,
    Surrogate,
    SurrogateFailed,
    negative_log_posterior,
    prior,
    transform_losses,
)


def data(count: int, knobs: int, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Only the first knob matters much."""
    x = np.random.default_rng(seed).uniform(size=(count, knobs))
    return x, np.sin(4 * x[:, 0]) + 0.1 * x.sum(axis=1) + 5


@pytest.mark.parametrize("knobs", [1, 6])
def test_the_gradient_is_that_of_the_value(knobs: int) -> None:
    x, y = (torch.from_numpy(part) for part in data(15, knobs))
    theta = prior(knobs)[0] + torch.linspace(-0.7, 0.4, knobs + 2, dtype=torch.float64)
    theta.requires_grad_()
    value, gradient = negative_log_posterior(theta, x, y - y.mean())
    (expected,) = torch.autograd.grad(value, theta)
    torch.testing.assert_close(gradient.detach(), expected, rtol=1e-6, atol=1e-8)


def test_the_posterior_is_gpytorchs() -> None:
    gpytorch = pytest.importorskip("gpytorch")
    x, values = data(20, 3)
    process = Surrogate.fit(x, values)
    theta = torch.tensor(process.theta, dtype=torch.float64)

    class Model(gpytorch.models.ExactGP):  # type: ignore
        def __init__(self) -> None:
            likelihood = gpytorch.likelihoods.GaussianLikelihood()
            y = torch.from_numpy((values - values.mean()) / values.std())
            super().__init__(torch.from_numpy(x), y, likelihood)
            base = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=3)
            self.kernel = gpytorch.kernels.ScaleKernel(base)
            self.double()
            base.lengthscale, self.kernel.outputscale = theta[:3].exp(), theta[3].exp()
            likelihood.noise = theta[4].exp()

        def forward(self, points: torch.Tensor) -> object:
            zero = torch.zeros(len(points), dtype=torch.float64)
            return gpytorch.distributions.MultivariateNormal(zero, self.kernel(points))

    points, _ = data(30, 3, seed=1)
    mean, sigma = process.posterior(points)
    with torch.no_grad():
        expected = Model().eval()(torch.from_numpy(points))
    shift, scale = values.mean(), values.std()
    np.testing.assert_allclose(mean, expected.mean.numpy() * scale + shift, atol=1e-4)
    np.testing.assert_allclose(sigma, expected.stddev.numpy() * scale, atol=1e-3)


@pytest.mark.parametrize("knobs", [1, 6, 25])
def test_it_learns_a_smooth_function(knobs: int) -> None:
    x, values = data(120, knobs)
    process = Surrogate.fit(x, values)
    points, expected = data(200, knobs, seed=1)
    mean, sigma = process.posterior(points)
    assert np.corrcoef(mean, expected)[0, 1] > 0.99
    assert (np.abs(mean - expected) < 4 * sigma + 0.05).mean() > 0.95
    lengths = process.theta[:knobs]
    assert lengths[0] == min(lengths), "the knob that matters has the shortest length"


def test_uncertainty_grows_away_from_the_points() -> None:
    x, values = data(40, 2)
    process = Surrogate.fit(x * 0.2, values)
    sigmas = [process.posterior(np.full((1, 2), place))[1][0] for place in (0.1, 0.3, 0.6, 1.0)]
    assert sigmas == sorted(sigmas)
    assert sigmas[-1] > 1.5 * sigmas[0]


def test_moments_can_be_differentiated_at_the_points_themselves() -> None:
    x, values = data(10, 2)
    process = Surrogate.fit(x, values)
    points = torch.from_numpy(x).requires_grad_()
    mean, sigma = process.moments(points)
    (gradient,) = torch.autograd.grad((mean + sigma).sum(), points)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    "values",
    [[1.0], [1.0, 1.0, 1.0], [0.0, 1e6], [1.0, 2.0, 1e12], [0.0, 1e-300]],
)
def test_odd_data_give_finite_answers(values: list[float]) -> None:
    x, _ = data(len(values), 4)
    mean, sigma = Surrogate.fit(x, np.array(values)).posterior(data(9, 4, seed=1)[0])
    assert np.isfinite(mean).all()
    assert np.isfinite(sigma).all()


def test_children_given_twice_are_no_trouble() -> None:
    x, values = data(10, 3)
    process = Surrogate.fit(np.concatenate([x, x]), np.concatenate([values, values]))
    np.testing.assert_allclose(process.posterior(x)[0], values, atol=0.1)


def test_a_start_is_used_unless_it_is_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    x, values = data(60, 6)
    fitted = Surrogate.fit(x, values)
    with monkeypatch.context() as one_step:
        one_step.setattr(module, "ITERATIONS", 1)
        again = Surrogate.fit(x, values, start=fitted.theta)
    np.testing.assert_allclose(again.theta, fitted.theta, atol=0.3)
    bad = Surrogate.fit(x, values, start=(-9.0,) * 8)
    np.testing.assert_allclose(bad.theta, fitted.theta)
    other_network = Surrogate.fit(x, values, start=(0.0,))
    np.testing.assert_allclose(other_network.theta, fitted.theta)


def test_a_failed_fit_falls_back_to_the_prior_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> None:
        raise ArithmeticError("no")

    monkeypatch.setattr(module, "negative_log_posterior", fail)
    x, values = data(20, 3)
    with caplog.at_level(logging.WARNING, logger="joslim"):
        process = Surrogate.fit(x, values)
    assert process.theta == tuple(prior(3)[0].tolist())
    assert "the fit to 20 children failed (no)" in caplog.text
    assert np.isfinite(process.posterior(x)[0]).all()


def test_a_failed_fit_falls_back_to_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x, values = data(20, 3)
    start = Surrogate.fit(x, values).theta
    nan = torch.full((5,), float("nan"), dtype=torch.float64)
    monkeypatch.setattr(module, "_maximise", lambda *arguments: nan)
    with caplog.at_level(logging.WARNING, logger="joslim"):
        assert Surrogate.fit(x, values, start=start).theta == start
    assert "(not finite); the last good ones are used" in caplog.text


@pytest.mark.parametrize("values", [[1.0, float("nan"), 2.0], [1e308, -1e308, 1e308]])
def test_values_that_are_not_finite_are_refused(values: list[float]) -> None:
    with pytest.raises(SurrogateFailed, match="not finite"):
        Surrogate.fit(data(3, 2)[0], np.array(values))


def test_a_covariance_that_cannot_be_factored_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(covariance: torch.Tensor) -> None:
        raise RuntimeError("no memory")

    x, values = data(9, 2)
    monkeypatch.setattr(torch.linalg, "cholesky_ex", broken)
    with pytest.raises(SurrogateFailed, match="no memory"):
        Surrogate.with_theta((0.0,) * 4, x, values)


def test_predictions_that_are_not_finite_are_refused() -> None:
    x, values = data(9, 2)
    with pytest.raises(SurrogateFailed, match="prediction"):
        Surrogate.fit(x, values).posterior(np.full((1, 2), np.nan))


def test_given_hyper_parameters_are_kept() -> None:
    x, values = data(30, 2)
    fitted = Surrogate.fit(x, values)
    same = Surrogate.with_theta(fitted.theta, x, values)
    assert same.theta == fitted.theta
    np.testing.assert_array_equal(same.posterior(x)[0], fitted.posterior(x)[0])


def test_hyper_parameters_of_another_network_are_fitted_anew() -> None:
    hyperparameters = Hyperparameters(theta=(0.0,) * 9, size=60)
    x, values = data(60, 3)
    assert len(hyperparameters.surrogate(x, values, 60, 100).theta) == 5


def test_hyper_parameters_come_from_some_and_the_posterior_from_all() -> None:
    x, values = data(200, 2)
    process = Surrogate.fit(x, values, most=50)
    assert process._points.shape == (200, 2)
    some = np.linspace(0, 199, 50).round().astype(int)
    alone = Surrogate.fit(x[some], (values[some] - values.mean()) / values.std())
    np.testing.assert_allclose(process.theta, alone.theta, atol=0.5)


# The scale of losses


def test_positive_losses_become_logarithms() -> None:
    losses = np.array([0.5, 1.0, 2.0])
    np.testing.assert_allclose(transform_losses(losses), np.log(losses))


def test_losses_that_are_not_positive_stay() -> None:
    losses = np.array([-1.0, 0.0, 2.0])
    assert (transform_losses(losses) == losses).all()


def test_an_outlier_is_fenced_in() -> None:
    losses = np.concatenate([np.linspace(0.5, 1.0, 20), [1e6]])
    result = transform_losses(losses)
    assert result[-1] < 3
    assert (np.diff(result) > 0).all(), "the order stays"
    assert result.argmin() == 0


def test_low_losses_are_never_fenced() -> None:
    losses = np.concatenate([np.linspace(0.5, 1.0, 20), [1e-6]])
    assert transform_losses(losses)[-1] == np.log(1e-6)


def test_where_most_losses_are_equal_the_others_stay_apart() -> None:
    losses = np.array([1.0] * 20 + [1.2, 1.4])
    np.testing.assert_allclose(transform_losses(losses), np.log(losses))
