"""One budget, many networks: the combination of children with the least total weighted error.

Lower is better. Exact: an answer comes with the proof that no other combination beats it.
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
from joslim.front import Budget, Front, Point, checked_budget, non_dominated
from joslim.sizes import enough, typed
from joslim.untrusted import json_number, shown

Floats = NDArray[np.float64]
Positions = NDArray[np.intp]
OwnCost = Callable[[list[Point]], float]

COMBINED = ("sum", "max")
# A function of one's own is asked for one combination after the other.
MOST_COMBINATIONS = 10**6
# Budgets are sums of floats: 0.1 + 0.2 fits 0.3.
ROUNDING = 1e-12
# Errors that differ by less than this share of the largest one are equal.
EQUAL = 1e-9
# How many partial combinations the search keeps at first, and at most.
FIRST_WIDTH = 256
LAST_WIDTH = 256 * 4**3
# What SciPy's solver takes for equal.
SOLVER = 2e-6


@dataclass(frozen=True)
class Allocation:
    """A child for each network, in their order. `costs` has the totals of what has a budget."""

    points: tuple[Point, ...]
    weights: tuple[float, ...]
    measure: str
    costs: dict[str, float]

    @property
    def error(self) -> float:
        """The total weighted error that was made small: of validation, or else training loss."""
        return weighted_total(self.points, self.weights, self.measure)

    @property
    def test_error(self) -> float | None:
        """The total weighted error on the test sets, which nothing was chosen by."""
        if any(point.test_error is None for point in self.points):
            return None
        return weighted_total(self.points, self.weights, "test_error")


def front_of(front: Any) -> Front:
    """A front, or that of a run."""
    found = getattr(front, "front", front)
    if not isinstance(found, Front):
        raise UserError(f"fronts: {shown(front)} is neither a front nor a run")
    return found


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
    """The children with the least total weighted error that are within all budgets together.

    fronts: of the networks, or their runs. Budgets are named as the costs are (`macs="20M"`,
    `latency_ms=30`). The error is that of validation: errors of different networks can be added,
    training losses, which a front picks by, cannot. Costs of the networks add up; with
    `memory_as="max"` the memory is that of the largest, as it is for networks that run one after
    the other. `cost` is a function of one's own, from a list of one child for each network to a
    number that may be at most `budget`.
    """
    fronts = [front_of(front) for front in fronts]
    factors = checked_weights(weights, len(fronts))
    check_own(cost, budget, budgets)
    limits = checked_budgets(fronts, budgets, memory_as)
    check_least(fronts, limits, memory_as)
    measure = shared_measure(fronts)
    children = fitting_alone(fronts, limits)
    if not all(children):
        raise nothing_fits(children, limits)
    summed = {n: m for n, m in limits.items() if not is_maximum(n, memory_as)}
    errors = [weighted(kids, factor, measure) for kids, factor in zip(children, factors)]
    shares = [shares_of(kids, summed) for kids in children]
    if cost is not None and budget is not None:
        chosen = solve_by_trying(children, errors, shares, cost, budget)
    else:
        chosen = solve(errors, shares)
    if chosen is None:
        raise nothing_fits(children, limits)
    points = tuple(kids[at] for kids, at in zip(children, chosen))
    totals = {name: total(points, name, memory_as) for name in limits}
    if cost is not None:
        totals["cost"] = float(cost(list(points)))
    return Allocation(points, factors, measure, totals)


def curve(
    fronts: Sequence[Front],
    cost: str,
    weights: Sequence[float] | None = None,
    memory_as: str = "sum",
) -> list[Allocation]:
    """Every allocation that is the best one for some budget of this cost, the cheapest first."""
    factors = checked_weights(weights, len(fronts))
    checked_budgets(fronts, {cost: 1.0}, memory_as)
    measure = shared_measure(fronts)
    combine = np.maximum if is_maximum(cost, memory_as) else np.add
    costs, errors, chosen = np.zeros(1), np.zeros(1), np.zeros((1, 0), dtype=np.intp)
    for front, factor in zip(fronts, factors):
        own = np.array([point.costs[cost] for point in front], dtype=np.float64)
        costs = combine.outer(costs, own).ravel()
        errors = np.add.outer(errors, weighted(front, factor, measure)).ravel()
        # What is beaten now stays beaten, whatever is added to both: sums of floats are monotone.
        kept = np.flatnonzero(non_dominated(errors, costs))
        kept = kept[np.argsort(costs[kept])]
        costs, errors = costs[kept], errors[kept]
        chosen = extended(chosen, kept, np.arange(len(front)))
    steps = lower_by_more_than_rounding(errors)
    return [
        Allocation(points, factors, measure, {cost: total(points, cost, memory_as)})
        for points in (tuple(f[at] for f, at in zip(fronts, row)) for row in chosen[steps])
    ]


# Exactly, for sums
#
# Any prices for the budgets give a lower bound of the total error (Lagrange): the sum over the
# networks of their least error plus priced cost, minus the prices of the budgets. What a child
# lies above the least of its network, its excess, adds to that bound. Hence a combination that
# was thrown away has at least the error bound + its excess, and an answer that is not above that
# is proven. Good prices (those of the linear relaxation) make the proof short; bad ones only long.


def solve(errors: list[Floats], shares: list[Floats]) -> list[int] | None:
    """errors: [n] of each network, shares: [n, budgets] of the budgets -> a child of each.

    None if no combination has sums of shares within 1.
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
        if cut >= gap:  # both are infinite if nothing was thrown away, and nothing fits
            return best
        if width == LAST_WIDTH:
            found = [solve_by_branching(errors, shares, excess, gap), best]
            answers = [answer for answer in found if answer is not None]
            return min(answers, key=lambda a: chosen_sum(errors, a), default=None)
        width *= 4


def solve_by_branching(
    errors: list[Floats], shares: list[Floats], excess: list[Floats], gap: float
) -> list[int] | None:
    """For many budgets that pull in different directions: slower, but sure to end.

    SciPy's solver takes sums of up to 1 + 1e-6 for 1: what it then finds above 1 is refused, and
    looked for again below.
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
    """The best of the combinations that are kept, and the least excess that was thrown away.

    Network by network; of partial combinations that can still fit with an excess within the gap,
    the `width` with the least excess are kept, of equals those with the smaller shares.
    """
    count = shares[0].shape[1]
    error, share, above = np.zeros(1), np.zeros((1, count)), np.zeros(1)
    chosen, cut = np.zeros((1, 0), dtype=np.intp), math.inf
    for at, rest in enumerate(rests(shares)):
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
    """[budgets]: what a share of each is worth, by linear programming; None if nothing fits."""
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
    # Whatever else may go wrong in there: prices of zero are good prices as well.
    return np.maximum(-result.ineqlin.marginals, 0) if result.status == 0 else np.zeros(count)


def one_of_each(sizes: list[int]) -> Any:
    """[networks, children of all of them], sparse: whose child it is."""
    from scipy.sparse import csr_array  # type: ignore[import-untyped]

    owner = np.repeat(np.arange(len(sizes)), sizes)
    return csr_array((np.ones(len(owner)), (owner, np.arange(len(owner)))))


def rests(shares: list[Floats]) -> list[Floats]:
    """For each network, the least that all those after it take."""
    least = [share.min(axis=0) for share in shares]
    return [np.sum(least[at + 1 :], axis=0) for at in range(len(least))]


def extended(chosen: Positions, kept: Positions, own: Positions) -> Positions:
    """Partial combinations, each with one more child, of the pairs that are kept."""
    return np.concatenate([chosen[kept // len(own)], own[kept % len(own)][:, None]], axis=1)


def chosen_sum(values: list[Floats], chosen: list[int]) -> float:
    return sum(float(v[at]) for v, at in zip(values, chosen))


def lower_by_more_than_rounding(errors: Floats) -> list[int]:
    """Positions of a falling sequence, without steps that are nothing but rounding."""
    kept = [0]
    for at, error in enumerate(errors.tolist()):
        if error < errors[kept[-1]] - EQUAL * max(1.0, abs(errors[0])):
            kept.append(at)
    return kept


# A function of one's own, about which nothing is known


def solve_by_trying(
    children: list[list[Point]],
    errors: list[Floats],
    shares: list[Floats],
    cost: OwnCost,
    budget: float,
) -> list[int] | None:
    """In the order of their error: the first combination that fits is the best."""
    count = math.prod(len(kids) for kids in children)
    if count > MOST_COMBINATIONS:
        raise UserError(
            f"cost: {count} combinations are too many for a function of one's own, "
            f"{MOST_COMBINATIONS} are allowed; give fewer networks or shorter fronts"
        )
    sizes, least = [len(kids) for kids in children], math.inf
    for at in np.argsort(reduce(np.add.outer, errors), axis=None, kind="stable"):
        chosen = [int(i) for i in np.unravel_index(at, sizes)]
        share = reduce(add, (s[i] for s, i in zip(shares, chosen)))
        if not (share <= 1 + ROUNDING).all():
            continue
        value = asked(cost, [kids[i] for kids, i in zip(children, chosen)])
        if value <= budget * (1 + ROUNDING):
            return chosen
        least = min(least, value)
    if math.isinf(least):
        return None
    raise UserError(
        f"budget: no combination of {len(children)} networks fits {typed('budget', budget)}, the "
        f"least that the function gives is {enough('budget', least)}"
    )


def asked(cost: OwnCost, points: list[Point]) -> float:
    value = cost(points)
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"cost: it gave {shown(value)}, which is not a number") from error
    if math.isnan(number):
        raise UserError("cost: it gave nan for some children; a number is needed")
    return number


# Sums over the networks


def shared_measure(fronts: Sequence[Front]) -> str:
    """What is made small: the validation error if all children have one, else training loss."""
    known = all(front.errors("val_error") is not None for front in fronts)
    return "val_error" if known else "train_loss"


def weighted(points: Sequence[Point], weight: float, measure: str) -> Floats:
    return weight * np.array([getattr(point, measure) for point in points], dtype=np.float64)


def weighted_total(points: Sequence[Point], weights: Sequence[float], measure: str) -> float:
    return float(sum(w * getattr(p, measure) for w, p in zip(weights, points)))


def shares_of(points: Sequence[Point], budgets: dict[str, float]) -> Floats:
    """[points, budgets]: the part of each budget that a child takes."""
    rows = [[point.costs[name] / most for name, most in budgets.items()] for point in points]
    return np.array(rows, dtype=np.float64).reshape(len(points), len(budgets))


def is_maximum(name: str, memory_as: str) -> bool:
    return name == "memory" and memory_as == "max"


def total(points: Sequence[Point], name: str, memory_as: str) -> float:
    values = [point.costs[name] for point in points]
    return max(values) if is_maximum(name, memory_as) else reduce(add, values)


def fitting_alone(fronts: Sequence[Front], budgets: dict[str, float]) -> list[list[Point]]:
    """What exceeds a budget on its own does so in company."""
    limits = {name: most * (1 + ROUNDING) for name, most in budgets.items()}
    return [
        [p for p in front if all(p.costs[n] <= limit for n, limit in limits.items())]
        for front in fronts
    ]


# What is wrong with the input


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


def check_own(cost: OwnCost | None, budget: float | None, budgets: Mapping[str, Budget]) -> None:
    if (cost is None) != (budget is None):
        raise UserError("budget: it belongs to cost, a function of one's own; give both or none")
    if cost is not None and not callable(cost):
        raise UserError(f"cost: {shown(cost)} is not a function of a list of points")
    if budget is not None:
        checked_budget("budget", budget)
    if cost is None and not budgets:
        raise UserError("budget: none given; give at least one, such as macs=20e6")


def checked_budgets(
    fronts: Sequence[Front], budgets: Mapping[str, Budget], memory_as: str
) -> dict[str, float]:
    """As numbers, if all fronts can keep them."""
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
    """Each budget has to hold the cheapest children, before they are asked for together."""
    for name, most in budgets.items():
        cheapest = [min(front, key=lambda point: point.costs[name]) for front in fronts]
        least = total(cheapest, name, memory_as)
        if least > most * (1 + ROUNDING):
            largest = is_maximum(name, memory_as)
            how = "children: the largest of them costs" if largest else "children together cost"
            needed = enough(name, least)
            raise UserError(
                f"{name}: no combination of {len(fronts)} networks fits {typed(name, most)}, their "
                f"cheapest {how} {needed}; type {needed} or more"
            )


def nothing_fits(children: list[list[Point]], budgets: dict[str, float]) -> UserError:
    together = ", ".join(f"{name} {typed(name, most)}" for name, most in budgets.items())
    return UserError(
        f"budget: no combination of {len(children)} networks fits {together} together, "
        "though each of these alone can be kept; raise one of them"
    )
