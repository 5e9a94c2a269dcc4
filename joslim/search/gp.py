"""The Gaussian process (surrogate) that predicts the loss of a child: exact, in double precision.

The kernel is a Matérn-5/2 with one length scale for each knob (ARD). L-BFGS finds the
hyper-parameters that maximise the posterior (marginal likelihood times priors), with the gradient
in closed form. For the few hundred children of a history this takes milliseconds, where a general
library takes seconds; a search must be cheap beside the training steps around it.

Symbols: X [n, knobs] are points in the unit cube, y [n] are standardised values, and
K = s k(X, X) + v I has the signal variance s and the noise variance v. Theta is the vector of
logarithms (length scales..., s, v).
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

Array = NDArray[np.float64]

# Priors of the logarithms are normal: (mean, deviation). The mean of a length scale grows with the
# root of the number of knobs, as distances in the cube do (arXiv 2402.02229; BoTorch's defaults).
LENGTH_MEAN, LENGTH_DEVIATION = math.sqrt(2), math.sqrt(3)
SIGNAL_PRIOR = (0.0, 1.0)
NOISE_PRIOR = (-4.0, 1.0)
# Bounds of theta. Beyond them a kernel is constant or diagonal, and exp() would soon overflow.
LIMIT = 12.0
JITTER = 1e-6
# Steps of L-BFGS in a fit.
ITERATIONS = 50
# Hyper-parameters are fitted again when the number of points has grown by this share since the last
# fit. Below `FEW` points they are fitted at every call, because that takes almost no time.
GROWTH = 0.1
FEW = 50
# Largest number of points that a process is conditioned on: the time grows with its cube.
MAX_POINTS = 1200


class SurrogateFailed(ArithmeticError):
    """The GP fit failed or gave non-finite predictions."""


def transform_losses(losses: Array) -> Array:
    """[n] -> [n]: bring losses to a scale on which a Gaussian process can tell good ones apart.

    Positive losses become logarithms, because the training losses of small and large children
    differ by orders of magnitude. Outliers far above the rest (3 interquartile ranges) are clipped.
    The order is kept up to ties. Equal losses count once for the quartiles: if most were equal, all
    others would count as outliers.
    """
    values = np.log(losses) if (losses > 0).all() else losses
    with np.errstate(over="ignore", invalid="ignore"):
        quarter, three_quarters = np.quantile(np.unique(values), [0.25, 0.75])
        return np.minimum(values, three_quarters + 3 * (three_quarters - quarter))


@dataclass(frozen=True)
class Surrogate:
    """A Gaussian process conditioned on its points. `theta` can start the next fit."""

    theta: tuple[float, ...]
    shift: float
    scale: float
    _points: Tensor
    _cholesky: Tensor
    _weights: Tensor

    @classmethod
    def fit(
        cls, matrix: Array, values: Array, start: tuple[float, ...] | None = None, most: int = 500
    ) -> Surrogate:
        """Fit a process to [n, knobs] points of the unit cube and their [n] values.

        Hyper-parameters are fitted to at most `most` of the points; the posterior uses all of them.
        If the fit fails, the hyper-parameters are `start`, or the means of the prior without it.
        """
        x, y, shift, scale = _standardised(matrix, values)
        # Spread evenly over early and late visits.
        some = torch.linspace(0, len(x) - 1, min(len(x), most)).round().long()
        theta = _fitted(x[some], y[some], start)
        return cls.conditioned(theta, x, y, shift, scale)

    @classmethod
    def with_theta(cls, theta: tuple[float, ...], matrix: Array, values: Array) -> Surrogate:
        """Condition a process with these hyper-parameters on points and values, without a fit."""
        x, y, shift, scale = _standardised(matrix, values)
        return cls.conditioned(torch.tensor(theta, dtype=torch.float64), x, y, shift, scale)

    @classmethod
    def conditioned(
        cls, theta: Tensor, x: Tensor, y: Tensor, shift: float, scale: float
    ) -> Surrogate:
        """Condition a process on the observations y * scale + shift at the points x."""
        _, _, cholesky = _covariance(theta, x)
        weights = torch.cholesky_solve(y[:, None], cholesky)
        if not weights.isfinite().all():
            raise SurrogateFailed("a value of the surrogate is not finite")
        return cls(tuple(theta.tolist()), shift, scale, x, cholesky, weights)

    def posterior(self, matrix: Array) -> tuple[Array, Array]:
        """[m, knobs] -> mean [m] and standard deviation [m] of the value without noise."""
        mean, sigma = self.moments(torch.from_numpy(matrix.copy()))
        if not (mean.isfinite().all() and sigma.isfinite().all()):
            raise SurrogateFailed("a prediction of the surrogate is not finite")
        return mean.numpy(), sigma.numpy()

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation as `posterior` does, on tensors with gradients."""
        theta = torch.tensor(self.theta, dtype=torch.float64)
        across, _ = _kernel(theta, x, self._points)
        mean = (across @ self._weights)[:, 0]
        half = torch.linalg.solve_triangular(self._cholesky, across.T, upper=False)
        # Positive, because the root has no gradient at 0.
        variance = (theta[-2].exp() - half.square().sum(0)).clamp_min(1e-12)
        return mean * self.scale + self.shift, variance.sqrt() * self.scale


@dataclass
class Hyperparameters:
    """The hyper-parameters of a surrogate, fitted again only when the history has grown."""

    theta: tuple[float, ...] | None = None
    # Number of points at the last fit.
    size: int = 0

    def surrogate(self, matrix: Array, values: Array, size: int, most: int) -> Surrogate:
        """Return the process of these points, which are a part of `size`; fit it if that is due."""
        known = self.theta is not None and len(self.theta) == matrix.shape[1] + 2
        if known and size >= FEW and self.size <= size < (1 + GROWTH) * self.size:
            assert self.theta is not None
            return Surrogate.with_theta(self.theta, matrix, values)
        self.size = size
        surrogate = Surrogate.fit(matrix, values, self.theta, most)
        self.theta = surrogate.theta
        return surrogate

    def state_dict(self) -> dict[str, Any]:
        return {"theta": None if self.theta is None else list(self.theta), "size": self.size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.theta = None if state["theta"] is None else tuple(state["theta"])
        self.size = state["size"]


def prior(knobs: int) -> tuple[Tensor, Tensor]:
    """Return the means and the standard deviations of theta."""
    length = LENGTH_MEAN + math.log(max(knobs, 1)) / 2
    means = [length] * knobs + [SIGNAL_PRIOR[0], NOISE_PRIOR[0]]
    deviations = [LENGTH_DEVIATION] * knobs + [SIGNAL_PRIOR[1], NOISE_PRIOR[1]]
    return torch.tensor(means, dtype=torch.float64), torch.tensor(deviations, dtype=torch.float64)


def negative_log_posterior(theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the negative log posterior of theta up to a constant, and its gradient [knobs + 2].

    Rasmussen & Williams, eq. 5.8 and 5.9. With W = K^-1 - a a^T, a = K^-1 y, the derivative by a
    hyper-parameter is tr(W dK) / 2; for all length scales it is one product of matrices.
    """
    means, deviations = prior(x.shape[1])
    signal, slope, cholesky = _covariance(theta, x)
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
    """Return the matrix s k(left, right) [n, m] and its derivative by the squared distance.

    k(r) = (1 + sqrt(5) r + 5 r^2 / 3) exp(-sqrt(5) r), dk / d(r^2) = -5/6 (1 + sqrt(5) r) exp(..).
    """
    left, right = left / theta[:-2].exp(), right / theta[:-2].exp()
    squared = left.square().sum(1)[:, None] + right.square().sum(1) - 2 * left @ right.T
    # Positive, because the root has no gradient at 0.
    distance = (5 * squared.clamp_min(1e-20)).sqrt()
    decay = theta[-2].exp() * torch.exp(-distance)
    return decay * (1 + distance + distance.square() / 3), -5 / 6 * decay * (1 + distance)


def _covariance(theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the kernel of the points with themselves, its derivative, and the factor of K.

    Some jitter keeps a smooth kernel positive definite.
    """
    eye = torch.eye(len(x), dtype=torch.float64)
    signal, slope = _kernel(theta, x, x)
    signal = signal + JITTER * theta[-2].exp() * eye
    try:
        cholesky, failed = torch.linalg.cholesky_ex(signal + theta[-1].exp() * eye)
    except RuntimeError as error:
        raise SurrogateFailed(str(error)) from error
    if failed or not cholesky.isfinite().all():
        raise SurrogateFailed("the covariance of the surrogate is not positive definite")
    return signal, slope, cholesky


def _standardised(matrix: Array, values: Array) -> tuple[Tensor, Tensor, float, float]:
    """Return the points, values of mean 0 and deviation 1, and the original mean and deviation."""
    with np.errstate(over="ignore", invalid="ignore"):
        shift, scale = float(values.mean()), float(values.std()) or 1.0
        y = (values - shift) / scale
    if not (np.isfinite(y).all() and math.isfinite(scale)):
        raise SurrogateFailed("the values of the surrogate are not finite")
    return torch.from_numpy(matrix.copy()), torch.from_numpy(y), shift, scale


def _fitted(x: Tensor, y: Tensor, start: tuple[float, ...] | None) -> Tensor:
    """Return the fitted theta, or `start` or the means of the prior if the fit fails."""
    means = prior(x.shape[1])[0]
    fallback, name = means, "priors"
    if start is not None and len(start) == len(means):
        fallback, name = torch.tensor(start, dtype=torch.float64), "the last good ones"
    try:
        # The last fit is a good start, unless the prior explains the data better.
        values = [negative_log_posterior(theta, x, y)[0] for theta in (fallback, means)]
        theta = _maximise(fallback if values[0] <= values[1] else means, x, y)
        if theta.isfinite().all():
            return theta
        reason = "not finite"
    except (ArithmeticError, RuntimeError) as error:
        reason = str(error)
    log.warning("surrogate: the fit to %d children failed (%s); %s are used", len(x), reason, name)
    return fallback


def _maximise(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    theta = theta.clone()
    optimizer = torch.optim.LBFGS(
        [theta],
        max_iter=ITERATIONS,
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
