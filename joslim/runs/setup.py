"""Set-up: from a configuration to the objects of a run, ready to make training steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from joslim.costs import Cost
from joslim.costs import cost as make_cost
from joslim.data import Data, Sweep, load_data
from joslim.data.folder import FolderData
from joslim.distributed import averaged, local_rank, rank, refuse_differences, world
from joslim.errors import UserError
from joslim.files import LONGEST_NAME, is_name, shown
from joslim.front import Front
from joslim.models import MODELS
from joslim.results.run_files import steps_in
from joslim.runs.config import SEARCH_OPTIONS, Config
from joslim.runs.network import check_model, default_shape, load_model, make_net, read_weights
from joslim.runs.recipes import check_data
from joslim.slimmable import SlimmableNet, norms_together
from joslim.space import Widths, WidthSpace
from joslim.training.evaluate import evaluating, moved
from joslim.training.schedule import Schedule
from joslim.training.settings import Sandwich
from joslim.training.slimming import Slimming
from joslim.training.step import clip_gradients, refuse_non_finite

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Lines of metrics.jsonl and checkpoints of a whole training, unless their intervals are given.
LINES = 1000
CHECKPOINTS = 20
# Images in a batch of an evaluation, which needs no memory for gradients.
EVALUATION_BATCH = 512


@dataclass
class Trainer:
    """The objects of a run. They are made once and checked before anything is computed."""

    config: Config
    data: Data
    net: SlimmableNet
    slimming: Slimming
    optimizer: torch.optim.Optimizer
    criterion: nn.Module
    schedule: Schedule
    scaler: torch.amp.GradScaler
    device: torch.device
    # Names of the weights that did not come from --init.
    fresh: list[str]

    @property
    def total_steps(self) -> int:
        return self.slimming.total_steps

    @property
    def log_every(self) -> int:
        return self.config.log_every or max(1, self.total_steps // LINES)

    @property
    def save_every(self) -> int:
        return self.config.save_every or max(1, self.total_steps // CHECKPOINTS)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Training batches from the next step on."""
        batch = self.config.batch
        assert batch is not None
        return self.data.batches(self.config.seed, batch, self.slimming.steps, rank(), world())

    def step(self, x: Tensor, y: Tensor) -> None:
        """Make one optimizer step, which depends on the state and the number of the step alone."""
        step = self.slimming.steps
        seed_step(self.config.seed, step, rank())
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule(step, self.total_steps)
        self.optimizer.zero_grad(set_to_none=True)
        with self._precision(), norms_together(self.config.sync_norm):
            self.slimming.backward(x, y, self.criterion, self._differentiate)
        # A loss that is not finite on one process must stop all of them.
        self.slimming.losses = averaged(self.slimming.losses)
        refuse_non_finite(self.slimming.losses, self.slimming.widths, step)
        if not self.scaler.is_enabled():
            clip_gradients(self.net.parameters(), self.config.clip, step)
        elif self.config.clip is not None:  # the scaler skips steps that overflowed in fp16
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.net.parameters(), self.config.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.slimming.advance()

    def _differentiate(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()

    def _precision(self) -> AbstractContextManager[Any]:
        if self.config.amp is None:
            return nullcontext()
        return torch.autocast(self.device.type, PRECISIONS[self.config.amp])

    def front(self, progress: Any = lambda done, total: None) -> Front:
        """Judge the front. This is the first time that the test set is read."""
        sizes = self.data.sizes
        val = self.data.sweep("val", EVALUATION_BATCH) if sizes["val"] else None
        test = self.data.sweep("test", EVALUATION_BATCH)
        train = self.data.sweep("train", EVALUATION_BATCH, limit=self.config.front_images)
        # In full precision, as the children will be used.
        return self.slimming.front(
            self.criterion, batches=train, val=val, test=test, progress=progress
        )

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
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.slimming.load_state_dict(state["slimming"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._check_momentum()
        self.scaler.load_state_dict(state["scaler"])

    def _check_momentum(self) -> None:
        """Refuse a momentum of another network, with which the first step would fail."""
        for parameter, kept in self.optimizer.state.items():
            momentum = kept.get("momentum_buffer")
            if momentum is None:
                continue
            if not isinstance(momentum, Tensor) or momentum.shape != parameter.shape:
                raise UserError("optimizer: its momentum is not of this network")
            # In the memory layout of the parameter, whatever the file has.
            kept["momentum_buffer"] = torch.empty_like(parameter).copy_(momentum)


def set_up(
    config: Config,
    model: nn.Module | None = None,
    data: Any = None,
    cost: Any = None,
    init: Mapping[str, Tensor] | None = None,
) -> Trainer:
    """Make the objects that the configuration names, or take those that are given instead."""
    check_model(model)
    device = find_device(config.device)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    weights = init if init is not None or config.init is None else read_weights(config.init)
    images = load_images(config, data, device, model)
    check_class_names(images.classes)
    refuse_differences(_facts_to_share(images))
    config = _with_recipe_and_batch(config, images)
    if isinstance(images, FolderData) and config.crop_scale is not None:
        images.scale = config.crop_scale
    torch.manual_seed(config.seed)
    network = load_model(config.model, len(images.classes)) if model is None else model
    if torch.float64 in (torch.get_default_dtype(), *(p.dtype for p in network.parameters())):
        raise UserError(
            "model: runs compute in torch.float32, and this is torch.float64; type "
            "torch.set_default_dtype(torch.float32), and model.float() for a module"
        )
    net, fresh = make_net(network, images.shape, config.low, weights)
    net.to(device)
    check_outputs(net, images)
    if config.channels_last:
        put_channels_last(net, images)
    slimming = _make_slimming(config, net, images, cost_of(config, cost, net))
    schedule = Schedule(config.schedule or "constant", config.warmup or 0.0, config.lr or 0.0)
    return Trainer(
        config=replace(config, every=slimming.every),
        data=images,
        net=net,
        slimming=slimming,
        optimizer=torch.optim.SGD(
            net.parameters(),
            lr=schedule.highest,
            momentum=config.momentum or 0.0,
            nesterov=bool(config.momentum),
            weight_decay=config.weight_decay or 0.0,
        ),
        criterion=nn.CrossEntropyLoss(label_smoothing=config.label_smoothing or 0.0),
        schedule=schedule,
        scaler=torch.amp.GradScaler(device.type, enabled=config.amp == "fp16"),
        device=device,
        fresh=fresh,
    )


def _with_recipe_and_batch(asked: Config, data: Data) -> Config:
    """Fill in the recipe of the data, and a batch that fits the data and the processes.

    The batch of a recipe is cut to small data; one that was asked for is not.
    """
    config = asked.with_recipe(data.recipe)
    assert config.batch is not None
    if asked.batch is None:
        fits = min(config.batch, data.sizes["train"] // world() * world())
        config = replace(config, batch=fits)
    assert config.batch is not None
    # Every process must have as many images as the others: their gradients count the same.
    if left := config.batch % world():
        sizes = [n for n in (config.batch - left, config.batch - left + world()) if n > 0]
        raise UserError(
            f"batch: {config.batch} images cannot be shared out evenly over {world()} processes; "
            f"type {' or '.join(map(str, sizes))}"
        )
    return config


def _make_slimming(config: Config, net: SlimmableNet, data: Data, cost: Cost) -> Slimming:
    return Slimming(
        reducing_gradients(net),
        method=config.method,
        cost=cost,
        total_steps=total_steps(config, data),
        scoring=scoring_batches(config, data),
        every=config.every,
        widths=parse_widths(config.widths, net.space),
        preset=config.preset,
        searcher=config.searcher,
        search_options={
            name: value for name in SEARCH_OPTIONS if (value := getattr(config, name)) is not None
        },
        rescore=config.rescore,
        seed=config.seed,
        **{item.name: getattr(config, item.name) for item in fields(Sandwich)},
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
    return DistributedDataParallel(net, ids, find_unused_parameters=leaves_some_unused(net))


def leaves_some_unused(net: SlimmableNet) -> bool:
    """Whether a pass uses only a part of the parameters, so that DDP must look for the others."""
    device = next(net.parameters()).device
    with evaluating(net), torch.enable_grad():
        outputs = net(*(moved(value, device) for value in net.example))
    used = [p for p in net.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(outputs.sum(), used, allow_unused=True)
    return any(gradient is None for gradient in gradients)


def load_images(config: Config, data: Any, device: torch.device, model: nn.Module | None) -> Data:
    if data is None:
        check_data(config.recipe, config.data)
    try:
        return load_data(
            config.data if data is None else data,
            root=config.data_root,
            size=config.size,
            channels=channels_of(config, model),
            val=config.held_out,
            device=device,
            workers=config.workers,
        )
    except (MemoryError, RuntimeError) as error:
        line = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"data: cannot load the images: {line}; type a smaller size") from error


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


def check_class_names(names: Sequence[str]) -> None:
    """Refuse class names that could not be exported, before a training and not after it."""
    for name in names:
        if not is_name(name):
            raise UserError(
                f"data: the class {shown(name)} has no name that can be printed in one line; "
                f"give it another, of at most {LONGEST_NAME} characters"
            )


def channels_of(config: Config, model: nn.Module | None) -> int:
    """Return the number of channels of the images that the network takes; built-in ones take 3."""
    if model is None and config.model in MODELS:
        return 3
    return default_shape(model or load_model(config.model))[0]


def total_steps(config: Config, data: Data) -> int:
    if config.steps is not None:
        return config.steps
    assert config.epochs is not None
    assert config.batch is not None
    return steps_in(config.epochs, data.sizes["train"], config.batch)


def scoring_batches(config: Config, data: Data) -> Sweep:
    """Return un-augmented training images in random order, since files may be sorted by class."""
    count = data.sizes["train"]
    assert config.batch is not None
    if config.batch > count:
        raise UserError(f"batch: {config.batch} is more than the {count} training images")
    order = np.random.default_rng(config.seed).permutation(count)
    batch = min(config.score_images or config.batch, count)
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


def check_outputs(net: SlimmableNet, data: Data) -> None:
    """Refuse a network that does not have one output for each class."""
    with evaluating(net):
        outputs = net(torch.zeros(1, *data.shape, device=next(net.parameters()).device))
    classes = len(data.classes)
    if not isinstance(outputs, Tensor) or tuple(outputs.shape) != (1, classes):
        shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise UserError(f"model: its output is {shape}, the data need (n, {classes}) class scores")


def put_channels_last(net: SlimmableNet, data: Data) -> None:
    """Put the weights into channels-last layout, which the outputs of convolutions then have.

    A network that views its activations as contiguous fails with it, and keeps the usual layout.
    """
    lay_out(net, torch.channels_last)
    try:
        with evaluating(net):
            net(torch.zeros(2, *data.shape, device=next(net.parameters()).device))
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
        line = str(error).splitlines()[0]
        raise UserError(f"device: {name!r} cannot be used: {line}; type auto or cpu") from error
    return device


def seed_step(seed: int, step: int, process: int = 0) -> None:
    """Seed dropout and the like by the step, so that a resume needs no generator state."""
    # Mixed, since the generator of a CPU uses the lower 32 bits alone.
    entropy = (seed, step, process) if process else (seed, step)
    mixed = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
    torch.manual_seed(int(mixed[0]))
