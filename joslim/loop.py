"""The alternating loop (equations 6 and 7 of the paper), as an object for anybody's loop.

    slimming = joslim.Slimming(net, method="joslim", cost="macs", total_steps=n, scoring=batches)
    for x, y in loader:
        slimming.step(x, y, optimizer, criterion)
    front = slimming.front()

Symbols of the paper: K is `every`, the steps between two choices of widths; M is `samples`, the
widths that are chosen; H is `history`.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from joslim.costs import COSTS, Cost
from joslim.costs import cost as make_cost
from joslim.costs.function import FunctionCost
from joslim.errors import RunFailed, UserError
from joslim.front import Front, Point, check_cost_name, cost_key, non_dominated
from joslim.methods import Preset
from joslim.methods import method as find_method
from joslim.methods import preset as find_preset
from joslim.processes import broadcast, gathered, is_first, shared_out, world
from joslim.search import History, Scored
from joslim.search import searcher as make_searcher
from joslim.search.base import Searcher
from joslim.search.rescoring import due
from joslim.slimmable import SlimmableNet, statistics_of
from joslim.training.distillation import Distillation, distillation
from joslim.training.evaluate import Metric, errors, mean_loss, on_device, score, wrong
from joslim.training.step import Criterion, backward, clip_gradients, refuse_non_finite
from joslim.untrusted import json_count, json_number
from joslim.widths import Widths

# Children that a whole training visits, unless K is given (the paper's choice).
CHILDREN = 1000
# In a short training rounds would take longer than steps, and more of them do not help
# (docs/results.md).
LEAST_EVERY = 10
# What a state was of before there were these settings.
BEFORE = {
    "label_share": 0.0,
    "replay": 0.0,
    "full_weight": 1.0,
    "full_first": 0.0,
    "draw": None,
}
# A state that has made more is broken.
MOST_STEPS = 10**12
# Batches that are kept of a `scoring` that can only be iterated over.
KEPT_BATCHES = 64


class Slimming:
    """Trains all widths of a network at once, and chooses the widths while it does.

    net: what `joslim.slim` returned, or a wrapper of it that is to be called instead (DDP).
    method, preset: names of `METHODS` and `PRESETS`. cost: a name, a function of Widths, or a Cost.
    scoring: un-augmented training batches (inputs, labels); one of them scores all children of a
    round. every: steps between choices (K); by default so that 1000 children are visited, and 10 at
    least. samples: widths besides the largest and the smallest (M). draw: how many of these and the
    smallest learn in a step, drawn anew at each; they stand for all in its gradient. widths: the
    child of method `single`. distill: how children learn from the full network. label_share: how
    much of their loss is that of the labels instead. full_weight: how many times the gradient of
    the full network counts. full_first: the share of the steps, at the beginning, in which it
    learns alone. (draw and the last two are as the preset has them unless given; 1, 3 and 0.3 by
    default.) replay: the share of the trained widths that is drawn at each step from the front
    known so far, in place of those of the search. searcher: a Searcher, or the name of one, which
    search_options change (beta, epsilon, ...). rescore: children scored anew in a round, at most.
    seed: of everything random in here.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        method: str = "joslim",
        cost: str | Callable[[Widths], float] | Cost = "macs",
        total_steps: int,
        scoring: Iterable[Any],
        every: int | None = None,
        samples: int = 2,
        draw: int | None = None,
        widths: Widths | None = None,
        distill: str | Distillation = "soft",
        label_share: float = 0.0,
        full_weight: float | None = None,
        full_first: float | None = None,
        replay: float = 0.0,
        preset: str = "default",
        searcher: str | Searcher | None = None,
        search_options: Mapping[str, Any] | None = None,
        rescore: int | None = None,
        seed: int = 0,
    ) -> None:
        at_least_one("total_steps", total_steps)
        at_least_one("samples", samples)
        self.model = net
        self.net = slimmable_inside(net)
        self.space = self.net.space
        self.cost = cost if isinstance(cost, Cost) else make_cost(cost, self.net)
        check_cost_name(cost_key(self.cost.name))
        check_own_cost(self.cost)
        self.history = History(self.cost)
        self.name, self.method = find_method(method)
        self.preset = find_preset(preset)
        self.total_steps = total_steps
        self.samples = samples
        drawn = self.preset.draw if draw is None else draw
        self.draw = samples + 1 if drawn is None else drawn
        at_least_one("draw", self.draw)
        if widths is not None and self.method.sandwich:
            raise UserError(f"widths: only method single trains given widths, not {self.name!r}")
        self.alone = widths
        self.distill = distillation(distill)
        self.label_share = checked_share("label_share", label_share)
        weight = self.preset.full_weight if full_weight is None else full_weight
        self.full_weight = checked_weight("full_weight", weight)
        first = self.preset.full_first if full_first is None else full_first
        self.full_first = checked_share("full_first", first)
        # The first step at which other widths than the full one are trained.
        self.alone_until = round(self.full_first * total_steps) if self.method.sandwich else 0
        with_others = total_steps - self.alone_until
        self.every = default_every(with_others, samples) if every is None else every
        at_least_one("every", self.every)
        # As many as a whole training visits.
        self.children = -(-with_others // self.every) * samples
        self.replay = checked_share("replay", replay)
        self.searcher = chosen_searcher(searcher, self.name, self.preset, search_options or {})
        self.rescore_budget = self.preset.rescore(self.every) if rescore is None else rescore
        at_least_one("rescore", self.rescore_budget)
        self.rng = np.random.default_rng(seed)
        self.scoring = as_sequence(scoring)
        self.steps = 0
        # Passes forward and backward to learn, and forward only to score.
        self.passes = 0
        self.scoring_passes = 0
        # What the parts of the loop took, for people to read: nothing depends on it.
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.widths: list[Widths] = []
        self.losses = torch.zeros(0)
        self.criterion: Criterion | None = None
        # What the method has chosen, which may hold for many steps, and when; when `widths` were
        # drawn from that.
        self._chosen: list[Widths] = []
        self._front: list[Widths] | None = None
        self._chosen_at = -1
        self._drawn_at = -1
        self._finished_at = -1

    # The loop: step = backward + optimizer + advance

    def step(
        self,
        x: Any,
        y: Any,
        optimizer: torch.optim.Optimizer,
        criterion: Criterion,
        clip: float | None = None,
    ) -> Tensor:
        """One optimizer step at all widths. Returns the loss of the full network.

        clip: the largest norm of the gradient. Raises RunFailed if a loss or the gradient is not
        finite, with the weights as they were.
        """
        optimizer.zero_grad(set_to_none=True)
        loss = self.backward(x, y, criterion)
        refuse_non_finite(self.losses, self.widths, self.steps)
        clip_gradients(self.net.parameters(), clip, self.steps)
        optimizer.step()
        self.advance()
        return loss

    def backward(
        self,
        x: Any,
        y: Any,
        criterion: Criterion,
        differentiate: Callable[[Tensor], Any] = Tensor.backward,
    ) -> Tensor:
        """Add the gradients of all widths of this step to those that are there.

        Chooses new widths first if it is time to. `losses` has the loss at each of `widths`.
        Call it several times before `advance` to accumulate gradients. `differentiate` is called
        with each loss: lambda loss: scaler.scale(loss).backward(), accelerator.backward, ...
        """
        self.criterion = criterion
        self.net.statistics.clear()  # what they were taken for is about to change
        self._choose()
        inputs = tuple(x) if isinstance(x, (tuple, list)) else (x,)
        self.losses = backward(
            self.model,
            self.net,
            self.widths,
            inputs,
            y,
            criterion,
            self.distill,
            differentiate,
            self.label_share,
            self.full_weight if self.method.sandwich else 1.0,
            self._other_weight,
        )
        self.passes += len(self.widths)
        return self.losses[0]

    def advance(self) -> None:
        """The optimizer has made its step."""
        self.steps += 1
        self.net.statistics.clear()

    def _choose(self) -> None:
        if self._drawn_at == self.steps:  # gradients are being accumulated
            return
        # A training that was extended stays with its children.
        if self.steps < self.alone_until and self._chosen_at < 0:
            self.widths = [self.space.full]
            return
        same_round = self._chosen_at >= 0 and (
            self.method.in_rounds and self.steps // self.every == self._chosen_at // self.every
        )
        if not same_round:
            self._front = None
            self._chosen = self.method.choose(self)
            self._chosen_at = self.steps
        if self.method.sandwich:
            others = self._drawn([*self._replayed(self._chosen), self.space.smallest])
            # Once each: a full network that learns from itself would only cost time.
            self.widths = [*dict.fromkeys([self.space.full, *others])]
        else:
            self.widths = [self.alone or self.space.full]
        self._drawn_at = self.steps

    def _replayed(self, chosen: list[Widths]) -> list[Widths]:
        """Each of them; or, as often as `replay` says, a child of the front in its place."""
        if self.replay == 0:
            return chosen
        if self._front is None:  # once a round, and after a resume: the history stands still
            scored = self.history.scored()
            best = scored.ids[non_dominated(scored.losses, scored.costs)]
            self._front = [self.history.visits[child].widths for child in best]
        if not self._front:
            return chosen
        drawn = self.rng.choice(len(self._front), size=len(chosen))
        instead = self.rng.random(len(chosen)) < self.replay
        return [
            self._front[other] if swap else child
            for child, other, swap in zip(chosen, drawn, instead)
        ]

    def _drawn(self, others: list[Widths]) -> list[Widths]:
        """As many of them as learn in one step, which chance decides anew for each step."""
        if self.draw >= len(others):
            return others
        places = self.rng.choice(len(others), size=self.draw, replace=False)
        return [others[place] for place in sorted(places)]

    @property
    def _other_weight(self) -> float:
        """Those that were drawn stand for all: so the gradient is, in the mean, that of all."""
        return max(1.0, (len(self._chosen) + 1) / self.draw)

    # What methods ask for

    def propose(self, count: int) -> list[Widths]:
        """What the searcher of the first process wants, on all processes."""
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
        """Their losses on this round's batch of un-augmented training data."""
        batch = self.scoring[self.steps // self.every % len(self.scoring)]
        self.scoring_passes += len(children)
        with timed(self.seconds, "scoring"):
            return gathered(score(self.net, shared_out(children), batch, self._criterion()))

    def rescore(self) -> None:
        ids = due(self.history, self.rescore_budget)
        losses = self.score([self.history.visits[i].widths for i in ids])
        self.history.record(dict(zip(ids, losses)), self.steps)

    def _criterion(self) -> Criterion:
        if self.criterion is None:
            raise UserError("criterion: none given yet; type slimming.front(criterion=...)")
        return self.criterion

    # The answer

    def front(
        self,
        criterion: Criterion | None = None,
        *,
        batches: Iterable[Any] | None = None,
        images: int = 2048,
        val: Iterable[Any] | None = None,
        test: Iterable[Any] | None = None,
        metric: Metric = wrong,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Front:
        """The children that no other child beats in both training loss and cost.

        Each child gets BatchNorm statistics of its own from `batches` of un-augmented training
        images (by default `images` of those in `scoring`), and its loss on the same images; then
        its errors on `val` and `test` batches, if given.
        metric(outputs, labels): how wrong each sample is, from 0 to 1. The statistics of these
        children stay in `net.statistics`, so that `net.use(point)` is instant and right.
        """
        self.criterion = criterion or self.criterion
        self._criterion()
        if self._finished_at != self.steps:
            self.method.finish(self)
            self._finished_at = self.steps
        finalists = self._finalists()
        seen = first_images(self.scoring, images) if batches is None else [*batches]
        losses = self._judge_all(finalists, seen, progress)
        self.history.record(losses, self.steps)
        self._front = None
        if not any(math.isfinite(loss) for loss in losses.values()):
            raise RunFailed(f"none of {len(self.history)} children has a finite loss: no front")
        best = self._best(finalists)
        children = [self.history.visits[child].widths for child in best]
        self._forget_all_but(children)

        def beat() -> None:
            progress(len(finalists), len(finalists))

        val_errors = self._errors(children, val, metric, beat)
        test_errors = self._errors(children, test, metric, beat)
        points = [
            Point(widths, self._costs(widths), losses[child], *found)
            for child, widths, *found in zip(best, children, val_errors, test_errors)
        ]
        span = (float(self.cost(self.space.smallest)), float(self.cost(self.space.full)))
        return Front(points, self.cost.name, span)

    def _finalists(self) -> list[int]:
        """The children that are worth judging on many images: front after front, as many as fit."""
        most = self.preset.finalists
        everyone = range(len(self.history))
        if len(everyone) <= most:
            return list(everyone)
        losses = self.score([visit.widths for visit in self.history.visits])
        self.history.record(dict(zip(everyone, losses)), self.steps)
        scored = self.history.scored()
        return sorted(scored.ids[nearest_the_front(scored, most)].tolist())

    def _judge_all(
        self, finalists: list[int], batches: Sequence[Any], progress: Callable[[int, int], None]
    ) -> dict[int, float]:
        """Their losses; and their statistics, which every process then has of all."""
        mine = []
        for done, child in enumerate(shared_out(finalists)):
            progress(done * world(), len(finalists))
            widths = self.history.visits[child].widths
            mine.append((widths.counts, self._judge(widths, batches), self.net.statistics[widths]))
        progress(len(finalists), len(finalists))
        device = next(self.net.parameters()).device
        losses = []
        for counts, loss, statistics in gathered(mine):
            losses.append(loss)
            self.net.statistics[self.space.of_counts(counts)] = {
                norm: (mean.to(device), var.to(device)) for norm, (mean, var) in statistics.items()
            }
        return dict(zip(finalists, losses))

    def _judge(self, child: Widths, batches: Sequence[Any]) -> float:
        """Its loss with statistics of its own; so has the full network, beside its running ones."""
        net = self.net
        with net.at(child):
            inputs = ((on_device(net, batch)[0],) for batch in batches)
            net.statistics[child] = statistics_of(net, inputs)
            net._switch(child)
            return mean_loss(net, batches, self._criterion())

    def _best(self, finalists: list[int]) -> list[int]:
        """Ids of the finalists that are not dominated, by cost."""
        scored = self.history.scored()
        chosen = np.isin(scored.ids, finalists)
        ids, costs = scored.ids[chosen], scored.costs[chosen]
        best = non_dominated(scored.losses[chosen], costs)
        return ids[best][np.argsort(costs[best], kind="stable")].tolist()

    def _forget_all_but(self, children: list[Widths]) -> None:
        """The statistics of the others."""
        for widths in self.net.statistics.keys() - set(children):
            del self.net.statistics[widths]
        self.net._switch(self.net.active)

    def _errors(
        self,
        children: list[Widths],
        batches: Iterable[Any] | None,
        metric: Metric,
        beat: Callable[[], None],
    ) -> Sequence[float | None]:
        """In percent; `beat` is called at every batch."""
        if batches is None:
            return [None] * len(children)
        watched = with_beat(batches, beat)
        return gathered(errors(self.net, shared_out(children), watched, metric))

    def _costs(self, child: Widths) -> dict[str, float]:
        """What can be counted, and the cost of this training by its own name."""
        counted = [make_cost(name, self.net) for name in COSTS if name != "latency"]
        costs = {cost.name: cost(child) for cost in [*counted, self.cost]}
        if "latency" in costs:
            costs[cost_key("latency")] = costs.pop("latency")
        return costs

    # State: all that the next step depends on, besides the network and the optimizer

    @property
    def finished(self) -> bool:
        """The front was judged after the last step: nothing is left to do."""
        return self._finished_at == self.total_steps

    def state_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, which torch.load(weights_only=True) and JSON can read."""
        return {
            "settings": self._settings(),
            "steps": self.steps,
            "passes": self.passes,
            "scoring_passes": self.scoring_passes,
            "chosen": [list(child.counts) for child in self._chosen],
            "chosen_at": self._chosen_at,
            "drawn_at": self._drawn_at,
            "finished_at": self._finished_at,
            "widths": [list(child.counts) for child in self.widths],
            "history": self.history.state_dict(),
            "searcher": self.searcher.state_dict(),
            "rng": self.rng.bit_generator.state,
        }

    def _settings(self) -> dict[str, Any]:
        """What a state is of. The number of steps is not in it: with the same K a training may be
        extended.
        """
        return {
            "method": self.name,
            "cost": self.cost.name,
            "every": self.every,
            "samples": self.samples,
            "draw": self.draw,
            "label_share": self.label_share,
            "full_weight": self.full_weight,
            "full_first": self.full_first,
            "replay": self.replay,
            "searcher": type(self.searcher).__name__,
            "alone": None if self.alone is None else list(self.alone.counts),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        expected = self._settings()
        # Older states do not say which child was trained alone.
        settings = {**BEFORE, "alone": expected["alone"], **state.get("settings", {})}
        if settings["draw"] is None:  # nor how many there were to learn in a step: all of them
            settings["draw"] = self.samples + 1
        for field, mine in expected.items():
            if (theirs := settings.get(field)) != mine:
                raise UserError(f"{field}: the state is of {theirs!r}, this is {mine!r}")
        for field in ("steps", "passes", "scoring_passes"):
            setattr(self, field, json_count(state[field], field, 0, MOST_STEPS))
        # Before there was a replay, what was chosen was trained, and the smallest after it.
        chosen = state.get("chosen", state["widths"][1:-1])
        self._chosen = [self.space.of_counts(counts) for counts in chosen]
        self._chosen_at = json_count(state["chosen_at"], "chosen_at", -1, MOST_STEPS)
        self._drawn_at = json_count(state.get("drawn_at", -1), "drawn_at", -1, MOST_STEPS)
        self._finished_at = json_count(state["finished_at"], "finished_at", -1, MOST_STEPS)
        self.widths = [self.space.of_counts(counts) for counts in state["widths"]]
        self.history.load_state_dict(state["history"])
        self.searcher.load_state_dict(state["searcher"])
        self.rng.bit_generator.state = state["rng"]


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
    """The front of a network whose weights are trained: a search and nothing else.

    batches: un-augmented training batches. searcher: a name of `SEARCHERS`, or one of your own.
    options: those of `Slimming.front`.
    """
    at_least_one("children", children)
    slimming = Slimming(
        net,
        method="bignas",
        cost=cost,
        total_steps=-(-children // 2),
        every=1,
        scoring=batches,
        searcher=searcher,
        seed=seed,
    )
    slimming.children = children
    return slimming.front(criterion, **options)


def slimmable_inside(net: nn.Module) -> SlimmableNet:
    modules = net.modules() if isinstance(net, nn.Module) else ()
    slimmable = next((module for module in modules if isinstance(module, SlimmableNet)), None)
    if slimmable is None:
        raise UserError(f"net: {type(net).__name__} is not slimmable; type joslim.slim(...) first")
    return slimmable


def check_own_cost(cost: Cost) -> None:
    """Before the training: afterwards a front could not be written. Other costs are never wrong."""
    if not isinstance(cost, FunctionCost):
        return
    for name, child in (("smallest", cost.space.smallest), ("full", cost.space.full)):
        value = cost(child)
        if not math.isfinite(value) or value < 0 or (value == 0 and name == "full"):
            has = f"{cost.name} of the {name} network is {value}"
            raise UserError(f"cost: {has}; a positive number is needed")


def at_least_one(field: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise UserError(f"{field}: {value!r} is not a whole number of at least 1")


def checked_share(field: str, value: Any) -> float:
    share = json_number(value, field)
    if not 0 <= share <= 1:
        raise UserError(f"{field}: {value!r} is not a share from 0 to 1")
    return share


def checked_weight(field: str, value: Any) -> float:
    weight = json_number(value, field)
    if weight <= 0:
        raise UserError(f"{field}: {value!r} is not above 0")
    return weight


def default_every(steps: int, samples: int) -> int:
    """K such that `CHILDREN` are visited in so many steps; in short trainings fewer."""
    return max(LEAST_EVERY, math.floor(steps * samples / CHILDREN))


def chosen_searcher(
    wanted: str | Searcher | None, method: str, preset: Preset, options: Mapping[str, Any]
) -> Searcher:
    """The one that is wanted, or the default; with the options that the preset has for it."""
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


@contextmanager
def timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[part] += time.perf_counter() - start


def as_sequence(batches: Iterable[Any]) -> Sequence[Any]:
    """Batches by number. Of what can only be iterated over, the first ones are kept."""
    if isinstance(batches, Tensor):
        raise UserError("scoring: a tensor given, a sequence of batches (inputs, labels) needed")
    indexed = hasattr(batches, "__getitem__") and hasattr(batches, "__len__")
    result: Any = batches if indexed else list(islice(batches, KEPT_BATCHES))
    if not len(result):
        raise UserError("scoring: no batches given; at least one of (inputs, labels) is needed")
    return result


def with_beat(batches: Iterable[Any], beat: Callable[[], None]) -> Iterator[Any]:
    for batch in batches:
        beat()
        yield batch


def first_images(batches: Sequence[Any], images: int) -> list[Any]:
    """Batches until there are so many images in them."""
    chosen, count = [], 0
    for position in range(len(batches)):
        if count >= images:
            break
        chosen.append(batches[position])
        count += len(chosen[-1][1])
    return chosen


def nearest_the_front(scored: Scored, most: int) -> np.ndarray:
    """[n] booleans: the front, the front without it, and so on, until so many are chosen."""
    chosen = np.zeros(len(scored), dtype=bool)
    while chosen.sum() < min(most, len(scored)):
        rest = np.flatnonzero(~chosen)
        layer = rest[non_dominated(scored.losses[rest], scored.costs[rest])]
        chosen[layer] = True
    return chosen
