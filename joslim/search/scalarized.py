"""MOBO-TS2 and MOBO-RS: the searches of the paper, to the letter (Algorithm 2).

Two Gaussian processes, of the loss and of the cost, each give a bound g; both bounds are made one
number by a weight lambda; the child that minimises it is found by gradient; and lambda is bisected
until the child has the target cost (MOBO-TS2), or drawn at random (MOBO-RS).

Symbols: lambda is the `weight` of the cost, the loss has 1 - lambda; epsilon and beta as in the
paper; rho weighs the sum in the augmented Tchebyshev scalarization.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from joslim.errors import UserError
from joslim.search.base import Searcher
from joslim.search.history import History, Scored
from joslim.search.rays import from_unit, to_unit
from joslim.search.start import start_size, unseen_start
from joslim.search.surrogate import Surrogate
from joslim.search.targets import uniform_target
from joslim.widths import Widths

log = logging.getLogger("joslim")

Child = TypeVar("Child")


def scalarize(
    weight: float | Tensor,
    loss: Tensor,
    cost: Tensor,
    losses: tuple[float, float],
    costs: tuple[float, float],
    rho: float = 0.05,
) -> Tensor:
    """[n] bounds of the loss and of the cost -> [n], to be minimised.

    Augmented Tchebyshev (arXiv 1805.12168, eq. 9; Knowles 2005):

        max(w_1 y_1, w_2 y_2) + rho (w_1 y_1 + w_2 y_2),   w = (1 - lambda, lambda)

    where y is (loss, cost) brought to [0, 1] by the least and the greatest value of the history,
    `losses` and `costs`.
    """
    weighted_loss = (1 - weight) * _normalised(loss, losses)
    weighted_cost = weight * _normalised(cost, costs)
    greater = torch.maximum(weighted_loss, weighted_cost)
    return greater + rho * (weighted_loss + weighted_cost)


def _normalised(values: Tensor, span: tuple[float, float]) -> Tensor:
    low, high = span
    # Children that are all equal say nothing of the scale.
    return (values - low) / ((high - low) or 1.0)


@dataclass(frozen=True)
class Found(Generic[Child]):
    """Where a bisection ended: the child nearest to its target, and after how many solutions."""

    child: Child
    miss: float
    tries: int


def bisect(
    solve: Callable[[float], tuple[Child, float]],
    target: float,
    full: float,
    epsilon: float,
    most: int,
) -> Found[Child]:
    """Algorithm 2: bisect lambda until a child costs `target` within epsilon of the `full` cost.

    `solve` gives the child for a lambda, and its cost. After `most` solutions the nearest child
    is returned; its `miss` then exceeds epsilon.
    """
    weight, low, high = 0.5, 0.0, 1.0
    nearest: Found[Child] | None = None
    for tries in range(1, most + 1):
        child, price = solve(weight)
        miss = abs(price - target) / full
        if nearest is None or miss < nearest.miss:
            nearest = Found(child, miss, tries)
        if miss <= epsilon:
            break
        if price > target:
            low = weight
        else:
            high = weight
        weight = (low + high) / 2
    assert nearest is not None, "at least one solution must be allowed"
    return Found(nearest.child, nearest.miss, tries)


@dataclass
class Scalarized(Searcher):
    """MOBO-TS2. With `targeted` off: MOBO-RS, which draws lambda uniformly instead.

    optimistic      True: the bound is mean - sqrt(beta) sigma, uncertainty attracts. False: it is
                    mean + sqrt(beta) sigma, which is minimised too and so punishes uncertainty:
                    what the authors most likely ran
    ard             a length scale for each knob, or one for all
    beta, epsilon   constants of the paper; rho: Knowles' constant
    bisections      at most so many solutions for each target
    restarts        starts of each minimisation, the best of `raw_samples` points
    iterations      steps of each minimisation
    fit_iterations  steps of each fit of a Gaussian process
    start           scored children before the processes are asked; None: as the knobs need

    Counts: `misses` targets not met within epsilon, of `sought` targets, by `solved` minimisations.
    """

    targeted: bool = True
    optimistic: bool = True
    ard: bool = True
    beta: float = 0.1
    epsilon: float = 0.02
    bisections: int = 10
    rho: float = 0.05
    restarts: int = 4
    raw_samples: int = 128
    iterations: int = 50
    fit_iterations: int = 100
    start: int | None = None
    misses: int = field(default=0, init=False)
    sought: int = field(default=0, init=False)
    solved: int = field(default=0, init=False)
    # Hyper-parameters of the last round, of the loss and of the cost: the next fit starts there.
    _thetas: list[tuple[float, ...]] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        """Before anything is trained: the first round, or the search at the end, may be far off."""
        if find_spec("botorch") is None:
            raise UserError(
                "searcher: mobo-ts2 and mobo-rs need BoTorch; type pip install 'joslim[botorch]'"
            )

    def propose(self, history: History, count: int, rng: np.random.Generator) -> list[Widths]:
        scored = history.scored()
        needed = start_size(history.space) if self.start is None else self.start
        if len(scored) < max(needed, 2):
            return unseen_start(history, count, rng)
        with borrowed_generator(rng):
            # Algorithm 1, line 5: both are fitted once for all children of this round.
            problem = _Problem.fitted(self, history, scored, self._thetas)
            self._thetas = [problem.loss.theta, problem.cost.theta]
            choose = self._at_target if self.targeted else self._at_random
            return [choose(problem, rng) for _ in range(count)]

    def _at_random(self, problem: _Problem, rng: np.random.Generator) -> Widths:
        self.solved += 1
        return problem.solve(rng.uniform())[0]

    def _at_target(self, problem: _Problem, rng: np.random.Generator) -> Widths:
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

    def state_dict(self) -> dict[str, Any]:
        counts = {"misses": self.misses, "sought": self.sought, "solved": self.solved}
        return {**counts, "thetas": [list(theta) for theta in self._thetas]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.misses, self.sought, self.solved = state["misses"], state["sought"], state["solved"]
        self._thetas = [tuple(theta) for theta in state["thetas"]]


@dataclass
class RandomScalarized(Scalarized):
    """MOBO-RS: lambda is drawn, no cost is aimed at."""

    targeted: bool = False


@dataclass
class _Problem:
    """The two processes of one round, and the minimisation for one weight."""

    options: Scalarized
    history: History
    loss: Surrogate
    cost: Surrogate
    losses: tuple[float, float]
    costs: tuple[float, float]

    @classmethod
    def fitted(
        cls,
        options: Scalarized,
        history: History,
        scored: Scored,
        starts: Sequence[tuple[float, ...]] = (),
    ) -> _Problem:
        points = to_unit(history.space, scored.matrix)
        loss, cost = (
            fit_process(points, values, options.ard, options.fit_iterations, start)
            for values, start in zip((scored.estimates, scored.costs), [*starts, None, None])
        )
        spans = [(float(v.min()), float(v.max())) for v in (scored.estimates, scored.costs)]
        return cls(options, history, loss, cost, *spans)

    def solve(self, weight: float) -> tuple[Widths, float]:
        """The child that minimises the scalarized bounds (Algorithm 2, line 4), and its cost."""
        point = minimise(
            lambda x: self.scalarized_bounds(weight, x),
            len(self.history.space),
            self.options.restarts,
            self.options.raw_samples,
            self.options.iterations,
        )
        child = self.history.space.at(from_unit(self.history.space, point[None])[0])
        return child, float(self.history.cost(child))

    def scalarized_bounds(self, weight: float, x: Tensor) -> Tensor:
        """[n, knobs] points of the unit cube -> [n]."""
        loss, cost = (bound(process, x, self._signed()) for process in (self.loss, self.cost))
        return scalarize(weight, loss, cost, self.losses, self.costs, self.options.rho)

    def _signed(self) -> float:
        root = float(np.sqrt(self.options.beta))
        return -root if self.options.optimistic else root


def bound(process: Surrogate, x: Tensor, deviations: float) -> Tensor:
    """[n, knobs] -> [n]: the mean, plus so many standard deviations."""
    mean, sigma = process.moments(x)
    return mean + deviations * sigma


def fit_process(
    points: NDArray[np.float64],
    values: NDArray[np.float64],
    ard: bool,
    iterations: int,
    start: tuple[float, ...] | None = None,
) -> Surrogate:
    """The Gaussian process that BoTorch fits: Matérn-5/2, standardised, in double precision.

    Only its hyper-parameters are BoTorch's. Its posterior is the same in closed form, and without
    the general machinery the many small steps of the minimisation take a tenth of the time.
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
    points: NDArray[np.float64],
    values: NDArray[np.float64],
    ard: bool,
    iterations: int,
    start: tuple[float, ...] | None = None,
) -> Any:
    """The fitted SingleTaskGP. `start` is the theta of an earlier fit (see surrogate.py)."""
    from botorch.exceptions.errors import ModelFittingError
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.models.transforms import Standardize
    from botorch.models.utils.gpytorch_modules import get_matern_kernel_with_gamma_prior
    from gpytorch.mlls import ExactMarginalLogLikelihood  # type: ignore

    # BoTorch's own default kernel is an RBF by now: the Matérn has to be asked for.
    kernel = get_matern_kernel_with_gamma_prior(ard_num_dims=points.shape[1] if ard else 1)
    x, y = torch.from_numpy(points.copy()), torch.from_numpy(values.copy())[:, None]
    with warnings.catch_warnings():
        # Of data that are not standardised: that is done here.
        warnings.simplefilter("ignore")
        process = SingleTaskGP(x, y, covar_module=kernel, outcome_transform=Standardize(m=1))
        if start is not None and len(start) == points.shape[1] + 2:
            _start_at(process, start)
        likelihood = ExactMarginalLogLikelihood(process.likelihood, process)
        try:
            options = {"options": {"maxiter": iterations}}
            fit_gpytorch_mll(likelihood, optimizer_kwargs=options)
        except (ModelFittingError, RuntimeError, ValueError) as error:
            log.warning("search: a Gaussian process keeps its initial parameters: %s", error)
    return process.eval()


def _start_at(process: Any, theta: tuple[float, ...]) -> None:
    values = torch.tensor(theta, dtype=torch.float64).exp()
    scales = process.covar_module.base_kernel.lengthscale.shape[-1]
    process.covar_module.base_kernel.lengthscale = values[:scales]
    process.covar_module.outputscale = values[-2]
    # BoTorch keeps the noise above 1e-4, and cannot leave a start at the bound itself.
    process.likelihood.noise = values[-1:].clamp_min(2e-4)


def minimise(
    function: Callable[[Tensor], Tensor],
    knobs: int,
    restarts: int,
    raw_samples: int,
    iterations: int,
) -> NDArray[np.float64]:
    """[n, knobs] -> [n] over the unit cube -> [knobs]: where the least value was found."""
    from botorch.acquisition.acquisition import AcquisitionFunction
    from botorch.optim.optimize import optimize_acqf

    class Negated(AcquisitionFunction):
        """BoTorch maximises. Its points come as [n, 1, knobs]."""

        def __init__(self) -> None:
            torch.nn.Module.__init__(self)

        def forward(self, X: Tensor) -> Tensor:  # noqa: N803 (BoTorch passes it by name)
            return -function(X[:, 0])

    with warnings.catch_warnings():
        # That the steps of a minimisation are limited is our own doing.
        warnings.simplefilter("ignore")
        best, _ = optimize_acqf(
            Negated(),
            bounds=torch.tensor([[0.0], [1.0]], dtype=torch.float64).repeat(1, knobs),
            q=1,
            num_restarts=restarts,
            raw_samples=raw_samples,
            options={"maxiter": iterations},
        )
    return best[0].clamp(0.0, 1.0).numpy()


@contextmanager
def borrowed_generator(rng: np.random.Generator) -> Iterator[None]:
    """BoTorch draws from torch's global generator: seed it from `rng`, then put it back."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(rng.integers(2**31)))
        yield
