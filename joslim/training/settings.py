"""Settings of a training. Each is declared once, with its default, its help text and its limits.

A group of settings is a frozen dataclass of `setting(...)` fields. The flags and help texts of the
command line, the keys of configuration files and the checks follow from the declaration. The
groups here are those of `joslim.Slimming`; `joslim/runs/config.py` has the others. Importing this
file does not import torch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from numbers import Real
from typing import Any, ClassVar, cast

from joslim.errors import UserError, unknown
from joslim.files import shown

# The methods that search, and so take a searcher and its options.
SEARCHING = ("joslim", "bignas", "ofa")
# The methods whose weights do not depend on the cost: it only decides which children are judged.
COST_BLIND = ("slim", "bignas", "ofa", "single")
# The settings that are passed on to the searcher; None leaves its own default.
SEARCH_OPTIONS = (
    "beta",
    "epsilon",
    "log_share",
    "bisections",
    "optimistic",
    "ard",
    "rho",
    "start",
)
# The settings that only some methods take.
ONLY_FOR = {
    **dict.fromkeys(("searcher", *SEARCH_OPTIONS), SEARCHING),
    "random_share": ("joslim",),
    "channels_only": ("slim",),
    "widths": ("single",),
}
# The settings of where and how a run runs, not of what it computes: a resumed run may have others,
# and runs that differ in nothing else compare.
WHERE_AND_HOW = frozenset(
    [
        "device",
        "device_file",
        "threads",
        "workers",
        "data_root",
        "channels_last",
        "log_every",
        "save_every",
        "tensorboard",
        "log_to",
    ]
)


# A training of fewer epochs has not the time to train all children in every step: the full network
# learns alone at first, and then one child beside it in each step (docs/results.md).
SHORT_EPOCHS = 50
# Below so many epochs from trained weights, the full network is drawn like its children.
SHORT_FINE_TUNING = 20
SHORT = {"draw": 1, "full_first": 0.3}
# As many as can be sampled, and the smallest: all children in every step, from the first on.
LONG = {"draw": 65, "full_first": 0.0}
# The teachers that are copies of the full network.
COPIES = ("fixed", "ema")


def setting(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    names: Callable[[], Iterable[str]] | None = None,
) -> Any:
    """Declare a setting. `least` and `most` are allowed values themselves, `above` is not."""
    limits = {"least": least, "above": above, "most": most}
    metadata = {"help": help, "names": names, **limits}
    return field(default=default, metadata=metadata)


def keys_of(module: str, *tables: str) -> Callable[[], list[str]]:
    """Return a function that lists the names in tables of a module, which it imports when called.

    The command line makes its flags without torch, which most of the tables need.
    """
    return lambda: [name for table in tables for name in getattr(import_module(module), table)]


class Settings:
    """Base of the groups: checks every setting of a group when an instance is made."""

    title: ClassVar[str]

    def __post_init__(self) -> None:
        for item in fields(self):  # type: ignore[arg-type]
            object.__setattr__(self, item.name, checked(item, getattr(self, item.name)))


@dataclass(frozen=True)
class Sandwich(Settings):
    """Which children are trained in a step, and how each of them learns.

    The defaults are those of the preset "default"; other presets change some of them.
    """

    title: ClassVar[str] = "Training of the children"

    samples: int = setting(
        2,
        "Number of children sampled in each round, besides the full and the smallest (M).",
        least=1,
        most=64,
    )
    draw: int | None = setting(
        None,
        "Number of children trained in each step besides the full network. They are drawn from the "
        "sampled ones and the smallest, and weighted so that the gradient stays unbiased. By "
        f"default all of them; one in trainings of fewer than {SHORT_EPOCHS} epochs.",
        least=1,
        most=65,
    )
    full_weight: float | None = setting(
        None,
        "Weight of the gradient of the full network. By default 3; 1 with draw_full.",
        above=0,
        most=1000,
    )
    full_first: float | None = setting(
        None,
        "Share of the steps, at the beginning, in which only the full network is trained. By "
        f"default 0; 0.3 in trainings of fewer than {SHORT_EPOCHS} epochs.",
        least=0,
        most=1,
    )
    draw_full: bool | None = setting(
        None,
        "Whether the full network is drawn like its children, in turn with the smallest, instead "
        "of being trained in every step. By default yes in trainings of fewer than "
        f"{SHORT_FINE_TUNING} epochs from trained weights (--init).",
    )
    distill: str = setting(
        "soft",
        "Distillation loss of the children, which learn from the full network: soft, kl or alpha.",
        names=keys_of("joslim.training.distillation", "DISTILLATIONS"),
    )
    teacher: str = setting(
        "full",
        "Teacher of the children: full (the full network of this step), next (the next larger "
        "child of this step), fixed (the trained network that --init loads) or ema (a moving "
        "average of the full network).",
        names=keys_of("joslim.training.teacher", "TEACHERS"),
    )
    full_distill: float = setting(
        0.0,
        "Share of the loss of the full network that is computed with the teacher fixed or ema "
        "instead of the labels.",
        least=0,
        most=0.9,
    )
    label_share: float | None = setting(
        None,
        "Share of the loss of the children that is computed with the labels. By default 0; 1 if "
        "the full network is drawn like its children and so cannot teach them.",
        least=0,
        most=1,
    )
    random_share: float = setting(
        0.6,
        "Share of the children of the search that are replaced by random ones of all costs, drawn "
        "anew at each step (method joslim).",
        least=0,
        most=1,
    )
    channels_only: bool = setting(
        False,
        "Scale only the channels by the one multiplier, and keep all blocks and pixels (method "
        "slim).",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.full_distill and self.teacher not in COPIES:
            raise UserError(
                f"full_distill: {self.full_distill:g} given, and the full network cannot learn "
                f"from teacher {self.teacher!r}; type --teacher fixed or --teacher ema"
            )
        if self.draw_full and not self._can_draw_full:
            raise UserError(
                "draw_full: the full network teaches its children in every step; type "
                "--label-share 1 or --teacher fixed"
            )

    @property
    def _can_draw_full(self) -> bool:
        """Whether the children have no need of the full network in every step."""
        return self.teacher in COPIES or (self.teacher == "full" and self.label_share in (None, 1))


@dataclass(frozen=True)
class Search(Settings):
    """When children are chosen, and by which search."""

    title: ClassVar[str] = "Method and search"

    method: str = setting(
        "joslim",
        "Training strategy: joslim, slim, bignas (ofa), autoslim, sensitivity or single.",
        names=keys_of("joslim.training.methods", "METHODS", "ALIASES"),
    )
    preset: str = setting(
        "default",
        "Values of the settings that are not given: default, or paper to do what the paper does.",
        names=keys_of("joslim.training.methods", "PRESETS"),
    )
    every: int | None = setting(
        None,
        "Steps between two choices of widths (K). By default such that 1000 children are visited.",
        least=1,
    )
    searcher: str | None = setting(
        None,
        "Search algorithm: targeted, mobo-ts2 or mobo-rs (the paper's), nsga2 or random. By "
        "default the one of the preset.",
        names=keys_of("joslim.search", "SEARCHERS"),
    )
    beta: float | None = setting(None, "Weight of the uncertainty in the search.", least=0)
    epsilon: float | None = setting(
        None,
        "Allowed distance of a child from its target cost, as a share of the full cost.",
        above=0,
        most=1,
    )
    log_share: float | None = setting(
        None,
        "Share of the target costs that are even in the logarithm of the cost: it favours small "
        "children.",
        least=0,
        most=1,
    )
    bisections: int | None = setting(
        None,
        "Largest number of bisections for one target cost (searcher mobo-ts2).",
        least=1,
        most=1000,
    )
    optimistic: bool | None = setting(
        None,
        "Whether uncertainty attracts the search or repels it, as under preset paper (searchers "
        "mobo-ts2 and mobo-rs).",
    )
    ard: bool | None = setting(
        None,
        "Whether a Gaussian process has one length scale for each knob or one for all (searchers "
        "mobo-ts2 and mobo-rs).",
    )
    rho: float | None = setting(
        None,
        "Weight of the sum in the Tchebyshev scalarization (searchers mobo-ts2 and mobo-rs).",
        least=0,
        most=1000,
    )
    start: int | None = setting(
        None,
        "Number of scored children from which on the search uses its model. By default it depends "
        "on the number of knobs.",
        least=2,
        most=100_000,
    )
    rescore: int | None = setting(
        None, "Largest number of known children that are scored again in each round.", least=1
    )


class ResolvedSandwich(Sandwich):
    """Settings with nothing left open."""

    draw: int
    full_first: float
    full_weight: float
    draw_full: bool
    label_share: float


def sandwich_of(preset: str, given: Mapping[str, Any]) -> Sandwich:
    """Return the given settings, and those of the preset for all others."""
    from joslim.training.methods import preset as find_preset

    return Sandwich(**{**find_preset(preset).changes, **given})


def resolved_sandwich(
    settings: Sandwich, epochs: float = math.inf, trained: bool = False
) -> ResolvedSandwich:
    """Fill in what depends on the length of the training; it is long if it is not known.

    At most all of the sampled children and the smallest can be drawn. trained: Whether the network
    starts from trained weights.
    """
    values, is_short = asdict(settings), epochs < SHORT_EPOCHS
    for name, short in SHORT.items():
        if values[name] is None:
            values[name] = short if is_short else LONG[name]
    values["draw"] = min(values["draw"], values["samples"] + 1)
    if values["draw_full"] is None:
        values["draw_full"] = trained and epochs < SHORT_FINE_TUNING and settings._can_draw_full
    apart = values["draw_full"]
    if values["label_share"] is None:
        values["label_share"] = 1.0 if apart and settings.teacher == "full" else 0.0
    if values["full_weight"] is None:
        values["full_weight"] = 1.0 if apart else 3.0
    return ResolvedSandwich(**values)


SEARCH_FIELDS = {item.name: item for item in fields(Search)}


def search_options_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check the options of a searcher that are settings; the searcher knows the others."""
    return {
        name: checked(SEARCH_FIELDS[name], value) if name in SEARCH_OPTIONS else value
        for name, value in given.items()
    }


def checked(item: Any, value: Any) -> Any:
    """Return the value as the type of its field, or raise one line that says what is allowed."""
    kind, optional = kind_of(item)
    if value is None and optional:
        return None
    if value is None:
        raise UserError(f"{item.name}: nothing given; {_allowed(item)}")
    least, above, most = (item.metadata[limit] for limit in ("least", "above", "most"))
    if (
        not _is_a(value, kind)
        or (least is not None and value < least)
        or (above is not None and value <= above)
        or (most is not None and value > most)
    ):
        raise UserError(f"{item.name}: {shown(value)} given; {_allowed(item)}")
    names = item.metadata["names"]
    if names is not None and value not in (known := [*names()]):
        raise unknown(item.name, value, known)
    return kind(value)


def kind_of(item: Any) -> tuple[type, bool]:
    """Return the type of a field, and whether it may be None."""
    name, _, none = item.type.partition(" | ")
    return {"str": str, "int": int, "float": float, "bool": bool}[name], none == "None"


def _is_a(value: Any, kind: type) -> bool:
    """Whether the value is of a type; 2.0 counts as a whole number, true and infinity do not."""
    if kind in (str, bool):
        return isinstance(value, kind)
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    value = cast(float, value)
    return abs(value) <= sys.float_info.max and (kind is float or value == int(value))


def _allowed(item: Any) -> str:
    """Describe the allowed values: allowed: a whole number, at least 1"""
    kind, _ = kind_of(item)
    words = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}[kind]
    limits = [
        f"{word} {item.metadata[key]}"
        for key, word in (("least", "at least"), ("above", "above"), ("most", "at most"))
        if item.metadata[key] is not None
    ]
    return f"allowed: {', '.join([words, *limits])}"
