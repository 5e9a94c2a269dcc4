"""A job: the objects that a configuration stands for, ready to make steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from joslim.costs import Cost
from joslim.costs import cost as make_cost
from joslim.data import Data, Sweep, load_data
from joslim.data.folder import FolderData
from joslim.errors import UserError
from joslim.front import Front
from joslim.loop import Slimming
from joslim.models import MODELS
from joslim.processes import averaged, local_rank, rank, world
from joslim.runs.config import SEARCH_OPTIONS, Config, steps_in
from joslim.runs.network import default_shape, load_model, make_net, read_weights
from joslim.runs.recipes import check_data
from joslim.slimmable import SlimmableNet, norms_together
from joslim.training.evaluate import evaluating, moved
from joslim.training.schedule import Schedule
from joslim.training.step import clip_gradients, refuse_non_finite
from joslim.widths import Widths, WidthSpace

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Lines of metrics.jsonl and checkpoints of a whole training, unless their intervals are given.
LINES = 1000
CHECKPOINTS = 20
# Images of a batch when nothing is learned: gradients need the memory no more.
EVALUATION_BATCH = 512
# What the loop decides where nobody did, by the preset and the number of steps.
RESOLVED = ("every", "draw", "full_weight", "full_first")


@dataclass
class Job:
    """Everything that a training step needs, made once, checked before anything is computed."""

    config: Config
    data: Data
    net: SlimmableNet
    slimming: Slimming
    optimizer: torch.optim.Optimizer
    criterion: nn.Module
    schedule: Schedule
    scaler: torch.amp.GradScaler
    device: torch.device
    # The weights that did not come from --init.
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
        """One optimizer step: a function of the state and the step's number, and nothing else."""
        step = self.slimming.steps
        seed_step(self.config.seed, step, rank())
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule(step, self.total_steps)
        self.optimizer.zero_grad(set_to_none=True)
        with self.precision(), norms_together(self.config.sync_norm):
            self.slimming.backward(x, y, self.criterion, self.differentiate)
        # A loss that is not finite on one process must stop all of them.
        self.slimming.losses = averaged(self.slimming.losses)
        refuse_non_finite(self.slimming.losses, self.slimming.widths, step)
        if not self.scaler.is_enabled():
            clip_gradients(self.net.parameters(), self.config.clip, step)
        elif self.config.clip is not None:  # what overflowed in fp16, the scaler leaves out
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.net.parameters(), self.config.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.slimming.advance()

    def differentiate(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()

    def precision(self) -> AbstractContextManager[Any]:
        if self.config.amp is None:
            return nullcontext()
        return torch.autocast(self.device.type, PRECISIONS[self.config.amp])

    def front(self, progress: Any = lambda done, total: None) -> Front:
        """The front, with validation and test errors: the first time that the test set is read."""
        sizes = self.data.sizes
        val = self.data.sweep("val", EVALUATION_BATCH) if sizes["val"] else None
        test = self.data.sweep("test", EVALUATION_BATCH)
        train = self.data.sweep("train", EVALUATION_BATCH, limit=self.config.front_images)
        # In full precision: that is how the children will be used.
        return self.slimming.front(
            self.criterion, batches=train, val=val, test=test, progress=progress
        )

    def samples(self, count: int = 32) -> Tensor:
        """A few inputs as the network gets them, for exports to check themselves."""
        x, _ = self.data.plain("train", np.arange(min(count, self.data.sizes["train"])))
        return x.cpu().contiguous()

    def state_dict(self) -> dict[str, Any]:
        return {
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
        """The optimizer takes what it is given, and would fail in its first step."""
        for parameter, kept in self.optimizer.state.items():
            momentum = kept.get("momentum_buffer")
            if momentum is None:
                continue
            if not isinstance(momentum, Tensor) or momentum.shape != parameter.shape:
                raise UserError("optimizer: its momentum is not of this network")
            # Laid out as the parameter is, whatever the file has.
            kept["momentum_buffer"] = torch.empty_like(parameter).copy_(momentum)


def make_job(
    config: Config,
    model: nn.Module | None = None,
    data: Any = None,
    cost: Any = None,
    init: Mapping[str, Tensor] | None = None,
) -> Job:
    """The objects that the configuration names, or those that are given in their place."""
    device = find_device(config.device)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    weights = init if init is not None or config.init is None else read_weights(config.init)
    images = load_images(config, data, device, model)
    config = with_batch_that_fits(config, config.with_recipe(images.recipe), images)
    check_shares(config)
    if weights is not None and config.full_first is None:  # it has learned already
        config = replace(config, full_first=0.0)
    if isinstance(images, FolderData) and config.crop_scale is not None:
        images.scale = config.crop_scale
    torch.manual_seed(config.seed)
    network = load_model(config.model, len(images.classes)) if model is None else model
    net, fresh = make_net(network, images.shape, config.low, weights)
    net.to(device)
    check_outputs(net, images)
    if config.channels_last:
        put_channels_last(net, images)
    slimming = make_slimming(config, net, images, cost_of(config, cost, net), device)
    schedule = Schedule(config.schedule or "constant", config.warmup or 0.0, config.lr or 0.0)
    return Job(
        config=replace(config, **{name: getattr(slimming, name) for name in RESOLVED}),
        data=images,
        net=net,
        slimming=slimming,
        optimizer=make_optimizer(config, net, schedule.highest),
        criterion=nn.CrossEntropyLoss(label_smoothing=config.label_smoothing or 0.0),
        schedule=schedule,
        scaler=torch.amp.GradScaler(device.type, enabled=config.amp == "fp16"),
        device=device,
        fresh=fresh,
    )


def make_slimming(
    config: Config, net: SlimmableNet, data: Data, cost: Cost, device: torch.device
) -> Slimming:
    return Slimming(
        reducing_gradients(net, device),
        method=config.method,
        cost=cost,
        total_steps=total_steps(config, data),
        scoring=scoring_batches(config, data),
        every=config.every,
        samples=config.samples,
        draw=config.draw,
        widths=parse_widths(config.widths, net.space),
        distill=config.distill,
        label_share=config.label_share,
        full_weight=config.full_weight,
        full_first=config.full_first,
        replay=config.replay,
        preset=config.preset,
        searcher=config.searcher,
        search_options=given(config, *SEARCH_OPTIONS),
        rescore=config.rescore,
        seed=config.seed,
    )


def make_optimizer(config: Config, net: SlimmableNet, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        net.parameters(),
        lr=lr,
        momentum=config.momentum or 0.0,
        nesterov=bool(config.momentum),
        weight_decay=config.weight_decay or 0.0,
    )


def cost_of(config: Config, own: Any, net: SlimmableNet) -> Cost:
    if config.device_file is None:
        return make_cost(own or config.cost, net)
    if own is not None or config.cost != "latency":
        raise UserError("device_file: it goes with cost latency; type --cost latency")
    return make_cost("latency", net, device_file=config.device_file)


def reducing_gradients(net: SlimmableNet, device: torch.device) -> nn.Module:
    """The network, or a wrapper that averages its gradients over all processes."""
    if world() == 1:
        return net
    ids = [device] if device.type == "cuda" else None
    return DistributedDataParallel(net, ids, find_unused_parameters=leaves_some_unused(net))


def leaves_some_unused(net: SlimmableNet) -> bool:
    """Whether a pass uses only a part of the parameters: then the wrapper must look for them."""
    device = next(net.parameters()).device
    with evaluating(net), torch.enable_grad():
        outputs = net(*(moved(value, device) for value in net.example))
    used = [p for p in net.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(outputs.sum(), used, allow_unused=True)
    return any(gradient is None for gradient in gradients)


def check_shares(config: Config) -> None:
    """Every process must have as many images as the others: their gradients count the same."""
    assert config.batch is not None
    if left := config.batch % world():
        fits = [n for n in (config.batch - left, config.batch - left + world()) if n > 0]
        raise UserError(
            f"batch: {config.batch} images cannot be shared out evenly over {world()} processes; "
            f"type {' or '.join(map(str, fits))}"
        )


def with_batch_that_fits(asked: Config, config: Config, data: Data) -> Config:
    """The batch of a recipe is cut to small data; one that somebody asked for is not."""
    assert config.batch is not None
    fits = min(config.batch, data.sizes["train"] // world() * world())
    return config if asked.batch is not None else replace(config, batch=fits)


def given(config: Config, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(config, name)) is not None}


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


def channels_of(config: Config, model: nn.Module | None) -> int:
    """Of the images that the network takes; the built-in ones take colour."""
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
    """Un-augmented training images in an order of their own: files may be sorted by class."""
    count = data.sizes["train"]
    assert config.batch is not None
    if config.batch > count:
        raise UserError(f"batch: {config.batch} is more than the {count} training images")
    order = np.random.default_rng(config.seed).permutation(count)
    batch = min(config.score_images or config.batch, count)
    # No short batch at the end: children are scored by the statistics of their batch.
    return Sweep(data, "train", order[: count // batch * batch], batch)


def parse_widths(text: str | None, space: WidthSpace) -> Widths | None:
    """0.5 -> all knobs; 1,0.5,... -> one multiplier for each."""
    if text is None:
        return None
    try:
        multipliers = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(f"widths: {text!r} are not multipliers; type 0.5 or 1,0.5,...") from error
    one = len(multipliers) == 1
    # With one for all, knobs that cannot go as low stay at their own lowest.
    for multiplier, low in zip(multipliers, [space.low.min()] if one else space.low):
        if 0 < multiplier < low:
            raise UserError(f"widths: {multiplier:g} is below {low:g}; type --low {multiplier:g}")
    return space.uniform(multipliers[0]) if one else space.at(multipliers)


def check_outputs(net: SlimmableNet, data: Data) -> None:
    """One output for each class, before hours are spent on less."""
    with evaluating(net):
        outputs = net(torch.zeros(1, *data.shape, device=next(net.parameters()).device))
    classes = len(data.classes)
    if not isinstance(outputs, Tensor) or tuple(outputs.shape) != (1, classes):
        shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise UserError(f"model: its output is {shape}, the data need (n, {classes}) class scores")


def put_channels_last(net: SlimmableNet, data: Data) -> None:
    """Its weights decide: what a convolution puts out is laid out as they are.

    A network that views outputs as if they were laid out in the usual way is left as it was.
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
        torch.zeros(1, device=device).item()  # of a meta tensor there is none
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)
    except (RuntimeError, AssertionError) as error:
        line = str(error).splitlines()[0]
        raise UserError(f"device: {name!r} cannot be used: {line}; type auto or cpu") from error
    return device


def seed_step(seed: int, step: int, process: int = 0) -> None:
    """Dropout and the like depend on the step alone, so that a resume needs no generator state."""
    # Mixed, since the generator of a CPU looks at the lower 32 bits alone.
    entropy = (seed, step, process) if process else (seed, step)
    mixed = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
    torch.manual_seed(int(mixed[0]))
