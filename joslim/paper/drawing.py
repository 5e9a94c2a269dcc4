"""How each figure of the paper is drawn, and what tells the lines of its panels apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from joslim.paper.ablations import draw_bisection, draw_every, every_of, search_of
from joslim.paper.curves import Drawn, draw_curves
from joslim.paper.latency import Clock, draw_latency
from joslim.paper.panels import Labelled, Panel, method_of
from joslim.paper.table1 import draw_imagenet, draw_table1
from joslim.paper.widths import SHARES, draw_widths


@dataclass(frozen=True)
class Wishes:
    """What can be chosen. shares: of figure widths; clock: of figure latency."""

    shares: Sequence[float] = SHARES
    clock: Clock = field(default_factory=Clock)


@dataclass(frozen=True)
class Drawing:
    draw: Callable[[Sequence[Panel], Wishes], Drawn]
    label: Labelled = method_of


# The names are those of `FIGURES`.
DRAWINGS: dict[str, Drawing] = {
    "cifar": Drawing(lambda panels, _: draw_curves(panels)),
    "imagenet": Drawing(lambda panels, _: draw_imagenet(panels)),
    "table1": Drawing(lambda panels, _: draw_table1(panels)),
    "latency": Drawing(lambda panels, wishes: draw_latency(panels, wishes.clock)),
    "memory": Drawing(lambda panels, _: draw_curves(panels)),
    "bisection": Drawing(lambda panels, _: draw_bisection(panels), search_of),
    "k": Drawing(lambda panels, _: draw_every(panels), every_of),
    "widths": Drawing(lambda panels, wishes: draw_widths(panels, wishes.shares)),
    "autoslim": Drawing(lambda panels, _: draw_curves(panels)),
}
