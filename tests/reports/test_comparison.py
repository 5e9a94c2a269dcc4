"""Tables of a comparison: what they say, and what they say about themselves."""

import io
from typing import Any

import pytest
from rich.console import Console

from joslim.reports.comparison import comparison_tables, duration, notes, time_note


def row(method: str, **changed: Any) -> dict[str, Any]:
    against = {"method": "slim", "pairs": 3, "difference": -1.3, "p_value": 0.0213}
    place = {"share": 0.25, "budget": 10e6, "error": 44.0, "error_deviation": 0.5}
    figures = {
        "model": "resnet8",
        "cost": "macs",
        "method": method,
        "measure": "test_error",
        "seeds": [0, 1, 2],
        "missing": [],
        "area": 12.345,
        "area_deviation": 0.678,
        "against": against if method != "slim" else None,
        "errors": [place, {**place, "share": None, "budget": 59e6, "error": None}],
        "hypervolume": 0.51239,
        "hypervolume_deviation": 0.01,
        "seconds": 90.4,
        "overhead": 0.126,
    }
    return {**figures, **changed}


def printed(*rows: dict[str, Any], width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    for table in comparison_tables(rows):
        console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


def cells(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"│ {name}")]
    return [cell.strip() for cell in line.strip("│").split("│")][1:]


def test_methods_side_by_side() -> None:
    text = printed(row("slim", overhead=None), row("joslim"))
    assert "resnet8 by macs: test error, %" in text
    assert cells(text, "seeds") == ["3", "3"]
    assert cells(text, "area under the curve") == ["12.35 ± 0.68"] * 2
    assert cells(text, "  against slim") == ["-", "-1.30"]
    assert cells(text, "  paired test") == ["-", "p = 0.021, n = 3"]
    assert cells(text, "at 25% of full 10.0M") == ["44.00 ± 0.50"] * 2
    assert cells(text, "at 59.0M") == ["-", "-"]
    assert cells(text, "hypervolume") == ["0.512 ± 0.010"] * 2
    assert cells(text, "wall time") == ["90 s", "90 s"]
    assert cells(text, "  over slim") == ["-", "+13%"]


def test_three_methods_fit_an_ordinary_terminal() -> None:
    text = printed(row("slim"), row("bignas"), row("joslim"))
    assert "…" not in text
    assert cells(text, "  paired test")[1:] == ["p = 0.021, n = 3"] * 2


def test_means_of_fewer_seeds_are_marked() -> None:
    few = row("joslim", seeds=[0], missing=[1, 2], area_deviation=None)
    text = printed(few)
    assert cells(text, "seeds") == ["1 of 3 *"]
    assert cells(text, "area under the curve") == ["12.35"]
    assert "* not all seeds have a front: means are of those that have" in notes([few], [])
    assert not [line for line in notes([row("slim")], []) if line.startswith("*")]


def test_no_p_value_without_a_test() -> None:
    against = {"method": "slim", "pairs": 2, "difference": -1.3, "p_value": None}
    untested = row("joslim", against=against)
    assert cells(printed(untested), "  paired test") == ["none, n = 2"]
    assert any("fewer than 3 seeds" in line for line in notes([untested], []))
    assert not any("fewer than 3 seeds" in line for line in notes([row("joslim")], []))


def test_nothing_is_known() -> None:
    nothing = row(
        "joslim",
        seeds=[],
        missing=[0],
        area=None,
        area_deviation=None,
        against=None,
        hypervolume=None,
        hypervolume_deviation=None,
        seconds=None,
        overhead=None,
        errors=[{"share": 0.5, "budget": None, "error": None, "error_deviation": None}],
    )
    text = printed(nothing)
    assert cells(text, "at 50% of full") == ["-"]
    assert cells(text, "wall time") == ["-"]
    assert "against" not in text
    assert "over slim" not in text


def test_a_table_for_each_model_and_cost() -> None:
    text = printed(row("slim"), row("slim", cost="memory"), row("joslim"))
    assert text.index("by macs") < text.index("by memory")
    assert cells(text.split("by memory")[0], "seeds") == ["3", "3"]
    assert "59.0 MB" in text


def test_markup_in_names_is_text() -> None:
    text = printed(row("[red]x", model="[bold]m"))
    assert "[red]x" in text
    assert "[bold]m by macs" in text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "-"), (0.4, "0 s"), (599, "599 s"), (600, "10 min"), (5400, "90 min"), (9000, "2.5 h")],
)
def test_durations(seconds: float | None, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([], "not known"),
        ([1, 1], "one run at a time"),
        ([1, 4], "up to 4 runs at once"),
        ([4, None], "how many ran at once is not known"),
    ],
)
def test_what_wall_times_are_worth(counts: list[int | None], words: str) -> None:
    assert words in time_note([{"at_once": count} for count in counts])
