"""The table of the paper's figures and of their trainings; `making.py` trains and draws them.

Nothing here imports torch, so that `joslim figure` lists the figures at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from joslim.errors import unknown
from joslim.runs.recipes import PAPER, RECIPES

THREE = ("slim", "bignas", "joslim")
# Steps between two choices of widths (K) of the paper's ablation: 2000 to 100 children.
KS = (156, 313, 626, 1252, 3128)

CIFAR = tuple(name for name in RECIPES if name.startswith(f"{PAPER}cifar"))
MOBILENET_V2 = f"{PAPER}imagenet-mobilenet-v2"
MOBILENET_V3 = f"{PAPER}imagenet-mobilenet-v3"
RESNET18 = f"{PAPER}imagenet-resnet18"
ABLATED = f"{PAPER}cifar100-resnet20"


@dataclass(frozen=True)
class Trials:
    """Trainings of one recipe, each with all seeds; an ablation changes the settings `change`."""

    recipe: str
    methods: tuple[str, ...]
    cost: str = "macs"
    change: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PaperFigure:
    place: str
    summary: str
    trials: tuple[Trials, ...]
    costs: tuple[str, ...] = ("macs",)
    # Three trials on CIFAR; the paper names no number for ImageNet.
    seeds: tuple[int, ...] = (0,)


def ablation_of_k(ks: Sequence[int]) -> tuple[Trials, ...]:
    """Trainings for each K, and Slim, whose time the overhead is measured against."""
    varied = (Trials(ABLATED, ("joslim",), change={"every": k}) for k in ks)
    return (Trials(ABLATED, ("slim",)), *varied)


IMAGENET = tuple(Trials(recipe, THREE) for recipe in (MOBILENET_V2, MOBILENET_V3, RESNET18))

FIGURES: dict[str, PaperFigure] = {
    "cifar": PaperFigure(
        "figure 2",
        "Slim, BigNAS and Joslim: ResNets on CIFAR-10 and CIFAR-100",
        tuple(Trials(recipe, THREE) for recipe in CIFAR),
        seeds=(0, 1, 2),
    ),
    "imagenet": PaperFigure(
        "figure 3",
        "the same on ImageNet: MobileNetV2, MobileNetV3 and ResNet18, beside US-Nets",
        IMAGENET,
    ),
    "table1": PaperFigure(
        "table 1",
        "your runs on ImageNet beside the published ones, as a table and drawn, with US-Nets",
        IMAGENET,
    ),
    "latency": PaperFigure(
        "figure 4",
        "MobileNetV2 trained for multiply-adds, drawn against measured latency at batch 128",
        (Trials(MOBILENET_V2, THREE),),
    ),
    "memory": PaperFigure(
        "figure 5",
        "error against memory: MobileNetV2 and ResNet18 on ImageNet",
        tuple(Trials(recipe, THREE, "memory") for recipe in (MOBILENET_V2, RESNET18)),
        costs=("memory",),
    ),
    "bisection": PaperFigure(
        "figure 6, a and b",
        "with and without bisection: the curves, and the costs of all proposed children",
        tuple(
            Trials(ABLATED, ("joslim",), change={"searcher": searcher})
            for searcher in ("mobo-ts2", "mobo-rs")
        ),
        seeds=(0, 1, 2),
    ),
    "k": PaperFigure(
        "figure 6, c and d",
        "steps between two choices of widths: the curves, and the time beyond that of Slim",
        ablation_of_k(KS),
        seeds=(0, 1, 2),
    ),
    "widths": PaperFigure(
        "appendix, width differences",
        "widths of each layer at three budgets, Joslim beside Slim: MobileNetV2 and V3",
        tuple(Trials(recipe, ("slim", "joslim")) for recipe in (MOBILENET_V2, MOBILENET_V3)),
    ),
    "autoslim": PaperFigure(
        "appendix, comparisons with AutoSlim",
        "Joslim beside AutoSlim for multiply-adds and for memory: ResNet18 on ImageNet",
        tuple(Trials(RESNET18, ("autoslim", "joslim"), cost) for cost in ("macs", "memory")),
        costs=("macs", "memory"),
    ),
}


def find_figure(name: str) -> PaperFigure:
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES, most=len(FIGURES))
    return FIGURES[name]
