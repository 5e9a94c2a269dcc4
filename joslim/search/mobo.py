"""MOBO-TS2 and MOBO-RS: the searches of the paper (Algorithm 2).

Two Gaussian processes, one of the loss and one of the cost, each give a confidence bound. A weight
lambda turns both bounds into one number, gradient descent finds the child that minimises it, and
lambda is bisected until the child has the target cost (MOBO-TS2), or drawn at random (MOBO-RS).

The paper leaves some choices open: the scale of the scalarization, the effort of the minimisation,
the first children. They are those of its public code (github.com/cmu-enyac/Joslim) as far as it has
them; docs/reproduce-the-paper.md lists them.

Symbols: lambda is the `weight` of the cost and 1 - lambda that of the loss; epsilon and beta are
those of the paper; rho weighs the sum in the augmented Tchebyshev scalarization.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from joslim.errors import UserError
from joslim.search.base import Searcher
from joslim.search.cost_targeting import from_unit, to_unit, uniform_target
from joslim.search.gp import Surrogate
from joslim.search.history import History, Scored
from joslim.search.initial_design import start_size, unseen_starting_children
from joslim.space import Widths

log = logging.getLogger("joslim")

Array = NDArray[np.float64]
# Losses and costs are counted from a point that is better by far than any child: so many standard
# deviations below the mean of the history.
REFERENCE = 3.0


def scalarize(weight: float, loss: Tensor, cost: Tensor, rho: float) -> Tensor:
    """Combine the [n] bounds of the loss and of the cost into [n] numbers to be minimised.

    Augmented Tchebyshev (arXiv 1805.12168, eq. 9; Knowles 2005):

        max(w_1 y_1, w_2 y_2) + rho (w_1 y_1 + w_2 y_2),   w = (1 - lambda, lambda)

    where y is (loss, cost) on comparable scales.
    """
    weighted_loss, weighted_cost = (1 - weight) * loss, weight * cost
    return torch.maximum(weighted_loss, weighted_cost) + rho * (weighted_loss + weighted_cost)


class Found(NamedTuple):
    """The child that a bisection ended with, and the number of minimisations."""

    child: Any
    miss: float  # its distance from the target, as a share of the full cost
    tries: int


def bisect(
    solve: Callable[[float], tuple[Any, float]],
    target: float,
    full: float,
    epsilon: float,
    most: int,
) -> Found:
    """Bisect lambda until a child is within epsilon of the target (Algorithm 2).

    `solve` returns the child for a lambda, and its cost; it is called at most `most` times. If the
    target was not met by then, the last child is returned, with a `miss` above epsilon. Misses and
    epsilon are shares of the cost `full` of the full network.
    """
    weight, low, high = 0.5, 0.0, 1.0
    tries = 0
    while True:
        child, price = solve(weight)
        tries += 1
        miss = abs(price - target) / full
        if miss <= epsilon or tries == most:
            return Found(child, miss, tries)
        if price > target:
            low = weight
        else:
            high = weight
        weight = (low + high) / 2


@dataclass
class Scalarized(Searcher):
    """MOBO-TS2: lambda is bisected until the child has a random target cost.

    Attributes:
        optimistic: If true, the bound is mean - sqrt(beta) sigma, so that uncertainty attracts. If
            false, it is mean + sqrt(beta) sigma, which is minimised too and so punishes
            uncertainty; the authors most likely ran this.
        ard: One length scale for each knob, or one for all.
        beta: UCB constant of the paper.
        epsilon: Allowed distance of a cost from its target, as a share of the full cost.
        bisections: Largest number of minimisations for each target.
        rho: Weight of the sum in the scalarization.
        restarts: Starts of each minimisation, the best of `raw_samples` points.
        iterations: Largest number of steps of each minimisation; by default BoTorch's.
        fit_iterations: Largest number of steps of each fit of a process; by default BoTorch's.
        start: Scored children before the processes are used; by default chosen by the number of
            knobs.
        misses: Number of targets that were not met within epsilon.
        sought: Number of targets.
        solved: Number of minimisations.
    """

    optimistic: bool = True
    ard: bool = True
    beta: float = 0.1
    epsilon: float = 0.02
    bisections: int = 10
    rho: float = 1e-6
    restarts: int = 5
    raw_samples: int = 1000
    iterations: int | None = None
    fit_iterations: int | None = None
    start: int | None = None
    misses: int = field(default=0, init=False)
    sought: int = field(default=0, init=False)
    solved: int = field(default=0, init=False)
    # Hyper-parameters of both processes in the last round, from which the next fit starts.
    _thetas: list[tuple[float, ...]] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check for BoTorch now: the first proposal may come after hours of training."""
        if find_spec("botorch") is None:
            raise UserError(
                "searcher: mobo-ts2 and mobo-rs need BoTorch; type pip install 'joslim[botorch]'"
            )

    def propose(self, history: History, count: int, rng: np.random.Generator) -> list[Widths]:
        scored = history.scored()
        needed = start_size(history.space) if self.start is None else self.start
        if len(scored) < max(needed, 2):
            return unseen_starting_children(history, count, rng)
        with borrowed_generator(rng):
            # Both processes are fitted once for all children of a round (Algorithm 1, line 5).
            problem = _Problem(self, history, scored, self._thetas)
            self._thetas = [problem.loss.theta, problem.cost.theta]
            return [self._choose(problem, rng) for _ in range(count)]

    def _choose(self, problem: _Problem, rng: np.random.Generator) -> Widths:
        cost = problem.history.cost
        target = uniform_target(cost, rng)
        full = abs(cost(cost.space.full)) or 1.0
        found = bisect(problem.solve, target, full, self.epsilon, self.bisections)
        self.sought += 1
        self.solved += found.tries
        if found.miss > self.epsilon:
            self.misses += 1
            log.info(
                "search: target %.4g missed by %.3f of the full cost after %d bisections",
                target,
                found.miss,
                found.tries,
            )
        return found.child

    def counts(self) -> dict[str, int]:
        if self.sought == 0:
            return {}
        return {"targets": self.sought, "missed": self.misses, "bisections": self.solved}

    def state_dict(self) -> dict[str, Any]:
        counts = {"misses": self.misses, "sought": self.sought, "solved": self.solved}
        return {**counts, "thetas": [list(theta) for theta in self._thetas]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.misses, self.sought, self.solved = state["misses"], state["sought"], state["solved"]
        self._thetas = [tuple(theta) for theta in state["thetas"]]


class RandomScalarized(Scalarized):
    """MOBO-RS: lambda is drawn at random, and there is no target cost."""

    def _choose(self, problem: _Problem, rng: np.random.Generator) -> Widths:
        self.solved += 1
        return problem.solve(rng.uniform())[0]


class _Problem:
    """The two Gaussian processes of one round, and the minimisation for one weight."""

    def __init__(
        self,
        options: Scalarized,
        history: History,
        scored: Scored,
        starts: Sequence[tuple[float, ...]] = (),
    ) -> None:
        self.options, self.history = options, history
        points = to_unit(history.space, scored.matrix)
        values = (scored.estimates, scored.costs)
        self.loss, self.cost = (
            fit_process(points, v, options.ard, options.fit_iterations, start)
            for v, start in zip(values, [*starts, None, None])
        )
        # If all children are equal there is no scale.
        self.scales = [(float(v.mean()), float(v.std(ddof=1)) or 1.0) for v in values]

    def solve(self, weight: float) -> tuple[Widths, float]:
        """Return the child that minimises the bounds (Algorithm 2, line 4), and its cost."""
        options, space = self.options, self.history.space
        limits = (options.restarts, options.raw_samples, options.iterations)
        point = minimise(lambda x: self.scalarized_bounds(weight, x), len(space), *limits)
        child = space.at(from_unit(space, point))
        return child, float(self.history.cost(child))

    def scalarized_bounds(self, weight: float, x: Tensor) -> Tensor:
        """[n, knobs] points of the unit cube -> [n]."""
        # Optimistic: the lower bound. Uncertainty then attracts, else it repels.
        deviations = (-1 if self.options.optimistic else 1) * float(np.sqrt(self.options.beta))

        def standardised(process: Surrogate, middle: float, deviation: float) -> Tensor:
            mean, sigma = process.moments(x)
            return (mean + deviations * sigma - middle) / deviation + REFERENCE

        loss = standardised(self.loss, *self.scales[0])
        cost = standardised(self.cost, *self.scales[1])
        return scalarize(weight, loss, cost, self.options.rho)


def fit_process(
    points: Array,
    values: Array,
    ard: bool,
    iterations: int | None,
    start: tuple[float, ...] | None = None,
) -> Surrogate:
    """Fit a Gaussian process with BoTorch: Matérn-5/2, standardised, in double precision.

    Only the hyper-parameters come from BoTorch. The posterior is ours: it is the same, and the many
    small steps of the minimisation take a tenth of the time with it.
    """
    process = fit_botorch(points, values, ard, iterations, start)
    kernel, noise = process.covar_module, process.likelihood.noise
    lengths = kernel.base_kernel.lengthscale[0].expand(points.shape[1])
    theta = torch.cat([lengths, kernel.outputscale[None], noise]).log().detach()
    constant = process.mean_module.constant.item()
    transform = process.outcome_transform
    scale, shift = float(transform.stdvs), float(transform.means)
    y = process.train_targets - constant
    return Surrogate.conditioned(
        theta, torch.from_numpy(points.copy()), y, shift + scale * constant, scale
    )


def fit_botorch(
    points: Array,
    values: Array,
    ard: bool,
    iterations: int | None,
    start: tuple[float, ...] | None = None,
) -> Any:
    """Return a fitted SingleTaskGP. `start` is the theta of an earlier fit (see gp.py)."""
    from botorch.exceptions.errors import ModelFittingError
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.models.transforms import Standardize
    from botorch.models.utils.gpytorch_modules import get_matern_kernel_with_gamma_prior
    from gpytorch.mlls import ExactMarginalLogLikelihood  # type: ignore

    # The default kernel of BoTorch is an RBF.
    kernel = get_matern_kernel_with_gamma_prior(ard_num_dims=points.shape[1] if ard else 1)
    x, y = torch.from_numpy(points.copy()), torch.from_numpy(values.copy())[:, None]
    with warnings.catch_warnings():
        # BoTorch warns of inputs that are not standardised; `Standardize` does that.
        warnings.simplefilter("ignore")
        process = SingleTaskGP(x, y, covar_module=kernel, outcome_transform=Standardize(m=1))
        if start is not None and len(start) == points.shape[1] + 2:
            theta = torch.tensor(start, dtype=torch.float64).exp()
            process.covar_module.base_kernel.lengthscale = theta[: points.shape[1] if ard else 1]
            process.covar_module.outputscale = theta[-2]
            # BoTorch keeps the noise above 1e-4, and cannot leave a start at the bound itself.
            process.likelihood.noise = theta[-1:].clamp_min(2e-4)
        likelihood = ExactMarginalLogLikelihood(process.likelihood, process)
        try:
            fit_gpytorch_mll(likelihood, optimizer_kwargs={"options": limited(iterations)})
        except (ModelFittingError, RuntimeError, ValueError) as error:
            log.warning("search: a Gaussian process keeps its initial parameters: %s", error)
    return process.eval()


def minimise(
    function: Callable[[Tensor], Tensor],
    knobs: int,
    restarts: int,
    raw_samples: int,
    iterations: int | None,
) -> Array:
    """Find the point [knobs] of the unit cube where a function [n, knobs] -> [n] is least."""
    from botorch.acquisition.acquisition import AcquisitionFunction
    from botorch.optim.optimize import optimize_acqf

    class Negated(AcquisitionFunction):
        """The negated function, because BoTorch maximises; its points have shape [n, 1, knobs]."""

        def __init__(self) -> None:
            torch.nn.Module.__init__(self)

        def forward(self, X: Tensor) -> Tensor:  # noqa: N803 (BoTorch passes it by name)
            return -function(X[:, 0])

    with warnings.catch_warnings():
        # BoTorch warns that the number of steps is limited.
        warnings.simplefilter("ignore")
        best, _ = optimize_acqf(
            Negated(),
            bounds=torch.tensor([[0.0], [1.0]], dtype=torch.float64).repeat(1, knobs),
            q=1,
            num_restarts=restarts,
            raw_samples=raw_samples,
            options=limited(iterations),
        )
    return best[0].clamp(0.0, 1.0).numpy()


def limited(iterations: int | None) -> dict[str, Any]:
    """Return the options of BoTorch's optimizers that limit their steps, if there is a limit."""
    return {} if iterations is None else {"maxiter": iterations}


@contextmanager
def borrowed_generator(rng: np.random.Generator) -> Iterator[None]:
    """Seed torch's global generator, which BoTorch draws from, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(rng.integers(2**31)))
        yield
