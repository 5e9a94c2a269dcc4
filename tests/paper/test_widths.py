"""Widths beside each other: what is picked, how it differs, what the titles say."""

from collections.abc import Callable

import pytest

from joslim.errors import UserError
from joslim.front import Front
from joslim.paper.panels import Panel, panels_of
from joslim.paper.widths import draw_widths, signed, title_of_row
from joslim.results.record import Record

Made = Callable[..., Record]


@pytest.fixture
def panels(made: Made) -> list[Panel]:
    runs = [
        made("a", shift=4, tilt=0.3),
        made("b", method="slim"),
        made("c", method="slim", seed=1),
    ]
    return panels_of(runs)


def test_the_children_are_those_that_pick_chooses(panels: list[Panel]) -> None:
    _, numbers = draw_widths(panels, [0.3, 0.5, 1.0])
    (record,) = numbers["panels"]
    assert record["seed"] == 0
    for row, share in zip(record["budgets"], [0.3, 0.5, 1.0]):
        for method, child in row["children"].items():
            point = panels[0].fronts[method][0].pick(macs=share * 100e6)
            assert (child["cost"], child["value"]) == (point.costs["macs"], point.test_error)
            assert child["multipliers"] == [count / 20 for count in point.widths.counts]


def test_differences_are_relative_to_slim(panels: list[Panel]) -> None:
    """At half the cost both have the child of 50 million: 35 % error for Slim, 31 % for Joslim."""
    _, numbers = draw_widths(panels, [0.5])
    (row,) = numbers["panels"][0]["budgets"]
    assert row["relative_difference"]["test_error"] == pytest.approx(100 * -4 / 35)
    assert row["relative_difference"]["macs"] == 0
    assert title_of_row(row) == "at 50 %: error −11.4 % (31.0 %), MACs +0.0 % (50.0M)"  # noqa: RUF001


def test_a_column_for_each_network_and_a_row_for_each_budget(made: Made) -> None:
    runs = [
        made(model=model, method=method)
        for model in ("mobilenet_v2", "mobilenet_v3_large")
        for method in ("slim", "joslim")
    ]
    figure, _ = draw_widths(panels_of(runs))
    assert len(figure.axes) == 6
    for axes in figure.axes:
        assert [line.get_label() for line in axes.get_lines()] == ["Slim", "Joslim"]
        assert all(len(line.get_xdata()) == 4 for line in axes.get_lines())  # type: ignore[arg-type]


def test_budgets_that_buy_the_same_children_are_one_row(panels: list[Panel]) -> None:
    """Children lie 10 % of the full cost apart."""
    figure, numbers = draw_widths(panels, [0.35, 0.38, 0.5, 0.55])
    rows = numbers["panels"][0]["budgets"]
    assert [row["shares"] for row in rows] == [[0.35, 0.38], [0.5, 0.55]]
    assert len(figure.axes) == 2
    assert title_of_row(rows[1]).startswith("at 50 and 55 %: error ")


def test_networks_with_fewer_rows_leave_their_places_empty(made: Made) -> None:
    fine = made("any").front
    coarse = Front([fine[0], fine[-1]], fine.cost, fine.span)
    runs = [made(f"{m} fine", model="resnet32", method=m) for m in ("slim", "joslim")]
    runs += [made(f"{m} coarse", method=m, front=coarse) for m in ("slim", "joslim")]
    figure, numbers = draw_widths(panels_of(runs))
    assert [len(panel["budgets"]) for panel in numbers["panels"]] == [1, 3]
    assert len(figure.axes) == 4
    assert [axes.get_xlabel() != "" for axes in figure.axes].count(True) == 2


def test_a_budget_below_the_smallest_child_shows_that_child(panels: list[Panel]) -> None:
    _, numbers = draw_widths(panels, [0.01])
    assert numbers["panels"][0]["budgets"][0]["children"]["slim"]["cost"] == 20e6


def test_both_methods_are_needed(made: Made) -> None:
    with pytest.raises(UserError, match="no run of method slim"):
        draw_widths(panels_of([made()]))


def test_a_seed_in_common_is_needed(made: Made) -> None:
    with pytest.raises(UserError, match="no seed in common"):
        draw_widths(panels_of([made("a"), made("b", method="slim", seed=1)]))


def test_signs() -> None:
    assert [signed(x) for x in (1.25, -1.25, None)] == ["+1.2 %", "−1.2 %", "n/a"]  # noqa: RUF001
