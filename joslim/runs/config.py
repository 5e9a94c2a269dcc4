"""The configuration of a run: one frozen record, made from flags, a file or Python.

Each setting is declared once, with `setting(...)`, in one of the groups: those of the training
loop in `joslim/training/settings.py`, all others here. The command line makes its flags from the
declarations, a configuration file has them as keys, and a wrong value is refused before anything is
computed. None leaves a value to the recipe, the preset, the data or the network: `resolve` in
`joslim/runs/setup.py` fills it in, once, and returns a `Resolved` configuration.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from joslim.costs import COSTS
from joslim.errors import UserError, unknown
from joslim.files import read_text, shown
from joslim.runs.recipes import RECIPES, settings_of
from joslim.training.settings import (
    ONLY_FOR,
    SHORT_FINE_TUNING,
    Sandwich,
    Search,
    Settings,
    checked,
    keys_of,
    sandwich_of,
    setting,
)

MOST_BYTES = 10**6


@dataclass(frozen=True)
class Network(Settings):
    title: ClassVar[str] = "Network and cost"

    model: str = setting(
        "resnet8",
        "Name of a built-in network, timm:NAME, torchvision:NAME, transformers:TYPE, or your own "
        "as package.module:function.",
    )
    init: str | None = setting(
        None,
        "Trained weights to start from: a .safetensors or .pth file, the folder of a run, or "
        "pretrained for those of timm or torchvision.",
    )
    cost: str = setting(
        "macs",
        f"Cost to trade for error: {', '.join(COSTS)}.",
        names=lambda: COSTS,
    )
    device_file: str | None = setting(None, "Measurements of joslim latency, for cost latency.")
    low: float | None = setting(
        None, "Smallest width multiplier. By default the network decides.", above=0, most=1
    )
    divisor: int | None = setting(
        None,
        "Round channel counts down to multiples of this number. By default the network decides.",
        least=1,
    )
    dropout: float | None = setting(
        None,
        "Probability of all dropout layers of the network. By default each keeps its own.",
        least=0,
        most=0.99,
    )
    resolutions: str | None = setting(
        None,
        "Sizes in pixels of the images that children take, such as 160,192,224. By default all "
        "children take images of one size.",
    )
    depth: bool = setting(False, "Let children leave out residual blocks.")
    widths: str | None = setting(
        None, "Widths of method single: one multiplier, or one for each knob, such as 1,0.5."
    )


@dataclass(frozen=True)
class Images(Settings):
    title: ClassVar[str] = "Data"

    data: str = setting(
        "digits",
        "Data set: digits, fashion-mnist, cifar10, cifar100, folder:PATH, shards:PATH, or "
        "text:PATH.",
    )
    task: str | None = setting(
        None,
        "What is learned: classification, multi-label, regression, segmentation or language. By "
        "default language for text:PATH, else classification.",
    )
    context: int = setting(
        128, "Number of tokens that a network sees at once (text).", least=2, most=10**6
    )
    data_root: str | None = setting(None, "Folder with the official files of the data set.")
    size: int | None = setting(None, "Resize images to this many pixels.", least=1, most=10_000)
    channels: int | None = setting(
        None,
        "Channels of the images: 1 (grey), 3 (colour), 4 (colour and depth). By default those that "
        "the network takes.",
        least=1,
        most=1024,
    )
    crop_scale: float | None = setting(
        None,
        "Smallest share of an image that a random crop keeps (data in folders).",
        above=0,
        most=1,
    )
    clip_colours: bool = setting(
        False,
        "Jitter colours in whole bytes, clip every change, and hardly change the lighting, as the "
        "code of US-Nets does (data in folders).",
    )
    val: float = setting(
        0.1,
        "Training images that are kept for validation, if the data have none: a share or a number.",
        least=0,
    )
    split: str | None = setting(
        None,
        "Shares of training, validation and test images of a folder that has classes and no "
        "train/: 0.8/0.1/0.1.",
    )
    workers: int = setting(
        0,
        "Number of processes that decode images (data in folders).",
        least=0,
        most=256,
    )


@dataclass(frozen=True)
class Optimizer(Settings):
    title: ClassVar[str] = "Length and optimizer (defaults come from the recipe, unless shown)"

    recipe: str | None = setting(
        None,
        "Recipe with values for the settings that are not given: digits, cifar, small-data, "
        "medium-data, large-data, imagenet, paper/... By default the one of the data.",
    )
    steps: int | None = setting(None, "Number of optimizer steps.", least=1, most=10**9)
    epochs: float | None = setting(
        None, "Number of passes over the training data.", above=0, most=10**6
    )
    batch: int | None = setting(None, "Images in a batch, over all processes.", least=1)
    optimizer: str | None = setting(
        None,
        "Optimizer: sgd, or adamw, by default with rate 0.002 and weight decay 0.05. By default "
        "adamw for text, else sgd.",
        names=keys_of("joslim.training.optimizers", "OPTIMIZERS"),
    )
    lr: float | None = setting(
        None,
        "Highest learning rate. By default that of the recipe, times the batch by the recipe's.",
        above=0,
        most=1e30,
    )
    momentum: float | None = setting(
        None, "Nesterov momentum of SGD, or the first beta of AdamW.", least=0, most=0.9999
    )
    weight_decay: float | None = setting(None, "Weight decay.", least=0, most=1e30)
    decay_on: str = setting(
        "all",
        "Parameters with weight decay: all, or weights, which exempts norms, biases and depthwise "
        "convolutions.",
        names=keys_of("joslim.training.optimizers", "DECAYS"),
    )
    schedule: str | None = setting(
        None,
        "Schedule of the learning rate: cosine, linear or constant.",
        names=keys_of("joslim.training.schedule", "SCHEDULES"),
    )
    warmup: float | None = setting(
        None, "Share of the training in which the learning rate rises.", least=0
    )
    label_smoothing: float | None = setting(
        None, "Label smoothing of the loss of the full network.", least=0, most=0.9
    )
    class_weights: str | None = setting(
        None,
        "Weights of the classes in the loss: balanced, or one number for each, such as 1,2,0.5.",
    )
    ignore_index: int | None = setting(
        None,
        "Label that neither the loss nor the metric counts (segmentation, language). By default "
        "255 in segmentation.",
        least=-100,
        most=10**6,
    )
    clip: float | None = setting(None, "Largest norm of the gradient.", above=0)
    ema: float | None = setting(
        None,
        "Decay of an exponential moving average of the weights, such as 0.999. The front is then "
        "that of the average.",
        above=0,
        most=0.999999,
    )
    mixup: float = setting(
        0.0, "Mix images and labels, with this parameter of Beta (torchvision).", least=0, most=100
    )
    cutmix: float = setting(
        0.0, "Mix parts of images, with this parameter of Beta (torchvision).", least=0, most=100
    )
    randaugment: int = setting(
        0, "Magnitude of RandAugment, such as 9 (torchvision).", least=0, most=30
    )


@dataclass(frozen=True)
class Evaluation(Settings):
    title: ClassVar[str] = "Evaluation"

    score_images: int | None = setting(
        None, "Number of images that score the children of a round. By default a batch.", least=2
    )
    val_every: int | None = setting(
        None,
        "Steps between two measurements of the validation error of the full and the smallest "
        "network. The front is then that of the step with the least mean of both. By default only "
        "the end is measured.",
        least=1,
    )
    front_images: int = setting(2048, "Number of training images that judge the front.", least=2)


@dataclass(frozen=True)
class Machine(Settings):
    title: ClassVar[str] = "Machine and logs"

    seed: int = setting(0, "Random seed.", least=0, most=2**31 - 1)
    device: str = setting("auto", "Device to train on: auto, cpu, cuda, cuda:1 or mps.")
    amp: str | None = setting(
        None,
        "Mixed precision: bf16, fp16, or auto: bf16 if a short measurement finds it faster on the "
        "device.",
        names=lambda: ["auto", "bf16", "fp16"],
    )
    threads: int | None = setting(
        None,
        "Number of CPU threads. By default torch decides.",
        least=1,
        most=4096,
    )
    channels_last: bool = setting(
        True,
        "Use the channels-last memory layout, which is faster on most devices.",
    )
    sync_norm: bool = setting(
        False, "Compute BatchNorm statistics over the images of all processes."
    )
    log_every: int | None = setting(
        None,
        "Steps between two lines of metrics.jsonl. By default such that there are 1000 lines.",
        least=1,
    )
    save_every: int | None = setting(
        None,
        "Steps between two checkpoints. By default such that there are 20.",
        least=1,
    )
    tensorboard: bool = setting(False, "Also write TensorBoard files into the run folder.")
    log_to: str | None = setting(
        None,
        "Also send metrics to a tracker: tensorboard, wandb, mlflow or trackio.",
        names=keys_of("joslim.runs.logs", "LOGGERS"),
    )


@dataclass(frozen=True)
class Config(Machine, Evaluation, Sandwich, Search, Optimizer, Images, Network):
    """All settings of a run. `config_of` makes one from the values that were given.

    dataclasses takes the fields of the last base first: the network comes first in help texts.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and self.epochs is not None:
            raise UserError(f"steps: {self.steps} and epochs: {self.epochs} given; type only one")
        if self.recipe is not None and self.recipe not in RECIPES:
            raise unknown("recipe", self.recipe, RECIPES, most=len(RECIPES))
        if self.task is not None and not self.task.startswith("<"):
            from joslim.training.tasks import task_kind

            task_kind(self.task)
        for name, methods in ONLY_FOR.items():
            value = getattr(self, name)
            if value and value != DEFAULTS[name] and self.method not in methods:
                raise UserError(
                    f"{name}: it is for method {' or '.join(methods)}, not {self.method!r}; "
                    "leave it out"
                )
        if self.method == "single" and self.teacher != DEFAULTS["teacher"]:
            raise UserError("teacher: method single has no children to teach; leave it out")
        sizes_of(self.resolutions)

    @property
    def slim_options(self) -> dict[str, Any]:
        """The options of `joslim.slim`."""
        return {
            "low": self.low,
            "divisor": self.divisor,
            "resolutions": sizes_of(self.resolutions),
            "depth": self.depth or None,
        }

    @property
    def held_out(self) -> int | float:
        """`val` as the data take it: whole numbers are a number of images, others a share."""
        return int(self.val) if self.val >= 1 and self.val == int(self.val) else self.val

    def with_recipe(self, name: str) -> Config:
        """Fill in the settings that are None from this recipe, or from the one asked for."""
        given = {key: value for key, value in asdict(self).items() if value is not None}
        return replace(self, **settings_of(self.recipe or name, given))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def sizes_of(text: str | None) -> tuple[int, ...] | None:
    """160,192,224 -> (160, 192, 224)"""
    if text is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,5}(,[1-9][0-9]{0,5})*", text):
        raise UserError(f"resolutions: {shown(text)} are not sizes; type pixels: 160,192,224")
    return tuple(map(int, text.split(",")))


class Resolved(Config):
    """A configuration with nothing left open: None means that a setting is off.

    It is made by `resolve` in `joslim/runs/setup.py`, and written to config.json. The settings that
    are never None in it are annotated again, with that type.
    """

    task: str
    channels: int
    recipe: str
    steps: int
    batch: int
    optimizer: str
    lr: float
    momentum: float
    weight_decay: float
    schedule: str
    warmup: float
    label_smoothing: float
    draw: int
    full_first: float
    full_weight: float
    draw_full: bool
    label_share: float
    every: int
    rescore: int
    score_images: int
    log_every: int
    save_every: int

    def __post_init__(self) -> None:
        super().__post_init__()
        left_open = [name for name in Resolved.__annotations__ if getattr(self, name) is None]
        assert not left_open, left_open


FIELDS = {item.name: item for item in fields(Config)}
# If one of these is given, a short fine-tuning searches for the size of each layer too.
OF_THE_SEARCH = (*(item.name for item in fields(Search)), "random_share", "depth", "resolutions")
DEFAULTS = {item.name: item.default for item in fields(Config) if item.default is not MISSING}
# The title of the group of each setting, for the help of the command line.
GROUPS: tuple[type[Any], ...] = Config.__bases__
TITLES: dict[str, str] = {item.name: group.title for group in GROUPS for item in fields(group)}


def config_of(values: Mapping[str, Any], trained: bool = False) -> Config:
    """Make a configuration of the given values; the recipe and the preset fill in the others.

    trained: Whether the network has trained weights that `init` does not name.
    """
    for key in values:
        if key not in FIELDS:
            raise unknown("configuration", str(key), FIELDS, most=0)
    recipe = values.get("recipe")
    named = settings_of(recipe, values) if isinstance(recipe, str) and recipe in RECIPES else {}
    given = {**named, **values}
    sizes = given.get("resolutions")  # in Python and in files also as a list
    if isinstance(sizes, (list, tuple)) and sizes and all(type(size) is int for size in sizes):
        given["resolutions"] = ",".join(map(str, sizes))
    preset = checked(FIELDS["preset"], given.get("preset", DEFAULTS["preset"]))
    sandwich = {item.name: given[item.name] for item in fields(Sandwich) if item.name in given}
    if trained or given.get("init") is not None:
        # A trained network is not trained alone first, and has another rate than the recipe's.
        sandwich.setdefault("full_first", 0.0)
        searches = any(given.get(name) is not None for name in OF_THE_SEARCH)
        # How many epochs a number of steps is, is not known yet.
        epochs = math.inf if given.get("steps") is not None else given.get("epochs") or math.inf
        is_short = isinstance(epochs, (int, float)) and epochs < SHORT_FINE_TUNING
        if is_short and given.get("cost", "macs") == "macs" and not searches:
            given["method"] = "sensitivity"
        given = {name: value for name, value in given.items() if name != "lr" or name in values}
    return Config(**{**given, **asdict(sandwich_of(preset, sandwich))})


def read_config_file(path: str | Path) -> dict[str, Any]:
    """Read the keys and values of a TOML or JSON file. Dashes in keys become underscores."""
    file = Path(path)
    if file.suffix not in (".toml", ".json"):
        raise UserError(f"config: {str(path)!r} is not a .toml or .json file")
    text = read_text(file, MOST_BYTES, "config")
    try:
        values = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"config: {str(path)!r} is broken: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"config: {str(path)!r} holds no table of keys and values")
    if "joslim" in values and isinstance(values.get("config"), dict):  # the record of a run
        values = {key: value for key, value in values["config"].items() if value is not None}
    return {str(key).replace("-", "_"): value for key, value in values.items()}
