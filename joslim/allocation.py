"""One budget for many networks: the combination of children with the least total weighted error.

The result is exact: the search ends with a proof that no other combination is better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joslim.errors import UserError, unknown
from joslim.files import json_number, shown
from joslim.front import IN_PERCENT, Budget, Front, MetricName, Point, checked_budget, non_dominated
from joslim.units import exact_size, sufficient_size

Floats = NDArray[np.float64]
Positions = NDArray[np.intp]
OwnCost = Callable[[list[Point]], float]

COMBINED = ("sum", "max")
# A function of the user is called for one combination after the other.
COMBINATIONS_LIMIT = 10**6
# Budgets are sums of floats: 0.1 + 0.2 fits 0.3.
ROUNDING = 1e-12
# Errors that differ by less than this share of the largest one are equal.
EQUAL = 1e-9
# How many partial combinations the search keeps at first, and at most.
FIRST_WIDTH = 256
LAST_WIDTH = 256 * 4**3
# Twice the tolerance of SciPy's solver.
SOLVER = 2e-6


@dataclass(frozen=True)
class Allocation:
    """One child (subnet) for each of several networks, chosen under common budgets.

    Attributes:
        points: The children, in the order of the networks.
        weights: Weights of the errors.
        measure: The error that was minimized: "val_error", or "train_loss" if some child has no
            validation error.
        costs: Total cost by the name of the budget.
        metric: What the errors are called, and their unit.

    Examples:
        >>> front = joslim.load("runs/digits").front
        >>> allocation = joslim.allocate([front, front], macs=2 * front[-1].costs["macs"])
        >>> sum(point.costs["macs"] for point in allocation.points) == allocation.costs["macs"]
        True
    """

    points: tuple[Point, ...]
    weights: tuple[float, ...]
    measure: str
    costs: dict[str, float]
    metric: MetricName = IN_PERCENT

    @property
    def error(self) -> float:
        """Total weighted error that was minimized."""
        return self._total(self.measure)

    @property
    def test_error(self) -> float | None:
        """Total weighted test error, which nothing was chosen by; None if some child has none."""
        if any(point.test_error is None for point in self.points):
            return None
        return self._total("test_error")

    def mean(self, measure: str) -> float | None:
        """Return the weighted mean of the errors, or of another measure of the children.

        Args:
            measure: "val_error", "test_error" or "train_loss".

        Returns:
            The mean, or None if some child has no such error.
        """
        if any(getattr(point, measure) is None for point in self.points):
            return None
        return self._total(measure) / (sum(self.weights) or 1.0)

    def _total(self, measure: str) -> float:
        return float(sum(w * getattr(p, measure) for w, p in zip(self.weights, self.points)))


def allocate(
    fronts: Sequence[Any],
    /,
    *,
    weights: Sequence[float] | None = None,
    memory_as: str = "sum",
    cost: OwnCost | None = None,
    budget: float | None = None,
    **budgets: Budget,
) -> Allocation:
    """Choose one child (subnet) for each of several networks, with the least total error within
    common budgets.

    The error is the validation error: errors of different networks can be added, training losses
    cannot. The result is exact: no other combination that fits has a smaller total.

    Args:
        fronts: Pareto fronts of the networks, or their runs.
        weights: Weight of the error of each network; by default 1.
        memory_as: "sum" if the networks are in memory together, "max" if they run one after the
            other.
        cost: A function of your own from a list of points, one for each network, to a number.
        budget: The largest value of this function.
        budgets: Largest total cost by name: `macs="20M"`, `latency_ms=30`.

    Returns:
        The chosen children.

    Raises:
        UserError: No combination fits, or a budget is unknown or not known for all networks.

    Examples:
        >>> first, second = joslim.load("runs/digits"), joslim.load("runs/digits")
        >>> allocation = joslim.allocate([first, second], weights=[2, 1], macs="1M")
        >>> allocation.costs["macs"] <= 1e6
        True
    """
    given, fronts = fronts, [getattr(front, "front", front) for front in fronts]
    for run, front in zip(given, fronts):
        if not isinstance(front, Front):
            raise UserError(f"fronts: {shown(run)} is neither a front nor a run")
    factors = checked_weights(weights, len(fronts))
    if (cost is None) != (budget is None):
        raise UserError("budget: it belongs to cost, a function of your own; give both or none")
    if cost is not None and not callable(cost):
        raise UserError(f"cost: {shown(cost)} is not a function of a list of points")
    if budget is not None:
        checked_budget("budget", budget)
    elif not budgets:
        raise UserError("budget: none given; give at least one, such as macs=20e6")
    limits = checked_budgets(fronts, budgets, memory_as)
    check_least(fronts, limits, memory_as)
    measure = shared_measure(fronts)
    # A child that exceeds a budget alone does so in every combination.
    most = {name: limit * (1 + ROUNDING) for name, limit in limits.items()}
    children = [[p for p in f if all(p.costs[n] <= m for n, m in most.items())] for f in fronts]
    chosen = None
    if all(children):
        summed = {n: m for n, m in limits.items() if not is_maximum(n, memory_as)}
        errors = [weighted(kids, factor, measure) for kids, factor in zip(children, factors)]
        shares = [
            np.array([[p.costs[n] / m for n, m in summed.items()] for p in kids], dtype=np.float64)
            for kids in children
        ]
        if cost is not None and budget is not None:
            chosen = solve_by_trying(children, errors, shares, cost, budget)
        else:
            chosen = solve(errors, shares)
    if chosen is None:
        together = ", ".join(f"{name} {exact_size(name, most)}" for name, most in limits.items())
        raise UserError(
            f"budget: no combination of {len(fronts)} networks fits {together} together, "
            "though each of these alone can be kept; raise one of them"
        )
    points = tuple(kids[at] for kids, at in zip(children, chosen))
    totals = {name: total(points, name, memory_as) for name in limits}
    if cost is not None:
        totals["cost"] = float(cost(list(points)))
    return Allocation(points, factors, measure, totals, fronts[0].metric)


def curve(
    fronts: Sequence[Front],
    cost: str,
    weights: Sequence[float] | None = None,
    memory_as: str = "sum",
) -> list[Allocation]:
    """All allocations that are the best for some budget of this cost, the cheapest first."""
    factors = checked_weights(weights, len(fronts))
    checked_budgets(fronts, {cost: 1.0}, memory_as)
    measure = shared_measure(fronts)
    combine = np.maximum if is_maximum(cost, memory_as) else np.add
    costs, errors, chosen = np.zeros(1), np.zeros(1), np.zeros((1, 0), dtype=np.intp)
    for front, factor in zip(fronts, factors):
        own = np.array([point.costs[cost] for point in front], dtype=np.float64)
        costs = combine.outer(costs, own).ravel()
        errors = np.add.outer(errors, weighted(front, factor, measure)).ravel()
        # A dominated combination stays dominated, whatever is added: sums of floats are monotone.
        kept = np.flatnonzero(non_dominated(errors, costs))
        kept = kept[np.argsort(costs[kept])]
        costs, errors = costs[kept], errors[kept]
        chosen = extended(chosen, kept, np.arange(len(front)))
    # Steps that are nothing but rounding are left out of the falling sequence.
    steps = [0]
    for at, error in enumerate(errors.tolist()):
        if error < errors[steps[-1]] - EQUAL * max(1.0, abs(errors[0])):
            steps.append(at)
    return [
        Allocation(
            points, factors, measure, {cost: total(points, cost, memory_as)}, fronts[0].metric
        )
        for points in (tuple(f[at] for f, at in zip(fronts, row)) for row in chosen[steps])
    ]


# The exact search for summed costs
#
# Any prices for the budgets give a lower bound of the total error (Lagrangian relaxation): the sum
# over the networks of their least error plus priced cost, minus the prices of the budgets. The
# excess of a child over the least value of its network adds to that bound. Hence a combination that
# was discarded has at least the error bound + its excess, and a result that is not above that is
# proven to be optimal. Good prices (of the linear relaxation) make the proof short; bad prices only
# make it long.


def solve(errors: list[Floats], shares: list[Floats]) -> list[int] | None:
    """Choose a child of each network; None if no combination has sums of shares within 1.

    For each network: weighted errors of its n children, [n], and the shares that they take of the
    budgets, [n, budgets].
    """
    scale = max(float(np.abs(e).max()) for e in errors) or 1.0
    errors = [e / scale for e in errors]
    prices = prices_of_budgets(errors, shares)
    if prices is None:
        return None
    values = [e + share @ prices for e, share in zip(errors, shares)]
    bound = sum(float(v.min()) for v in values) - float(prices.sum())
    excess = [v - v.min() for v in values]
    best, gap, width = None, math.inf, FIRST_WIDTH
    while True:
        chosen, cut = narrow_search(errors, shares, excess, width, gap)
        if chosen is not None:
            best, gap = chosen, min(gap, chosen_sum(errors, chosen) - bound + EQUAL)
        if cut >= gap:  # both are infinite if nothing was discarded, and nothing fits
            return best
        if width == LAST_WIDTH:
            found = [solve_by_branching(errors, shares, excess, gap), best]
            answers = [answer for answer in found if answer is not None]
            return min(answers, key=lambda a: chosen_sum(errors, a), default=None)
        width *= 4


def solve_by_branching(
    errors: list[Floats], shares: list[Floats], excess: list[Floats], gap: float
) -> list[int] | None:
    """Solve by integer programming, which is slower but ends for many conflicting budgets.

    SciPy's solver accepts sums of up to 1 + 1e-6. If its result is above 1, it is refused, and the
    problem is solved again with a smaller limit.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]

    own = [np.flatnonzero(e <= gap) for e in excess]
    loss = np.concatenate([e[kept] for e, kept in zip(errors, own)])
    taken = np.concatenate([s[kept] for s, kept in zip(shares, own)])
    each = one_of_each([len(kept) for kept in own])
    for most in (1 + ROUNDING, 1 - SOLVER):
        result = milp(
            loss,
            integrality=np.ones(len(loss)),
            bounds=Bounds(0, 1),
            constraints=[LinearConstraint(each, 1, 1), LinearConstraint(taken.T, -np.inf, most)],
            options={"mip_rel_gap": 0},
        )
        if result.x is None:
            return None
        picked = result.x > 0.5
        if (taken[picked].sum(axis=0) <= 1 + ROUNDING).all():
            groups = np.split(picked, np.cumsum([len(kept) for kept in own])[:-1])
            return [int(kept[group.argmax()]) for kept, group in zip(own, groups)]
    return None


def narrow_search(
    errors: list[Floats], shares: list[Floats], excess: list[Floats], width: int, gap: float
) -> tuple[list[int] | None, float]:
    """Beam search: the best combination that is kept, and the least excess that was discarded.

    It goes network by network. Of the partial combinations that can still fit with an excess within
    the gap, the `width` with the least excess are kept; of equals those with the smaller shares.
    """
    count = shares[0].shape[1]
    error, share, above = np.zeros(1), np.zeros((1, count)), np.zeros(1)
    chosen, cut = np.zeros((1, 0), dtype=np.intp), math.inf
    cheapest = [network.min(axis=0) for network in shares]
    for at in range(len(shares)):
        rest = np.sum(cheapest[at + 1 :], axis=0)  # the least that all later networks take
        own = np.flatnonzero(excess[at] <= gap)
        share = (share[:, None] + shares[at][own]).reshape(len(error) * len(own), count)
        error = np.add.outer(error, errors[at][own]).ravel()
        above = np.add.outer(above, excess[at][own]).ravel()
        slack = EQUAL if at + 1 < len(errors) else ROUNDING
        kept = np.flatnonzero((share + rest <= 1 + slack).all(axis=1) & (above <= gap))
        if len(kept) > width:
            rank = above[kept] + EQUAL * share[kept].sum(axis=1)
            order = np.argpartition(rank, width)
            cut = min(cut, float(above[kept[order[width:]]].min()))
            kept = kept[order[:width]]
        if count == 1:
            kept = kept[non_dominated(error[kept], share[kept, 0])]
        error, share, above = error[kept], share[kept], above[kept]
        chosen = extended(chosen, kept, own)
    if not len(error):
        return None, cut
    best = np.lexsort((share.sum(axis=1), error.round(12)))[0]
    return chosen[best].tolist(), cut


def prices_of_budgets(errors: list[Floats], shares: list[Floats]) -> Floats | None:
    """Dual prices of the budgets by linear programming: [budgets]; None if nothing fits."""
    from scipy.optimize import linprog  # type: ignore[import-untyped]

    count = shares[0].shape[1]
    if not count:
        return np.zeros(0)
    result = linprog(
        np.concatenate(errors),
        A_ub=np.concatenate(shares).T,
        b_ub=np.full(count, 1 + ROUNDING),
        A_eq=one_of_each([len(e) for e in errors]),
        b_eq=np.ones(len(errors)),
        method="highs",
    )
    if result.status == 2:
        return None
    # If the solver fails for another reason, prices of zero are valid too.
    return np.maximum(-result.ineqlin.marginals, 0) if result.status == 0 else np.zeros(count)


def one_of_each(sizes: list[int]) -> Any:
    """Sparse matrix [networks, children of all networks] with a 1 where the child belongs."""
    from scipy.sparse import csr_array  # type: ignore[import-untyped]

    owner = np.repeat(np.arange(len(sizes)), sizes)
    return csr_array((np.ones(len(owner)), (owner, np.arange(len(owner)))))


def extended(chosen: Positions, kept: Positions, own: Positions) -> Positions:
    """Add one more child to the partial combinations, for the pairs that are kept."""
    return np.concatenate([chosen[kept // len(own)], own[kept % len(own)][:, None]], axis=1)


def chosen_sum(values: list[Floats], chosen: list[int]) -> float:
    return sum(float(v[at]) for v, at in zip(values, chosen))


# The search for a function of the user, about which nothing is known


def solve_by_trying(
    children: list[list[Point]],
    errors: list[Floats],
    shares: list[Floats],
    cost: OwnCost,
    budget: float,
) -> list[int] | None:
    """Try combinations in the order of their error: the first one that fits is the best."""
    count = math.prod(len(kids) for kids in children)
    if count > COMBINATIONS_LIMIT:
        raise UserError(
            f"cost: {count} combinations are too many for your own function, "
            f"{COMBINATIONS_LIMIT} are allowed; give fewer networks or shorter fronts"
        )
    sizes, least = [len(kids) for kids in children], math.inf
    for at in np.argsort(reduce(np.add.outer, errors), axis=None, kind="stable"):
        chosen = [int(i) for i in np.unravel_index(at, sizes)]
        share = reduce(add, (s[i] for s, i in zip(shares, chosen)))
        if not (share <= 1 + ROUNDING).all():
            continue
        given = cost([kids[i] for kids, i in zip(children, chosen)])
        try:
            value = float(given)
        except (TypeError, ValueError) as error:
            raise UserError(f"cost: it gave {shown(given)}, which is not a number") from error
        if math.isnan(value):
            raise UserError("cost: it gave nan for some children; a number is needed")
        if value <= budget * (1 + ROUNDING):
            return chosen
        least = min(least, value)
    if math.isinf(least):
        return None
    raise UserError(
        f"budget: no combination of {len(children)} networks fits {exact_size('budget', budget)}, "
        f"the least that the function gives is {sufficient_size('budget', least)}"
    )


# Sums over the networks


def shared_measure(fronts: Sequence[Front]) -> str:
    """The measure to minimize: validation error if all children have one, else training loss."""
    if len(labels := sorted({front.metric.label for front in fronts})) > 1:
        raise UserError(f"fronts: errors of different kinds cannot be added: {', '.join(labels)}")
    known = all(front.errors("val_error") is not None for front in fronts)
    return "val_error" if known else "train_loss"


def weighted(points: Sequence[Point], weight: float, measure: str) -> Floats:
    return weight * np.array([getattr(point, measure) for point in points], dtype=np.float64)


def is_maximum(name: str, memory_as: str) -> bool:
    return name == "memory" and memory_as == "max"


def total(points: Sequence[Point], name: str, memory_as: str) -> float:
    values = [point.costs[name] for point in points]
    return max(values) if is_maximum(name, memory_as) else reduce(add, values)


# Checks of the input


def checked_weights(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    if not count:
        raise UserError("fronts: none given; give at least one")
    found = [1.0] * count if weights is None else list(weights)
    if len(found) != count:
        raise UserError(f"weights: {len(found)} given for {count} networks; give one for each")
    for at, weight in enumerate(found):
        if json_number(weight, f"weights[{at}]") < 0:
            raise UserError(f"weights[{at}]: {shown(weight)} is below zero; type 0 or more")
    return tuple(found)


def checked_budgets(
    fronts: Sequence[Front], budgets: Mapping[str, Budget], memory_as: str
) -> dict[str, float]:
    """Convert budgets to numbers, and refuse those that a front does not know."""
    if memory_as not in COMBINED:
        raise unknown("memory_as", str(memory_as), COMBINED)
    limits = {name: checked_budget(name, most) for name, most in budgets.items()}
    for at, front in enumerate(fronts if limits else ()):
        try:
            front.checked_budgets(limits)
        except UserError as error:
            raise UserError(f"network {at + 1} of {len(fronts)}: {error}") from error
    return limits


def check_least(fronts: Sequence[Front], budgets: dict[str, float], memory_as: str) -> None:
    """Refuse a budget that is below the total of the cheapest children."""
    for name, most in budgets.items():
        cheapest = [min(front, key=lambda point: point.costs[name]) for front in fronts]
        least = total(cheapest, name, memory_as)
        if least > most * (1 + ROUNDING):
            largest = is_maximum(name, memory_as)
            how = "children: the largest of them costs" if largest else "children together cost"
            needed = sufficient_size(name, least)
            raise UserError(
                f"{name}: no combination of {len(fronts)} networks fits {exact_size(name, most)}, "
                f"their cheapest {how} {needed}; type {needed} or more"
            )
