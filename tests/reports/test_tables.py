"""Tables: every child, every cost, and nothing that is not known."""

from rich.console import Console

from joslim.front import Front, Point
from joslim.reports.tables import format_error, front_table
from joslim.widths import Dim, Knob, WidthSpace

SPACE = WidthSpace((Dim("stem", 16),), (Knob("stem", (0,), 0.25),))


def point(macs: int, test: float | None, **more: float) -> Point:
    costs = {"macs": macs, "params": 1234, "memory": 512, **more}
    return Point(SPACE.full, costs, 1.25, None, test)


def printed(front: Front) -> list[list[str]]:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(front_table(front))
    lines = capture.get().replace("┃", "│").splitlines()
    return [[c.strip() for c in line.strip("│").split("│")] for line in lines if "│" in line]


def test_a_front_of_ones_own_cost() -> None:
    front = Front(
        [point(4_055_240, 30.126, energy=2), point(10, 20.0, energy=1500)], "energy", (1, 2)
    )
    assert printed(front) == [
        ["energy", "macs", "params", "memory", "train loss", "test error"],
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
    assert format_error(None) == "-"
    assert format_error(0) == "0.00 %"
