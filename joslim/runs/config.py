"""The configuration of a training: one frozen record, from flags, a file or Python.

Each field is stated once, here: its default, its help, what it may be. The command line makes its
flags from these fields, a configuration file has them as keys, and `checked` refuses what is wrong
before anything is computed. None means: as the recipe, the model or the preset has it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from joslim.errors import UserError, unknown
from joslim.runs.recipes import RECIPES, settings_of
from joslim.untrusted import shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found]

MOST_BYTES = 10**6
# The methods that a searcher can be named for.
SEARCHING = ("joslim", "bignas", "ofa")
# What is said to the searcher.
SEARCH_OPTIONS = ("beta", "epsilon", "log_share", "bisections")


def option(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    names: Callable[[], Iterable[str]] | None = None,
) -> Any:
    """A field: `least` and `most` are allowed values themselves, `above` is not."""
    limits = {"least": least, "above": above, "most": most}
    return field(default=default, metadata={"help": help, "names": names, **limits})


def methods() -> list[str]:
    from joslim.methods import ALIASES, METHODS

    return [*METHODS, *ALIASES]


def presets() -> list[str]:
    from joslim.methods import PRESETS

    return [*PRESETS]


def searchers() -> list[str]:
    from joslim.search import SEARCHERS

    return [*SEARCHERS]


def costs() -> list[str]:
    from joslim.costs import COSTS

    return [*COSTS]


def distillations() -> list[str]:
    from joslim.training.distillation import DISTILLATIONS

    return [*DISTILLATIONS]


def schedules() -> list[str]:
    from joslim.training.schedule import SCHEDULES

    return [*SCHEDULES]


# Settings of where and how a run runs, not of what it computes: a resumed run may have others.
WHERE_AND_HOW = frozenset(
    (
        "device",
        "device_file",
        "threads",
        "workers",
        "data_root",
        "channels_last",
        "log_every",
        "save_every",
        "tensorboard",
    )
)


@dataclass(frozen=True)
class Config:
    """What a run was asked to do."""

    model: str = option("resnet8", "Built-in network, or your own as package.module:function.")
    init: str | None = option(None, "Weights to start from: a .safetensors file.")
    data: str = option("digits", "digits, fashion-mnist, cifar10, cifar100 or folder:PATH.")
    data_root: str | None = option(None, "Folder with the official files of the data set.")
    size: int | None = option(None, "Resize images to this many pixels.", least=1, most=10_000)
    method: str = option("joslim", "joslim, slim, bignas (ofa), autoslim or single.", names=methods)
    cost: str = option("macs", "Against error: macs, params, memory, latency.", names=costs)
    device_file: str | None = option(None, "Cost latency: measured elsewhere, by joslim latency.")
    low: float | None = option(None, "Lowest width multiplier; the network's own.", above=0, most=1)
    widths: str | None = option(None, "Method single: one multiplier, or one for each knob: 1,0.5")
    steps: int | None = option(None, "Optimizer steps.", least=1, most=10**9)
    epochs: float | None = option(None, "Passes over the training data.", above=0, most=10**6)
    batch: int | None = option(None, "Images in a batch, all processes together.", least=1)
    every: int | None = option(
        None, "Steps between choices of widths (K); else for 1000 children.", least=1
    )
    samples: int = option(2, "Widths besides the largest and smallest (M).", least=1, most=64)
    draw: int | None = option(
        None,
        "Of these and the smallest, how many learn in a step; by default 1.",
        least=1,
        most=65,
    )
    preset: str = option("default", "default; or paper: to the letter.", names=presets)
    searcher: str | None = option(
        None, "targeted, mobo-ts2, mobo-rs (the paper's), nsga2 or random.", names=searchers
    )
    beta: float | None = option(None, "Search: weight of uncertainty.", least=0)
    epsilon: float | None = option(
        None,
        "Search: allowed distance from a target, of the full cost.",
        above=0,
        most=1,
    )
    log_share: float | None = option(
        None, "Search: share of the targets that is even in the log of the cost.", least=0, most=1
    )
    bisections: int | None = option(
        None, "Searcher mobo-ts2: at most so many for one target.", least=1, most=1000
    )
    rescore: int | None = option(None, "Children scored anew in a round, at most.", least=1)
    recipe: str | None = option(
        None, "Settings: digits, cifar, imagenet, paper/...; else the data's."
    )
    seed: int = option(0, "Of everything random.", least=0, most=2**31 - 1)
    device: str = option("auto", "auto, cpu, cuda, cuda:1, mps.")
    amp: str | None = option(None, "Mixed precision: bf16 or fp16.", names=lambda: ["bf16", "fp16"])
    threads: int | None = option(None, "CPU threads; else torch's choice.", least=1, most=4096)
    channels_last: bool = option(True, "Channels innermost in memory: faster on most devices.")
    workers: int = option(0, "Processes that decode images of a folder.", least=0, most=256)
    lr: float | None = option(None, "Highest learning rate.", above=0, most=1e30)
    momentum: float | None = option(None, "Of SGD, Nesterov's.", least=0, most=0.9999)
    weight_decay: float | None = option(None, "Of all parameters.", least=0, most=1e30)
    schedule: str | None = option(
        None, "Of the learning rate: cosine, linear or constant.", names=schedules
    )
    warmup: float | None = option(None, "Share of the training with a rising rate.", least=0)
    label_smoothing: float | None = option(
        None, "Label smoothing of the full network.", least=0, most=0.9
    )
    distill: str = option(
        "soft", "How children learn from the full one: soft, kl, alpha.", names=distillations
    )
    label_share: float = option(0.0, "Share of the labels in what children learn.", least=0, most=1)
    full_weight: float | None = option(
        None, "How many times the full network's gradient counts; by default 3.", above=0, most=1000
    )
    full_first: float | None = option(
        None, "Share of the first steps for the full network alone; else 0.3.", least=0, most=1
    )
    replay: float = option(
        0.0, "Joslim: share of trained widths drawn from the front so far.", least=0, most=1
    )
    clip: float | None = option(None, "Largest norm of the gradient.", above=0)
    val: float = option(0.1, "Training images kept for validation: a share or a number.", least=0)
    crop_scale: float | None = option(
        None, "Folders: least share of an image that a random crop keeps.", above=0, most=1
    )
    score_images: int | None = option(
        None, "Images that a round is scored on; by default a batch.", least=2
    )
    front_images: int = option(2048, "Training images that judge the front.", least=2)
    sync_norm: bool = option(False, "BatchNorm over the images of all processes, not of each.")
    log_every: int | None = option(None, "Steps between lines of metrics.jsonl.", least=1)
    save_every: int | None = option(None, "Steps between checkpoints.", least=1)
    tensorboard: bool = option(False, "Write TensorBoard files into the run folder too.")

    def __post_init__(self) -> None:
        for item in fields(self):
            object.__setattr__(self, item.name, checked(item, getattr(self, item.name)))
        if self.steps is not None and self.epochs is not None:
            raise UserError(f"steps: {self.steps} and epochs: {self.epochs} given; type only one")
        if self.recipe is not None and self.recipe not in RECIPES:
            raise unknown("recipe", self.recipe, RECIPES, most=len(RECIPES))
        if self.searcher is not None and self.method not in SEARCHING:
            raise UserError(
                f"searcher: method {self.method!r} does not search; allowed with: "
                f"{', '.join(SEARCHING)}"
            )
        if self.replay and self.method != "joslim":
            raise UserError(f"replay: it is for method joslim, not {self.method!r}; leave it out")
        if self.widths is not None and self.method != "single":
            raise UserError(f"widths: only method single trains given widths, not {self.method!r}")

    @property
    def held_out(self) -> int | float:
        """`val` as the data take it: a whole number is one of images, anything else a share."""
        return int(self.val) if self.val >= 1 and self.val == int(self.val) else self.val

    def with_recipe(self, name: str) -> Config:
        """What is still open filled in from the recipe of this name, or the one asked for."""
        given = {key: value for key, value in asdict(self).items() if value is not None}
        return replace(self, **settings_of(self.recipe or name, given))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def steps_in(epochs: float, images: float, batch: float) -> int:
    """Optimizer steps of so many epochs; the last one may be begun and not ended."""
    return max(1, -int(-epochs * images // batch))


def checked(item: Any, value: Any) -> Any:
    """The value as the type of its field, or one line that says what is allowed."""
    kind, optional = kind_of(item)
    if value is None:
        if optional:
            return None
        raise UserError(f"{item.name}: nothing given; {allowed(item)}")
    if not is_a(value, kind) or not within_limits(value, item.metadata):
        raise UserError(f"{item.name}: {shown(value)} given; {allowed(item)}")
    names = item.metadata["names"]
    if names is not None and value not in (known := [*names()]):
        raise unknown(item.name, value, known)
    return kind(value)


def kind_of(item: Any) -> tuple[type, bool]:
    """The type of a field, and whether it may be None."""
    name, _, none = item.type.partition(" | ")
    return {"str": str, "int": int, "float": float, "bool": bool}[name], none == "None"


def is_a(value: Any, kind: type) -> bool:
    """2.0 is a whole number; true is none, nor is what a double cannot hold."""
    if kind in (str, bool):
        return isinstance(value, kind)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= sys.float_info.max and (kind is float or value == int(value))


def within_limits(value: Any, limits: Mapping[str, Any]) -> bool:
    least, above, most = limits["least"], limits["above"], limits["most"]
    return (
        (least is None or value >= least)
        and (above is None or value > above)
        and (most is None or value <= most)
    )


def allowed(item: Any) -> str:
    """allowed: a whole number, at least 1"""
    kind, _ = kind_of(item)
    words = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}[kind]
    limits = [
        f"{word} {item.metadata[key]}"
        for key, word in (("least", "at least"), ("above", "above"), ("most", "at most"))
        if item.metadata[key] is not None
    ]
    return f"allowed: {', '.join([words, *limits])}"


FIELDS = {item.name: item for item in fields(Config)}
DEFAULTS = {item.name: item.default for item in fields(Config) if item.default is not MISSING}
# What a run had that was begun before there was the setting, where the default is another now.
BEFORE = {"full_weight": 1.0, "full_first": 0.0}


def completed(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run, also of an older version, which did not know all settings."""
    return {**DEFAULTS, **as_begun(stored)}


def as_begun(stored: Mapping[str, Any]) -> dict[str, Any]:
    """What is stored of a run, with what it had without a word where the default is another now."""
    samples = stored.get("samples", DEFAULTS["samples"])
    if stored.get("draw") is None and isinstance(samples, int):  # all learned in every step
        stored = {**stored, "draw": samples + 1}
    return {**BEFORE, **stored}


def config_of(values: Mapping[str, Any]) -> Config:
    """A configuration from keys and values of strangers."""
    for key in values:
        if key not in FIELDS:
            raise unknown("configuration", str(key), FIELDS, most=0)
    recipe = values.get("recipe")
    named = settings_of(recipe, values) if isinstance(recipe, str) and recipe in RECIPES else {}
    return Config(**{**named, **values})


def read_config_file(path: str | Path) -> dict[str, Any]:
    """The keys and values of a TOML or JSON file. Dashes in keys are read as underscores."""
    file = Path(path)
    if file.suffix not in (".toml", ".json"):
        raise UserError(f"config: {str(path)!r} is not a .toml or .json file")
    text = config_text(file)
    try:
        values = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"config: {str(path)!r} is broken: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"config: {str(path)!r} holds no table of keys and values")
    if "joslim" in values and isinstance(values.get("config"), dict):  # the record of a run
        values = {key: value for key, value in values["config"].items() if value is not None}
    return {str(key).replace("-", "_"): value for key, value in values.items()}


def config_text(file: Path) -> str:
    try:
        if file.exists() and not file.is_file():  # a pipe or a device would never end
            raise UserError(f"config: cannot read {str(file)!r}: it is not a file")
        if file.stat().st_size > MOST_BYTES:
            raise UserError(f"config: {str(file)!r} is larger than {MOST_BYTES} bytes")
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"config: cannot read {str(file)!r}: {error}") from error
