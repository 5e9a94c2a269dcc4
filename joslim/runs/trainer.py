"""The objects of a run: what a step, a validation and the front at the end do with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from joslim.data import Data
from joslim.distributed import averaged, rank, world
from joslim.errors import UserError
from joslim.front import Front
from joslim.runs.config import Resolved
from joslim.runs.trained_weights import Loaded
from joslim.slimmable import SlimmableNet, norms_together
from joslim.training.augmenting import Augment
from joslim.training.exploring import adding_seconds
from joslim.training.judging import validation_errors
from joslim.training.metrics import Metric, as_metric
from joslim.training.optimizers import OPTIMIZERS
from joslim.training.schedule import Schedule
from joslim.training.slimming import Slimming
from joslim.training.step import clip_gradients, step_unless
from joslim.training.tasks import Task

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Images in a batch of an evaluation, which needs no memory for gradients.
EVALUATION_BATCH = 512


@dataclass
class Best:
    """The step with the least mean validation error so far, and its weights.

    swapped: Whether the network has them, and `weights` are those of the last step instead.
    """

    step: int
    error: float
    weights: dict[str, Tensor]
    swapped: bool = False


@dataclass
class Trainer:
    """The objects of a run. They are made once and checked before anything is computed."""

    config: Resolved
    data: Data
    net: SlimmableNet
    slimming: Slimming
    optimizer: torch.optim.Optimizer
    task: Task
    schedule: Schedule
    scaler: torch.amp.GradScaler
    device: torch.device
    # The trained weights that the run began with; None if there were none, or it was resumed.
    start: Loaded | None
    # Names of the weights that did not come from --init.
    fresh: list[str]
    # Time of a pass in bf16 over that in fp32, if --amp auto has measured it.
    bf16_share: float | None = None
    # With --val-every, once it was measured; with --ema, at the end.
    best: Best | None = None
    # With --ema: the averaged weights.
    average: dict[str, Tensor] | None = None
    augment: Augment | None = None

    @property
    def total_steps(self) -> int:
        return self.slimming.total_steps

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Training batches from the next step on."""
        config = self.config
        return self.data.batches(config.seed, config.batch, self.slimming.steps, rank(), world())

    def step(self, x: Tensor, y: Tensor) -> None:
        """Make one optimizer step, which depends on the state and the number of the step alone."""
        step = self.slimming.steps
        seed_step(self.config.seed, step, rank())
        if self.augment is not None:
            x, y = self.augment(x, y)
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule(step, self.total_steps)
        self.optimizer.zero_grad(set_to_none=True)
        with self._precision(), norms_together(self.config.sync_norm):
            self.slimming.backward(
                x, y, self.task.criterion, lambda loss: self.scaler.scale(loss).backward()
            )
        # A loss that is not finite on one process must stop all of them.
        self.slimming.losses = losses = averaged(self.slimming.losses)
        scaled = self.scaler.is_enabled()
        if scaled:
            self.scaler.unscale_(self.optimizer)
        norm = clip_gradients(self.net.parameters(), self.config.clip)
        # A gradient that overflows in fp16 is no failure: the step is left out, the scale lowered.
        checked = torch.zeros_like(norm) if scaled else norm
        failed = self.slimming.finite.add(step, self.slimming.widths, losses, checked)
        if scaled:
            failed = ~norm.isfinite() if failed is None else failed | ~norm.isfinite()
        step_unless(failed, self.optimizer)
        self.scaler.update()
        self._average()
        self.slimming.advance()
        if self.at_log_step:
            self.slimming.finite.read()

    @property
    def at_log_step(self) -> bool:
        """Whether the losses of the last step are logged, for which the host waits for a GPU."""
        steps = self.slimming.steps
        return steps % self.config.log_every == 0 or steps == self.total_steps

    def _average(self) -> None:
        """Move the averaged weights towards the present ones; other tensors are copied."""
        if self.config.ema is None:
            return
        now = {name: value.detach() for name, value in self.net.state_dict().items()}
        if self.average is None:
            self.average = {name: value.clone() for name, value in now.items()}
            return
        moving = [name for name, value in now.items() if value.is_floating_point()]
        # Early on, when the first weights would weigh too much, the decay is smaller.
        decay = min(self.config.ema, (1 + self.slimming.steps) / (10 + self.slimming.steps))
        get_ema_multi_avg_fn(decay)(
            [self.average[name] for name in moving], [now[name] for name in moving], 0
        )
        for name in now.keys() - {*moving}:
            self.average[name].copy_(now[name])

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """Give the network the averaged weights, if there are some, and back its own afterwards."""
        if self.average is None:
            yield
            return
        own = self._weights()
        self.net.load_state_dict(self.average)
        try:
            yield
        finally:
            self.net.load_state_dict(own)

    def _precision(self) -> AbstractContextManager[Any]:
        if self.config.amp is None:
            return nullcontext()
        return torch.autocast(self.device.type, PRECISIONS[self.config.amp])

    def validate(self) -> list[float]:
        """Measure the validation errors of the full and the smallest network.

        The weights are kept if the mean is the least so far. Of several equal means, the last step
        is kept.
        """
        slimming, sweep = self.slimming, self.data.sweep
        full, smallest = slimming.space.full, slimming.space.smallest
        ends = [full, smallest] if slimming.method.sandwich else [slimming.alone or full]
        train = [*sweep("train", EVALUATION_BATCH, limit=self.config.front_images)]
        with adding_seconds(slimming.seconds, "validation"), self._averaged():
            val = sweep("val", EVALUATION_BATCH)
            errors = validation_errors(self.net, [*dict.fromkeys(ends)], train, val, self.metric)
            mean = sum(errors) / len(errors)
            if self.best is None or mean <= self.best.error:
                self.best = Best(slimming.steps, mean, self._weights())
        return errors

    def _weights(self) -> dict[str, Tensor]:
        return {name: value.detach().cpu().clone() for name, value in self.net.state_dict().items()}

    def swap_best(self) -> None:
        """Exchange the weights of the network with those of the best step."""
        assert self.best is not None
        weights = self._weights()
        self.net.load_state_dict(self.best.weights)
        self.best = replace(self.best, weights=weights, swapped=not self.best.swapped)

    def front(self, progress: Any = lambda done, total: None) -> Front:
        """Judge the front: of the best weights with --val-every, of their average with --ema.

        This is the first time that the test set is read.
        """
        swapped = self.best is not None and self.best.swapped
        if self.average is not None and self.config.val_every is None and not swapped:
            kept = {name: value.cpu().clone() for name, value in self.average.items()}
            self.best = Best(self.slimming.steps, 0.0, kept)
        if self.best is not None and not self.best.swapped:
            self.swap_best()
        val = self.data.sweep("val", EVALUATION_BATCH) if self.data.sizes["val"] else None
        test = self.data.sweep("test", EVALUATION_BATCH)
        train = self.data.sweep("train", EVALUATION_BATCH, limit=self.config.front_images)
        # In full precision, as the children will be used.
        return self.slimming.front(
            self.task.criterion,
            batches=train,
            val=val,
            test=test,
            metric=self.metric,
            progress=progress,
        )

    @property
    def metric(self) -> Metric:
        return as_metric(self.task.metric)

    def samples(self, count: int = 32) -> Tensor:
        """Return a few inputs of the network, with which exports check themselves."""
        x, _ = self.data.plain("train", np.arange(min(count, self.data.sizes["train"])))
        return x.cpu().contiguous()

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration and the data that a checkpoint belongs to."""
        return {**self.config.to_json(), "identity": self.data.identity}

    def state_dict(self) -> dict[str, Any]:
        return {
            "settings": self.settings,
            "slimming": self.slimming.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "best": vars(self.best) if self.best else None,
            "average": self.average,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.slimming.load_state_dict(state["slimming"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.best = Best(**state["best"]) if state["best"] is not None else None
        self.average = state.get("average")
        here = self.net.state_dict()
        best = None if self.best is None else self.best.weights
        for name, there in (("best", best), ("average", self.average)):
            if there is None:
                continue
            if {n: t.shape for n, t in there.items()} != {n: t.shape for n, t in here.items()}:
                raise UserError(f"{name}: its weights are not of this network")
        if self.average is not None:
            self.average = {n: t.to(here[n].device).clone() for n, t in self.average.items()}
        # With the momentum of another network the first step would fail.
        for parameter, kept in self.optimizer.state.items():
            for name in OPTIMIZERS[self.config.optimizer].keeps:
                value = kept.get(name)
                if name == "momentum_buffer" and value is None:  # SGD makes it when it needs it
                    continue
                shape = torch.Size() if name == "step" else parameter.shape
                if not isinstance(value, Tensor) or value.shape != shape:
                    raise UserError(f"optimizer: its {name} is not of this network")
                # In the memory layout of the parameter, whatever the file has.
                if name != "step":
                    kept[name] = torch.empty_like(parameter).copy_(value)


def seed_step(seed: int, step: int, process: int = 0) -> None:
    """Seed dropout and the like by the step, so that a resume needs no generator state."""
    # Mixed, since the generator of a CPU uses the lower 32 bits alone.
    entropy = (seed, step, process) if process else (seed, step)
    mixed = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
    torch.manual_seed(int(mixed[0]))
