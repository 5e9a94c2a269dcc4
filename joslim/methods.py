"""The methods: when widths are chosen while the weights train, and which children are judged.

A method is a record in `METHODS`. They differ only in when the width problem (equation 6 of the
paper) is solved: never (slim), once at the end (bignas), once early (autoslim), every K steps
(joslim). `single` has no width problem: it trains one child alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from joslim.costs import Cost
from joslim.errors import unknown
from joslim.search import Random, greedy_removal, keep_useful, starting_children
from joslim.search.history import History
from joslim.search.rescoring import ALL
from joslim.search.start import start_size
from joslim.widths import Widths, WidthSpace

# Slim is judged at this many widths, spread evenly over the cost axis (appendix of the paper).
SLIM_CHILDREN = 40
# AutoSlim trains for this share of the steps before it removes channels (the paper: 10 to 20%).
AUTOSLIM_EARLY = 0.15
# Multipliers at which the ray of equally slim children is priced: finer than any channel count.
RAY = 4001


class Training(Protocol):
    """What a method sees of a training that goes on."""

    space: WidthSpace
    cost: Cost
    history: History
    rng: np.random.Generator
    steps: int
    total_steps: int
    # The full network alone is trained until this step.
    alone_until: int
    samples: int
    children: int
    alone: Widths | None

    def propose(self, count: int) -> list[Widths]:
        """What the searcher wants to be visited next."""

    def score(self, children: Sequence[Widths]) -> list[float]:
        """Losses on the images of this round."""

    def rescore(self) -> None:
        """Refresh the losses of the history on the images of this round."""


@dataclass(frozen=True)
class Method:
    summary: str
    # The widths to train at besides the largest and the smallest.
    choose: Callable[[Training], list[Widths]]
    # They hold for K steps; or they are drawn anew at each step.
    in_rounds: bool = False
    # Puts into the history what is judged at the end, and is not in it yet.
    finish: Callable[[Training], None] = field(default=lambda training: None)
    # Always train the largest, which teaches, and the smallest too.
    sandwich: bool = True


def targeted_widths(training: Training) -> list[Widths]:
    """Joslim, Algorithm 1: refresh the losses, ask the search, remember its answer."""
    history = training.history
    if not history:
        visit_start(training, start_size(training.space))
    training.rescore()
    chosen = training.propose(training.samples)
    for child in chosen:
        history.visit(child, training.steps)
    return chosen


def visit_start(training: Training, count: int) -> None:
    """What a search begins with: the full and the smallest child, and a few that fill the space."""
    for child in starting_children(training.space, training.cost, training.rng, count):
        training.history.visit(child, training.steps)


def equally_slim_widths(training: Training) -> list[Widths]:
    """Slim: one random multiplier for all layers."""
    low = float(training.space.low.min())
    drawn = training.rng.uniform(low, 1.0, size=training.samples)
    return [training.space.uniform(multiplier) for multiplier in drawn]


def random_widths(training: Training) -> list[Widths]:
    """BigNAS: a random multiplier for each knob."""
    return [training.space.random(training.rng) for _ in range(training.samples)]


def widths_of_the_greedy_sequence(training: Training) -> list[Widths]:
    """AutoSlim: random widths at first; then greedy removal, whose sequence is trained."""
    alone = training.alone_until
    early = alone + AUTOSLIM_EARLY * (training.total_steps - alone)
    if training.steps < early:
        return random_widths(training)
    sequence = scored_since(training.history, early) or remove_greedily(training)
    drawn = training.rng.integers(len(sequence), size=training.samples)
    return [training.history.visits[sequence[place]].widths for place in drawn]


def scored_since(history: History, step: float) -> list[int]:
    return [child for child in range(len(history)) if history.tried(child) >= step]


def remove_greedily(training: Training) -> list[int]:
    """Visits the sequence, with the losses that it has now; returns its ids."""
    found = greedy_removal(training.space, training.cost, training.score)
    sequence = keep_useful(found, training.cost)
    ids = [training.history.visit(child, training.steps) for child in sequence]
    training.history.record(dict(zip(ids, training.score(sequence))), training.steps)
    return ids


def finish_greedy_sequence(training: Training) -> None:
    """A training that ended before its removal still has a sequence to be judged."""
    if not training.history:
        remove_greedily(training)


def no_widths(training: Training) -> list[Widths]:
    return []


def visit_equally_slim_widths(training: Training) -> None:
    """Slim's children: the ray of equal multipliers, at costs spread evenly."""
    space = training.space
    ray = np.maximum(space.low, np.linspace(space.low.min(), 1.0, RAY)[:, None])
    costs = np.asarray(training.cost.of(ray), dtype=np.float64)
    for target in np.linspace(costs[0], costs[-1], SLIM_CHILDREN):
        nearest = int(np.abs(costs - target).argmin())
        training.history.visit(space.at(ray[nearest]), training.steps)


def search_on_frozen_weights(training: Training) -> None:
    """BigNAS: the width problem, solved once, after the weights; as many children as Joslim."""
    # None are left to it where the full network learned alone to the end.
    explore(training, training.children or start_size(training.space))


def explore(training: Training, children: int) -> None:
    """Visit so many children with the searcher, scored on the same images: weights stand still."""
    history = training.history
    goal = len(history) + children
    visit_start(training, min(start_size(training.space), children))
    while True:
        score_what_is_stale(training)
        before = len(history)
        count = min(training.samples, goal - before)
        if count <= 0:
            return
        for child in training.propose(count):
            history.visit(child, training.steps)
        if len(history) == before:  # a search that names the same again: any other will do
            for child in Random().propose(history, count, training.rng):
                history.visit(child, training.steps)
        if len(history) == before:  # there are no others
            return


def score_what_is_stale(training: Training) -> None:
    """Scores the children that were not scored with the weights as they are now.

    A loss that is not finite stays so while the weights stand still: it is not asked for again.
    """
    history = training.history
    now = [scoring for scoring in history.scorings if scoring.step == training.steps]
    fresh = {child for scoring in now for child in scoring.losses}
    stale = [child for child in range(len(history)) if child not in fresh]
    losses = training.score([history.visits[child].widths for child in stale])
    history.record(dict(zip(stale, losses)), training.steps)


def visit_the_one(training: Training) -> None:
    training.history.visit(training.alone or training.space.full, training.steps)


def visit_start_if_none(training: Training) -> None:
    """A training that never got to choose, for the full network learned alone, has a front too."""
    if not training.history:
        visit_start(training, start_size(training.space))


METHODS: dict[str, Method] = {
    "joslim": Method(
        "widths and weights jointly: new widths every K steps, by targeted search",
        targeted_widths,
        in_rounds=True,
        finish=visit_start_if_none,
    ),
    "slim": Method(
        "one random multiplier for all layers (universally slimmable networks)",
        equally_slim_widths,
        finish=visit_equally_slim_widths,
    ),
    "bignas": Method(
        "random layer-wise widths, then a search on the frozen weights",
        random_widths,
        finish=search_on_frozen_weights,
    ),
    "autoslim": Method(
        "a short training, greedy removal of channels, then training of that sequence",
        widths_of_the_greedy_sequence,
        finish=finish_greedy_sequence,
    ),
    "single": Method(
        "one child alone, at the given widths",
        no_widths,
        finish=visit_the_one,
        sandwich=False,
    ),
}
# With channel counts alone, once-for-all networks are trained as BigNAS is (footnote of the paper).
ALIASES = {"ofa": "bignas"}


def method(name: Any) -> tuple[str, Method]:
    """The method of this name or alias, and its name in the table."""
    resolved = ALIASES.get(name, name) if isinstance(name, str) else name
    if not isinstance(resolved, str) or resolved not in METHODS:
        raise unknown("method", str(name), [*METHODS, *ALIASES])
    return resolved, METHODS[resolved]


@dataclass(frozen=True)
class Preset:
    """What the paper leaves to us, or what we do better."""

    summary: str
    # The searcher of each method that searches, and its options.
    searchers: dict[str, tuple[str, dict[str, Any]]]
    # Children that are scored anew in a round of K steps, at most.
    rescore: Callable[[int], int]
    # Children that are judged on many images at the end; the front of them all at least.
    finalists: int
    # How many times the gradient of the full network counts, which the others learn from. Theirs
    # count M + 1 times in all, however many of them learn in a step.
    full_weight: float
    # The share of the steps, at first, in which it learns alone.
    full_first: float = 0.0
    # Of the M widths and the smallest, how many learn in a step, drawn anew at each; None: all.
    draw: int | None = None


# Half of the targets in the logarithm: children for the smallest budgets (docs/results.md).
TARGETED: dict[str, tuple[str, dict[str, Any]]] = {
    name: ("targeted", {"log_share": 0.5}) for name in ("joslim", "bignas")
}

PRESETS: dict[str, Preset] = {
    "default": Preset(
        "the width problem solved directly with the exact cost; a budget for re-scoring",
        TARGETED,
        rescore=lambda every: min(64, max(8, every // 2)),
        finalists=64,
        # Why these three: docs/results.md.
        full_weight=3.0,
        full_first=0.3,
        draw=1,
    ),
    "paper": Preset(
        "to the letter: two GPs, Tchebyshev scalarization, bisection, mean plus deviation",
        {
            "joslim": ("mobo-ts2", {"optimistic": False}),
            "bignas": ("mobo-rs", {"optimistic": False}),
        },
        rescore=lambda every: ALL,
        finalists=ALL,
        full_weight=1.0,
    ),
}


def preset(name: Any) -> Preset:
    if not isinstance(name, str) or name not in PRESETS:
        raise unknown("preset", str(name), PRESETS)
    return PRESETS[name]
