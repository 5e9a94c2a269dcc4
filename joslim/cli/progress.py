"""Progress on stderr: the bar of one training, and the bars of several trainings at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
    """Give a function that shows the progress of a training, if stderr is a terminal."""
    console = Console(stderr=True)
    bar = Progress(
        *_columns(),
        TextColumn("{task.fields[words]}"),
        console=console,
        transient=True,
        disable=not (console.is_terminal and speaks()),
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
