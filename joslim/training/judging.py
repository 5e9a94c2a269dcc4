"""Judging: from the history of a search to the Pareto front of training loss and cost.

Judging knows nothing of the training loop. It takes a network and a history of children, and
measures the best of them on many images, each with BatchNorm statistics of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np

from joslim.costs import COSTS
from joslim.costs import cost as make_cost
from joslim.distributed import gathered, shared_out, world
from joslim.errors import RunFailed
from joslim.front import Front, Mistakes, Point, cost_key, non_dominated
from joslim.search import History
from joslim.slimmable import SlimmableNet, statistics_of
from joslim.space import Widths
from joslim.training.evaluate import Tally, errors, mean_loss, on_device
from joslim.training.metrics import METRICS, Metric
from joslim.training.step import Criterion

Progress = Callable[[int, int], None]


def choose_finalists(
    history: History, most: int, score: Callable[[Sequence[Widths]], list[float]], step: int
) -> list[int]:
    """Choose the ids of the children that are worth judging on many images.

    If there are more than `most` children, all are scored on the same images, and front after
    front is taken until there are enough.
    """
    everyone = range(len(history))
    if len(everyone) <= most:
        return list(everyone)
    history.record(dict(zip(everyone, score([v.widths for v in history.visits]))), step)
    scored = history.scored()
    chosen = np.zeros(len(scored), dtype=bool)
    while chosen.sum() < min(most, len(scored)):
        rest = np.flatnonzero(~chosen)
        chosen[rest[non_dominated(scored.losses[rest], scored.costs[rest])]] = True
    return sorted(scored.ids[chosen].tolist())


def judge(
    net: SlimmableNet,
    history: History,
    finalists: Sequence[int],
    criterion: Criterion,
    batches: Sequence[Any],
    *,
    step: int,
    val: Iterable[Any] | None = None,
    test: Iterable[Any] | None = None,
    metric: Metric = METRICS["error"],
    progress: Progress = lambda done, total: None,
) -> Front:
    """Measure the finalists on the batches, record their losses, and return the Pareto front.

    The statistics of the front's children stay in `net.statistics`. Validation and test errors are
    measured for the children of the front only.
    """
    # Children that were visited again are measured once.
    first = {history.visits[child].widths: child for child in reversed(finalists)}
    once = sorted(first.values())
    # The parts of the work: children to measure, then batches on which errors are measured.
    parts = len(once) + sum(_number_of(data) for data in (val, test))
    done = len(once)
    measured = _measure(
        net, history, once, criterion, batches, lambda done, _: progress(done, parts)
    )
    losses = {child: measured[first[history.visits[child].widths]] for child in finalists}
    history.record(losses, step)
    if not any(math.isfinite(loss) for loss in losses.values()):
        raise RunFailed(f"none of {len(history)} children has a finite loss: no front")
    scored = history.scored()
    judged = np.isin(scored.ids, finalists)
    ids, costs = scored.ids[judged], scored.costs[judged]
    on_front = non_dominated(scored.losses[judged], costs)
    best = ids[on_front][np.argsort(costs[on_front], kind="stable")].tolist()
    children = [history.visits[child].widths for child in best]
    for widths in net.statistics.keys() - set(children):
        del net.statistics[widths]
    net._switch(net.active)

    def errors_on(
        data: Iterable[Any] | None, by_class: bool = False
    ) -> Sequence[tuple[float | None, int | None, Mistakes | None]]:
        if data is None:
            return [(None, None, None)] * len(children)
        mine = shared_out(children)
        tallies = [Tally() for _ in mine] if by_class else []
        found = errors(net, mine, watched(data), metric, tallies)
        known: list[Mistakes | None] = [Mistakes.of(t.images, t.confusions) for t in tallies]
        return gathered([(*pair, m) for pair, m in zip(found, known or [None] * len(mine))])

    def watched(data: Iterable[Any]) -> Iterator[Any]:
        nonlocal done
        for batch in data:
            progress(min(done, parts), parts)
            yield batch
            done += 1

    # By the default metric, labels are classes.
    on_val, on_test = errors_on(val), errors_on(test, by_class=metric is METRICS["error"])
    progress(parts, parts)
    cost = history.cost
    counted = [make_cost(info.name, net) for info in COSTS.values() if info.on_every_front]
    points = [
        Point(
            widths,
            {cost_key(priced.name): priced(widths) for priced in [*counted, cost]},
            losses[child],
            val_error,
            test_error,
            mistakes,
        )
        for child, widths, (val_error, *_), (test_error, _, mistakes) in zip(
            best, children, on_val, on_test
        )
    ]
    span = (float(cost(net.space.smallest)), float(cost(net.space.full)))
    return Front(points, cost.name, span, val_images=on_val[0][1], metric=metric.name)


def validation_errors(
    net: SlimmableNet,
    children: Sequence[Widths],
    batches: Iterable[Any],
    val: Iterable[Any],
    metric: Metric = METRICS["error"],
) -> list[float]:
    """Return the errors of children on `val`.

    As when a front is judged, each child gets statistics of its own from the training batches.
    Nothing of the network changes.
    """
    mine = shared_out(children)
    for widths in mine:
        with net.at(widths):
            inputs = ((on_device(net, batch)[0],) for batch in batches)
            net.statistics[widths] = statistics_of(net, inputs)
    net._switch(net.active)
    found = gathered([percent for percent, _ in errors(net, mine, val, metric)])
    net.statistics.clear()
    net._switch(net.active)
    return found


def loss_with_statistics(
    net: SlimmableNet, widths: Widths, batches: Sequence[Any], criterion: Criterion
) -> float:
    """Put statistics of a child into `net.statistics`, and return its mean loss with them."""
    with net.at(widths):
        inputs = ((on_device(net, batch)[0],) for batch in batches)
        net.statistics[widths] = statistics_of(net, inputs)
        net._switch(widths)
        return mean_loss(net, batches, criterion)


def _measure(
    net: SlimmableNet,
    history: History,
    finalists: Sequence[int],
    criterion: Criterion,
    batches: Sequence[Any],
    progress: Progress,
) -> dict[int, float]:
    """Return the losses of the finalists and put the statistics of each into `net.statistics`.

    The processes share the work. Afterwards each of them has all losses and statistics.
    """
    measured = []
    for done, child in enumerate(shared_out(finalists)):
        progress(done * world(), len(finalists))
        widths = history.visits[child].widths
        loss = loss_with_statistics(net, widths, batches, criterion)
        measured.append((widths.counts, loss, net.statistics[widths]))
    device = next(net.parameters()).device
    losses = []
    for counts, loss, statistics in gathered(measured):
        losses.append(loss)
        net.statistics[net.space.of_counts(counts)] = {
            norm: (mean.to(device), var.to(device)) for norm, (mean, var) in statistics.items()
        }
    return dict(zip(finalists, losses))


def _number_of(batches: Iterable[Any] | None) -> int:
    """Number of batches; 0 if it is not known."""
    return len(batches) if isinstance(batches, Sized) else 0
