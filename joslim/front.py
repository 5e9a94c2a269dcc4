"""The front: the children worth having, and the one among them that fits a budget.

Lower is better for every number here but the hypervolume, which is the only one that says so.
A front is read and used without torch and without the code of the network.
"""

from __future__ import annotations

import json
import keyword
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joslim.errors import UserError, unknown
from joslim.sizes import enough, parse_size, typed
from joslim.untrusted import json_count, json_name, json_number, json_rows, json_value, shown
from joslim.widths import Widths, WidthSpace

FILE = "front.json"
MOST_BYTES = 64 * 10**6
MOST_CHILDREN = 10_000
MOST_POINTS = 100_000

# A number, or a text as on the command line: "20M", "64KiB".
Budget = float | str

# Every child has these; latency_ms only where it was measured.
COUNTED = ("macs", "params", "memory")
LATENCY = "latency_ms"
ERRORS = ("test_error", "val_error")
# What else a child has in the file; `latency` is the name of the cost that latency_ms measures.
FIELDS = ("widths", "channels", "train_loss", *ERRORS)
# `joslim pick --json` adds two more.
RESERVED = (*FIELDS, "latency", "margin", "next_better")


@dataclass(frozen=True)
class Point:
    """One child of the front. Errors are in percent; they are None until they are measured."""

    widths: Widths
    costs: dict[str, float]
    train_loss: float
    val_error: float | None = None
    test_error: float | None = None

    def __post_init__(self) -> None:
        """Numbers of numpy become Python's own: only those can be written as JSON."""
        costs = {name: plain(value) for name, value in self.costs.items()}
        object.__setattr__(self, "costs", costs)
        for name in ("train_loss", *ERRORS):
            object.__setattr__(self, name, plain(getattr(self, name)))

    def to_json(self) -> dict[str, Any]:
        return {
            "widths": self.widths.multipliers.tolist(),
            "channels": self.widths.channels,
            **self.costs,
            "train_loss": self.train_loss,
            "val_error": self.val_error,
            "test_error": self.test_error,
        }


class Front(Sequence[Point]):
    """Children sorted by the cost that the search has looked at.

    `cost` is its name ("macs", ..., or that of a cost of one's own), `span` is what the smallest
    and the full network cost.
    """

    def __init__(self, points: Iterable[Point], cost: str, span: tuple[float, float]) -> None:
        found = tuple(points)
        if not 1 <= len(found) <= MOST_CHILDREN:
            raise UserError(f"children: {len(found)} given, 1 to {MOST_CHILDREN} are allowed")
        self.cost = cost
        check_points(found, self.key)
        self.span = checked_span(span)
        self._points = tuple(sorted(found, key=lambda p: (p.costs[self.key], p.train_loss)))

    @classmethod
    def of(cls, points: Iterable[Point], cost: str, span: tuple[float, float]) -> Front:
        """The non-dominated points by training loss and cost.

        What is not finite is left out; see `non_dominated` for ties.
        """
        found = list(points)
        key = cost_key(cost)
        missing = [point for point in found if key not in point.costs]
        if missing:
            raise UserError(f"costs: {key!r} is missing for {missing[0].widths}")
        mask = non_dominated([p.train_loss for p in found], [p.costs[key] for p in found])
        if not mask.any():
            raise UserError(f"children: none of {len(found)} has a finite loss and cost")
        return cls([point for point, kept in zip(found, mask) if kept], cost, span)

    @property
    def key(self) -> str:
        """Where the front's cost is found in the costs of a point."""
        return cost_key(self.cost)

    @property
    def space(self) -> WidthSpace:
        return self[0].widths.space

    @property
    def costs(self) -> tuple[str, ...]:
        """The names of all costs that its children have, the front's own first."""
        return (self.key, *(name for name in self[0].costs if name != self.key))

    @property
    def error(self) -> str | None:
        """The error to show: of the test set if it is known for all children, else validation."""
        return next((name for name in ERRORS if self.errors(name) is not None), None)

    def errors(self, error: str) -> list[float] | None:
        """[n] percent, in the order of the children; None unless all of them are known."""
        if error not in ERRORS:
            raise unknown("error", error, ERRORS)
        values = [getattr(point, error) for point in self]
        return None if None in values else values

    def pick(self, /, **budgets: Budget) -> Point:
        """The child with the least training loss among those within all budgets.

        Budgets are named as the costs are (`macs=20e6`, `memory="64KiB"`, `latency_ms=3`); a child
        that costs exactly the budget fits.
        """
        limits = self.checked_budgets(budgets)
        fitting = [p for p in self if all(p.costs[n] <= most for n, most in limits.items())]
        if not fitting:
            raise self._nothing_fits(limits)
        return min(fitting, key=lambda point: point.train_loss)

    def next_better(self, /, **budgets: Budget) -> Point | None:
        """Of the children with less training loss than what is picked, the nearest to fitting.

        That is the one whose largest share of a budget is the least. None if there is none.
        """
        picked, limits = self.pick(**budgets), self.checked_budgets(budgets)
        better = [point for point in self if point.train_loss < picked.train_loss]
        shares = [max(p.costs[name] / most for name, most in limits.items()) for p in better]
        return better[int(np.argmin(shares))] if better else None

    def area(self, error: str = "test_error", points: int = 50) -> float | None:
        """The area under the trade-off curve, in percent; None if errors are missing.

        Over costs spread evenly from the smallest to the full network: the mean error of the child
        that `pick` would choose, which looks at the training loss and never at the error. Where no
        child fits, everything is wrong: 100.
        """
        json_count(points, "points", 2, MOST_POINTS)
        errors = self.errors(error)
        if errors is None:
            return None
        costs, losses = [p.costs[self.key] for p in self], [p.train_loss for p in self]
        budgets = np.linspace(*self.span, points)
        return float(bought(costs, losses, errors, budgets, nothing=100.0).mean())

    def hypervolume(self, error: str = "test_error") -> float | None:
        """The share of the square (cost / full cost) x (error / 100) that some child beats.

        Its reference is (1, 1), and *higher is better*. None if errors are missing.
        """
        errors = self.errors(error)
        if errors is None:
            return None
        volume, least = 0.0, 1.0
        for point, percent in zip(self, errors):
            share = point.costs[self.key] / self.span[1]
            if share < 1 and percent / 100 < least:
                volume += (1 - share) * (least - percent / 100)
                least = percent / 100
        return volume

    def to_json(self) -> dict[str, Any]:
        return {
            "cost": self.cost,
            "span": list(self.span),
            "space": self.space.to_json(),
            "children": [point.to_json() for point in self],
        }

    @classmethod
    def of_json(cls, record: Any) -> Front:
        """A front that anybody may have written: what is wrong in it is a UserError."""
        cost = json_name(json_value(record, "cost", "front"), "cost")
        span = json_rows(record, "span", "front", most=2, least=2)
        space = WidthSpace.of_json(json_value(record, "space", "front"))
        children = json_rows(record, "children", "front", MOST_CHILDREN, least=0)
        if not children:
            again = f"remove {FILE}, and joslim resume RUN makes it anew"
            raise UserError(f"it has no children; {again}")
        points = [
            point_of_json(child, widths, f"children[{at}]")
            for at, (child, widths) in enumerate(zip(children, widths_of_json(children, space)))
        ]
        return cls(points, cost, (span[0], span[1]))

    @classmethod
    def read(cls, folder: str | Path) -> Front:
        """The front of a run folder; nothing else in there is opened."""
        path = front_file(Path(folder))
        try:
            return cls.of_json(parsed(path))
        except UserError as error:
            raise UserError(f"{FILE} of {str(folder)!r}: {error}") from error

    @overload
    def __getitem__(self, position: int) -> Point: ...
    @overload
    def __getitem__(self, position: slice) -> tuple[Point, ...]: ...
    def __getitem__(self, position: int | slice) -> Point | tuple[Point, ...]:
        return self._points[position]

    def __len__(self) -> int:
        return len(self._points)

    def __iter__(self) -> Iterator[Point]:
        return iter(self._points)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Front):
            return NotImplemented
        ours, theirs = (self.cost, self.span, self._points), (other.cost, other.span, other._points)
        return ours == theirs

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        ends = f"{self[0].costs[self.key]:g} to {self[-1].costs[self.key]:g}"
        return f"Front({len(self)} children, {self.cost} {ends})"

    def checked_budgets(self, budgets: Mapping[str, Budget]) -> dict[str, float]:
        """As numbers, if this front can keep them."""
        known = dict.fromkeys([*self.costs, LATENCY])
        if not budgets:
            raise UserError(f"budget: none given; give at least one of: {', '.join(known)}")
        for name in budgets:
            if name not in known:
                raise unknown("budget", name, known)
            if name not in self.costs:
                raise UserError(
                    f"{name}: not measured for this front; type joslim latency RUN -o device.json, "
                    "then --device-file device.json; in Python run.timed('device.json')"
                )
        return {name: checked_budget(name, most) for name, most in budgets.items()}

    def _nothing_fits(self, budgets: dict[str, float]) -> UserError:
        for name, most in budgets.items():
            cheapest = min(point.costs[name] for point in self)
            if cheapest > most:
                least = enough(name, cheapest)
                return UserError(
                    f"{name}: no child of {len(self)} fits {typed(name, most)}, the cheapest costs "
                    f"{least}; type {least} or more"
                )
        nearest = min(self, key=lambda p: max(p.costs[n] / most for n, most in budgets.items()))
        asked = ", ".join(f"{name} {typed(name, most)}" for name, most in budgets.items())
        needed = ", ".join(f"{name} {enough(name, nearest.costs[name])}" for name in budgets)
        return UserError(
            f"budget: no child of {len(self)} fits {asked} together; the nearest fits {needed}"
        )


def non_dominated(losses: ArrayLike, costs: ArrayLike) -> NDArray[np.bool_]:
    """[n] losses, [n] costs -> [n]: which ones no other one beats; lower is better in both.

    Ties: of equal costs the least loss stays, of equal losses the least cost, and of points that
    are equal in both the first. A point with a number that is not finite never stays.
    """
    loss, cost = np.asarray(losses, dtype=np.float64), np.asarray(costs, dtype=np.float64)
    if loss.ndim != 1 or loss.shape != cost.shape:
        raise UserError(f"losses: shape {loss.shape} does not go with costs of {cost.shape}")
    finite = np.flatnonzero(np.isfinite(loss) & np.isfinite(cost))
    # By cost, then by loss, then by position: the sort is stable.
    order = finite[np.lexsort((loss[finite], cost[finite]))]
    before = np.minimum.accumulate(np.concatenate([[np.inf], loss[order]]))[:-1]
    mask = np.zeros(len(loss), dtype=np.bool_)
    mask[order[loss[order] < before]] = True
    return mask


def best_so_far(losses: Sequence[float]) -> Iterator[int]:
    """At each position, where the least loss up to there is; the first one of equals."""
    best = 0
    for position, loss in enumerate(losses):
        if loss < losses[best]:
            best = position
        yield best


def bought(
    costs: Sequence[float],
    losses: Sequence[float],
    errors: Sequence[float],
    budgets: ArrayLike,
    nothing: float = np.nan,
) -> NDArray[np.float64]:
    """What `pick` would choose for each of many budgets: [n] errors, `nothing` where none fits.

    costs, losses, errors: of children sorted by their cost.
    """
    chosen = [nothing, *(errors[position] for position in best_so_far(losses))]
    fitting = np.searchsorted(costs, np.asarray(budgets), side="right")
    return np.array(chosen, dtype=np.float64)[fitting]


def checked_budget(name: str, most: Any) -> float:
    if isinstance(most, str):
        return parse_size(name, most)
    number = isinstance(most, (int, float, np.number)) and not isinstance(most, bool)
    if not number or not 0 < most <= sys.float_info.max:
        raise UserError(f"{name}: {shown(most)} is not a positive finite number; type 2e6")
    return plain(most)


def margins(point: Point, budgets: dict[str, float]) -> dict[str, float]:
    """What is left of each budget; below zero where the child exceeds it."""
    return {name: most - point.costs[name] for name, most in budgets.items()}


def exceeded(point: Point, budgets: dict[str, float]) -> dict[str, float]:
    """By how much, for the budgets that the child does not keep."""
    return {name: -left for name, left in margins(point, budgets).items() if left < 0}


def cost_key(cost: str) -> str:
    return LATENCY if cost == "latency" else cost


def check_cost_name(name: str) -> None:
    """A cost of one's own stands beside the other fields of a child, and names a budget."""
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise UserError(f"cost: {shown(name)} is not a name; give it one as `def energy(...)`")
    if name in RESERVED:
        raise UserError(f"cost: {name!r} is taken; choose a name not in: {', '.join(RESERVED)}")


# What is wrong with a point, wherever it comes from


def check_points(points: Sequence[Point], key: str) -> None:
    first = points[0]
    for name in first.costs:
        check_cost_name(name)
    needed = {*COUNTED, key, *first.costs}
    for at, point in enumerate(points):
        where = f"children[{at}]"
        if point.widths.space != first.widths.space:
            raise UserError(f"{where}.widths: a child of another network than children[0]")
        # Which costs there are is a fact of the front, and not of one child.
        if missing := needed - point.costs.keys():
            raise UserError(f"{where}.{min(missing, key=str)}: missing")
        if more := point.costs.keys() - needed:
            raise UserError(f"{where}: {shown(min(more, key=str))} is not known for all children")
        check_numbers(point, where)


def check_numbers(point: Point, where: str) -> None:
    json_number(point.train_loss, f"{where}.train_loss")
    for name, value in point.costs.items():
        check_cost(value, f"{where}.{name}")
    for name in ERRORS:
        percent = getattr(point, name)
        if percent is not None and not 0 <= json_number(percent, f"{where}.{name}") <= 100:
            raise UserError(f"{where}.{name}: {percent} is outside [0, 100] percent")


def check_cost(value: Any, where: str) -> None:
    if json_number(value, where) < 0:
        raise UserError(f"{where}: {value} is below zero")


def checked_span(span: Sequence[float]) -> tuple[float, float]:
    """Usually low <= full; a function of one's own may turn that around, and nothing breaks."""
    low, full = map(plain, span)
    check_cost(low, "span[0]")
    check_cost(full, "span[1]")
    if not full:
        raise UserError("span[1]: the full network costs nothing; a positive number is needed")
    return low, full


def plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


# Reading a file that anybody may have written


def widths_of_json(children: Sequence[Any], space: WidthSpace) -> list[Widths]:
    """The children of the space with these channels; all at once, for there may be many."""
    counts = np.array(
        [counts_of_json(child, space, f"children[{at}]") for at, child in enumerate(children)]
    )
    given = np.array(
        [multipliers_of_json(child, space, f"children[{at}]") for at, child in enumerate(children)]
    )
    for field, multipliers in (("channels", space.multipliers(counts)), ("widths", given)):
        wrong = (space.counts(multipliers) != counts).any(axis=1)
        if wrong.any():
            why = "no child has these" if field == "channels" else "do not give these channels"
            raise UserError(f"children[{wrong.argmax()}].{field}: {why}")
    return [Widths(space, tuple(row)) for row in counts.tolist()]


def counts_of_json(child: Any, space: WidthSpace, where: str) -> list[int]:
    channels = json_value(child, "channels", where)
    if isinstance(channels, dict) and len(channels) > len(space.dims):
        raise UserError(f"{where}.channels: more names than the {len(space.dims)} of the space")
    here = f"{where}.channels"
    return [
        json_count(json_value(channels, dim.name, here), f"{here}.{dim.name}", 1, dim.full)
        for dim in space.dims
    ]


def multipliers_of_json(child: Any, space: WidthSpace, where: str) -> list[float]:
    rows = json_rows(child, "widths", where, most=len(space), least=len(space))
    for at, (value, knob) in enumerate(zip(rows, space.knobs)):
        if not knob.low <= json_number(value, f"{where}.widths[{at}]") <= 1:
            raise UserError(f"{where}.widths[{at}]: {value} is outside [{knob.low}, 1]")
    return rows


def point_of_json(child: dict[str, Any], widths: Widths, where: str) -> Point:
    costs = {name: value for name, value in child.items() if name not in FIELDS}
    losses = {name: json_value(child, name, where) for name in ("train_loss", *ERRORS)}
    return Point(widths, costs, **losses)


def front_file(folder: Path) -> Path:
    path = folder / FILE
    try:
        if path.is_file():
            return path
        if not folder.exists():
            raise UserError(f"run: {str(folder)!r} does not exist; joslim train makes one")
        if not (folder / "config.json").is_file():
            raise UserError(f"run: {str(folder)!r} is not a run folder: it has no config.json")
    except OSError as error:
        raise UserError(f"run: {str(folder)!r} cannot be read: {error.strerror}") from error
    raise UserError(
        f"run: {str(folder)!r} has no front yet, its training has not finished; "
        "wait for its end, or type joslim resume RUN if it was stopped"
    )


def parsed(path: Path) -> Any:
    """NaN and Infinity come through: who reads the field refuses them with its name."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}") from error
    if len(content) > MOST_BYTES:
        raise UserError(f"larger than {MOST_BYTES // 10**6} MB, which no front is")
    try:
        return json.loads(content)
    except RecursionError as error:
        raise UserError("broken JSON: nested too deeply") from error
    except ValueError as error:
        raise UserError(f"broken JSON: {error}") from error
