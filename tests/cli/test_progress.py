"""Progress: the bar of a terminal, and the lines outside of one."""

import io
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress as RichProgress

from joslim.cli import progress
from joslim.cli.progress import Bars, Lines, watching, watching_several, words
from joslim.comparing.run import Status
from joslim.runs.driver import Progress

STEP = Progress("train", 30, 120, loss=1.2345, others_loss=2.5, children=17, round=4)
JUDGED = Progress("front", 3, 9, children=17)


def shown(monkeypatch: pytest.MonkeyPatch, reports: list[Progress], width: int) -> str:
    """What a terminal of this width gets to see."""
    screen = io.StringIO()

    def console(**options: Any) -> Console:
        assert options.pop("stderr")
        return Console(file=screen, force_terminal=True, width=width, color_system=None, **options)

    monkeypatch.setattr(progress, "Console", console)
    with watching() as watch:
        for report in reports:
            watch(report)
    return screen.getvalue()


def test_the_words() -> None:
    text = words(STEP)
    for part in ("full 1.234", "others 2.500", "round 4", "17 children"):
        assert part in text
    assert words(JUDGED) == "17 visited"


def test_a_terminal_sees_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, [STEP, JUDGED], width=160)
    for part in ("training", "30/120", words(STEP), "judging children", "3/9", "17 visited"):
        assert part in text


def test_on_eighty_columns_too(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, [STEP], width=80)
    for part in ("30/120", "1.23", "2.50", "round 4", "17 children"):
        assert part in text


def test_the_bar_is_taken_away_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, [STEP], width=160).endswith("\x1b[2K")


def test_lines_where_stderr_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each twentieth: means since the last line, and the time that is left."""
    clock = iter(range(10**6))
    monkeypatch.setattr("joslim.cli.progress.time.monotonic", lambda: next(clock))
    with watching() as watch:
        for step in range(1, 101):
            trained = None if step <= 30 or step % 3 else 10.0 * step
            watch(Progress("train", step, 100, 1.0 * step, None, trained, alone_until=30))
        for done in range(41):
            watch(Progress("front", done, 40))
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    alone = "children are trained from step 30 on"
    assert lines[0] == f"step 1 of 100, loss of the full network 1.000, {alone}"
    assert (
        lines[1] == f"step 5 of 100, loss of the full network 3.500, {alone}, more than 95 s left"
    )
    # Steps 36 to 40, of which 36 and 39 trained the smallest network.
    assert lines[8] == (
        "step 40 of 100, loss of the full network 38.000, of the smallest 375.000, about 60 s left"
    )
    assert lines[20].startswith("step 100 of 100, loss of the full network 98.000")
    assert lines[21] == "judging children: 0 of 40"
    assert lines[22] == "judging children: 2 of 40, about 38 s left"
    assert lines[-1] == "judging children: 40 of 40"
    assert len(lines) == 21 + 21


def test_long_parts_have_lines_in_between(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10**6, 300))
    monkeypatch.setattr("joslim.cli.progress.time.monotonic", lambda: next(clock))
    with watching() as watch:
        for step in range(1, 8):
            watch(Progress("train", step, 1000, 1.0))
    places = [line.partition(",")[0] for line in capsys.readouterr().err.splitlines()]
    assert places == ["step 1 of 1", "step 3 of 1", "step 5 of 1", "step 7 of 1"]


def test_one_process_of_many_speaks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    with watching() as watch:
        watch(STEP)
    assert capsys.readouterr() == ("", "")


def test_an_error_passes_through(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), watching():
        raise ZeroDivisionError
    assert capsys.readouterr().err == ""


# Several trainings at once: bars in a terminal, lines elsewhere


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
    progress = RichProgress(console=Console(file=io.StringIO()))
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
    monkeypatch.setattr("joslim.cli.progress.Console", lambda **options: console)
    with watching_several() as watch:
        watch([Status("resnet8-macs-slim-seed0", "training", 3, 9)])
    assert "resnet8-macs-slim-seed0 training" in file.getvalue()
    assert "3/9" in file.getvalue()
