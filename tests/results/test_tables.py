"""Tables: every child, every cost, and nothing that is not known."""

import io
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from joslim.allocation import Allocation
from joslim.front import IN_PERCENT, Front, Point
from joslim.results.tables import (
    allocation_table,
    comparison_notes,
    comparison_tables,
    curve_table,
    duration,
    front_table,
    print_table,
)
from joslim.space import Dim, Knob, WidthSpace

SPACE = WidthSpace((Dim("stem", 16),), (Knob("stem", (0,), 0.25),))


def point(macs: int, test: float | None, **more: float) -> Point:
    costs = {"macs": macs, "params": 1234, "memory": 512, **more}
    return Point(SPACE.full, costs, 1.25, None, test)


def printed(front: Front) -> list[list[str]]:
    return rows_of(front_table(front))


def rows_of(table: Table) -> list[list[str]]:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(table)
    lines = capture.get().replace("┃", "│").splitlines()
    return [[c.strip() for c in line.strip("│").split("│")] for line in lines if "│" in line]


def test_a_front_of_ones_own_cost() -> None:
    front = Front(
        [point(4_055_240, 30.126, joules=2), point(10, 20.0, joules=1500)], "joules", (1, 2)
    )
    assert printed(front) == [
        ["joules", "macs", "params", "memory", "train loss", "test error"],
        ["2", "4.06M", "1.23K", "512 B", "1.2500", "30.13 %"],
        ["1.50K", "10", "1.23K", "512 B", "1.2500", "20.00 %"],
    ]


def test_an_error_that_some_children_lack() -> None:
    front = Front([point(10, None), point(20, 20.0)], "macs", (1, 2))
    assert [row[-1] for row in printed(front)] == ["test error", "-", "20.00 %"]


def test_no_errors() -> None:
    front = Front([point(10, None)], "macs", (1, 2))
    assert printed(front)[0] == ["macs", "params", "memory", "train loss"]


def test_errors_as_text() -> None:
    assert IN_PERCENT.text(None) == "-"
    assert IN_PERCENT.text(0) == "0.00 %"


def step(macs: int, weight: float = 2) -> Allocation:
    return Allocation((point(macs, 4.0), point(3, 5.0)), (1, weight), "train_loss", {"macs": macs})


def test_an_allocation() -> None:
    assert rows_of(allocation_table(["[b]a", "c"], step(7000))) == [
        ["network", "weight", "macs", "train loss", "test error"],
        ["[b]a", "1", "7.00K", "1.2500", "4.00 %"],
        ["c", "2", "3", "1.2500", "5.00 %"],
        ["total cost, mean error", "", "7.00K", "1.2500", "4.67 %"],
    ]


def test_a_curve_is_thinned_and_keeps_its_ends() -> None:
    rows = rows_of(curve_table([step(macs) for macs in range(1, 101)], most=5))
    assert [row[0] for row in rows] == ["macs", "1", "26", "51", "75", "100"]
    assert [row[0] for row in rows_of(curve_table([step(1)]))] == ["macs", "1"]


@pytest.mark.parametrize("width", [1, 20, 60])
def test_a_narrow_terminal_cuts_nothing_off(width: int) -> None:
    front = Front([point(2_000_000, 20.0)], "macs", (1, 2_000_000))
    console = Console(width=width)
    with console.capture() as capture:
        print_table(console, front_table(front))
    assert console.width == width
    for words in (
        "macs",
        "params",
        "memory",
        "train",
        "loss",
        "error",
        "2.00M",
        "1.2500",
        "20.00 %",
    ):
        assert words in capture.get()


# A comparison


def row(method: str, **changed: Any) -> dict[str, Any]:
    against = {"method": "slim", "pairs": 3, "difference": -1.3, "p_value": 0.0213}
    place = {"share": 0.25, "budget": 10e6, "error": 44.0, "error_deviation": 0.5}
    figures = {
        "model": "resnet8",
        "cost": "macs",
        "method": method,
        "measure": "test_error",
        "metric": {"label": "error", "unit": "%"},
        "seeds": [0, 1, 2],
        "missing": [],
        "area": 12.345,
        "area_deviation": 0.678,
        "loss_area": 0.5432,
        "loss_area_deviation": 0.01,
        "against": against if method != "slim" else None,
        "errors": [place, {**place, "share": None, "budget": 59e6, "error": None}],
        "hypervolume": 0.51239,
        "hypervolume_deviation": 0.01,
        "seconds": 90.4,
        "overhead": 0.126,
    }
    return {**figures, **changed}


def printed_comparison(*rows: dict[str, Any], width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    for table in comparison_tables(rows):
        console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


def cells(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"│ {name}")]
    return [cell.strip() for cell in line.strip("│").split("│")][1:]


def test_methods_side_by_side() -> None:
    text = printed_comparison(row("slim", overhead=None), row("joslim"))
    assert "resnet8 by macs: test error, %" in text
    assert cells(text, "seeds") == ["3", "3"]
    assert cells(text, "area under the curve") == ["12.35 ± 0.68"] * 2
    assert cells(text, "  against slim") == ["-", "-1.30"]
    assert cells(text, "  paired test") == ["-", "p = 0.021, n = 3"]
    assert cells(text, "at 25% of full 10.0M") == ["44.00 ± 0.50"] * 2
    assert cells(text, "at 59.0M") == ["-", "-"]
    assert cells(text, "  by training loss") == ["0.543 ± 0.010"] * 2
    assert cells(text, "hypervolume") == ["0.512 ± 0.010"] * 2
    assert cells(text, "wall time") == ["90 s", "90 s"]
    assert cells(text, "  over slim") == ["-", "+13%"]


def test_three_methods_fit_an_ordinary_terminal() -> None:
    text = printed_comparison(row("slim"), row("bignas"), row("joslim"))
    assert "…" not in text
    assert cells(text, "  paired test")[1:] == ["p = 0.021, n = 3"] * 2


def test_means_of_fewer_seeds_are_marked() -> None:
    few = row("joslim", seeds=[0], missing=[1, 2], area_deviation=None)
    text = printed_comparison(few)
    assert cells(text, "seeds") == ["1 of 3 *"]
    assert cells(text, "area under the curve") == ["12.35"]
    assert "* not all seeds have a front: means are of those that have" in comparison_notes(
        [few], []
    )
    assert not [line for line in comparison_notes([row("slim")], []) if line.startswith("*")]


def test_no_p_value_without_a_test() -> None:
    against = {"method": "slim", "pairs": 2, "difference": -1.3, "p_value": None}
    untested = row("joslim", against=against)
    assert cells(printed_comparison(untested), "  paired test") == ["none, n = 2"]
    assert any("fewer than 3 seeds" in line for line in comparison_notes([untested], []))
    assert not any("fewer than 3 seeds" in line for line in comparison_notes([row("joslim")], []))


def test_nothing_is_known() -> None:
    nothing = row(
        "joslim",
        seeds=[],
        missing=[0],
        area=None,
        area_deviation=None,
        against=None,
        loss_area=None,
        loss_area_deviation=None,
        hypervolume=None,
        hypervolume_deviation=None,
        seconds=None,
        overhead=None,
        errors=[{"share": 0.5, "budget": None, "error": None, "error_deviation": None}],
    )
    text = printed_comparison(nothing)
    assert cells(text, "at 50% of full") == ["-"]
    assert cells(text, "wall time") == ["-"]
    assert "against" not in text
    assert "over slim" not in text


def test_a_table_for_each_model_and_cost() -> None:
    text = printed_comparison(row("slim"), row("slim", cost="memory"), row("joslim"))
    assert text.index("by macs") < text.index("by memory")
    assert cells(text.split("by memory")[0], "seeds") == ["3", "3"]
    assert "59.0 MB" in text


def test_markup_in_names_is_text() -> None:
    text = printed_comparison(row("[red]x", model="[bold]m"))
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
    runs = [{"at_once": count, "seconds": 9.0} for count in counts]
    assert words in comparison_notes([row("slim")], runs)[-1]
