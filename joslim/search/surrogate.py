"""A Gaussian process of the loss: exact, in double precision, on the CPU.

Matérn-5/2 with one length scale for each knob (ARD). The hyper-parameters maximise the posterior
(marginal likelihood times priors) by L-BFGS with its gradient in closed form: for the few hundred
children of a history this takes milliseconds, where a general library takes seconds, and a search
step must be cheap beside the training steps around it.

Symbols: X [n, knobs] points in the unit cube, y [n] standardised values, K = s k(X, X) + v I with
the signal variance s and the noise variance v. Theta is the vector of logarithms
(length scales..., s, v).
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

log = logging.getLogger("joslim")

# Priors are normal in the logarithms: (mean, deviation). The mean of a length scale grows with the
# root of the number of knobs, as distances in the cube do (arXiv 2402.02229; BoTorch's defaults).
LENGTH_MEAN, LENGTH_DEVIATION = math.sqrt(2), math.sqrt(3)
SIGNAL_PRIOR = (0.0, 1.0)
NOISE_PRIOR = (-4.0, 1.0)
# Beyond these a kernel is constant or diagonal, and exp() would soon overflow.
LIMIT = 12.0
JITTER = 1e-6
# Hyper-parameters are fitted anew when there is this share of points more than at the last fit,
# and at every call while there are few points: then a fit takes next to nothing.
GROWTH = 0.1
FEW = 50
# Points that a process is conditioned on at most: its time grows with their cube.
MOST_POINTS = 1200


class SurrogateFailed(ArithmeticError):
    """The process cannot be had, or says nothing of use."""


def tamed(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n] -> [n]: losses on a scale on which a Gaussian process can tell the good ones apart.

    The logarithm if all are positive, since training losses of small and large children differ by
    orders of magnitude; then what lies far above the rest (3 interquartile ranges) is brought
    down to that fence. Order is kept up to ties, so least stays least. Equal losses count once:
    where most are equal, the others would all lie beyond the fence.
    """
    values = np.log(losses) if (losses > 0).all() else losses
    with np.errstate(over="ignore", invalid="ignore"):
        quarter, three_quarters = np.quantile(np.unique(values), [0.25, 0.75])
        return np.minimum(values, three_quarters + 3 * (three_quarters - quarter))


@dataclass(frozen=True)
class Surrogate:
    """A process conditioned on its points. `theta` can start the next fit."""

    theta: tuple[float, ...]
    shift: float
    scale: float
    _points: Tensor
    _cholesky: Tensor
    _weights: Tensor

    @classmethod
    def fit(
        cls,
        matrix: NDArray[np.float64],
        values: NDArray[np.float64],
        start: tuple[float, ...] | None = None,
        most: int = 500,
        iterations: int = 50,
    ) -> Surrogate:
        """[n, knobs] points of the unit cube, [n] values -> the process.

        Hyper-parameters are fitted to at most `most` of the points; the posterior uses all. If
        the fit fails they are those of `start`; without it, those of the prior.
        """
        x, y, shift, scale = _standardised(matrix, values)
        # Evenly over the visits, early and late ones.
        some = torch.linspace(0, len(x) - 1, min(len(x), most)).round().long()
        theta = _fitted(x[some], y[some], start, iterations)
        return cls.conditioned(theta, x, y, shift, scale)

    @classmethod
    def with_theta(
        cls, theta: tuple[float, ...], matrix: NDArray[np.float64], values: NDArray[np.float64]
    ) -> Surrogate:
        """As `fit` does it, but with these hyper-parameters."""
        x, y, shift, scale = _standardised(matrix, values)
        return cls.conditioned(torch.tensor(theta, dtype=torch.float64), x, y, shift, scale)

    @classmethod
    def conditioned(
        cls, theta: Tensor, x: Tensor, y: Tensor, shift: float, scale: float
    ) -> Surrogate:
        """The process with these hyper-parameters, of which y * scale + shift was observed at x."""
        signal, _ = _own_kernel(theta, x)
        cholesky = _factor(signal + theta[-1].exp() * _eye(x))
        weights = torch.cholesky_solve(y[:, None], cholesky)
        if not weights.isfinite().all():
            raise SurrogateFailed("a value of the surrogate is not finite")
        return cls(tuple(theta.tolist()), shift, scale, x, cholesky, weights)

    def posterior(
        self, matrix: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """[m, knobs] -> mean [m] and standard deviation [m] of the noiseless value."""
        mean, sigma = self.moments(torch.from_numpy(matrix.copy()))
        if not (mean.isfinite().all() and sigma.isfinite().all()):
            raise SurrogateFailed("a prediction of the surrogate is not finite")
        return mean.numpy(), sigma.numpy()

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`posterior` on tensors, which can be differentiated."""
        theta = torch.tensor(self.theta, dtype=torch.float64)
        across, _ = _kernel(theta, x, self._points)
        mean = (across @ self._weights)[:, 0]
        half = torch.linalg.solve_triangular(self._cholesky, across.T, upper=False)
        # The root has no slope at 0.
        variance = (theta[-2].exp() - half.square().sum(0)).clamp_min(1e-12)
        return mean * self.scale + self.shift, variance.sqrt() * self.scale


@dataclass
class Refits:
    """Hyper-parameters that are fitted now and then, and kept in between."""

    theta: tuple[float, ...] | None = None
    # Points at the last fit.
    size: int = 0

    def surrogate(
        self, matrix: NDArray[np.float64], values: NDArray[np.float64], size: int, most: int
    ) -> Surrogate:
        """The process of these points, which are some of `size`; fitted if it is time to."""
        if not self._is_due(matrix.shape[1], size):
            assert self.theta is not None
            return Surrogate.with_theta(self.theta, matrix, values)
        self.size = size
        surrogate = Surrogate.fit(matrix, values, self.theta, most)
        self.theta = surrogate.theta
        return surrogate

    def _is_due(self, knobs: int, size: int) -> bool:
        if self.theta is None or len(self.theta) != knobs + 2:
            return True
        return size < FEW or not self.size <= size < (1 + GROWTH) * self.size

    def state_dict(self) -> dict[str, Any]:
        return {"theta": None if self.theta is None else list(self.theta), "size": self.size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        theta = state.get("theta")
        self.theta = None if theta is None else tuple(theta)
        self.size = state.get("size", 0)


def prior(knobs: int) -> tuple[Tensor, Tensor]:
    """Means and deviations of theta."""
    length = LENGTH_MEAN + math.log(max(knobs, 1)) / 2
    means = [length] * knobs + [SIGNAL_PRIOR[0], NOISE_PRIOR[0]]
    deviations = [LENGTH_DEVIATION] * knobs + [SIGNAL_PRIOR[1], NOISE_PRIOR[1]]
    return torch.tensor(means, dtype=torch.float64), torch.tensor(deviations, dtype=torch.float64)


def negative_log_posterior(theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of the hyper-parameters up to a constant, and its gradient [knobs + 2].

    Rasmussen & Williams, eq. 5.8 and 5.9. With W = K^-1 - a a^T, a = K^-1 y, the derivative by a
    hyper-parameter is tr(W dK) / 2; for all length scales it is one product of matrices.
    """
    means, deviations = prior(x.shape[1])
    signal, slope = _own_kernel(theta, x)
    cholesky = _factor(signal + theta[-1].exp() * _eye(x))
    solved = torch.cholesky_solve(y[:, None], cholesky)
    outer = torch.cholesky_inverse(cholesky) - solved @ solved.T
    value = (y @ solved)[0] / 2 + cholesky.diagonal().log().sum()
    # d k / d log(length) = -2 slope (difference / length)^2; the sum over all pairs of
    # w (x_i - x_j)^2 is 2 (x^2 . rows(w) - x^T w x).
    pairs = outer * slope
    scaled = x / theta[:-2].exp()
    spread = scaled.square().T @ pairs.sum(1) - ((pairs @ scaled) * scaled).sum(0)
    by_noise = outer.diagonal().sum() * theta[-1].exp()
    gradient = torch.cat([-2 * spread, ((outer * signal).sum() / 2)[None], by_noise[None] / 2])
    away = (theta - means) / deviations
    return value + away.square().sum() / 2, gradient + away / deviations


def _kernel(theta: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The matrix s k(left, right) [n, m], and its derivative by the squared distance.

    k(r) = (1 + sqrt(5) r + 5 r^2 / 3) exp(-sqrt(5) r), dk / d(r^2) = -5/6 (1 + sqrt(5) r) exp(..).
    """
    left, right = left / theta[:-2].exp(), right / theta[:-2].exp()
    squared = left.square().sum(1)[:, None] + right.square().sum(1) - 2 * left @ right.T
    # Above 0, where the root has no slope.
    distance = (5 * squared.clamp_min(1e-20)).sqrt()
    decay = theta[-2].exp() * torch.exp(-distance)
    return decay * (1 + distance + distance.square() / 3), -5 / 6 * decay * (1 + distance)


def _own_kernel(theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The kernel of the points with themselves, kept positive definite where it is smooth."""
    signal, slope = _kernel(theta, x, x)
    return signal + JITTER * theta[-2].exp() * _eye(x), slope


def _eye(x: Tensor) -> Tensor:
    return torch.eye(len(x), dtype=torch.float64)


def _factor(covariance: Tensor) -> Tensor:
    try:
        factor, failed = torch.linalg.cholesky_ex(covariance)
    except RuntimeError as error:
        raise SurrogateFailed(str(error)) from error
    if failed or not factor.isfinite().all():
        raise SurrogateFailed("the covariance of the surrogate is not positive definite")
    return factor


def _standardised(
    matrix: NDArray[np.float64], values: NDArray[np.float64]
) -> tuple[Tensor, Tensor, float, float]:
    """Points, values of mean 0 and deviation 1, and what they were."""
    with np.errstate(over="ignore", invalid="ignore"):
        shift, scale = float(values.mean()), float(values.std()) or 1.0
        y = (values - shift) / scale
    if not (np.isfinite(y).all() and math.isfinite(scale)):
        raise SurrogateFailed("the values of the surrogate are not finite")
    return torch.from_numpy(matrix.copy()), torch.from_numpy(y), shift, scale


def _fitted(x: Tensor, y: Tensor, start: tuple[float, ...] | None, iterations: int) -> Tensor:
    """The hyper-parameters; the last good ones if the fit fails, or else the prior's."""
    means = prior(x.shape[1])[0]
    last = (
        None
        if start is None or len(start) != len(means)
        else torch.tensor(start, dtype=torch.float64)
    )
    try:
        theta = _maximise(_best_start(x, y, last), x, y, iterations)
        if theta.isfinite().all():
            return theta
        reason = "not finite"
    except (ArithmeticError, RuntimeError) as error:
        reason = str(error)
    instead = "priors" if last is None else "the last good ones"
    log.warning(
        "surrogate: the fit to %d children failed (%s); %s are used", len(x), reason, instead
    )
    return means if last is None else last


def _best_start(x: Tensor, y: Tensor, last: Tensor | None) -> Tensor:
    """Those of the last fit, unless the prior explains the data better."""
    means = prior(x.shape[1])[0]
    if last is None:
        return means
    values = [negative_log_posterior(theta, x, y)[0] for theta in (last, means)]
    return last if values[0] <= values[1] else means


def _maximise(theta: Tensor, x: Tensor, y: Tensor, iterations: int) -> Tensor:
    theta = theta.clone()
    optimizer = torch.optim.LBFGS(
        [theta],
        max_iter=iterations,
        tolerance_grad=1e-2,
        tolerance_change=1e-3,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        value, theta.grad = negative_log_posterior(theta.clamp(-LIMIT, LIMIT), x, y)
        return float(value)

    with torch.no_grad():
        optimizer.step(closure)
    return theta.clamp(-LIMIT, LIMIT)
