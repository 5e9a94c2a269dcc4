"""Several trainings at once on stderr: a bar for each one that runs, and one for all of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

if TYPE_CHECKING:
    from joslim.comparing.trainings import Status, Watcher

RUNNING = ("training", "judging")
ENDED = ("finished", "failed")


@contextmanager
def watching_several() -> Iterator[Watcher]:
    """Inside, a function that shows where the trainings are: bars in a terminal, else lines."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines()
        return
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        console=console,
        transient=True,
    )
    with progress:
        yield Bars(progress)


class Bars:
    """Only runs that are under way have a bar: a comparison may have hundreds."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.everything = progress.add_task("runs", total=None)
        self.tasks: dict[str, int] = {}

    def __call__(self, statuses: list[Status]) -> None:
        ended = sum(status.state in ENDED for status in statuses)
        self.progress.update(self.everything, completed=ended, total=len(statuses))
        for status in statuses:
            self.update(status)

    def update(self, status: Status) -> None:
        runs = status.state in RUNNING
        if runs and status.name not in self.tasks:
            self.tasks[status.name] = self.progress.add_task("", total=None)
        if status.name in self.tasks:
            self.progress.update(
                self.tasks[status.name],  # type: ignore[arg-type]
                description=f"{escape(status.name)} {status.state}",
                completed=status.done,
                total=status.total or None,
                visible=runs,
            )


class Lines:
    """A line whenever a training begins, is judged, or ends."""

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
