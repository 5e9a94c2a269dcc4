"""Progress on stderr, as bars or lines: of one training, and of several trainings at once."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

if TYPE_CHECKING:
    from joslim.comparing.run import Status
    from joslim.comparing.run import Watcher as SeveralWatcher
    from joslim.runs.driver import Progress as Report
    from joslim.runs.driver import Watcher

RUNNING = ("training", "judging")
ENDED = ("finished", "failed")
TITLES = {"train": "training", "front": "judging children"}
# Outside of a terminal, a line is printed at each such share of the work, and after such a time.
LINES, LINE_SECONDS = 20, 600.0


def speaks() -> bool:
    """Whether this is the process that prints results: the only one, or torchrun's first."""
    return os.environ.get("RANK", "0") == "0"


def _columns() -> list[ProgressColumn]:
    """Columns of all bars. On a narrow terminal only the bar becomes shorter."""
    return [
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
    ]


@contextmanager
def watching() -> Iterator[Watcher]:
    """Give a function that shows the progress of a training: a bar in a terminal, else lines."""
    console = Console(stderr=True)
    if not speaks():
        yield lambda report: None
        return
    if not console.is_terminal:
        yield TrainingLines()
        return
    bar = Progress(
        *_columns(),
        TextColumn("{task.fields[words]}"),
        console=console,
        transient=True,
    )
    tasks = {}

    def watch(report: Report) -> None:
        if report.phase not in tasks:
            tasks[report.phase] = bar.add_task(TITLES[report.phase], words="")
        bar.update(
            tasks[report.phase], completed=report.done, total=report.total, words=words(report)
        )

    with bar:
        yield watch


def words(report: Report) -> str:
    if report.loss is None:
        return f"{report.children} visited"
    losses = f"full {report.loss:.3f}"
    if report.others_loss is not None:
        losses += f" others {report.others_loss:.3f}"
    return f"{losses} round {report.round}, {report.children} children"


class TrainingLines:
    """Prints a line now and then: the place, the mean losses since the last line, the time left."""

    def __init__(self) -> None:
        self.phase = ""
        self.losses: list[float] = []
        self.smallest: list[float] = []

    def __call__(self, report: Report) -> None:
        now = time.monotonic()
        if begins := report.phase != self.phase:
            self.phase = report.phase
            self.began, self.first, self.printed = now, report.done, now
            self.part = -1
        if report.loss is not None:
            self.losses.append(report.loss)
        if report.smallest_loss is not None:
            self.smallest.append(report.smallest_loss)
        part = LINES * report.done // max(1, report.total)
        if part == self.part and now - self.printed < LINE_SECONDS:
            return
        words = self._words(report, None if begins else now - self.began)
        print(", ".join(words), file=sys.stderr, flush=True)
        self.part, self.printed = part, now
        self.losses, self.smallest = [], []

    def _words(self, report: Report, elapsed: float | None) -> list[str]:
        unit = "step " if report.phase == "train" else f"{TITLES[report.phase]}: "
        words = [f"{unit}{report.done:,} of {report.total:,}"]
        if self.losses:
            words.append(f"loss of the full network {fmean(self.losses):.3f}")
        if self.smallest:
            words.append(f"of the smallest {fmean(self.smallest):.3f}")
        alone = report.done < report.alone_until
        if alone:
            words.append(f"children are trained from step {report.alone_until:,} on")
        if elapsed is not None and self.first < report.done < report.total:
            from joslim.results.tables import duration

            left = elapsed / (report.done - self.first) * (report.total - report.done)
            # Steps that train children take longer, and judging follows.
            words.append(f"{'more than' if alone else 'about'} {duration(left)} left")
        return words


@contextmanager
def watching_several() -> Iterator[SeveralWatcher]:
    """Give a function that shows several trainings: bars in a terminal, else lines."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines()
        return
    with Progress(*_columns(), console=console, transient=True) as progress:
        yield Bars(progress)


class Bars:
    """Shows a bar for each run that is training now, and one for all runs."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.everything = progress.add_task("runs", total=None)
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, statuses: list[Status]) -> None:
        ended = sum(status.state in ENDED for status in statuses)
        self.progress.update(self.everything, completed=ended, total=len(statuses))
        for status in statuses:
            runs = status.state in RUNNING
            if runs and status.name not in self.tasks:
                self.tasks[status.name] = self.progress.add_task("", total=None)
            if status.name in self.tasks:
                self.progress.update(
                    self.tasks[status.name],
                    description=f"{escape(status.name)} {status.state}",
                    completed=status.done,
                    total=status.total or None,
                    visible=runs,
                )


class Lines:
    """Prints a line whenever a training begins, is judged, or ends."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}

    def __call__(self, statuses: list[Status]) -> None:
        ended = sum(status.state in ENDED for status in statuses)
        for status in statuses:
            before = self.states.get(status.name, "waiting")
            if status.state != before:
                self.states[status.name] = status.state
                place = f"{ended} of {len(statuses)} runs ended"
                print(f"{status.name}: {status.state} ({place})", file=sys.stderr, flush=True)
