"""Figure 4: fronts that were trained for multiply-adds, re-priced in measured milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from joslim.costs import cost as make_cost
from joslim.costs.device_file import Conditions, DeviceFile
from joslim.costs.latency import Latency, measure_device
from joslim.costs.measuring import Setting, Watch
from joslim.errors import UserError
from joslim.front import LATENCY, Front
from joslim.paper.curves import Drawn, draw_curves
from joslim.paper.panels import Panel
from joslim.reports.figures import GREY
from joslim.runs.job import find_device
from joslim.slimmable import SlimmableNet
from joslim.widths import Widths

# As the paper measured, on one GPU.
BATCH = 128


@dataclass(frozen=True)
class Clock:
    """How children are timed: on a device here, or as a device file has it.

    kept: a file for what is measured; times that are in it already are not measured again.
    """

    device: str = "auto"
    batch: int = BATCH
    threads: int | None = None
    device_file: str | None = None
    kept: Path | None = None
    watch: Watch | None = None


def draw_latency(panels: Sequence[Panel], clock: Clock) -> Drawn:
    if len(panels) > 1 and (clock.device_file or clock.kept):
        names = ", ".join(panel.title for panel in panels)
        raise UserError(f"runs: one network at a time can be timed here, {names} given")
    timed = [timed_panel(panel, clock) for panel in panels]
    figure, numbers = draw_curves([panel for panel, _ in timed], LATENCY)
    for axes, (_, conditions) in zip(figure.axes, timed):
        words = f"latency of a batch of {conditions.batch}\n{conditions.device}"
        axes.set_xlabel(words, color=GREY, parse_math=False)
    return figure, {**numbers, "conditions": [conditions.to_json() for _, conditions in timed]}


def timed_panel(panel: Panel, clock: Clock) -> tuple[Panel, Conditions]:
    """The same children, each with its milliseconds; and the conditions that they hold under."""
    net = panel.first.net
    children = [point.widths for line in panel.fronts.values() for f in line for point in f]
    children = list(dict.fromkeys(children))
    if clock.device_file is not None:
        cost = make_cost("latency", net, device_file=clock.device_file)
        assert isinstance(cost, Latency)
        times = {child: float(cost(child)) for child in children}
        conditions = cost.device_file.conditions
    else:
        measured = measured_once(net, children, clock)
        times = dict(zip(measured.children, measured.ms))
        conditions = measured.conditions
    fronts = {
        label: [repriced(front, times) for front in line] for label, line in panel.fronts.items()
    }
    return panel.with_fronts(fronts), conditions


def measured_once(net: SlimmableNet, children: Sequence[Widths], clock: Clock) -> DeviceFile:
    """A figure that is drawn again on the same device uses the times that it has."""
    net.to(find_device(clock.device))
    setting = Setting(clock.threads, clock.batch)
    if clock.kept is not None and clock.kept.exists():
        known = DeviceFile.read(clock.kept)
        alike = known.conditions == Conditions.here(net, setting)
        if alike and {*children} <= {*known.children}:
            return known
    measured = measure_device(net, children, setting, watch=clock.watch)
    if clock.kept is not None:
        measured.write(clock.kept)
    return measured


def repriced(front: Front, times: dict[Widths, float]) -> Front:
    points = [replace(p, costs={**p.costs, LATENCY: times[p.widths]}) for p in front]
    return Front(points, front.cost, front.span)
