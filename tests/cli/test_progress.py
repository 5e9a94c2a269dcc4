"""The live bar: what it shows, and that it is silent where nobody looks."""

import io
from typing import Any

import pytest
from rich.console import Console

from joslim.cli import progress
from joslim.cli.progress import watching, words
from joslim.runs.training import Progress

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


def test_silent_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with watching() as watch:
        watch(STEP)
        watch(JUDGED)
    assert capsys.readouterr() == ("", "")


def test_an_error_passes_through(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), watching():
        raise ZeroDivisionError
    assert capsys.readouterr().err == ""
