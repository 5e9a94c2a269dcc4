"""A search over the children of a network whose weights stay as they are: propose, score, judge.

This is the width problem (equation 6 of the paper). `explore` solves it alone, on weights that are
trained already; `Slimming` alternates it with the weight problem.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import nn

from joslim.costs import Cost
from joslim.costs import cost as make_cost
from joslim.costs.base import FunctionCost
from joslim.distributed import broadcast, gathered, is_first, shared_out
from joslim.errors import UserError
from joslim.front import Front, check_cost_name, cost_key
from joslim.search import History, Random, Searcher, starting_children
from joslim.search.initial_design import start_size
from joslim.slimmable import SlimmableNet
from joslim.slimmable.running import refuse_meta
from joslim.space import Widths
from joslim.training.evaluate import as_sequence, first_images, refuse_dataset, score
from joslim.training.judging import choose_finalists, judge
from joslim.training.methods import choose_searcher
from joslim.training.methods import preset as find_preset
from joslim.training.step import Criterion

# Least number of images that score a child while the weights stay as they are, if the scoring
# batches have as many. A round of a training scores on one batch, each round on another.
FROZEN_IMAGES = 1024


class ChildSearch:
    """Proposes, scores and judges children of a network, on weights as they are now."""

    def __init__(
        self,
        net: nn.Module,
        cost: str | Callable[[Widths], float] | Cost,
        searcher: Searcher,
        scoring: Iterable[Any],
        seed: int,
    ) -> None:
        self.net = slimmable_inside(net)
        self.space = self.net.space
        self.cost = cost if isinstance(cost, Cost) else make_cost(cost, self.net)
        check_cost_name(cost_key(self.cost.name))
        if isinstance(self.cost, FunctionCost):
            self.cost.try_out()
        self.searcher = searcher
        self.scoring = as_sequence(scoring)
        self.history = History(self.cost)
        self.rng = np.random.default_rng(seed)
        self.criterion: Criterion | None = None
        # Number of children that are proposed at a time.
        self.samples = 2
        # Number of training steps that were made, which dates the losses in the history.
        self.steps = 0
        # Passes forward to score a child on a batch.
        self.scoring_passes = 0
        # The weights that `score` measured last, the images, and the losses.
        self._frozen: tuple[Any, list[Any], dict[Widths, float]] | None = None
        # Seconds that the parts of a training took, for people to read: nothing depends on it.
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def propose(self, count: int) -> list[Widths]:
        """Ask the searcher for the children to evaluate next; all processes get the same ones.

        Args:
            count: Number of children.
        """
        proposed = None
        with adding_seconds(self.seconds, "search"):
            if is_first():
                found = self.searcher.propose(self.history, count, self.rng)
                proposed = [child.counts for child in found], self.rng.bit_generator.state
            proposed = broadcast(proposed)
        assert proposed is not None
        children, self.rng.bit_generator.state = proposed
        return [self.space.of_counts(counts) for counts in children]

    def score(self, children: Sequence[Widths], images: int = FROZEN_IMAGES) -> list[float]:
        """Compute the losses of children on the same images.

        They are remembered, with the images, until the weights change.

        Args:
            children: Children of the network.
            images: Number of images.
        """
        weights = self._version_of_weights(), self._criterion(), images
        if self._frozen is None or self._frozen[0] != weights:
            self._frozen = weights, first_images(self.scoring, images), {}
        _, batches, known = self._frozen
        new = [child for child in children if child not in known]
        known.update(zip(new, self._losses_on(batches, new)))
        return [known[child] for child in children]

    def _losses_on(self, batches: Sequence[Any], children: Sequence[Widths]) -> list[float]:
        """Compute the mean losses of children on batches, once each; processes share them."""
        once = [*dict.fromkeys(children)]
        self.scoring_passes += len(once) * len(batches)
        with adding_seconds(self.seconds, "scoring"):
            found = gathered(score(self.net, shared_out(once), batches, self._criterion()))
        known = dict(zip(once, found))
        return [known[child] for child in children]

    def _version_of_weights(self) -> int:
        """Return a number that every change of a weight in place raises. It asks no device."""
        return sum(parameter._version for parameter in self.net.parameters())

    def visit_start(self, count: int | None = None) -> None:
        """Visit the initial design: the full and the smallest child, and some that fill the space.

        Args:
            count: Number of children; by default it depends on the number of knobs.
        """
        count = start_size(self.space) if count is None else count
        for child in starting_children(self.space, self.cost, self.rng, count):
            self.history.visit(child, self.steps)

    def search(self, children: int) -> None:
        """Visit so many more children. All are scored on the same images, once each.

        Args:
            children: Number of children.
        """
        history = self.history
        goal = len(history) + children
        self.visit_start(min(start_size(self.space), children))
        while True:
            self._score_stale()
            before = len(history)
            count = min(self.samples, goal - before)
            if count <= 0:
                return
            for child in self.propose(count):
                history.visit(child, self.steps)
            if len(history) == before:  # the searcher repeats itself: take random children
                for child in Random().propose(history, count, self.rng):
                    history.visit(child, self.steps)
            if len(history) == before:  # the space has no other children
                return

    def _score_stale(self) -> None:
        """Score the children that were not scored with the present weights.

        A loss that is not finite stays so while the weights do not change: it is not computed
        again.
        """
        history = self.history
        stale = [child for child in range(len(history)) if history.tried(child) != self.steps]
        losses = self.score([history.visits[child].widths for child in stale])
        history.record(dict(zip(stale, losses)), self.steps)

    def judge(
        self, most: int, batches: Iterable[Any] | None = None, images: int = 2048, **options: Any
    ) -> Front:
        """Judge the best children of the history.

        Args:
            most: Number of children that are judged.
            batches: Un-augmented training batches; by default the first of `scoring`.
            images: Number of images that are taken from `scoring`.
            options: Other options of `joslim.training.judging.judge`.
        """
        for name, data in {"batches": batches, **options}.items():
            refuse_dataset(name, data)
        finalists = choose_finalists(self.history, most, self.score, self.steps)
        self._frozen = None  # its images need memory
        return judge(
            self.net,
            self.history,
            finalists,
            self._criterion(),
            first_images(self.scoring, images) if batches is None else [*batches],
            step=self.steps,
            **options,
        )

    def _criterion(self) -> Criterion:
        if self.criterion is None:
            raise UserError("criterion: none given yet; type slimming.front(criterion=...)")
        return self.criterion


def explore(
    net: SlimmableNet,
    scoring: Iterable[Any],
    criterion: Criterion,
    *,
    cost: str | Callable[[Widths], float] | Cost = "macs",
    searcher: str | Searcher = "targeted",
    children: int = 200,
    seed: int = 0,
    **options: Any,
) -> Front:
    """Search the Pareto front of a network whose weights are trained already.

    Args:
        net: The slimmable network.
        scoring: Un-augmented training batches (inputs, labels). The first of them, with 1,024
            samples together, score all children.
        criterion: Loss function of outputs and labels.
        cost: A name in `joslim.COSTS`, a function from `Widths` to a number, or a `Cost`.
        searcher: A `Searcher`, or a name in `joslim.SEARCHERS`.
        children: Number of children to evaluate.
        seed: Random seed of the search.
        options: Options of `Slimming.front`, such as `val` and `test`.

    Returns:
        The front, sorted by cost.

    Raises:
        UserError: A setting is not valid.
        RunFailed: No child has a finite loss.

    Examples:
        >>> run = joslim.load("runs/digits")
        >>> batches = joslim.load_data("digits").sweep("train", batch=64, limit=64)
        >>> front = joslim.explore(run.net, batches, nn.functional.cross_entropy, children=12)
        >>> front.cost
        'macs'
    """
    at_least_one("children", children)
    preset = find_preset("default")
    chosen = choose_searcher(searcher, "bignas", preset, {})
    search = ChildSearch(net, cost, chosen, scoring, seed)
    search.criterion = criterion
    search.search(children)
    return search.judge(preset.finalists, **options)


def slimmable_inside(net: Any) -> SlimmableNet:
    """Return the slimmable network, which may be inside a wrapper."""
    modules = net.modules() if hasattr(net, "modules") else ()
    slimmable = next((module for module in modules if isinstance(module, SlimmableNet)), None)
    if slimmable is None:
        raise UserError(f"net: {type(net).__name__} is not slimmable; type joslim.slim(...) first")
    refuse_meta(slimmable)
    return slimmable


def at_least_one(field: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise UserError(f"{field}: {value!r} is not a whole number of at least 1")
    return int(value)


@contextmanager
def adding_seconds(seconds: dict[str, float], part: str) -> Iterator[None]:
    """Add the time that the block takes to `seconds[part]`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[part] += time.perf_counter() - start
