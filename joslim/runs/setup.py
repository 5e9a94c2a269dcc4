"""Set-up: from a configuration to the objects of a run, ready to make training steps."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from joslim.costs import Cost
from joslim.costs import cost as make_cost
from joslim.data import Data, Sweep, load_data
from joslim.data.folder import FolderData
from joslim.distributed import broadcast, local_rank, refuse_differences, world
from joslim.errors import UserError, first_line
from joslim.files import (
    LONGEST_NAME,
    is_name,
    shown,
)
from joslim.models import MODELS
from joslim.results.run_files import steps_in
from joslim.runs.config import DEFAULTS, Config, Resolved
from joslim.runs.libraries import PRETRAINED, library_of, pretrained_weights
from joslim.runs.networks import check_model, default_shape, load_model, make_net, set_dropout
from joslim.runs.recipes import FINE_TUNING_RATE, check_data, rate_for
from joslim.runs.trained_weights import read_weights
from joslim.runs.trainer import Trainer
from joslim.search.initial_design import start_size
from joslim.slimmable import SlimmableNet
from joslim.slimmable.running import tensors_in
from joslim.space import CHANNELS, Widths, WidthSpace
from joslim.training.augmenting import Augment, make_augmentation
from joslim.training.evaluate import evaluating, moved
from joslim.training.learning import scores_of
from joslim.training.methods import choose_searcher
from joslim.training.methods import method as find_method
from joslim.training.methods import preset as find_preset
from joslim.training.optimizers import DECAYS, OPTIMIZERS
from joslim.training.schedule import Schedule
from joslim.training.settings import SEARCH_OPTIONS, Sandwich, resolved_sandwich
from joslim.training.slimming import Slimming, default_every, steps_alone
from joslim.training.tasks import (
    TASKS,
    LossOptions,
    Task,
    check_outputs,
    class_weights,
    task_kind,
)

# Lines of metrics.jsonl and checkpoints of a whole training, unless their intervals are given.
LINES = 1000
CHECKPOINTS = 20
# bf16 has to take at most this share of the time of fp32 for --amp auto, which measures so many.
WORTH_BF16 = 0.9
TIMED_PASSES = 3


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
    weights = init
    if weights is None and config.init is not None:
        is_pretrained = config.init == PRETRAINED
        weights = pretrained_weights(config.model) if is_pretrained else read_weights(config.init)
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
            lr=settings.lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
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
    in_files = isinstance(name, str) and name.startswith(("folder:", "shards:"))
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
    return Sweep(data, "train", order[: count // batch * batch], batch, together=True)


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
