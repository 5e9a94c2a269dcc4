"""A search over the children of a network: propose, score on training images, judge.

`ChildSearch` is the half of the alternating optimization that leaves the weights alone (the width
problem, equation 6 of the paper). `explore` is that half by itself, on weights that are trained
already; `Slimming` adds the weight problem.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
from torch import Tensor

from joslim.costs import Cost
from joslim.costs import cost as make_cost
from joslim.costs.custom import FunctionCost
from joslim.distributed import broadcast, gathered, is_first, shared_out
from joslim.errors import UserError
from joslim.front import Front, check_cost_name, cost_key
from joslim.search import History
from joslim.search import searcher as make_searcher
from joslim.search.base import Searcher
from joslim.slimmable import SlimmableNet
from joslim.slimmable.running import refuse_meta
from joslim.space import Widths
from joslim.training.evaluate import labels_of, score
from joslim.training.judging import choose_finalists, judge
from joslim.training.methods import Preset, search_frozen_weights
from joslim.training.methods import preset as find_preset
from joslim.training.step import Criterion

# Children that a cost function of the user's own has to price before a training begins.
CHILDREN_TRIED = 32
# Number of batches that are kept if `scoring` can only be iterated over.
KEPT_BATCHES = 64


class ChildSearch:
    """Proposes, scores and judges children of a network, on weights as they are now."""

    def __init__(
        self,
        net: SlimmableNet,
        cost: str | Callable[[Widths], float] | Cost,
        searcher: Searcher,
        scoring: Iterable[Any],
        seed: int,
        samples: int,
    ) -> None:
        self.net = net
        self.space = net.space
        self.cost = cost if isinstance(cost, Cost) else make_cost(cost, net)
        check_cost_name(cost_key(self.cost.name))
        check_own_cost(self.cost)
        self.history = History(self.cost)
        self.searcher = searcher
        self.scoring = as_sequence(scoring)
        self.samples = samples
        self.rng = np.random.default_rng(seed)
        self.criterion: Criterion | None = None
        self.steps = 0
        self.scoring_passes = 0
        # Seconds that the parts of a training took, for people to read: nothing depends on it.
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @property
    def round(self) -> int:
        """Number of the present round, which decides the scoring batch."""
        return 0

    def propose(self, count: int) -> list[Widths]:
        """Ask the searcher for the children to evaluate next; all processes get the same ones.

        Args:
            count: Number of children.
        """
        proposed = None
        with timed(self.seconds, "search"):
            if is_first():
                found = self.searcher.propose(self.history, count, self.rng)
                proposed = [child.counts for child in found], self.rng.bit_generator.state
            proposed = broadcast(proposed)
        assert proposed is not None
        children, self.rng.bit_generator.state = proposed
        return [self.space.of_counts(counts) for counts in children]

    def score(self, children: Sequence[Widths]) -> list[float]:
        """Compute the losses of children on the scoring batch of this round.

        Args:
            children: Children of the network.
        """
        batch = self.scoring[self.round % len(self.scoring)]
        self.scoring_passes += len(children)
        with timed(self.seconds, "scoring"):
            return gathered(score(self.net, shared_out(children), batch, self._criterion()))

    def judge(
        self, most: int, batches: Iterable[Any] | None = None, images: int = 2048, **options: Any
    ) -> Front:
        """Judge the best `most` children of the history, by default on images of `scoring`."""
        finalists = choose_finalists(self.history, most, self.score, self.steps)
        seen = first_images(self.scoring, images) if batches is None else [*batches]
        return judge(
            self.net,
            self.history,
            finalists,
            self._criterion(),
            seen,
            step=self.steps,
            **options,
        )

    def _criterion(self) -> Criterion:
        if self.criterion is None:
            raise UserError("criterion: none given yet; type slimming.front(criterion=...)")
        return self.criterion


def explore(
    net: SlimmableNet,
    batches: Iterable[Any],
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
        batches: Un-augmented training batches (inputs, labels).
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
    chosen = chosen_searcher(searcher, "bignas", preset, {})
    search = ChildSearch(slimmable_inside(net), cost, chosen, batches, seed, samples=2)
    search.criterion = criterion
    search_frozen_weights(search, children)
    return search.judge(preset.finalists, **options)


def slimmable_inside(net: Any) -> SlimmableNet:
    """Return the slimmable network, which may be inside a wrapper."""
    modules = net.modules() if hasattr(net, "modules") else ()
    slimmable = next((module for module in modules if isinstance(module, SlimmableNet)), None)
    if slimmable is None:
        raise UserError(f"net: {type(net).__name__} is not slimmable; type joslim.slim(...) first")
    refuse_meta(slimmable)
    return slimmable


def chosen_searcher(
    wanted: str | Searcher | None, method: str, preset: Preset, options: Mapping[str, Any]
) -> Searcher:
    """Return the wanted searcher, or the preset's, with the options that the preset has for it."""
    if isinstance(wanted, Searcher):
        if options:
            raise UserError("search_options: they go with the name of a searcher, not with one")
        return wanted
    if method not in preset.searchers and options:
        raise UserError(f"{min(options)}: method {method} does not search; leave it out")
    default, _ = preset.searchers.get(method, ("random", {}))
    name = default if wanted is None else wanted
    own_options = dict(preset.searchers.values()).get(name, {})
    return make_searcher(name, **{**own_options, **options})


def check_own_cost(cost: Cost) -> None:
    """Try a cost function of the user's own before the training.

    Afterwards a front could not be written. The search may price any child, so some random ones
    are tried besides the smallest and the full network.
    """
    if not isinstance(cost, FunctionCost):
        return
    space, rng = cost.space, np.random.default_rng(0)
    for child in (space.smallest, *(space.random(rng) for _ in range(CHILDREN_TRIED))):
        cost(child)
    if not cost(space.full):
        has = f"{cost.name} of the full network is 0"
        raise UserError(f"cost: {has}; a positive number is needed")


def at_least_one(field: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise UserError(f"{field}: {value!r} is not a whole number of at least 1")


@contextmanager
def timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    """Add the time that the block takes to `seconds[part]`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[part] += time.perf_counter() - start


def as_sequence(batches: Iterable[Any]) -> Sequence[Any]:
    """Return batches that can be indexed. The first batches of a mere iterable are kept."""
    if isinstance(batches, (Tensor, Mapping)):
        kind = type(batches).__name__
        raise UserError(f"scoring: {kind} given, a sequence of batches (inputs, labels) needed")
    indexed = hasattr(batches, "__getitem__") and hasattr(batches, "__len__")
    result: Any = batches if indexed else list(islice(batches, KEPT_BATCHES))
    if not len(result):
        raise UserError("scoring: no batches given; at least one of (inputs, labels) is needed")
    return result


def first_images(batches: Sequence[Any], images: int) -> list[Any]:
    """Return the first batches that together have at least this many images."""
    chosen, count = [], 0
    for position in range(len(batches)):
        if count >= images:
            break
        chosen.append(batches[position])
        count += len(labels_of(chosen[-1]))
    return chosen
