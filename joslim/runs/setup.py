"""Set-up: from a configuration to the objects of a run, ready to make training steps."""

from __future__ import annotations

import copy
import importlib
import inspect
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import get_ema_multi_avg_fn

from joslim.costs import Cost
from joslim.costs import cost as make_cost
from joslim.data import Data, Sweep, load_data
from joslim.data.folder import FolderData
from joslim.distributed import averaged, broadcast, local_rank, rank, refuse_differences, world
from joslim.errors import UserError, first_line, unknown
from joslim.files import (
    LONGEST_NAME,
    is_name,
    json_count,
    json_rows,
    json_value,
    shown,
)
from joslim.front import Front, cost_key
from joslim.models import MODELS
from joslim.results.run_files import steps_in
from joslim.runs.config import DEFAULTS, SEARCH_OPTIONS, Config, Resolved
from joslim.runs.libraries import PRETRAINED, library_of, make, pretrained_weights
from joslim.runs.recipes import FINE_TUNING_RATE, RECIPES, check_data, rate_for
from joslim.runs.trained_weights import Loaded, load_weights, read_weights
from joslim.search.initial_design import start_size
from joslim.slimmable import SlimmableNet, norms_together, slim, sort_channels
from joslim.slimmable.running import tensors_in
from joslim.space import BLOCKS, CHANNELS, Widths, WidthSpace
from joslim.training.augmenting import Augment, make_augmentation
from joslim.training.evaluate import evaluating, moved
from joslim.training.exploring import timed
from joslim.training.judging import validation_errors
from joslim.training.learning import scores_of
from joslim.training.methods import choose_searcher
from joslim.training.methods import method as find_method
from joslim.training.methods import preset as find_preset
from joslim.training.metrics import Metric, as_metric
from joslim.training.optimizers import DECAYS, OPTIMIZERS
from joslim.training.schedule import Schedule
from joslim.training.settings import SHORT_EPOCHS, Sandwich, resolved_sandwich
from joslim.training.slimming import Slimming, default_every, steps_alone
from joslim.training.step import clip_gradients, step_unless
from joslim.training.tasks import (
    TASKS,
    LossOptions,
    Task,
    check_outputs,
    class_weights,
    task_kind,
)
from joslim.units import format_size

# Largest number of values of an input that is typed: 4 GB.
MOST_VALUES = 2**30
# Limit of the names and sizes in the description of a network.
MOST_NAMES = 10**6
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Types of the inputs of a network that can be saved.
DTYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}
# Lines of metrics.jsonl and checkpoints of a whole training, unless their intervals are given.
LINES = 1000
CHECKPOINTS = 20
# Images in a batch of an evaluation, which needs no memory for gradients.
EVALUATION_BATCH = 512
# bf16 has to take at most this share of the time of fp32 for --amp auto, which measures so many.
WORTH_BF16 = 0.9
TIMED_PASSES = 3


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

        The weights are kept if the mean is the least so far; of equal means the last counts.
        """
        slimming, sweep = self.slimming, self.data.sweep
        full, smallest = slimming.space.full, slimming.space.smallest
        ends = [full, smallest] if slimming.method.sandwich else [slimming.alone or full]
        train = [*sweep("train", EVALUATION_BATCH, limit=self.config.front_images)]
        with timed(slimming.seconds, "validation"), self._averaged():
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


def set_up(
    config: Config,
    model: nn.Module | None = None,
    data: Any = None,
    cost: Any = None,
    init: Mapping[str, Tensor] | None = None,
    task: Task | None = None,
) -> Trainer:
    """Make the objects that the configuration names, or take those that are given instead."""
    check_model(model)
    device = find_device(config.device)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    weights = init if init is not None or config.init is None else initial_weights(config)
    images = load_images(config, data, device, model)
    for name in images.classes:  # before a training and not after it: no export could have them
        if not is_name(name):
            raise UserError(
                f"data: the class {shown(name)} has no name that can be printed in one line; "
                f"give it another, of at most {LONGEST_NAME} characters"
            )
    refuse_differences(_facts_to_share(images))
    torch.manual_seed(config.seed)
    network = model or load_model(config.model, len(images.classes), images.shape[0])
    if torch.float64 in (torch.get_default_dtype(), *(p.dtype for p in network.parameters())):
        raise UserError(
            "model: runs compute in torch.float32, and this is torch.float64; type "
            "torch.set_default_dtype(torch.float32), and model.float() for a module"
        )
    wanted = getattr(network, "slim_defaults", {}).get("dtype", images.dtype)
    if wanted != images.dtype:
        raise UserError(
            f"model: {config.model} takes inputs of {wanted}, the data have {images.dtype}; type "
            "--data text:PATH for a language model, or another model"
        )
    if config.dropout is not None:
        set_dropout(network, config.dropout)
    net, start = make_net(network, images.example(), config.slim_options, weights)
    settings = resolve(config, images, net, trained=start is not None)
    task = task or task_of(settings, images)
    if isinstance(images, FolderData):
        assert settings.crop_scale is not None
        images.scale, images.clip_colours = settings.crop_scale, settings.clip_colours
    net.to(device)
    check_fit(net, images, task, settings.task)
    if settings.channels_last:
        put_channels_last(net, images)
    bf16_share = None
    if settings.amp == "auto":
        each = images.example().expand(settings.batch // world(), *images.shape)
        bf16_share = broadcast(time_of_bf16(net, each))  # all processes compute alike
        settings = replace(settings, amp="bf16" if bf16_share <= WORTH_BF16 else None)
    return Trainer(
        config=settings,
        data=images,
        net=net,
        slimming=_make_slimming(settings, net, images, cost_of(settings, cost, net), task),
        optimizer=OPTIMIZERS[settings.optimizer].make(
            DECAYS[settings.decay_on](net, settings.weight_decay),
            settings.lr,
            settings.momentum,
            settings.weight_decay,
            fused=True if device.type == "cuda" else None,
        ),
        task=task,
        schedule=Schedule(settings.schedule, settings.warmup, settings.lr),
        scaler=torch.amp.GradScaler(device.type, enabled=settings.amp == "fp16"),
        device=device,
        start=start,
        fresh=[] if start is None else start.fresh,
        bf16_share=bf16_share,
        augment=augmentation_of(settings, images),
    )


def time_of_bf16(net: SlimmableNet, batch: Tensor) -> float:
    """Return the time of a training pass of the full network in bf16, as a share of that in fp32.

    The two are measured in turns on a copy of the network; infinity if the device has no bf16.
    """
    trial, device = copy.deepcopy(net).train(), next(net.parameters()).device
    x = batch.to(device)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for bf16 in [True, False] * (TIMED_PASSES + 1):
            started = time.perf_counter()
            try:
                with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                    outputs = [part.float().square().mean() for part in tensors_in(trial(x))]
                    torch.stack(outputs).sum().backward()
            except RuntimeError:
                return math.inf
            next(trial.parameters()).sum().item()  # waits for the device
            seconds[bf16].append(time.perf_counter() - started)
    return min(seconds[True][1:]) / min(seconds[False][1:])


def augmentation_of(config: Resolved, data: Data) -> Augment | None:
    """Make the augmentation of batches that the configuration asks for."""
    names = ("mixup", "cutmix", "randaugment")
    options = {name: getattr(config, name) for name in names}
    asked = [name for name, value in options.items() if value]
    if asked and config.task != "classification":
        raise UserError(f"{asked[0]}: it is for classification, not {config.task}; leave it out")
    if options["randaugment"] and len(data.mean) not in (1, 3):
        raise UserError("randaugment: it is for grey or colour images; leave it out")
    return make_augmentation(len(data.classes), data.mean, data.std, **options)


def resolve(config: Config, data: Data, net: SlimmableNet, trained: bool = False) -> Resolved:
    """Fill in all settings that were left open, from the recipe, the preset, the data and the net.

    trained: Whether the network starts from trained weights, and so with a lower rate.
    A resolved configuration stays as it is, so that config.json repeats a run.
    """
    values = config.with_recipe(data.recipe).to_json()

    def fill(name: str, default: Any) -> None:
        if values[name] is None:
            values[name] = default

    fill("recipe", data.recipe)
    fill("task", data.task)
    fill("optimizer", "sgd")
    if (kind := TASKS.get(values["task"])) is not None:
        fill("ignore_index", kind.ignore_index)
    images = data.sizes["train"]
    if config.batch is None:  # the batch of a recipe is cut to small data, a given one is not
        values["batch"] = min(values["batch"], max(1, images // world()) * world())
    batch = values["batch"]
    _check_batch(batch, images)
    if config.lr is None:
        values["lr"] = rate_for(values["recipe"], batch, values["optimizer"])
        values["lr"] *= FINE_TUNING_RATE if trained else 1
    if values["val_every"] is not None and not data.sizes["val"]:
        raise UserError(
            "val_every: there are no validation images; type --val 0.1, or leave it out"
        )
    if values["steps"] is None:
        values["steps"], values["epochs"] = steps_in(values["epochs"], images, batch), None
    steps = values["steps"]
    values["score_images"] = max(2, min(config.score_images or batch, images))
    fill("log_every", max(1, steps // LINES))
    fill("save_every", max(1, steps // CHECKPOINTS))
    fill("channels", data.shape[0])
    if isinstance(data, FolderData):
        fill("size", data.shape[-1])
        fill("crop_scale", data.scale)
    widths = zip(net.space.knobs, net.space.kinds)
    if len(lows := {knob.low for knob, kind in widths if kind == CHANNELS}) == 1:
        values["low"] = lows.pop()  # else each layer has its own

    name, method = find_method(config.method)
    preset = find_preset(config.preset)
    asked = Sandwich(**{item.name: values[item.name] for item in fields(Sandwich)})
    epochs = steps * batch / images
    sandwich = resolved_sandwich(asked, epochs, trained=trained and method.sandwich)
    values |= asdict(sandwich)
    alone = steps_alone(method, sandwich.full_first, steps)
    fill("every", default_every(steps - alone, config.samples))
    fill("rescore", preset.rescore(values["every"]))
    if name == "single":
        fill("widths", "1")
    if name in preset.searchers:
        fill("searcher", preset.searchers[name][0])
        searcher = choose_searcher(values["searcher"], name, preset, search_options(config))
        for option in SEARCH_OPTIONS:  # some searchers have only some of them
            values[option] = getattr(searcher, option, None)
        if hasattr(searcher, "start"):
            fill("start", start_size(net.space))
    return Resolved(**values)


def summary(trainer: Trainer) -> list[str]:
    """Describe in words, before a training, the network, the data and the chosen settings."""
    config, data = trainer.config, trainer.data
    counts = []
    for split, name in {"train": "training", "val": "validation", "test": "test"}.items():
        source = f" ({data.sources[split]})" if split in data.sources else ""
        counts.append(f"{data.sizes[split]:,} {name}{source}")
    shape = "x".join(map(str, data.shape))
    recipe, row = config.recipe, RECIPES[config.recipe]
    if recipe == data.recipe:
        recipe += f" (for {data.sizes['train']:,} training images of {data.shape[-1]} pixels)"
    rate = f"learning rate {config.lr:g}"
    usual = rate_for(config.recipe, config.batch, config.optimizer)
    if trainer.start is not None and config.lr == usual * FINE_TUNING_RATE:
        rate += f" ({FINE_TUNING_RATE:g} of the usual one)"
    elif config.lr != usual:
        rate += " (given)"
    elif config.batch != row["batch"] and config.optimizer == "sgd":
        rate += f" (it follows the batch: {row['lr']:g} for {row['batch']})"
    epochs = config.steps * config.batch / data.sizes["train"]
    slimming, cost, space = trainer.slimming, trainer.slimming.cost, trainer.slimming.space
    ends = (format_size(cost_key(cost.name), cost(end)) for end in (space.smallest, space.full))
    precision = f"{config.amp or 'fp32'}"
    if trainer.bf16_share is not None:
        precision += f" (bf16 takes {trainer.bf16_share:.2f} of the time of fp32 here)"
    return [
        f"network: {config.model}, {len(space)} knobs, {cost.name} {' to '.join(ends)}; method "
        f"{trainer.slimming.name}, {config.steps:,} steps with {config.optimizer}",
        f"data: {', '.join(counts)} {data.unit} of {len(data.classes)} classes, {shape}; "
        f"task {config.task}",
        f"recipe: {recipe}",
        *([] if trainer.start is None else [f"init: {'; '.join(trainer.start.words)}"]),
        *([f"fine-tuning: {changes}"] if (changes := _changed_by_init(trainer, usual)) else []),
        *([f"precision: {precision}"] if config.amp or trainer.bf16_share else []),
        f"training: {config.steps:,} steps ({epochs:.3g} epochs), batch {config.batch}, {rate}, "
        f"{config.schedule}, weight decay {config.weight_decay:g}, "
        f"label smoothing {config.label_smoothing:g}",
        *([f"children: {_children_in_words(config, epochs)}"] if slimming.method.sandwich else []),
    ]


def _changed_by_init(trainer: Trainer, usual_rate: float) -> str:
    """Say which defaults are other ones because the network is trained already."""
    config, changes = trainer.config, []
    if trainer.start is None:
        return ""
    if config.lr == usual_rate * FINE_TUNING_RATE:
        changes.append(f"the learning rate is {FINE_TUNING_RATE:g} of the usual one")
    if trainer.slimming.method.sandwich and not config.full_first:
        changes.append("the full network does not train alone at first")
    if config.draw_full:
        changes.append("it is drawn like its children")
    if config.method == "slim":
        changes.append("one multiplier for all layers (--method joslim has one for each)")
    return ", ".join(changes)


def _children_in_words(config: Resolved, epochs: float) -> str:
    """Say which children are trained in a step, and whether the length of the training decided."""
    words = f"{config.draw} of {config.samples + 1} in every step"
    if config.full_first:
        words += f", after the full network alone for {config.full_first:.0%} of the steps"
    usual = resolved_sandwich(Sandwich(samples=config.samples), epochs)
    if (config.draw, config.full_first) == (usual.draw, usual.full_first):
        length = "fewer than" if epochs < SHORT_EPOCHS else "at least"
        words += f" (the default for {length} {SHORT_EPOCHS} epochs)"
    return words


def _check_batch(batch: int, images: int) -> None:
    if batch > images:
        raise UserError(f"batch: {batch} is more than the {images} training images")
    # Every process must have as many images as the others: their gradients count the same.
    if left := batch % world():
        sizes = [n for n in (batch - left, batch - left + world()) if n > 0]
        raise UserError(
            f"batch: {batch} images cannot be shared out evenly over {world()} processes; "
            f"type {' or '.join(map(str, sizes))}"
        )


def refuse_untrained_teacher(trainer: Trainer) -> None:
    """Refuse a fixed teacher that has not learned the classes of the data."""
    if trainer.config.teacher == "fixed" and (trainer.start is None or trainer.fresh):
        why = f"{', '.join(trainer.fresh)} are made anew" if trainer.start else "there is no --init"
        raise UserError(
            f"teacher: a fixed teacher has to be trained on these classes, and {why}; type "
            "--teacher ema, or --init with such weights"
        )


def search_options(config: Config) -> dict[str, Any]:
    options = {name: getattr(config, name) for name in SEARCH_OPTIONS}
    return {name: value for name, value in options.items() if value is not None}


def task_of(config: Config, data: Data) -> Task:
    """Make the loss and the metric of the task that the configuration names."""
    name = config.task or data.task
    kind, classes = task_kind(name), len(data.classes)
    smoothing, weights, ignored = config.label_smoothing or 0.0, None, config.ignore_index
    if ignored is not None and kind.ignore_index is None:
        raise UserError(f"ignore_index: task {name} has no label to ignore; leave it out")
    if config.class_weights is not None:
        if name == "regression":
            raise UserError("class_weights: a regression has no classes; leave it out")
        if name == "multi-label" and config.class_weights == "balanced":
            raise UserError("class_weights: type one weight for a yes of each label: 1,2,...")
        weights = class_weights(config.class_weights, classes, data.label_counts).to(data.device)
    ignored = kind.ignore_index if ignored is None else ignored
    return kind.make(LossOptions(smoothing, weights, -100 if ignored is None else ignored))


def check_fit(net: SlimmableNet, data: Data, task: Task, name: str) -> None:
    """Refuse a network whose outputs do not fit the task, with both shapes."""
    x, y = data.plain("train", np.arange(min(2, data.sizes["train"])))
    with evaluating(net):
        if name in TASKS:
            check_outputs(net(x[:1]), name, len(data.classes), data.shape)
        outputs = net(x)
        try:
            task.criterion(outputs, y)
        except Exception as error:  # it may be anybody's function
            scores = scores_of(outputs)
            shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(outputs).__name__
            raise UserError(
                f"task: the loss of outputs {shape} and labels {tuple(y.shape)} failed: "
                f"{first_line(error)}"
            ) from error


def _make_slimming(
    config: Resolved, net: SlimmableNet, data: Data, cost: Cost, task: Task
) -> Slimming:
    sandwich = {item.name: getattr(config, item.name) for item in fields(Sandwich)}
    has_classes = config.task in TASKS and TASKS[config.task].has_classes
    if sandwich["distill"] == DEFAULTS["distill"] and not has_classes:
        sandwich["distill"] = task.distill  # soft labels are for scores of classes
    return Slimming(
        reducing_gradients(net),
        method=config.method,
        cost=cost,
        total_steps=config.steps,
        scoring=scoring_batches(config, data),
        every=config.every,
        widths=parse_widths(config.widths, net.space),
        preset=config.preset,
        searcher=config.searcher,
        search_options=search_options(config),
        rescore=config.rescore,
        seed=config.seed,
        **sandwich,
    )


def cost_of(config: Config, own: Any, net: SlimmableNet) -> Cost:
    if config.device_file is None:
        return make_cost(own or config.cost, net)
    if own is not None or config.cost != "latency":
        raise UserError("device_file: it goes with cost latency; type --cost latency")
    return make_cost("latency", net, device_file=config.device_file)


def reducing_gradients(net: SlimmableNet) -> nn.Module:
    """Wrap the network so that its gradients are averaged, if there are several processes."""
    if world() == 1:
        return net
    device = next(net.parameters()).device
    ids = [device] if device.type == "cuda" else None
    # If a pass leaves some parameters unused, DDP must look for them.
    with evaluating(net), torch.enable_grad():
        outputs = net(*(moved(value, device) for value in net.example))
    used = [p for p in net.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(outputs.sum(), used, allow_unused=True)
    unused = any(gradient is None for gradient in gradients)
    return DistributedDataParallel(net, ids, find_unused_parameters=unused)


def load_images(config: Config, data: Any, device: torch.device, model: nn.Module | None) -> Data:
    """Load the data, with as many channels as the network takes."""
    if data is None:
        check_data(config.recipe, config.data)
    defaults: Mapping[str, Any] = {}
    if model is not None or config.model not in MODELS:
        network = model or load_model(config.model)
        defaults = {**getattr(network, "slim_defaults", {}), "input": default_shape(network)}
    channels = config.channels or defaults.get("input", (3,))[0]
    name = config.data if data is None else data
    of_library = model is None and library_of(config.model) is not None
    in_files = isinstance(name, str) and name.startswith("folder:")
    size = config.size
    if size is None and of_library and in_files:
        size = defaults["input"][-1]
    try:
        images = load_data(
            name,
            root=config.data_root,
            size=size,
            channels=channels,
            val=config.held_out,
            device=device,
            workers=config.workers,
            split=config.split,
            task=config.task if config.task in TASKS else None,
            context=config.context,
            ignore_index=config.ignore_index,
        )
    except (MemoryError, RuntimeError) as error:
        why = first_line(error)
        raise UserError(f"data: cannot load the images: {why}; type a smaller size") from error
    # A network of a library takes images as those that it was trained with.
    if of_library and "mean" in defaults and len(images.mean) == len(defaults["mean"]):
        images.mean, images.std = defaults["mean"], defaults["std"]
        if isinstance(images, FolderData):
            images.interpolation = defaults.get("interpolation", images.interpolation)
    return images


def _facts_to_share(data: Data) -> dict[str, Any]:
    """Facts about the data that must be equal on all machines, the most telling ones first."""
    if world() == 1:  # to compute the identity of a million files takes a second
        return {}
    return {
        "data: number of classes": len(data.classes),
        **{f"data: class {number}": name for number, name in enumerate(data.classes)},
        **{f"data: number of {split} images": count for split, count in data.sizes.items()},
        "data: shape": tuple(data.shape),
        "data: identity": data.identity,
    }


def scoring_batches(config: Resolved, data: Data) -> Sweep:
    """Return un-augmented training images in random order, since files may be sorted by class."""
    count = data.sizes["train"]
    batch = min(config.score_images, count)
    order = np.random.default_rng(config.seed).permutation(count)
    # No short batch at the end: children are scored with the statistics of the batch.
    return Sweep(data, "train", order[: count // batch * batch], batch)


def parse_widths(text: str | None, space: WidthSpace) -> Widths | None:
    """Read 0.5 as the multiplier of all knobs, and 1,0.5,... as one multiplier for each knob."""
    if text is None:
        return None
    try:
        multipliers = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(f"widths: {text!r} are not multipliers; type 0.5 or 1,0.5,...") from error
    one = len(multipliers) == 1
    # One multiplier may be below the lowest of some knobs, which then stay at their lowest.
    for multiplier, low in zip(multipliers, [space.low.min()] if one else space.low):
        if 0 < multiplier < low:
            raise UserError(f"widths: {multiplier:g} is below {low:g}; type --low {multiplier:g}")
    return space.uniform(multipliers[0]) if one else space.at(multipliers)


def put_channels_last(net: SlimmableNet, data: Data) -> None:
    """Put the weights into channels-last layout, which the outputs of convolutions then have.

    A network that views its activations as contiguous fails with it, and keeps the usual layout.
    """
    lay_out(net, torch.channels_last)
    try:
        with evaluating(net):
            net(data.plain("train", np.zeros(2, dtype=np.int64))[0])
    except RuntimeError:
        lay_out(net, torch.contiguous_format)


def lay_out(net: SlimmableNet, layout: torch.memory_format) -> None:
    net.to(memory_format=layout)  # type: ignore[call-overload]


def find_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and world() > 1:
        name = f"cuda:{local_rank()}"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # fails on the meta device
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)
    except (RuntimeError, AssertionError) as error:
        why = first_line(error)
        raise UserError(f"device: {name!r} cannot be used: {why}; type auto or cpu") from error
    return device


def seed_step(seed: int, step: int, process: int = 0) -> None:
    """Seed dropout and the like by the step, so that a resume needs no generator state."""
    # Mixed, since the generator of a CPU uses the lower 32 bits alone.
    entropy = (seed, step, process) if process else (seed, step)
    mixed = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
    torch.manual_seed(int(mixed[0]))


# The network: from its name to a slimmable network with weights


def load_model(
    name: str, num_classes: int | None = None, in_channels: int | None = None
) -> nn.Module:
    """Make a built-in model by its name, or one of `package.module:function`.

    The function is called with those of num_classes and in_channels that it takes and are given.
    """
    if library_of(name) is not None:
        return make(name, num_classes, in_channels)
    maker = find_maker(name)
    given = {"num_classes": num_classes, "in_channels": in_channels}
    try:
        taken = inspect.signature(maker).parameters.keys() & given
    except (TypeError, ValueError):  # some callables have no signature
        taken = set()
    options = {key: given[key] for key in taken if given[key] is not None}
    try:
        model = maker(**options)
    except (Exception, SystemExit) as error:
        raise UserError(f"model: {name}() failed: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise UserError(f"model: {name}() returned {kind}, a torch.nn.Module is needed")
    return model


def set_dropout(model: nn.Module, probability: float) -> None:
    """Give all dropout layers this probability; 0 is that of a network without such layers."""
    layers = [module for module in model.modules() if isinstance(module, _DropoutNd)]
    if probability > 0 and not layers:
        raise UserError(f"dropout: {probability:g} given, the network has no dropout; leave it out")
    for layer in layers:
        layer.p = probability


def load_blank(name: str, num_classes: int | None, in_channels: int | None) -> nn.Module:
    """Make a model as `load_model` does, but a built-in one on torch's meta device, without values.

    Tracing it computes nothing, however large an input a file of somebody else states.
    """
    with torch.device("meta") if name in MODELS else nullcontext():
        return load_model(name, num_classes, in_channels)


def slim_again(
    model: nn.Module, inputs: tuple[Tensor, ...], options: Mapping[str, Any]
) -> SlimmableNet:
    """Make a network slimmable as it was when it was saved; its weights are still to be loaded.

    A network of `load_blank` gets memory for its weights.
    """
    device = device_of(model)
    net = slim(model, tuple(value.to(device) for value in inputs), **options)
    if device.type == "meta":
        net.to_empty(device="cpu")
        net._slim_net.example = inputs
    return net


def blank_inputs(specs: Iterable[tuple[tuple[int, ...], str]]) -> tuple[Tensor, ...]:
    """Return zeros of these shapes and types, which a file states."""
    inputs = []
    for shape, kind in specs:
        if kind not in DTYPES:
            raise unknown("dtype", kind, DTYPES)
        inputs.append(torch.zeros(shape, dtype=DTYPES[kind]))
    return tuple(inputs)


def channels_in(specs: Sequence[tuple[tuple[int, ...], str]]) -> int | None:
    """Return the channels of the first input, which functions that make networks may take."""
    shape, _ = specs[0]
    return shape[1] if len(shape) > 1 else None


def positional_inputs(net: SlimmableNet) -> tuple[Any, ...]:
    """Return the example input of a network without keyword arguments."""
    if isinstance(net.example, Mapping):
        raise UserError(
            f"net: it takes keyword arguments ({', '.join(map(str, net.example))}), which files of "
            "networks cannot have; wrap it in a module whose forward takes them by position"
        )
    return net.example


def network_facts(net: SlimmableNet) -> dict[str, Any]:
    """Describe a network so that `slim_options` and `inputs_of` give its space again, as JSON."""
    example = positional_inputs(net)
    for value in example:
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise UserError(f"net: {kind} in its example input; only tensors can be saved")
        if value.dtype not in DTYPES.values():
            raise UserError(f"net: its example input is {value.dtype}, which cannot be saved")
    device, options = device_of(net), net._slim_net.options
    with evaluating(net), net.at(net.space.full):
        outputs = tensors_in(net(*(moved(value, device) for value in example)))
    low, names = options.low, lambda item: item if isinstance(item, str) else [*item]
    kinds = {kind: name for name, kind in DTYPES.items()}
    return {
        "inputs": [{"shape": [*x.shape], "dtype": kinds[x.dtype]} for x in example],
        "outputs": [[*tensor.shape] for tensor in outputs],
        "low": {**low} if isinstance(low, Mapping) else float(low),
        "keep": [*options.keep],
        "tie": [names(item) for item in options.tie],
        "divisor": options.divisor,
        **more_options(options.resolutions, options.depth),
    }


def more_options(resolutions: Sequence[int] | None, depth: Any) -> dict[str, Any]:
    """Return the options of `slim` for other knobs than widths as JSON; none in most networks."""
    found: dict[str, Any] = {"resolutions": [*resolutions]} if resolutions else {}
    return found | ({"depth": {**depth} if isinstance(depth, Mapping) else True} if depth else {})


def name_of_own(net: SlimmableNet) -> str:
    """Return the name of a network that was an object: its class, by which it cannot be made."""
    base, *_ = vars(type(net))["_slim_made_of"]
    return f"<{base.__name__}>"


def slim_options(record: Any, where: str) -> dict[str, Any]:
    """Return the options of `slim` in what `network_facts` has described."""
    lists = {name: json_rows(record, name, where, MOST_NAMES, least=0) for name in ("keep", "tie")}
    more = [name for name in ("resolutions", "depth") if name in record]
    names = ("low", "divisor", *more)
    return {**lists, **{name: json_value(record, name, where) for name in names}}


def classes_in(record: Any, where: str) -> int | None:
    """Return the second size of the first output, which functions that make networks may take."""
    shapes = json_rows(record, "outputs", where, MOST_NAMES, least=0)
    if not shapes or not isinstance(shapes[0], list) or len(shapes[0]) < 2:
        return None
    return json_count(shapes[0][1], f"{where}.outputs", 1, MOST_NAMES)


def device_of(model: Any) -> torch.device:
    tensors = model.state_dict().values() if isinstance(model, nn.Module) else ()  # slim says so
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def find_maker(name: str) -> Callable[..., Any]:
    if ":" in name:
        return imported(name)
    if name not in MODELS:
        error = unknown("model", name, MODELS, most=len(MODELS))
        raise UserError(f"{error}; or your own as package.module:function")
    return MODELS[name]


def check_model(model: Any) -> None:
    """Refuse a model that is neither a name nor a module."""
    if model is not None and not isinstance(model, (str, nn.Module)):
        raise UserError(
            f"model: {type(model).__name__} given; give an nn.Module, or 'package.module:function'"
        )


def imported(name: str) -> Any:
    """Import `package.module:function`, also from the current folder, as `python -m` does."""
    module_name, _, attribute = name.partition(":")
    if module_name.endswith(".py"):
        dotted = ".".join(Path(module_name[:-3]).parts)
        raise UserError(f"model: {name!r} is a file and not a module; type {dotted}:{attribute}")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        kind = type(error).__name__
        raise UserError(f"model: cannot import {module_name!r}: {kind}: {error}") from error
    maker = getattr(module, attribute, None)
    if not callable(maker):
        functions = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise unknown("model", attribute, functions)
    return maker


def default_shape(model: nn.Module) -> tuple[int, ...]:
    """Return the input shape of the model's `slim_defaults`, or (3, 224, 224)."""
    shape = getattr(model, "slim_defaults", {}).get("input", (3, 224, 224))
    if not isinstance(shape, (tuple, list)) or not all(isinstance(n, int) for n in shape):
        raise UserError(f"slim_defaults: input {shape!r} is not a shape such as (3, 224, 224)")
    return tuple(shape)


def blank_input(shape: tuple[int, ...], device: str | torch.device = "cpu") -> Tensor:
    """Return a batch of one input of this shape, all zeros."""
    try:
        return torch.zeros(1, *shape, device=device)
    except RuntimeError as error:
        raise UserError(f"input: {'x'.join(map(str, shape))} does not fit into memory") from error


def parse_shape(text: str) -> tuple[int, ...]:
    """3x224x224 -> (3, 224, 224)"""
    if not re.fullmatch(r"[1-9][0-9]*(x[1-9][0-9]*)*", text):
        raise UserError(
            f"input: {text!r} is not a shape; type channels x height x width: 3x224x224"
        )
    sizes = text.split("x")
    # Only short numbers are read: Python refuses those of thousands of digits.
    if any(len(size) > 10 for size in sizes) or math.prod(map(int, sizes)) > MOST_VALUES:
        raise UserError(f"input: {text} is more than {MOST_VALUES} values; type a smaller shape")
    return tuple(map(int, sizes))


def net_of(
    model: str,
    shape: str | None,
    low: float | None,
    resolutions: tuple[int, ...] | None = None,
    depth: bool = False,
) -> SlimmableNet:
    """Make the network of a command line: the name of a model, and an input such as 3x224x224."""
    given = parse_shape(shape) if shape is not None else None
    network = load_model(model)
    kind = getattr(network, "slim_defaults", {}).get("dtype", torch.float32)
    example = blank_input(given or default_shape(network)).to(kind)
    return slim(network, example, low=low, resolutions=resolutions, depth=depth or None)


def make_net(
    model: nn.Module,
    example: Tensor,
    options: Mapping[str, Any] | None = None,
    init: Mapping[str, Tensor] | None = None,
) -> tuple[SlimmableNet, Loaded | None]:
    """Return the slimmable network, and what was loaded from `init`.

    The channels of trained weights are sorted by importance, which changes nothing at full width:
    narrow children keep the first channels. Blocks stay in their order, because moving one would
    change the network; shallow children keep the first blocks of each stage.
    """
    start = None if init is None else load_weights(model, init)
    net = slim(model, example.to(device_of(model)), **(options or {}))
    if start is not None:
        kept = sort_channels(net)
        words = "channels sorted by importance"
        if kept:
            units = sum(item.units for item in kept)
            words += f", but for {units} whose order the network depends on"
        if BLOCKS in net.space.kinds:
            words += "; blocks stay in their order, children keep the first ones"
        start = replace(start, words=[*start.words, words])
    return net, start


def initial_weights(config: Config) -> Mapping[str, Tensor]:
    """Read the weights to start from: of a file, or those of the library of the network."""
    assert config.init is not None
    return (
        pretrained_weights(config.model) if config.init == PRETRAINED else read_weights(config.init)
    )
