"""Figure 4: fronts that were trained for multiply-adds, re-priced in measured milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from joslim.costs.device_file import Conditions, DeviceFile
from joslim.costs.latency import measure_device
from joslim.costs.measuring import Setting, Watch
from joslim.errors import UserError
from joslim.front import LATENCY
from joslim.paper.curves import Drawn, draw_curves
from joslim.paper.panels import Panel
from joslim.reports.figures import GREY
from joslim.runs.job import find_device
from joslim.runs.timed import needed, repriced, times_on
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
    children = [child for line in panel.fronts.values() for f in line for child in needed(f)]
    if clock.device_file is not None:
        file = DeviceFile.read(clock.device_file)
        file.check_fits(net, clock.device_file)
    else:
        file = measured_once(net, list(dict.fromkeys(children)), clock)
    times = times_on(file, children, lambda: net)
    fronts = {
        label: [repriced(front, times) for front in line] for label, line in panel.fronts.items()
    }
    return panel.with_fronts(fronts), file.conditions


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
