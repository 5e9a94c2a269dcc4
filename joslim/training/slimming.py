"""The alternating loop (equations 6 and 7 of the paper), as an object for anybody's loop.

    slimming = joslim.Slimming(net, method="joslim", cost="macs", total_steps=n, scoring=batches)
    for x, y in loader:
        slimming.step(x, y, optimizer, criterion)
    front = slimming.front()

A round goes from the history to children to steps: `method.choose` solves the width problem
(equation 6) with the weights fixed, `backward` trains some of the children that it chose (equation
7). `ChildSearch` is the part of it that leaves the weights alone.

Symbols of the paper: K is `every`, the steps between two choices of widths; M is `samples`, the
widths that are chosen; H is `history`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from joslim.costs import Cost
from joslim.errors import UserError
from joslim.files import STEPS_LIMIT, json_count
from joslim.front import Front
from joslim.search.base import Searcher
from joslim.search.cost_targeting import random_children
from joslim.search.history import children_to_rescore
from joslim.slimmable.running import as_inputs
from joslim.space import Widths
from joslim.training.distillation import Distillation
from joslim.training.exploring import ChildSearch, at_least_one
from joslim.training.learning import Learning, check_distill, choose_learning
from joslim.training.methods import Method, choose_searcher, refuse_other_knobs
from joslim.training.methods import method as find_method
from joslim.training.methods import preset as find_preset
from joslim.training.metrics import Faults, Metric, as_metric
from joslim.training.settings import (
    COPIES,
    SEARCH_FIELDS,
    checked,
    resolved_sandwich,
    sandwich_of,
    search_options_of,
)
from joslim.training.step import (
    Criterion,
    FiniteCheck,
    backward,
    clip_gradients,
    detached,
    step_unless,
)
from joslim.training.teacher import Teacher

# Number of children that a whole training visits, unless K is given (the paper's choice).
CHILDREN = 1000
# The least default K. In a short training rounds would take longer than steps, and more of them do
# not help (docs/results.md).
LEAST_EVERY = 10


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
        scoring: Un-augmented training batches (inputs, labels), or dictionaries that hold the
            inputs and "labels". One of them scores all children of a round; a search while the
            weights stay as they are takes the first 1,024 samples.
        every: Steps between two choices of widths (the paper's K). By default such that about 1000
            children are visited, and at least 10.
        samples: Number of children chosen in each round, besides the full and the smallest (the
            paper's M). Settings that are None are as the preset has them.
        draw: Number of these children and the smallest that are trained in each step. They are
            drawn anew at each step and weighted so that the gradient is unbiased. By default all
            of them; in a short training (under 50 epochs) draw=1 and full_first=0.3 are better.
        draw_full: Whether the full network is drawn like its children, instead of being trained in
            every step; then they learn from the labels, or from a teacher "fixed" or "ema".
        widths: The child that method "single" trains.
        distill: How children learn from the full network: "auto", by what fits the criterion and
            the labels of the first step; "soft", "kl" or "alpha" for scores of classes; or a
            function of (student's outputs, teacher's outputs).
        teacher: Whom children learn from: "full", the full network of the step; "next", the next
            larger child of the step; "fixed", the network as it is now, so give one that is
            trained; "ema", a moving average of the full network.
        full_distill: Share of the loss of the full network that is computed with the teacher
            "fixed" or "ema" instead of the labels.
        label_share: Share of the loss of the children that is computed with the labels instead of
            the teacher.
        full_weight: Weight of the gradient of the full network.
        full_first: Share of the steps, at the beginning, in which only the full network is trained.
        random_share: Share of the children of the search that are replaced by random ones of
            all costs, drawn anew at each step.
        channels_only: Whether the one multiplier of method "slim" scales channels only, and keeps
            all blocks and pixels.
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
        draw_full: bool | None = None,
        widths: Widths | None = None,
        distill: str | Distillation = "auto",
        teacher: str | None = None,
        full_distill: float | None = None,
        label_share: float | None = None,
        full_weight: float | None = None,
        full_first: float | None = None,
        random_share: float | None = None,
        channels_only: bool | None = None,
        preset: str = "default",
        searcher: str | Searcher | None = None,
        search_options: Mapping[str, Any] | None = None,
        rescore: int | None = None,
        seed: int = 0,
    ) -> None:
        self.total_steps = at_least_one("total_steps", total_steps)
        self.name, self.method = find_method(method)
        self.preset = find_preset(preset)
        given = {
            "samples": samples,
            "draw": draw,
            "teacher": teacher,
            "full_distill": full_distill,
            "draw_full": draw_full,
            "label_share": label_share,
            "full_weight": full_weight,
            "full_first": full_first,
            "random_share": random_share,
            "channels_only": channels_only,
        }
        asked = {name: value for name, value in given.items() if value is not None}
        self.sandwich = resolved_sandwich(sandwich_of(preset, asked))
        self.draw_full = self.sandwich.draw_full
        # How fast each knob shrinks, once method sensitivity has found out.
        self.shrink_rates: NDArray[np.float64] | None = None
        # Whether the multiplier of Slim scales channels only, or blocks and pixels too.
        self.channels_only = self.sandwich.channels_only
        if widths is not None and self.method.sandwich:
            raise UserError(f"widths: only method single trains given widths, not {self.name!r}")
        # The child that method single trains.
        self.alone = widths
        options = search_options_of(search_options or {})
        chosen = choose_searcher(searcher, self.name, self.preset, options)
        self.distill = check_distill(distill)
        super().__init__(net, cost, chosen, scoring, seed)
        refuse_other_knobs(self.name, self.space)
        # The smallest child that is trained.
        self.smallest = self.space.uniform(float(self.space.low.min()), self.channels_only)
        # What is called to train: the network or a wrapper of it.
        self.model = net
        # The copy of the network that teaches, if the network does not teach its children itself.
        kind = self.sandwich.teacher
        copied = self.method.sandwich and kind in COPIES
        self.teacher = Teacher(self.net, kind) if copied else None
        self.samples = self.sandwich.samples
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
        # The widths that are trained in this step, and their losses.
        self.widths: list[Widths] = []
        self.losses = torch.zeros(0)
        # Stops the training if a loss or a gradient is not finite; has the losses as numbers.
        self.finite = FiniteCheck()
        # The children that the method chose, which may be trained for many steps, and at which step
        # it chose them; the step at which `widths` were drawn from them.
        self._chosen: list[Widths] = []
        self._chosen_at = -1
        self._drawn_at = -1
        # The version of the weights at the last `backward` of this step, to notice that `advance`
        # was forgotten.
        self._version: int | None = None
        self._warned = False
        # How children learn from the full network, which shows at the first step.
        self._learning: Learning | None = None
        self._finished_at = -1
        # What `front` has returned last.
        self.last_front: Front | None = None

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
            x: Input of the network, a tuple of inputs, or a dictionary of keyword arguments.
            y: Labels, as the criterion takes them.
            optimizer: Optimizer of the parameters of the network.
            criterion: Loss function of outputs and labels.
            clip: Largest norm of the gradient.

        Returns:
            Loss of the full network.

        Raises:
            RunFailed: A loss or the gradient is not finite. On a GPU, which is not waited for, this
                is raised later: at the beginning of a round (every K steps), or by `finite.read()`,
                `state_dict()` and `front()`. In either case the weights are those before the step
                that the message names.
        """
        optimizer.zero_grad(set_to_none=True)
        loss = self.backward(x, y, criterion)
        norm = clip_gradients(self.net.parameters(), clip)
        step_unless(self.finite.add(self.steps, self.widths, self.losses, norm), optimizer)
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
            x: Input of the network, a tuple of inputs, or a dictionary of keyword arguments.
            y: Labels, as the criterion takes them.
            criterion: Loss function of outputs and labels.
            differentiate: A function that is called with each loss instead of `loss.backward()`,
                such as `accelerator.backward`.

        Returns:
            Loss of the full network; of a child, if the full network was not drawn in this step.
        """
        self.criterion = criterion
        self._warn_if_not_advanced()
        self.net.statistics.clear()  # they belong to the weights before this step
        if self.steps % self.every == 0:
            self.finite.read()
        self._choose()
        inputs = as_inputs(tuple(x) if isinstance(x, list) else x)

        def first_criterion(outputs: Any, labels: Any) -> Tensor:
            """Compute the loss, and find out how children learn even if none is trained yet."""
            loss = criterion(outputs, labels)
            if self._learning is None:
                self._learning = choose_learning(self.distill, criterion, detached(outputs), labels)
            return loss

        def distill(student: Any, teacher: Any) -> Tensor:
            if self._learning is None:  # the full network is not trained in this step
                self._learning = choose_learning(self.distill, criterion, teacher, y)
            return self._learning(criterion, student, teacher)

        taught = self.method.sandwich and self.sandwich.label_share < 1
        # (M + 1) / draw keeps the gradient unbiased.
        weight = max(1.0, (len(self._chosen) + 1) / self.sandwich.draw)
        full_weight = self.sandwich.full_weight if self.method.sandwich else 1.0
        self.losses = backward(
            self.model,
            self.net,
            self.widths,
            inputs,
            y,
            first_criterion if taught and self._learning is None else criterion,
            distill,
            differentiate,
            self.sandwich.label_share,
            full_weight=full_weight * (weight if self.draw_full else 1.0),
            other_weight=weight,
            teacher=self.teacher,
            in_turn=self.sandwich.teacher == "next",
            full_distill=self.sandwich.full_distill if self.teacher else 0.0,
            full=self.space.full if self.draw_full else None,
        )
        self.passes += len(self.widths)
        self._version = self._version_of_weights()
        return self.losses[0]

    def advance(self) -> None:
        """Count one step. Call it after the optimizer's step."""
        if self.teacher is not None:
            self.teacher.follow(self.net)
        self.steps += 1
        self._version = None
        self.net.statistics.clear()

    def skip(self, steps: int) -> None:
        """Count steps whose training the weights have behind them, and draw their widths.

        Methods that do not look at the cost then go on as if they had trained in this process.
        """
        for _ in range(steps):
            self._choose()
            self.passes += len(self.widths)
            self.advance()

    def _warn_if_not_advanced(self) -> None:
        """Warn once if the optimizer has made a step since the last backward, but no `advance`."""
        if self._warned or self._version in (None, self._version_of_weights()):
            return
        self._warned = True
        warnings.warn(
            f"the weights have changed since the last backward, and the training is still at step "
            f"{self.steps}, with the same widths; type slimming.advance() after optimizer.step()",
            stacklevel=3,
        )

    # The width problem

    def _choose(self) -> None:
        """Choose the widths of this step, and before it the children of the round if one begins."""
        if self._drawn_at == self.steps:  # gradients are being accumulated
            return
        # An extended training keeps its chosen children.
        if self.steps < self.alone_until and self._chosen_at < 0:
            self.widths = [self.space.full]
            return
        same_round = self._chosen_at >= 0 and self._chosen_at // self.every == self.round
        if not (self.method.in_rounds and same_round):
            self._chosen = self.method.choose(self)
            self._chosen_at = self.steps
        self.widths = self._sandwich() if self.method.sandwich else [self.alone or self.space.full]
        self._drawn_at = self.steps

    def _sandwich(self) -> list[Widths]:
        """Return the full network, which teaches, and the other widths that are trained now.

        With `draw_full` the full network does not teach: it and the smallest take turns, at
        random, as one of those that are drawn.
        """
        others = [*self._mixed(self._chosen), self.smallest]
        if self.draw_full and self.rng.random() < 0.5:
            others[-1] = self.space.full
        if self.sandwich.draw < len(others):
            places = self.rng.choice(len(others), size=self.sandwich.draw, replace=False)
            others = [others[place] for place in sorted(places)]
        if self.sandwich.teacher == "next":
            others.sort(key=self.cost, reverse=True)
        # Once each: a full network that learns from itself would only cost time.
        return [*dict.fromkeys(others if self.draw_full else [self.space.full, *others])]

    def _mixed(self, chosen: list[Widths]) -> list[Widths]:
        """Replace a share of the children that the search chose by random ones of all costs.

        What the search names is trained, and what is trained scores well, so it would be named
        again: without other children the search stays in one corner of the space.
        """
        share = self.sandwich.random_share if self.method.in_rounds else 0.0
        if share == 0:
            return chosen
        replaced = self.rng.random(len(chosen)) < share
        others = iter(random_children(self.cost, int(replaced.sum()), self.rng))
        return [next(others) if instead else child for child, instead in zip(chosen, replaced)]

    @property
    def full_loss(self) -> float | None:
        """The last loss of the full network that was read; None if it was not drawn then.

        With method single, that of the child that is trained.
        """
        return self.finite.losses.get(self.alone or self.space.full)

    @property
    def round(self) -> int:
        """Number of the present round of K steps, which decides the scoring batch."""
        return self.steps // self.every

    def rescore(self) -> None:
        """Score the children again whose losses in the history are most out of date."""
        ids = children_to_rescore(self.history, self.rescore_budget)
        losses = self.score_in_round([self.history.visits[i].widths for i in ids])
        self.history.record(dict(zip(ids, losses)), self.steps)

    def score_in_round(self, children: Sequence[Widths]) -> list[float]:
        """Compute the losses of children on the scoring batch of this round."""
        return self._losses_on([self.scoring[self.round % len(self.scoring)]], children)

    # The front

    def front(
        self,
        criterion: Criterion | None = None,
        *,
        batches: Iterable[Any] | None = None,
        images: int = 2048,
        val: Iterable[Any] | None = None,
        test: Iterable[Any] | None = None,
        metric: str | Metric | Faults = "error",
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
            metric: How wrong a child is: "error" for classes, "hamming" for yes-or-no labels,
                "miou", "perplexity", "rmse"; a function of outputs and labels that returns a
                number from 0 to 1 for each sample; or a `joslim.Metric`.
            progress: A function that is called with the number of finished parts of the work and
                their total; a part is a child to judge, or a batch that measures errors.

        Returns:
            The front, sorted by cost.

        Raises:
            UserError: There was no step yet, and no criterion is given.
            RunFailed: No child has a finite loss.
        """
        self.criterion = criterion or self.criterion
        self._criterion()
        self.finite.read()
        if self._finished_at != self.steps:
            self.method.finish(self)
            self._finished_at = self.steps
        self.last_front = self.judge(
            self.preset.finalists,
            batches,
            images,
            val=val,
            test=test,
            metric=as_metric(metric),
            progress=progress,
        )
        return self.last_front

    # State: all that the next step depends on, besides the network and the optimizer

    @property
    def judged(self) -> bool:
        """Whether `last_front` is of the present weights."""
        return self.last_front is not None and self._finished_at == self.steps

    @property
    def finished(self) -> bool:
        """Whether the front was computed after the last step."""
        return self._finished_at == self.total_steps

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain lists and numbers, which JSON and torch.load(weights_only=True)
        can read; a teacher "fixed" or "ema" adds its weights, which are tensors.
        """
        self.finite.read()
        copied = {} if self.teacher is None else {"teacher": self.teacher.state_dict()}
        return {
            **copied,
            "settings": self._settings(),
            "steps": self.steps,
            "passes": self.passes,
            "scoring_passes": self.scoring_passes,
            "chosen": [list(child.counts) for child in self._chosen],
            "chosen_at": self._chosen_at,
            "drawn_at": self._drawn_at,
            "finished_at": self._finished_at,
            "widths": [list(child.counts) for child in self.widths],
            "shrink_rates": None if self.shrink_rates is None else self.shrink_rates.tolist(),
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
            setattr(self, field, json_count(state[field], field, 0, STEPS_LIMIT))
        for field in ("chosen_at", "drawn_at", "finished_at"):
            setattr(self, f"_{field}", json_count(state[field], field, -1, STEPS_LIMIT))
        self._chosen = [self.space.of_counts(counts) for counts in state["chosen"]]
        self.widths = [self.space.of_counts(counts) for counts in state["widths"]]
        self._version = None
        rates = state["shrink_rates"]
        self.shrink_rates = None if rates is None else np.array(rates, dtype=np.float64)
        if self.teacher is not None:
            self.teacher.load_state_dict(state["teacher"])
        self.history.load_state_dict(state["history"])
        self.searcher.load_state_dict(state["searcher"])
        self.rng.bit_generator.state = state["rng"]


def steps_alone(method: Method, full_first: float, total_steps: int) -> int:
    """Return the number of steps, at the beginning, that train the full network only."""
    return round(full_first * total_steps) if method.sandwich else 0


def default_every(steps: int, samples: int) -> int:
    """Return the K with which so many steps visit `CHILDREN` children; fewer in short trainings."""
    return max(LEAST_EVERY, math.floor(steps * samples / CHILDREN))
