"""Figure 4: fronts that were trained for multiply-adds, drawn against measured milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from joslim.costs.device_file import Conditions, DeviceFile
from joslim.costs.latency import measure_device
from joslim.costs.timing import Setting, Watch
from joslim.errors import UserError
from joslim.front import LATENCY
from joslim.paper.panels import Drawn, Panel, draw_curves
from joslim.results.device_times import children_to_time, repriced, times_on
from joslim.results.plots import GREY
from joslim.runs.run import load
from joslim.runs.setup import find_device
from joslim.slimmable import SlimmableNet
from joslim.space import Widths

# As the paper measured, on one GPU.
BATCH = 128


@dataclass(frozen=True)
class Clock:
    """How children are timed: on a device here, or by a device file.

    model: a network of somebody's own, as package.module:function. kept: a file for the measured
    times; times that are in it already are not measured again.
    """

    device: str = "auto"
    batch: int = BATCH
    threads: int | None = None
    device_file: str | None = None
    model: str | None = None
    kept: Path | None = None
    watch: Watch | None = None


def draw_latency(panels: Sequence[Panel], clock: Clock) -> Drawn:
    if len(panels) > 1 and (clock.device_file or clock.kept):
        names = ", ".join(panel.title for panel in panels)
        raise UserError(f"runs: one network at a time can be timed here, {names} given")
    timed = [_timed_panel(panel, clock) for panel in panels]
    figure, numbers = draw_curves([panel for panel, _ in timed], LATENCY)
    for axes, (_, conditions) in zip(figure.axes, timed):
        words = f"latency of a batch of {conditions.batch}\n{conditions.device}"
        axes.set_xlabel(words, color=GREY, parse_math=False)
    return figure, {**numbers, "conditions": [conditions.to_json() for _, conditions in timed]}


def _timed_panel(panel: Panel, clock: Clock) -> tuple[Panel, Conditions]:
    """Give each child its milliseconds; and return the conditions under which they hold."""
    net = load(panel.first.path, clock.model).net
    fronts = [front for line in panel.fronts.values() for front in line]
    children = [child for front in fronts for child in children_to_time(front)]
    if clock.device_file is not None:
        file = DeviceFile.read(clock.device_file)
        file.check_fits(net, clock.device_file)
    else:
        file = _measured_once(net, list(dict.fromkeys(children)), clock)
    times = times_on(file, children, lambda: net)
    lines = {label: [repriced(f, times) for f in line] for label, line in panel.fronts.items()}
    return replace(panel, fronts=lines), file.conditions


def _measured_once(net: SlimmableNet, children: Sequence[Widths], clock: Clock) -> DeviceFile:
    """Measure children, or reuse the times of an earlier drawing on the same device."""
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
