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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from joslim.costs import Cost
from joslim.errors import UserError
from joslim.files import json_count
from joslim.front import Front, non_dominated
from joslim.search.base import Searcher
from joslim.search.history import children_to_rescore
from joslim.space import Widths
from joslim.training.distillation import Distillation, distillation
from joslim.training.evaluate import Metric, wrong
from joslim.training.exploring import ChildSearch, at_least_one, chosen_searcher, slimmable_inside
from joslim.training.methods import Method
from joslim.training.methods import method as find_method
from joslim.training.methods import preset as find_preset
from joslim.training.settings import SEARCH_FIELDS, checked, sandwich_of
from joslim.training.step import Criterion, backward, clip_gradients, refuse_non_finite

# Number of children that a whole training visits, unless K is given (the paper's choice).
CHILDREN = 1000
# The least default K. In a short training rounds would take longer than steps, and more of them do
# not help (docs/results.md).
LEAST_EVERY = 10
# A state that claims more steps is broken.
MOST_STEPS = 10**12


class Slimming(ChildSearch):
    """Trains a network at many widths at once and chooses the widths while it trains.

    This is the alternating optimization of the paper (equations 6 and 7) for a training loop of
    your own.

    Args:
        net: A slimmable network, or a wrapper of one that is to be called instead
            (DistributedDataParallel).
        method: Name of a training strategy in `joslim.METHODS`.
        cost: A name in `joslim.COSTS`, a function from `Widths` to a number, or a `Cost`.
        total_steps: Number of optimizer steps of the whole training.
        scoring: Un-augmented training batches (inputs, labels). One of them scores all children of
            a round.
        every: Steps between two choices of widths (the paper's K). By default such that about 1000
            children are visited, and at least 10.
        samples: Number of children chosen in each round, besides the full and the smallest (the
            paper's M). Settings that are None are as the preset has them.
        draw: Number of these children and the smallest that are trained in each step. They are
            drawn anew at each step and weighted so that the gradient is unbiased.
        widths: The child that method "single" trains.
        distill: How children learn from the full network: a name, or a function of their outputs.
        label_share: Share of the loss of the children that is computed with the labels instead of
            the full network.
        full_weight: Weight of the gradient of the full network.
        full_first: Share of the steps, at the beginning, in which only the full network is trained.
        replay: Share of the trained children that are drawn from the present Pareto front instead
            of the search.
        preset: Name of a preset in `joslim.PRESETS`.
        searcher: A `Searcher`, or a name in `joslim.SEARCHERS`.
        search_options: Options of the searcher, such as beta or epsilon.
        rescore: Largest number of known children that are scored again in each round.
        seed: Random seed of the choice of children.

    Raises:
        UserError: A setting is not valid.

    Examples:
        >>> net = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 8, 8))
        >>> data = joslim.load_data("digits")
        >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> scoring = data.sweep("train", batch=64, limit=64)
        >>> slimming = joslim.Slimming(net, total_steps=4, every=2, scoring=scoring)
        >>> for _, (x, y) in zip(range(4), data.batches(seed=0, batch=32)):
        ...     loss = slimming.step(x, y, optimizer, nn.functional.cross_entropy)
        >>> front = slimming.front()
        >>> net.use(front.pick(macs=front[-1].costs["macs"]))
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
        samples: int | None = None,
        draw: int | None = None,
        widths: Widths | None = None,
        distill: str | Distillation = "soft",
        label_share: float | None = None,
        full_weight: float | None = None,
        full_first: float | None = None,
        replay: float | None = None,
        preset: str = "default",
        searcher: str | Searcher | None = None,
        search_options: Mapping[str, Any] | None = None,
        rescore: int | None = None,
        seed: int = 0,
    ) -> None:
        at_least_one("total_steps", total_steps)
        self.name, self.method = find_method(method)
        self.preset = find_preset(preset)
        given = {
            "samples": samples,
            "draw": draw,
            "label_share": label_share,
            "full_weight": full_weight,
            "full_first": full_first,
            "replay": replay,
        }
        self.sandwich = sandwich_of(
            preset, {name: value for name, value in given.items() if value is not None}
        )
        if widths is not None and self.method.sandwich:
            raise UserError(f"widths: only method single trains given widths, not {self.name!r}")
        chosen = chosen_searcher(searcher, self.name, self.preset, search_options or {})
        inside = slimmable_inside(net)
        super().__init__(inside, cost, chosen, scoring, seed, self.sandwich.samples)
        self.model = net
        self.alone = widths
        self.distill = distillation(distill)
        self.total_steps = total_steps
        # The first step at which other widths than the full one are trained.
        self.alone_until = steps_alone(self.method, self.sandwich.full_first, total_steps)
        with_others = total_steps - self.alone_until
        default = default_every(with_others, self.samples)
        self.every: int = checked(SEARCH_FIELDS["every"], every) or default
        # Number of children that a whole training visits.
        self.children = -(-with_others // self.every) * self.samples
        most = checked(SEARCH_FIELDS["rescore"], rescore)
        self.rescore_budget: int = most or self.preset.rescore(self.every)
        # Passes forward and backward to train; `scoring_passes` are forward only.
        self.passes = 0
        self.widths: list[Widths] = []
        self.losses = torch.zeros(0)
        # The children that the method has chosen, which may hold for many steps, and at which step;
        # the step at which `widths` were drawn from them.
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
        """Make one optimizer step for all widths of this step: `backward`, the optimizer,
        `advance`.

        Args:
            x: Input of the network, or a tuple of inputs.
            y: Labels, as the criterion takes them.
            optimizer: Optimizer of the parameters of the network.
            criterion: Loss function of outputs and labels.
            clip: Largest norm of the gradient.

        Returns:
            Loss of the full network.

        Raises:
            RunFailed: A loss or the gradient is not finite. The weights have not changed.
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
        """Add the gradients of all widths of this step to the present gradients.

        New widths are chosen first if a round begins. Call it several times before `advance` to
        accumulate gradients. Afterwards `losses` holds the loss for each of `widths`.

        Args:
            x: Input of the network, or a tuple of inputs.
            y: Labels, as the criterion takes them.
            criterion: Loss function of outputs and labels.
            differentiate: A function that is called with each loss instead of `loss.backward()`,
                such as `accelerator.backward`.

        Returns:
            Loss of the full network.
        """
        self.criterion = criterion
        self.net.statistics.clear()  # they belong to the weights before this step
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
            self.sandwich.label_share,
            self.sandwich.full_weight if self.method.sandwich else 1.0,
            self._other_weight,
        )
        self.passes += len(self.widths)
        return self.losses[0]

    def advance(self) -> None:
        """Count one step. Call it after the optimizer's step."""
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
        """Replace a share `replay` of the children by random children of the present front."""
        if self.sandwich.replay == 0:
            return chosen
        if self._front is None:  # once a round, and after a resume: the history does not change
            scored = self.history.scored()
            best = scored.ids[non_dominated(scored.losses, scored.costs)]
            self._front = [self.history.visits[child].widths for child in best]
        if not self._front:
            return chosen
        drawn = self.rng.choice(len(self._front), size=len(chosen))
        instead = self.rng.random(len(chosen)) < self.sandwich.replay
        return [
            self._front[other] if swap else child
            for child, other, swap in zip(chosen, drawn, instead)
        ]

    def _drawn(self, others: list[Widths]) -> list[Widths]:
        """Draw the children that are trained in this step, without replacement."""
        if self.sandwich.draw >= len(others):
            return others
        places = self.rng.choice(len(others), size=self.sandwich.draw, replace=False)
        return [others[place] for place in sorted(places)]

    @property
    def _other_weight(self) -> float:
        """The weight (M + 1) / draw of each drawn child, which keeps the gradient unbiased."""
        return max(1.0, (len(self._chosen) + 1) / self.sandwich.draw)

    @property
    def round(self) -> int:
        """Number of the present round of K steps."""
        return self.steps // self.every

    def rescore(self) -> None:
        """Score the children again whose losses in the history are most out of date."""
        ids = children_to_rescore(self.history, self.rescore_budget)
        losses = self.score([self.history.visits[i].widths for i in ids])
        self.history.record(dict(zip(ids, losses)), self.steps)

    # The front

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
        """Compute the Pareto front of training loss and cost.

        Each candidate gets BatchNorm statistics of its own, and its loss on the same images. The
        statistics of the front's children stay in `net.statistics`, so that `net.use(point)` needs
        no recalibration.

        Args:
            criterion: Loss function; by default that of the last step.
            batches: Un-augmented training batches for statistics and losses; by default the first
                of `scoring`.
            images: Number of images that are taken from `scoring`.
            val: Validation batches, to measure the validation error of the front.
            test: Test batches, to measure the test error of the front.
            metric: A function of outputs and labels: how wrong each sample is, from 0 to 1.
            progress: A function that is called with the number of judged children and their total.

        Returns:
            The front, sorted by cost.

        Raises:
            UserError: There was no step yet, and no criterion is given.
            RunFailed: No child has a finite loss.
        """
        self.criterion = criterion or self.criterion
        self._criterion()
        if self._finished_at != self.steps:
            self.method.finish(self)
            self._finished_at = self.steps
        front = self.judge(
            self.preset.finalists,
            batches,
            images,
            val=val,
            test=test,
            metric=metric,
            progress=progress,
        )
        self._front = None  # the history has new losses
        return front

    # State: all that the next step depends on, besides the network and the optimizer

    @property
    def finished(self) -> bool:
        """Whether the front was computed after the last step."""
        return self._finished_at == self.total_steps

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain lists and numbers, which JSON and torch.load(weights_only=True)
        can read.
        """
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
        """The settings that a state belongs to.

        The number of steps is not among them: a training with the same K may be extended.
        """
        # A distillation may be a function, which cannot be compared.
        sandwich = {name: v for name, v in asdict(self.sandwich).items() if name != "distill"}
        return {
            "method": self.name,
            "cost": self.cost.name,
            "every": self.every,
            **sandwich,
            "searcher": type(self.searcher).__name__,
            "alone": None if self.alone is None else list(self.alone.counts),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, so that the training continues as if it had not
        stopped.

        Raises:
            UserError: The state is of a training with other settings.
        """
        for field, mine in self._settings().items():
            if (theirs := state["settings"].get(field)) != mine:
                raise UserError(f"{field}: the state is of {theirs!r}, this is {mine!r}")
        for field in ("steps", "passes", "scoring_passes"):
            setattr(self, field, json_count(state[field], field, 0, MOST_STEPS))
        for field in ("chosen_at", "drawn_at", "finished_at"):
            setattr(self, f"_{field}", json_count(state[field], field, -1, MOST_STEPS))
        self._chosen = [self.space.of_counts(counts) for counts in state["chosen"]]
        self.widths = [self.space.of_counts(counts) for counts in state["widths"]]
        self.history.load_state_dict(state["history"])
        self.searcher.load_state_dict(state["searcher"])
        self.rng.bit_generator.state = state["rng"]


def steps_alone(method: Method, full_first: float, total_steps: int) -> int:
    """Return the number of steps, at the beginning, that train the full network only."""
    return round(full_first * total_steps) if method.sandwich else 0


def default_every(steps: int, samples: int) -> int:
    """Return the K with which so many steps visit `CHILDREN` children; fewer in short trainings."""
    return max(LEAST_EVERY, math.floor(steps * samples / CHILDREN))
