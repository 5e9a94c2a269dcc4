"""The Pareto front of children, and the child of it that fits a budget.

Lower is better for every number here but the hypervolume. A front is read and used without torch
and without the code of the network.
"""

from __future__ import annotations

import json
import keyword
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joslim.costs import COSTS, cost_info
from joslim.errors import UserError, unknown
from joslim.files import (
    JSON_LIMIT,
    STEPS_LIMIT,
    json_count,
    json_name,
    json_number,
    json_rows,
    json_value,
    read_json,
    refuse_foreign_file,
    shown,
    write_whole,
    writing,
)
from joslim.space import Widths, WidthSpace
from joslim.units import exact_size, parse_size, sufficient_size

FILE = "front.json"
# Files in which the newest checkpoint of a run states its step. A crash between two renames leaves
# the second name only.
SUMMARIES = ("checkpoint/checkpoint.json", "checkpoint.old/checkpoint.json")
CHILDREN_LIMIT = 10_000
# Of more classes than this only the worst are kept; all confusions of 20 classes are.
MOST_CLASSES, WORST, MOST_CONFUSIONS = 100, 10, 20 * 19

# A number, or a text as on the command line: "20M", "64KiB".
Budget = float | str

LATENCY = COSTS["latency"].key
ERRORS = ("test_error", "val_error")
MEASURES = ("train_loss", *ERRORS)
# Fields of a child in front.json besides its costs.
FIELDS = ("widths", "channels", *MEASURES, "mistakes")
# Names that a cost of the user's own may not have. `joslim pick --json` adds the last two fields;
# "latency" is the name of the cost whose key is latency_ms.
RESERVED = (*FIELDS, "latency", "margin", "next_better", "by")
# The measures that `Front.pick` can choose by.
CRITERIA = ("val_error", "train_loss")


@dataclass(frozen=True)
class MetricName:
    """What the errors of a front are called, and their unit: "%", or "" for plain numbers.

    Errors in percent are at most 100; plain numbers, such as a perplexity, have no limit.
    """

    label: str = "error"
    unit: str = "%"

    def __post_init__(self) -> None:
        json_name(self.label, "metric.label")
        if self.unit not in ("%", ""):
            raise UserError(f"metric.unit: {shown(self.unit)}; type % or leave it empty")

    @classmethod
    def of_json(cls, record: Any) -> MetricName:
        """Read it from parsed JSON; runs and fronts of before have none, and errors in percent."""
        if record is None:
            return IN_PERCENT
        return cls(*(json_value(record, name, "metric") for name in ("label", "unit")))

    @property
    def most(self) -> float:
        """The largest error that there can be."""
        return 100.0 if self.unit else sys.float_info.max

    def words(self, name: str) -> str:
        """test_error -> test error, test perplexity"""
        return {
            "test_error": f"test {self.label}",
            "val_error": f"validation {self.label}",
            "train_loss": "training loss",
        }[name]

    def text(self, error: float | None, digits: int = 2) -> str:
        """12.34 %, or 12.34 for plain numbers, which have at least three digits."""
        if error is None:
            return "-"
        small = not self.unit and abs(error) < 1
        return f"{error:.{digits + 1}g}" if small else f"{error:.{digits}f} {self.unit}".rstrip()


# The errors of a classification.
IN_PERCENT = MetricName()


@dataclass(frozen=True)
class Mistakes:
    """The test images of each class that a child takes for another class. Classes are numbers.

    classes: (class, wrong images, all images) of each class, or of the ten classes with the largest
    error if there are more than 100. confusions: (class, class it is taken for, images), the most
    frequent first. All of them are there for up to 20 classes.
    """

    classes: tuple[tuple[int, int, int], ...]
    confusions: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, images: Mapping[int, int], confusions: Mapping[tuple[int, int], int]) -> Mistakes:
        """Make it of the number of images by class, and by class and wrong class."""
        wrong = dict.fromkeys(sorted(images), 0)
        for (label, _), count in confusions.items():
            wrong[label] += count
        classes = [(label, count, images[label]) for label, count in wrong.items()]
        pairs = sorted(confusions.items(), key=lambda item: (-item[1], item[0]))
        most = MOST_CONFUSIONS
        if len(classes) > MOST_CLASSES:
            classes, most = sorted(classes, key=lambda row: -row[1] / row[2])[:WORST], WORST
        return cls(tuple(classes), tuple((*pair, count) for pair, count in pairs[:most]))

    @classmethod
    def of_json(cls, record: Any, where: str) -> Mistakes:
        """Read it from parsed JSON that anybody may have written."""

        def rows(name: str, most: int) -> tuple[tuple[int, int, int], ...]:
            found = json_rows(record, name, where, most, least=0)
            return tuple(row_of(row, f"{where}.{name}[{at}]") for at, row in enumerate(found))

        def row_of(row: Any, here: str) -> tuple[int, int, int]:
            if not isinstance(row, list) or len(row) != 3:
                raise UserError(f"{here}: {shown(row)} is not a list of three whole numbers")
            a, b, c = (json_count(number, here, 0, 10**12) for number in row)
            return a, b, c

        return cls(rows("classes", MOST_CLASSES), rows("confusions", MOST_CONFUSIONS))


@dataclass(frozen=True)
class Point:
    """One child (subnet) of a Pareto front, with what was measured of it.

    Attributes:
        widths: The child.
        costs: Price by cost name: "macs", "params", "memory", and others that the front knows.
        train_loss: Loss on un-augmented training images, by which the front was made.
        val_error: Validation error as the front's metric has it, in percent unless it says
            otherwise; None if it was not measured.
        test_error: Test error likewise, or None if it was not measured.
        mistakes: Test images by class that the child takes for another class, or None.

    Examples:
        >>> point = joslim.load("runs/digits").front[0]
        >>> sorted(point.costs)
        ['macs', 'memory', 'params']
        >>> 0 <= point.test_error <= 100
        True
    """

    widths: Widths
    costs: dict[str, float]
    train_loss: float
    val_error: float | None = None
    test_error: float | None = None
    mistakes: Mistakes | None = None

    def __post_init__(self) -> None:
        """Convert numbers of numpy to Python's own, which can be written as JSON."""
        costs = {name: plain(value) for name, value in self.costs.items()}
        object.__setattr__(self, "costs", costs)
        for name in MEASURES:
            object.__setattr__(self, name, plain(getattr(self, name)))

    def to_json(self) -> dict[str, Any]:
        """Return the fields of this child as front.json holds them, without its mistakes."""
        return {
            "widths": self.widths.multipliers.tolist(),
            "channels": self.widths.channels,
            **self.costs,
            "train_loss": self.train_loss,
            "val_error": self.val_error,
            "test_error": self.test_error,
        }


class Front(Sequence[Point]):
    """A Pareto front: the children (subnets) that no other child beats in both loss and cost.

    It is a sequence of `Point`, sorted by cost.

    Attributes:
        cost: Name of the cost that the search minimized: "macs", "params", "memory", "latency" or
            your own.
        span: Cost of the smallest and of the full network.
        val_images: Number of samples behind the validation errors, or None if it is not known, or
            if the error is no mean over samples.
        metric: What the errors are called, and their unit.

    Raises:
        UserError: There is no point, a point lacks a cost, or a number is not finite.

    Examples:
        >>> front = joslim.load("runs/digits").front
        >>> point = front.pick(macs="600K")
        >>> point.costs["macs"] <= 600e3
        True
        >>> all(a.costs["macs"] < b.costs["macs"] for a, b in zip(front, front[1:]))
        True
    """

    def __init__(
        self,
        points: Iterable[Point],
        cost: str,
        span: tuple[float, float],
        val_images: int | None = None,
        metric: MetricName = IN_PERCENT,
    ) -> None:
        found = tuple(points)
        if not 1 <= len(found) <= CHILDREN_LIMIT:
            raise UserError(f"children: {len(found)} given, 1 to {CHILDREN_LIMIT} are allowed")
        self.cost = cost
        self.metric = metric
        check_points(found, self.key, metric)
        low, full = map(plain, span)  # a cost of the user's own may have low > full
        check_cost(low, "span[0]")
        check_cost(full, "span[1]")
        if not full:
            raise UserError("span[1]: the full network costs nothing; a positive number is needed")
        self.span = (low, full)
        if val_images is not None:
            json_count(val_images, "val_images", 1, sys.maxsize)
        self.val_images = val_images
        self._points = tuple(sorted(found, key=lambda p: (p.costs[self.key], p.train_loss)))

    @classmethod
    def of(
        cls,
        points: Iterable[Point],
        cost: str,
        span: tuple[float, float],
        val_images: int | None = None,
        metric: MetricName = IN_PERCENT,
    ) -> Front:
        """Keep the non-dominated points by training loss and cost.

        Points whose loss or cost is not finite are left out. Of points with equal costs the one
        with the least loss stays, of equal losses the one with the least cost, and of points that
        are equal in both the first.

        Args:
            points: Children, dominated or not.
            cost: Name of the cost.
            span: Cost of the smallest and of the full network.
            val_images: Number of samples behind the validation errors.
            metric: What the errors are called, and their unit.

        Raises:
            UserError: A point lacks the cost, or no point has a finite loss and cost.
        """
        found = list(points)
        key = cost_key(cost)
        for point in found:
            if key not in point.costs:
                raise UserError(f"costs: {key!r} is missing for {point.widths}")
        mask = non_dominated([p.train_loss for p in found], [p.costs[key] for p in found])
        if not mask.any():
            raise UserError(f"children: none of {len(found)} has a finite loss and cost")
        kept = [point for point, stays in zip(found, mask) if stays]
        return cls(kept, cost, span, val_images, metric)

    @property
    def key(self) -> str:
        """The name of this front's cost in `Point.costs`: "latency_ms" for latency, else `cost`."""
        return cost_key(self.cost)

    @property
    def space(self) -> WidthSpace:
        """Search space that the children belong to."""
        return self[0].widths.space

    @property
    def costs(self) -> tuple[str, ...]:
        """Names of all costs that the children have; this front's own is first."""
        return (self.key, *(name for name in self[0].costs if name != self.key))

    @property
    def error(self) -> str | None:
        """The error to show: "test_error" if all children have one, else "val_error", else None."""
        return next((name for name in ERRORS if self.errors(name) is not None), None)

    def errors(self, error: str) -> list[float] | None:
        """Return the errors of all children, or None if some child has none.

        Args:
            error: Either "test_error" or "val_error".
        """
        if error not in ERRORS:
            raise unknown("error", error, ERRORS)
        values = [getattr(point, error) for point in self]
        return None if None in values else values

    @property
    def by(self) -> str:
        """What `pick` goes by: "val_error" if all children have one, else "train_loss"."""
        return "train_loss" if self.errors("val_error") is None else "val_error"

    def ranks(self, by: str | None = None) -> list[int]:
        """Return the rank of each child in the order in which `pick` prefers them; 0 is the best.

        By training loss, a lower loss is better. By validation error, the order is the same, but
        the children that are not worth their cost come last: a cheaper child has a validation error
        that is lower by more than one standard error. Smaller differences are noise, in which the
        training loss is the better guide (docs/log.md has the figures).

        Args:
            by: Either "val_error" or "train_loss"; by default `Front.by`.
        """
        by = by or self.by
        if by not in CRITERIA:
            raise unknown("by", by, CRITERIA)
        worse = [False] * len(self)
        if by == "val_error":
            errors = self.errors("val_error")
            if errors is None:
                raise UserError("by: the children have no val_error; type train_loss")
            least = np.minimum.accumulate(errors)
            images = self.val_images if self.metric.unit else None
            worse = (errors > least + standard_error(least, images)).tolist()
        keys = [(late, point.train_loss, at) for at, (late, point) in enumerate(zip(worse, self))]
        rank_of = {key: rank for rank, key in enumerate(sorted(keys))}
        return [rank_of[key] for key in keys]

    def pick(self, /, *, by: str | None = None, **budgets: Budget) -> Point:
        """Choose the best child among those that fit all budgets.

        Args:
            by: What to go by: "val_error" or "train_loss", as `ranks` explains. By default the
                validation error, if all children have one.
            budgets: Largest cost by name: `macs=20e6`, `memory="64KiB"`, `latency_ms=3`. A child
                that costs exactly the budget fits.

        Raises:
            UserError: No budget is given, its name is unknown, or no child fits.
        """
        ranked = zip(self.ranks(by), self)  # a wrong `by` is said before a missing budget
        limits = self.checked_budgets(budgets)
        fitting = [
            (rank, point)
            for rank, point in ranked
            if all(point.costs[name] <= most for name, most in limits.items())
        ]
        if not fitting:
            raise self._nothing_fits(limits)
        return min(fitting, key=lambda pair: pair[0])[1]

    def next_better(self, /, *, by: str | None = None, **budgets: Budget) -> Point | None:
        """Find the child that is worth a slightly larger budget.

        Of the children that `pick` prefers to the picked one, it is the one that exceeds the
        budgets by the smallest factor.

        Args:
            by: As for `pick`.
            budgets: Budgets as for `pick`.

        Returns:
            The child, or None if the picked one is the best of all.
        """
        picked, limits = self.pick(by=by, **budgets), self.checked_budgets(budgets)
        ranks = dict(zip(map(id, self), self.ranks(by)))
        better = [point for point in self if ranks[id(point)] < ranks[id(picked)]]
        shares = [max(p.costs[name] / most for name, most in limits.items()) for p in better]
        return better[int(np.argmin(shares))] if better else None

    def area(self, error: str = "test_error", points: int = 50) -> float | None:
        """Compute the area under the trade-off curve; lower is better.

        The area is the mean error of the child with the least training loss that fits, over costs
        that are spread evenly from the smallest to the full network. The choice never looks at the
        error. Where no child fits, the error counts as 100 percent. The area by training loss is
        the objective of the paper (equations 1 to 5). For a loss, or an error that is no
        percentage, that of the cheapest child counts where none fits.

        Args:
            error: "test_error", "val_error" (areas in the unit of the errors) or "train_loss".
            points: Number of costs.

        Returns:
            The area, or None if some child has no such error.
        """
        json_count(points, "points", 2, 100_000)
        if error not in MEASURES:
            raise unknown("error", error, MEASURES)
        costs, losses = [p.costs[self.key] for p in self], [p.train_loss for p in self]
        by_loss = error == "train_loss"
        errors = losses if by_loss else self.errors(error)
        if errors is None:
            return None
        budgets = np.linspace(*self.span, points)
        nothing = errors[0] if by_loss or not self.metric.unit else 100.0
        return float(bought(costs, losses, errors, budgets, nothing).mean())

    def hypervolume(self, error: str = "test_error") -> float | None:
        """Compute the hypervolume of cost and error with the reference point (1, 1); higher is
        better.

        Both axes are scaled: costs by the cost of the full network, errors by 100 percent.

        Args:
            error: Either "test_error" or "val_error".

        Returns:
            The hypervolume in [0, 1], or None if some child has no such error, or if errors are no
            percentages.
        """
        errors = self.errors(error)
        if errors is None or not self.metric.unit:
            return None
        volume, least = 0.0, 1.0
        for point, percent in zip(self, errors):
            share = point.costs[self.key] / self.span[1]
            if share < 1 and percent / 100 < least:
                volume += (1 - share) * (least - percent / 100)
                least = percent / 100
        return volume

    def to_json(self) -> dict[str, Any]:
        """Return what front.json holds; `of_json` reads it back."""
        return {
            "cost": self.cost,
            "span": list(self.span),
            "val_images": self.val_images,
            "metric": asdict(self.metric),
            "space": self.space.to_json(),
            "children": [
                {**point.to_json(), **({"mistakes": asdict(m)} if (m := point.mistakes) else {})}
                for point in self
            ],
        }

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write this front to a JSON file, which `Front.read`, `joslim front` and `joslim pick`
        read.

        `joslim.save` writes it together with the weights.

        Args:
            path: The file.
            overwrite: Replace the file even if it holds no front.

        Raises:
            UserError: The file cannot be written, or holds something else.
        """
        file = Path(path)
        refuse_foreign_file(file, b'"val_images"', overwrite)
        with writing(path):
            write_whole(file, json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n")

    @classmethod
    def of_json(cls, record: Any) -> Front:
        """Read a front from parsed JSON. The source need not be trusted: every field is checked.

        Raises:
            UserError: A field is missing or not valid.
        """
        cost = json_name(json_value(record, "cost", "front"), "cost")
        span = json_rows(record, "span", "front", most=2, least=2)
        space = WidthSpace.of_json(json_value(record, "space", "front"))
        children = json_rows(record, "children", "front", CHILDREN_LIMIT, least=0)
        if not children:
            raise UserError(
                f"it has no children; remove {FILE}, and joslim resume RUN makes it anew"
            )
        points = [
            Point(
                widths,
                {name: value for name, value in child.items() if name not in FIELDS},
                **{name: json_value(child, name, f"children[{at}]") for name in MEASURES},
                mistakes=Mistakes.of_json(child["mistakes"], f"children[{at}].mistakes")
                if "mistakes" in child
                else None,
            )
            for at, (child, widths) in enumerate(zip(children, widths_of_json(children, space)))
        ]
        val_images = json_value(record, "val_images", "front")
        metric = MetricName.of_json(record.get("metric"))
        return cls(points, cost, (span[0], span[1]), val_images, metric)

    @classmethod
    def read(cls, folder: str | Path) -> Front:
        """Read the Pareto front of a run folder, or of a file that `save` has written.

        Raises:
            UserError: The folder is no run folder, its training has not finished, front.json is
                damaged, or it belongs to another step than the weights beside it.
        """
        folder = Path(folder)
        record = read_json(front_file(folder), JSON_LIMIT, "run")
        try:
            front = cls.of_json(record)
            weights = weights_of(folder)
            if weights is not None and (step := step_of(record, "front")) != weights.step:
                raise UserError(
                    f"it is of step {step}, the weights are of step {weights.step}; "
                    "type joslim resume RUN, which makes it anew"
                )
            return front
        except UserError as error:
            name = f"{str(folder)!r}" if folder.is_file() else f"{FILE} of {str(folder)!r}"
            raise UserError(f"{name}: {error}") from error

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
        return vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        ends = f"{self[0].costs[self.key]:g} to {self[-1].costs[self.key]:g}"
        return f"Front({len(self)} children, {self.cost} {ends})"

    def checked_budgets(self, budgets: Mapping[str, Budget]) -> dict[str, float]:
        """Convert budgets to numbers, and refuse those that this front cannot keep.

        Raises:
            UserError: No budget is given, or a budget is unknown, not measured or not positive.
        """
        known = dict.fromkeys([*self.costs, *(info.key for info in COSTS.values())])
        if not budgets:
            raise UserError(f"budget: none given; give at least one of: {', '.join(known)}")
        for name in budgets:
            if name not in known:
                raise unknown("budget", name, known)
            if name not in self.costs:
                raise UserError(f"{name}: not measured for this front; {cost_info(name).remedy}")
        return {name: checked_budget(name, most) for name, most in budgets.items()}

    def _nothing_fits(self, budgets: dict[str, float]) -> UserError:
        for name, most in budgets.items():
            cheapest = min(point.costs[name] for point in self)
            if cheapest > most:
                least = sufficient_size(name, cheapest)
                return UserError(
                    f"{name}: no child of {len(self)} fits {exact_size(name, most)}, the cheapest "
                    f"costs {least}; type {least} or more"
                )
        nearest = min(self, key=lambda p: max(p.costs[n] / most for n, most in budgets.items()))
        asked = ", ".join(f"{name} {exact_size(name, most)}" for name, most in budgets.items())
        needed = ", ".join(f"{n} {sufficient_size(n, nearest.costs[n])}" for n in budgets)
        return UserError(
            f"budget: no child of {len(self)} fits {asked} together; the nearest fits {needed}"
        )


def non_dominated(losses: ArrayLike, costs: ArrayLike) -> NDArray[np.bool_]:
    """Mask of the non-dominated points; lower is better in both: [n] losses, [n] costs -> [n].

    Of points with equal costs the one with the least loss stays, of equal losses the one with the
    least cost, and of points that are equal in both the first. A point with a number that is not
    finite never stays.
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
    """Position of the least loss up to each position; of equal losses the first."""
    best = 0
    for position, loss in enumerate(losses):
        if loss < losses[best]:
            best = position
        yield best


def standard_error(errors: NDArray[np.float64], images: int | None) -> NDArray[np.float64]:
    """Standard errors of errors in percent that were measured on so many images; 0 if unknown.

    One wrong and one right image are added, so that no error among few images is not certainty.
    """
    if images is None:
        return np.zeros_like(errors)
    share = (errors / 100 * images + 1) / (images + 2)
    return 100 * np.sqrt(share * (1 - share) / images)


def bought(
    costs: Sequence[float],
    losses: Sequence[float],
    errors: Sequence[float],
    budgets: ArrayLike,
    nothing: float = np.nan,
) -> NDArray[np.float64]:
    """Errors of the children with the least loss that fit each of many budgets: [n] -> [n].

    Children are sorted by cost; where none fits, the error is `nothing`.
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
    """The rest of each budget; below zero where the child exceeds it."""
    return {name: most - point.costs[name] for name, most in budgets.items()}


def exceeded(point: Point, budgets: dict[str, float]) -> dict[str, float]:
    """The excess over each budget that the child does not keep."""
    return {name: -left for name, left in margins(point, budgets).items() if left < 0}


def cost_key(cost: str) -> str:
    """Name of a cost in `Point.costs`, in files and as a budget."""
    return cost_info(cost).key


def check_cost_name(name: str) -> None:
    """Refuse names that cannot be a keyword, or that a child in front.json has already."""
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise UserError(f"cost: {shown(name)} is not a name; give it one as `def energy(...)`")
    if name in RESERVED:
        raise UserError(f"cost: {name!r} is taken; choose a name not in: {', '.join(RESERVED)}")


# Checks of points


def check_points(points: Sequence[Point], key: str, metric: MetricName) -> None:
    first = points[0]
    for name in first.costs:
        check_cost_name(name)
    always = {info.key for info in COSTS.values() if info.on_every_front}
    needed = {*always, key, *first.costs}
    for at, point in enumerate(points):
        where = f"children[{at}]"
        if point.widths.space != first.widths.space:
            raise UserError(f"{where}.widths: a child of another network than children[0]")
        # All children of a front have the same costs.
        if missing := needed - point.costs.keys():
            raise UserError(f"{where}.{min(missing, key=str)}: missing")
        if more := point.costs.keys() - needed:
            raise UserError(f"{where}: {shown(min(more, key=str))} is not known for all children")
        json_number(point.train_loss, f"{where}.train_loss")
        for name, value in point.costs.items():
            check_cost(value, f"{where}.{name}")
        for name in ERRORS:
            error, most = getattr(point, name), metric.most
            if error is not None and not 0 <= json_number(error, f"{where}.{name}") <= most:
                limits = "[0, 100] percent" if metric.unit else "the numbers from 0 on"
                raise UserError(f"{where}.{name}: {error} is outside {limits}")


def check_cost(value: Any, where: str) -> None:
    if json_number(value, where) < 0:
        raise UserError(f"{where}: {value} is below zero")


def plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


# Reading front.json, which anybody may have written


def widths_of_json(children: Sequence[Any], space: WidthSpace) -> list[Widths]:
    """Children of the space with the channels in the file; vectorized, as there may be many."""
    rows, given = [], []
    for at, child in enumerate(children):
        where = f"children[{at}]"
        rows.append(counts_of_json(child, space, where))
        given.append(json_rows(child, "widths", where, most=len(space), least=len(space)))
        for position, (value, knob) in enumerate(zip(given[-1], space.knobs)):
            if not knob.low <= json_number(value, f"{where}.widths[{position}]") <= 1:
                raise UserError(f"{where}.widths[{position}]: {value} is outside [{knob.low}, 1]")
    counts = np.array(rows)
    for field, multipliers in (("channels", space.multipliers(counts)), ("widths", given)):
        wrong = (space.counts(multipliers) != counts).any(axis=1)
        if wrong.any():
            why = "no child has these" if field == "channels" else "do not give these channels"
            raise UserError(f"children[{wrong.argmax()}].{field}: {why}")
    return [Widths(space, tuple(row)) for row in rows]


def counts_of_json(child: Any, space: WidthSpace, where: str) -> list[int]:
    channels = json_value(child, "channels", where)
    if isinstance(channels, dict) and len(channels) > len(space.dims):
        raise UserError(f"{where}.channels: more names than the {len(space.dims)} of the space")
    here = f"{where}.channels"
    return [
        json_count(json_value(channels, dim.name, here), f"{here}.{dim.name}", 1, dim.full)
        for dim in space.dims
    ]


def front_file(folder: Path) -> Path:
    path = folder / FILE
    try:
        if folder.suffix == ".json" and folder.is_file():
            return folder
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


class Weights(NamedTuple):
    """The step of a checkpoint, and whether its children have been judged."""

    step: int
    finished: bool


def weights_of(folder: Path) -> Weights | None:
    """Summary of the newest checkpoint; None if there is none that can be read."""
    for name in SUMMARIES:
        if os.path.isfile(folder / name):
            try:
                record = read_json(folder / name, JSON_LIMIT, "checkpoint")
                step = step_of(record, "checkpoint")
                return Weights(step, json_value(record, "finished", "checkpoint") is True)
            except UserError:
                return None
    return None


def step_of_front(folder: Path) -> int | None:
    """The step that the front of a run folder belongs to; None if it cannot be read."""
    try:
        return step_of(read_json(front_file(folder), JSON_LIMIT, "run"), "front")
    except UserError:
        return None


def step_of(record: Any, where: str) -> int:
    return json_count(json_value(record, "step", where), f"{where}.step", 0, STEPS_LIMIT)
