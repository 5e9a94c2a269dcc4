"""What a figure trains: its recipes, with the settings that are given, in folders that it shares.

Settings that are given win over those of the paper; what a figure itself varies cannot be given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from joslim.comparing.plan import LISTS
from joslim.errors import UserError, unknown
from joslim.methods import PRESETS
from joslim.paper.figures import KS, PaperFigure, Trials, ablation_of_k, find_figure
from joslim.paper.panels import data_name
from joslim.runs.config import Config, config_of
from joslim.runs.recipes import PAPER, check_data


@dataclass(frozen=True)
class Training:
    """What one call of `compare` trains, into a folder of its own name."""

    folder: str
    model: str
    cost: str
    methods: tuple[str, ...]
    settings: dict[str, Any]


def figure_with(name: str, ks: Sequence[int] | None, settings: Mapping[str, Any]) -> PaperFigure:
    """The figure, with other values of K if they are given."""
    figure = find_figure(name)
    if name != "k":
        if ks is not None:
            raise UserError(f"ks: figure {name} has no values of K to choose; leave it out")
        return figure
    if ks is None and any(settings.get(key) is not None for key in ("steps", "epochs")):
        listed = ",".join(map(str, KS))
        raise UserError(
            f"ks: the paper's {listed} belong to its 400 epochs; type values for this length: "
            "--ks 2,5,10"
        )
    chosen = KS if ks is None else ks
    if len({*chosen}) < len(chosen):
        raise UserError(f"ks: {','.join(map(str, chosen))} has a value twice; type each only once")
    return replace(figure, trials=ablation_of_k(chosen))


def planned(
    figure: PaperFigure, settings: Mapping[str, Any], only: Sequence[str] | None = None
) -> list[Training]:
    """Everything that is wrong with the settings is said here, before anything is trained."""
    trainings: dict[tuple[str, str], Training] = {}
    for trials in chosen_trials(figure, only):
        training = training_of(trials, settings)
        key = (training.folder, training.cost)
        before = trainings.get(key, training)
        methods = tuple(dict.fromkeys([*before.methods, *training.methods]))
        trainings[key] = replace(before, methods=methods)
    return list(trainings.values())


def chosen_trials(figure: PaperFigure, only: Sequence[str] | None) -> list[Trials]:
    names = list(dict.fromkeys(trials.recipe.removeprefix(PAPER) for trials in figure.trials))
    for name in only or ():
        if name not in names:
            raise unknown("only", name, names, most=len(names))
    wanted = names if only is None else only
    return [trials for trials in figure.trials if trials.recipe.removeprefix(PAPER) in wanted]


def training_of(trials: Trials, given: Mapping[str, Any]) -> Training:
    """The recipe, what is given instead, and what the figure itself varies."""
    for key in trials.change:
        if given.get(key) is not None:
            raise UserError(f"{key}: {given[key]!r} given, but this figure varies it; leave it out")
    values = {key: value for key, value in given.items() if value is not None}
    config = config_of({"recipe": trials.recipe, **values})
    check_data(config.recipe, config.data)
    # A change to what is there already is none: other figures have trained that.
    change = {k: v for k, v in trials.change.items() if v != as_it_is(config, k)}
    changed = config_of({**config.to_json(), **change})
    settings = {
        key: value
        for key, value in changed.to_json().items()
        if value is not None and key not in LISTS and key != "recipe"
    }
    return Training(folder_of(config, change), config.model, trials.cost, trials.methods, settings)


def as_it_is(config: Config, key: str) -> Any:
    if key == "searcher" and config.searcher is None:
        return PRESETS[config.preset].searchers["joslim"][0]
    return getattr(config, key)


def folder_of(config: Config, change: Mapping[str, Any]) -> str:
    """cifar100-resnet20, cifar100-resnet20-every-156"""
    changes = [f"{key}-{value}" for key, value in change.items()]
    parts = [data_name(config.data), config.model, *changes]
    return re.sub(r"[^\w.-]", ".", "-".join(parts)).lstrip(".")
