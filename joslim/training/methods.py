"""The methods: when widths are chosen while the weights train, and which children are judged.

A method is a record in `METHODS`. They differ only in when the width problem (equation 6 of the
paper) is solved: never (slim), once at the end (bignas), once early (autoslim, and at the very
beginning sensitivity), every K steps (joslim). `single` has no width problem: it trains one child
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from joslim.errors import UserError, unknown
from joslim.search import Searcher, greedy_removal, keep_useful
from joslim.search import searcher as make_searcher
from joslim.search.cost_targeting import LOG_SHARE
from joslim.search.history import ALL
from joslim.search.initial_design import start_size
from joslim.search.sensitivity import on_curve, shrink_rates
from joslim.space import CHANNELS, Widths, WidthSpace

if TYPE_CHECKING:
    from joslim.training.slimming import Slimming

# Slim is judged at this many widths, spread evenly over the cost axis (appendix of the paper).
SLIM_CHILDREN = 40
# A method for short fine-tunings, where judging so many would take as long as training, is judged
# at fewer widths, spread evenly over the logarithm of the cost.
FEW_CHILDREN = 20
# AutoSlim trains for this share of the steps before it removes channels (the paper: 10 to 20%).
AUTOSLIM_EARLY = 0.15
# Images that measure the sensitivity of each knob: all children see the same ones, so few suffice.
SENSITIVITY_IMAGES = 512
# Places at which the children of a curve are priced: finer than any channel count.
PLACES = 4001


@dataclass(frozen=True)
class Method:
    summary: str
    # Chooses the widths to train besides the full and the smallest.
    choose: Callable[[Slimming], list[Widths]]
    # Whether they hold for K steps, or are drawn anew at each step.
    in_rounds: bool = False
    # Adds the children to the history that are to be judged and are not in it yet.
    finish: Callable[[Slimming], None] = field(default=lambda training: None)
    # Whether the full network, which teaches, and the smallest child are always trained.
    sandwich: bool = True


def targeted_widths(training: Slimming) -> list[Widths]:
    """Joslim, Algorithm 1: refresh the losses, ask the search, remember its answer."""
    plain = training.preset.plain_history
    if not plain:
        visit_start_if_none(training)
    training.rescore()
    chosen = training.propose(training.samples)
    for child in chosen:
        training.history.visit(child, training.steps, again=plain)
    return chosen


def visit_start_if_none(training: Slimming) -> None:
    """Visit the initial design if no child was visited yet."""
    if not training.history:
        training.visit_start()


def equally_slim_widths(training: Slimming) -> list[Widths]:
    """Slim: one random multiplier for all knobs, or for all layers."""
    drawn = training.rng.uniform(training.space.low.min(), 1.0, size=training.samples)
    return [training.space.uniform(share, training.channels_only) for share in drawn]


def random_widths(training: Slimming) -> list[Widths]:
    """BigNAS: a random multiplier for each knob."""
    return [training.space.random(training.rng) for _ in range(training.samples)]


def refuse_other_knobs(method: str, space: WidthSpace) -> None:
    """AutoSlim removes channels: refuse it for a network with knobs of other kinds."""
    if method == "autoslim" and (others := {*space.kinds} - {CHANNELS}):
        raise UserError(
            f"method: autoslim removes channels only, this network has knobs of "
            f"{' and '.join(sorted(others))} too; leave out depth and resolutions, or type joslim"
        )


def greedy_sequence_widths(training: Slimming) -> list[Widths]:
    """AutoSlim: random widths at first; then children of the sequence that greedy removal finds."""
    alone, history = training.alone_until, training.history
    early = alone + AUTOSLIM_EARLY * (training.total_steps - alone)
    if training.steps < early:
        return random_widths(training)
    since = [child for child in range(len(history)) if history.tried(child) >= early]
    sequence = since or remove_greedily(training)
    drawn = training.rng.integers(len(sequence), size=training.samples)
    return [history.visits[sequence[place]].widths for place in drawn]


def remove_greedily(training: Slimming) -> list[int]:
    """Visit and score the children of a greedy removal of channels; returns their ids."""
    found = greedy_removal(training.space, training.cost, training.score_in_round)
    sequence = keep_useful(found, training.cost)
    ids = [training.history.visit(child, training.steps) for child in sequence]
    training.history.record(dict(zip(ids, training.score_in_round(sequence))), training.steps)
    return ids


def finish_greedy_sequence(training: Slimming) -> None:
    """Remove channels now if the training ended before its removal."""
    if not training.history:
        remove_greedily(training)


def visit_equally_slim_widths(training: Slimming) -> None:
    """Slim: visit children of equal multipliers, at costs that are spread evenly."""
    space = training.space
    ray = space.ray(np.linspace(space.low.min(), 1.0, PLACES), training.channels_only)
    visit_spread(training, ray, lambda low, high: np.linspace(low, high, SLIM_CHILDREN))


def visit_spread(
    training: Slimming,
    curve: NDArray[np.float64],
    targets: Callable[[float, float], NDArray[np.float64]],
) -> None:
    """Visit the children of a curve, [places, knobs], that are nearest to target costs."""
    space = training.space
    # Each child once: a function of the user's may take long.
    counts = list(dict.fromkeys(map(tuple, space.counts(curve).tolist())))
    costs = training.cost.of_counts(np.array(counts)).astype(np.float64)
    for target in targets(costs[0], costs[-1]):
        nearest = counts[np.abs(costs - target).argmin()]
        training.history.visit(space.of_counts(nearest), training.steps)


def sensitivity_widths(training: Slimming) -> list[Widths]:
    """Children of one curve, on which the knobs that the trained network needs most stay wide.

    Places are even in the logarithm of the multiplier, which favours small children.
    """
    if training.shrink_rates is None:
        score = partial(training.score, images=SENSITIVITY_IMAGES)
        training.shrink_rates = shrink_rates(training.space, training.cost, score)
    low = float(training.space.low.min())
    multipliers = low ** training.rng.random(size=training.samples)
    places = (multipliers - low) / (1.0 - low) if low < 1 else multipliers
    return [training.space.at(r) for r in on_curve(training.space, training.shrink_rates, places)]


def visit_curve(training: Slimming) -> None:
    """Visit children of the curve, at costs that are even in the logarithm."""
    rates = np.ones(len(training.space))  # if no child was trained
    if training.shrink_rates is not None:
        rates = training.shrink_rates
    curve = on_curve(training.space, rates, np.linspace(0, 1, PLACES))

    def targets(low: float, high: float) -> NDArray[np.float64]:
        return (np.geomspace if low > 0 else np.linspace)(low, high, FEW_CHILDREN)

    visit_spread(training, curve, targets)


def search_frozen_weights(training: Slimming) -> None:
    """BigNAS: search after the weights are trained, for as many children as Joslim visits."""
    # `children` is 0 when `full_first` is 1.
    training.search(training.children or start_size(training.space))


def visit_trained_child(training: Slimming) -> None:
    """Single: the front is the child that was trained."""
    training.history.visit(training.alone or training.space.full, training.steps)


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
        finish=search_frozen_weights,
    ),
    "autoslim": Method(
        "a short training, greedy removal of channels, then training of that sequence",
        greedy_sequence_widths,
        finish=finish_greedy_sequence,
    ),
    "sensitivity": Method(
        "one curve of children on which sensitive layers stay wide, for short fine-tunings",
        sensitivity_widths,
        finish=visit_curve,
    ),
    "single": Method(
        "one child alone, at the given widths",
        lambda training: [],
        finish=visit_trained_child,
        sandwich=False,
    ),
}
"""The table of training strategies: name -> when and how children (subnets) are chosen.

Examples:
    >>> for name, method in joslim.METHODS.items():
    ...     print(f"{name}: {method.summary}")
    joslim: widths and weights jointly...
    slim: ...
    bignas: ...
    autoslim: ...
    sensitivity: ...
    single: ...
"""
# With channel counts alone, once-for-all networks are trained as BigNAS is (footnote of the paper).
ALIASES = {"ofa": "bignas"}


def method(name: Any) -> tuple[str, Method]:
    """Return the name in the table of a method or alias, and the method."""
    resolved = ALIASES.get(name, name) if isinstance(name, str) else name
    if not isinstance(resolved, str) or resolved not in METHODS:
        raise unknown("method", str(name), [*METHODS, *ALIASES])
    return resolved, METHODS[resolved]


@dataclass(frozen=True)
class Preset:
    """Values for everything that the paper leaves to us, or that we do better."""

    summary: str
    # The searcher of each method that searches, and its options.
    searchers: dict[str, tuple[str, dict[str, Any]]]
    # The largest number of children that are scored again in a round of K steps.
    rescore: Callable[[int], int]
    # The number of children that are judged on many images at the end.
    finalists: int
    # Whether the history of method joslim is that of Algorithm 1: it is empty at first, and every
    # proposal is trained and adds an entry, also one that repeats another. Else the history begins
    # with children that are only scored, and has each child once.
    plain_history: bool = False
    # Defaults of settings (`joslim/training/settings.py`) that are others than the declared ones.
    changes: Mapping[str, Any] = field(default_factory=dict)


TARGETED: dict[str, tuple[str, dict[str, Any]]] = {
    name: ("targeted", {"log_share": LOG_SHARE}) for name in ("joslim", "bignas")
}

PRESETS: dict[str, Preset] = {
    # It has the declared defaults of the settings; docs/results.md has the reasons.
    "default": Preset(
        "the width problem solved directly with the exact cost; a budget for re-scoring",
        TARGETED,
        rescore=lambda every: min(64, max(8, every // 2)),
        finalists=64,
    ),
    "paper": Preset(
        "as the paper has it: two GPs, Tchebyshev scalarization, bisection, mean plus deviation",
        {
            "joslim": ("mobo-ts2", {"optimistic": False}),
            "bignas": ("mobo-rs", {"optimistic": False}),
        },
        rescore=lambda every: ALL,
        finalists=ALL,
        plain_history=True,
        # All children are trained in every step, with equal weights.
        changes={"full_weight": 1.0, "full_first": 0.0, "draw": 65, "random_share": 0.0},
    ),
}
"""The table of presets: name -> the settings that a method leaves open.

"default" has our own choices; "paper" does what the paper says, and docs/reproduce-the-paper.md
lists the choices that it leaves open.

Examples:
    >>> sorted(joslim.PRESETS)
    ['default', 'paper']
    >>> joslim.PRESETS["paper"].changes["full_weight"]
    1.0
"""


def preset(name: Any) -> Preset:
    """Return the preset of this name."""
    if not isinstance(name, str) or name not in PRESETS:
        raise unknown("preset", str(name), PRESETS)
    return PRESETS[name]


def choose_searcher(
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
