"""Children whose channels are rounded to multiples of a divisor, with statistics of their own.

A rounded child was not judged when the front was made: it gets BatchNorm statistics from training
images, and its loss and errors are measured, as those of the front's children were.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joslim.costs import COSTS, cost_info
from joslim.costs import cost as make_cost
from joslim.deploy.int8 import data_of
from joslim.errors import UserError
from joslim.front import ERRORS, IN_PERCENT, LATENCY, Budget, Front, MetricName, Point
from joslim.results.run_files import LATENCY as LATENCY_FILE
from joslim.runs.run import Run
from joslim.runs.setup import task_of
from joslim.runs.trainer import EVALUATION_BATCH
from joslim.space import CHANNELS, Widths, WidthSpace
from joslim.training.evaluate import errors
from joslim.training.judging import loss_with_statistics
from joslim.training.metrics import as_metric
from joslim.training.tasks import TASKS
from joslim.units import format_size, sufficient_size


@dataclass(frozen=True)
class Rounded:
    """A child of a front beside the child that it was rounded to.

    lowered: number of knobs that were rounded down, and not to the nearest multiple, for a budget.
    """

    before: Point
    after: Point
    divisor: int
    lowered: int = 0
    metric: MetricName = IN_PERCENT

    @property
    def measure(self) -> str:
        """The validation error if both have one, else the training loss."""
        known = None not in (self.before.val_error, self.after.val_error)
        return "val_error" if known else "train_loss"

    def to_json(self, costs: Sequence[str]) -> dict[str, Any]:
        """Pairs of figures before and after, and all of it in one line of text."""
        both, name = (self.before, self.after), self.measure
        prices = {cost: [point.costs[cost] for point in both] for cost in costs}
        errors = {error: [getattr(point, error) for point in both] for error in ERRORS}
        words = [
            f"{cost_info(cost).label or cost} " + " -> ".join(format_size(cost, p) for p in pair)
            for cost, pair in prices.items()
        ]
        show = self.metric.text if name == "val_error" else "{:.4f}".format
        before, after = (show(getattr(point, name)) for point in both)
        words.append(f"{self.metric.words(name)} {before} -> {after}")
        down = f"; knobs rounded down for the budget: {self.lowered}" if self.lowered else ""
        text = f"channels in multiples of {self.divisor}: {', '.join(words)}{down}"
        counts = {"divisor": self.divisor, "lowered": self.lowered}
        return {**counts, **prices, **errors, "text": text}


def summary(pairs: Sequence[Rounded], left: int) -> dict[str, Any]:
    """Describe the rounding of a whole front, of which `left` children are left."""
    name, metric, divisor = pairs[0].measure, pairs[0].metric, pairs[0].divisor
    more = [getattr(pair.after, name) - getattr(pair.before, name) for pair in pairs]
    mean, least, most = sum(more) / len(more), min(more), max(more)
    unit = " %" if metric.unit and name == "val_error" else ""
    gone = "" if left == len(pairs) else " (the others are equal to one of them, or worse)"
    text = (
        f"channels in multiples of {divisor}: {left} children of {len(pairs)}{gone}; "
        f"{metric.words(name)} {mean:+.2f}{unit} on average, {least:+.2f} to {most:+.2f}{unit}"
    )
    return {"divisor": divisor, "children": [len(pairs), left], "change": mean, "text": text}


def round_channels(
    run: Run,
    divisor: int,
    *,
    by: str | None = None,
    data: Any = None,
    device_file: str | Path | None = None,
    **budgets: Budget,
) -> Run:
    """Round the channels of children to multiples of a divisor, and judge the children again.

    Each count becomes the nearest multiple that is not below the lowest width, or the full count.
    Where the child would then exceed the budget that it was picked for, counts are rounded down
    instead. A rounded child gets BatchNorm statistics from training images of the run, and its
    loss, validation and test error are measured as those of the front were. The weights and the run
    folder stay as they are.

    Args:
        run: A run of `joslim.train`.
        divisor: Channels become multiples of it, such as 8 or 16.
        by: As in `Front.pick`, with budgets.
        data: The data of the run, if they were moved or not given by name.
        device_file: Latencies on a device, for a budget of `latency_ms`.
        budgets: Largest cost by name. The child that `Front.pick` takes is rounded; without a
            budget, all children of the front are.

    Returns:
        The same run with another front: the rounded child, or the Pareto front of all rounded
        children. `joslim.export` takes it as any other.

    Raises:
        UserError: The data cannot be loaded, or no rounded child fits the budget.

    Examples:
        >>> run = joslim.load("runs/digits")
        >>> rounded = joslim.round_channels(run, 8, macs="600K")
        >>> [count % 8 for count in rounded.front[0].widths.counts]
        [0, 0, 0, 0, 0, 0]
        >>> check = joslim.export(rounded, rounded.front[0], "round.pt2")
    """
    front = run.timed(device_file) if device_file else run.front
    if not budgets:
        return rounded_front(run, divisor, front, data, device_file)[0]
    limits = front.checked_budgets(budgets)
    wanted = [(front.pick(by=by, **budgets), limits)]
    return rounded_children(run, divisor, wanted, data, device_file)[0]


def rounded_front(
    run: Run, divisor: int, front: Front, data: Any, device_file: str | Path | None
) -> tuple[Run, list[Rounded]]:
    """Round all children of a front; the run has the Pareto front of the rounded ones."""
    found, pairs = rounded_children(run, divisor, [(p, {}) for p in front], data, device_file)
    new = found.front
    found.front = Front.of(new, new.cost, new.span, new.val_images, new.metric)
    return found, pairs


def rounded_children(
    run: Run,
    divisor: int,
    wanted: Sequence[tuple[Point, Mapping[str, float]]],
    data: Any,
    device_file: str | Path | None,
) -> tuple[Run, list[Rounded]]:
    """Round children, each within its budgets; the run has all of them on its front."""
    if isinstance(divisor, bool) or not isinstance(divisor, int) or divisor < 1:
        raise UserError(f"divisor: {divisor!r} is not a whole number of at least 1; type 8")
    images = data_for_rounding(run, data)
    price = pricing(run, device_file, {name for _, limits in wanted for name in limits})
    chosen = [rounded_widths(p.widths, divisor, price, limits) for p, limits in wanted]
    points = judged(run, [widths for widths, _ in chosen], images, price)
    front, net = run.front, run.net
    key = front.key if front.key in price(net.space.full) else "macs"
    found = copy.copy(run)
    # As in a training with this divisor, so that `load_child` finds the children in its space.
    found.config = replace(run.config, divisor=math.lcm(run.config.divisor or 1, divisor))
    found.front = Front(
        points.values(),
        front.cost if key == front.key else key,
        (price(net.space.smallest)[key], price(net.space.full)[key]),
        front.val_images,
        front.metric,
    )
    return found, [
        Rounded(before, points[widths], divisor, lowered, front.metric)
        for (before, _), (widths, lowered) in zip(wanted, chosen)
    ]


def data_for_rounding(run: Run, data: Any) -> Any:
    if run.in_own_loop:
        raise UserError(
            "divisor: the run is of your own loop, whose data are not known here; give "
            "joslim.slim(..., divisor=8), or joslim.recalibrate(net, batches) at the rounded widths"
        )
    if run.config.task is not None and run.config.task not in TASKS:
        raise UserError(
            "divisor: the task of the run is an object, so that rounded children cannot be judged; "
            "train with --divisor 8"
        )
    images = data_of(run, data)
    if images is None:
        raise UserError(
            f"divisor: rounded children need the data of the run, {run.config.data!r}, which "
            "cannot be loaded or have changed; type --data NAME or --data folder:PATH"
        )
    return images


def pricing(
    run: Run, device_file: str | Path | None, budgets: set[str]
) -> Callable[[Widths], dict[str, float]]:
    """Return a function that computes the exact costs of a child, and its latency by the model of
    the device file, or of the run if it was trained for latency.
    """
    net, front = run.net, run.front
    costs = {info.key: make_cost(name, net) for name, info in COSTS.items() if info.on_every_front}
    own = run.folder.file(LATENCY_FILE)
    file = device_file or (own if front.key == LATENCY and own.is_file() else None)
    if file is not None:
        costs[LATENCY] = make_cost("latency", net, device_file=str(file))
    if unknown := budgets - costs.keys():
        name = min(unknown)
        remedy = "--device-file FILE" if name == LATENCY else "a budget of macs, params or memory"
        raise UserError(f"{name}: it cannot be computed for a rounded child; type {remedy}")
    return lambda widths: {name: cost(widths) for name, cost in costs.items()}


def rounded_widths(
    widths: Widths,
    divisor: int,
    price: Callable[[Widths], dict[str, float]],
    limits: Mapping[str, float],
) -> tuple[Widths, int]:
    """Round a child to the nearest multiples within budgets; also the number of knobs that a
    budget has lowered.
    """
    space = widths.space
    nearest, down = np.array(widths.counts), np.array(widths.counts)
    raised: list[tuple[float, list[int]]] = []
    for number, (knob, kind) in enumerate(zip(space.knobs, space.kinds)):
        if kind != CHANNELS:
            continue
        dims = [*knob.dims]
        own = np.array(widths.counts)[dims]
        choices = round_counts(space, number, divisor)
        apart = ((choices - own) / [space.dims[at].full for at in dims]).sum(axis=1)
        nearest[dims] = choices[np.abs(apart).argmin()]  # of two that are equally near, the larger
        below = [*choices[(choices <= own).all(axis=1)], choices[-1]]
        down[dims] = below[0]
        if (nearest[dims] > down[dims]).any():
            raised.append((float(apart[np.abs(apart).argmin()]), dims))
    lowered = 0
    # Those first that rounding raised by the largest share.
    for _, dims in [*sorted(raised, key=lambda item: -item[0]), (0.0, [])]:
        found = Widths(space, tuple(nearest.tolist()))
        costs = price(found)
        over = {name: costs[name] for name, most in limits.items() if costs[name] > most}
        if not over:
            return found, lowered
        nearest[dims], lowered = down[dims], lowered + 1
    name, cost = next(iter(over.items()))
    least = sufficient_size(name, cost)
    raise UserError(
        f"divisor: the child in multiples of {divisor} costs {name} {least} at least; type "
        f"{cost_info(name).flag} {least} or more, or a smaller divisor"
    )


def round_counts(space: WidthSpace, knob: int, divisor: int) -> NDArray[np.int64]:
    """All counts of the Dims of a knob that are multiples of the divisor: [n, dims], largest first.

    Tied Dims are each rounded down from the same multiplier, as in a training with the divisor. No
    count is below that of the smallest child, which the weights were trained for.
    """
    dims = tuple(replace(dim, divisor=math.lcm(dim.divisor, divisor)) for dim in space.dims)
    like = WidthSpace(dims, space.knobs)
    members = [*space.knobs[knob].dims]
    shares = {k * dims[at].grain / dims[at].full for at in members for k in range(dims[at].full)}
    low = space.knobs[knob].low
    steps = sorted({low, 1.0, *(share for share in shares if low < share < 1)}, reverse=True)
    multipliers = np.ones((len(steps), len(space)))
    multipliers[:, knob] = steps
    found = like.counts(multipliers)[:, members]
    return found[(found >= np.array(space.smallest.counts)[members]).all(axis=1)]


def judged(
    run: Run, children: Sequence[Widths], data: Any, price: Callable[[Widths], dict[str, float]]
) -> dict[Widths, Point]:
    """Measure children as `judge` measures those of a front; their statistics stay in the network.

    Children that are on the front of the run keep what was measured there.
    """
    net = run.net
    points = {p.widths: replace(p, costs=price(p.widths)) for p in run.front}
    new = [widths for widths in dict.fromkeys(children) if widths not in points]
    task = task_of(run.config, data)
    train = [*data.sweep("train", EVALUATION_BATCH, limit=run.config.front_images)]
    losses = [loss_with_statistics(net, widths, train, task.criterion) for widths in new]

    def errors_on(split: str) -> list[float | None]:
        if not new or not data.sizes[split]:
            return [None] * len(new)
        sweep = data.sweep(split, EVALUATION_BATCH)
        return [error for error, _ in errors(net, new, sweep, as_metric(task.metric))]

    for widths, loss, val, test in zip(new, losses, errors_on("val"), errors_on("test")):
        points[widths] = Point(widths, price(widths), loss, val, test)
    return {widths: points[widths] for widths in children}
