"""Runs sorted into the panels of a figure: what is drawn together, and what cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from joslim.errors import UserError
from joslim.front import Front
from joslim.methods import ALIASES
from joslim.runs.folder import CONFIG
from joslim.runs.recipes import PAPER, RECIPES
from joslim.runs.run import Run
from joslim.runs.terms import in_words, terms_of
from joslim.untrusted import json_name, json_value

MODELS = {
    "mobilenet_v2": "MobileNetV2",
    "mobilenet_v3_large": "MobileNetV3",
    **{f"resnet{depth}": f"ResNet{depth}" for depth in (8, 18, 20, 32, 34, 44, 50, 56)},
    **{f"resnet20_{n}x": f"{n}x ResNet20" for n in (2, 3, 4, 5)},
}
DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet"}
# In the order of the paper's legends.
LABELS = {"slim": "Slim", "bignas": "BigNAS", "autoslim": "AutoSlim", "joslim": "Joslim"}

Labelled = Callable[[Run], str]


@dataclass(frozen=True)
class Panel:
    """Runs of one network on the same data, by label; those of a label differ in the seed."""

    title: str
    runs: Mapping[str, Sequence[Run]]
    fronts: Mapping[str, Sequence[Front]]

    @property
    def first(self) -> Run:
        return next(iter(self.runs.values()))[0]

    @property
    def model(self) -> str:
        return self.first.config.model

    @property
    def front(self) -> Front:
        return next(iter(self.fronts.values()))[0]

    def with_fronts(self, fronts: Mapping[str, Sequence[Front]]) -> Panel:
        return replace(self, fronts=fronts)


def method_of(run: Run) -> str:
    return ALIASES.get(run.config.method, run.config.method)


def panels_of(
    runs: Iterable[Run], label: Labelled = method_of, costs: Sequence[str] = ("macs",)
) -> list[Panel]:
    """A panel for each network, data set and cost: those of the paper in its order, then others."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in distinct(runs):
        if run.front.cost not in costs:
            raise UserError(
                f"cost: {str(run.path)!r} has {run.front.cost}, this figure is of "
                f"{' and '.join(costs)}; leave it out"
            )
        groups.setdefault((data_of(run), run.config.model, run.front.cost), []).append(run)
    if not groups:
        raise UserError("runs: none given; type the folders of runs")
    return sorted((panel_of(group, label) for group in groups.values()), key=place_in_paper)


def place_in_paper(panel: Panel) -> int:
    recipes = [recipe for name, recipe in RECIPES.items() if name.startswith(PAPER)]
    places = [(data_name(recipe["data"]), recipe["model"]) for recipe in recipes]
    place = (data_name(panel.first.config.data), panel.model)
    return places.index(place) if place in places else len(places)


def distinct(runs: Iterable[Run]) -> list[Run]:
    found = list(runs)
    places = [run.path.resolve() for run in found]
    for at, place in enumerate(places):
        if place in places[:at]:
            raise UserError(f"runs: {str(found[at].path)!r} is given twice; leave one out")
    return found


def panel_of(runs: Sequence[Run], label: Labelled) -> Panel:
    lines: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.config.seed):
        check_alike(runs[0], run)
        mine = lines.setdefault(label(run), [])
        if mine and mine[-1].config.seed == run.config.seed:
            raise UserError(
                f"seed: {str(mine[-1].path)!r} and {str(run.path)!r} are both {label(run)} with "
                f"seed {run.config.seed}; leave one out"
            )
        mine.append(run)
    # Methods always in the same order; others in that in which they were given.
    given = dict.fromkeys(label(run) for run in runs)
    order = [*(name for name in LABELS if name in given), *(n for n in given if n not in LABELS)]
    chosen = {name: lines[name] for name in order}
    fronts = {name: [run.front for run in line] for name, line in chosen.items()}
    return Panel(title_of(runs[0]), chosen, fronts)


def check_alike(one: Run, other: Run) -> None:
    """The same training but for what a figure compares."""
    ours, theirs = (terms_of(run.path, run.facts, run.front.space, CONFIG) for run in (one, other))
    for key in ours:
        if ours[key] != theirs.get(key):
            raise differ(key, one, ours[key], other, theirs.get(key))
    if one.front.space != other.front.space:
        raise UserError(
            f"model: {str(one.path)!r} and {str(other.path)!r} have other widths to choose from; "
            "draw them apart"
        )


def differ(key: str, one: Run, ours: Any, other: Run, theirs: Any) -> UserError:
    return UserError(
        f"{key}: {str(one.path)!r} has {in_words(ours)}, {str(other.path)!r} has "
        f"{in_words(theirs)}; draw them apart"
    )


def only_one(panels: Sequence[Panel]) -> Panel:
    """For figures of one network on one data set."""
    if len(panels) > 1:
        one, other = panels[0].first, panels[1].first
        for key in ("data", "model", "cost"):
            ours, theirs = (getattr(run.config, key) for run in (one, other))
            if ours != theirs:
                raise differ(key, one, ours, other, theirs)
        raise differ("data", one, data_of(one), other, data_of(other))
    return panels[0]


def data_of(run: Run) -> str:
    """What tells the data apart, whatever the name of their folder."""
    data = json_value(run.facts, "data", CONFIG)
    return json_name(json_value(data, "identity", f"{CONFIG}.data"), f"{CONFIG}.data.identity")


# Words


def title_of(run: Run) -> str:
    """ResNet20, CIFAR-100. Names of a file are printed: an escape sequence has no place in them."""
    where = f"{CONFIG} of {str(run.path)!r}"
    model = json_name(run.config.model, f"{where}: model")
    data = json_name(run.config.data, f"{where}: data")
    name = data_name(data)
    return f"{MODELS.get(model, model.rpartition(':')[2])}, {DATA.get(name, name)}"


def data_name(data: str) -> str:
    """cifar10, folder:/data/imagenet/ -> cifar10, imagenet"""
    return data.rstrip("/").rpartition("/")[2].rpartition(":")[2]


def label_in_words(label: str) -> str:
    return LABELS.get(label, label)
