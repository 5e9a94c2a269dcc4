"""A live bar on stderr: losses of the largest and the smallest child, rounds, time left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

if TYPE_CHECKING:
    from joslim.runs.training import Progress as Report
    from joslim.runs.training import Watcher

TITLES = {"train": "training", "front": "judging children"}


def speaks() -> bool:
    """Whether this is the process that prints results: the only one, or torchrun's first."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def watching() -> Iterator[Watcher]:
    """Inside, a function that shows what a training reports. Silent if stderr is no terminal."""
    console = Console(stderr=True)
    # On a narrow terminal it is the bar that gives way.
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
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
