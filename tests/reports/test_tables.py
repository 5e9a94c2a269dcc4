"""Tables: every child, every cost, and nothing that is not known."""

from rich.console import Console
from rich.table import Table

from joslim.allocation import Allocation
from joslim.front import Front, Point
from joslim.reports.tables import allocation_table, curve_table, format_error, front_table
from joslim.widths import Dim, Knob, WidthSpace

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


def step(macs: int, weight: float = 2) -> Allocation:
    return Allocation((point(macs, 4.0), point(3, 5.0)), (1, weight), "train_loss", {"macs": macs})


def test_an_allocation() -> None:
    assert rows_of(allocation_table(["[b]a", "c"], step(7000))) == [
        ["network", "weight", "macs", "train loss", "test error"],
        ["[b]a", "1", "7.00K", "1.2500", "4.00 %"],
        ["c", "2", "3", "1.2500", "5.00 %"],
        ["together, weighted", "", "7.00K", "3.7500", "14.00 %"],
    ]


def test_a_curve_is_thinned_and_keeps_its_ends() -> None:
    rows = rows_of(curve_table([step(macs) for macs in range(1, 101)], most=5))
    assert [row[0] for row in rows] == ["macs", "1", "26", "51", "75", "100"]
    assert [row[0] for row in rows_of(curve_table([step(1)]))] == ["macs", "1"]
