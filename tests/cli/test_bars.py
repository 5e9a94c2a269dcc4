"""Several trainings at once: bars in a terminal, lines elsewhere."""

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from joslim.cli.bars import Bars, Lines, watching_several
from joslim.comparing.trainings import Status


def test_lines_of_what_changes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    lines([Status("a", "training", 1, 9), Status("b", "waiting")])
    lines([Status("a", "training", 2, 9), Status("b", "waiting")])
    lines([Status("a", "finished"), Status("b", "training", 1, 9)])
    lines([Status("a", "finished"), Status("b", "failed")])
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        "a: training (0 of 2 runs ended)",
        "a: finished (1 of 2 runs ended)",
        "b: training (1 of 2 runs ended)",
        "b: failed (2 of 2 runs ended)",
    ]
    assert not printed.out


def test_outside_of_a_terminal_there_are_lines() -> None:
    with watching_several() as watch:
        assert isinstance(watch, Lines)


def test_bars_of_what_runs() -> None:
    progress = Progress(console=Console(file=io.StringIO()))
    bars = Bars(progress)
    bars([Status("[red]a", "training", 3, 9), Status("b", "waiting")])
    everything, first = progress.tasks
    assert (everything.completed, everything.total) == (0, 2)
    assert (first.completed, first.total, first.visible) == (3, 9, True)
    assert first.description == "\\[red]a training", "markup in a name stays text"
    bars([Status("[red]a", "failed"), Status("b", "training")])
    assert everything.completed == 1
    assert not first.visible
    assert progress.tasks[2].total is None, "not known yet"


def test_in_a_terminal_there_are_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80)
    monkeypatch.setattr("joslim.cli.bars.Console", lambda **options: console)
    with watching_several() as watch:
        watch([Status("resnet8-macs-slim-seed0", "training", 3, 9)])
    assert "resnet8-macs-slim-seed0 training" in file.getvalue()
    assert "3/9" in file.getvalue()
