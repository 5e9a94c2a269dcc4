"""Bisection and K: histograms and overheads against sums by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from joslim.errors import UserError
from joslim.front import Front
from joslim.paper.ablations import draw_bisection, draw_every, every_of, search_of
from joslim.paper.panels import panels_of
from joslim.results.record import Record

Made = Callable[..., Record]


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({"preset": "paper"}, "with bisection"),
        ({"searcher": "mobo-ts2"}, "with bisection"),
        ({"searcher": "mobo-rs", "preset": "paper"}, "without bisection"),
        ({}, "targeted"),
        ({"method": "bignas"}, "bignas"),
    ],
)
def test_the_name_of_a_search(made: Made, settings: dict[str, Any], label: str) -> None:
    assert search_of(made("a", **settings)) == label


def test_histograms_count_all_visits(made: Made) -> None:
    """Bins of four millions: from 20 to 24, from 24 to 28, ..., the last with both of its ends."""
    runs = [
        made(searcher="mobo-ts2", seed=0, visits=[20e6, 23e6, 24e6, 100e6]),
        made(searcher="mobo-ts2", seed=1, visits=[99e6, 98e6]),
        made(searcher="mobo-rs", seed=0, visits=[50e6]),
    ]
    figure, numbers = draw_bisection(panels_of(runs, search_of))
    found = numbers["histograms"]["with bisection"]
    assert found["edges"][:2] == [20e6, 24e6]
    assert len(found["percent"]) == 20
    assert found["percent"][:2] == [25.0, 12.5]
    assert found["percent"][-1] == (25 + 100) / 2
    assert sum(found["percent"]) == 100
    other = numbers["histograms"]["without bisection"]
    assert other["deviation"] is None
    assert other["percent"][7] == 100
    assert [axes.get_title("left") for axes in figure.axes] == [
        "ResNet20, CIFAR-100",
        "with bisection",
        "without bisection",
    ]
    assert figure.axes[1].get_ylim() == figure.axes[2].get_ylim()


def test_bins_look_equally_wide_however_wide_the_span(made: Made) -> None:
    wide = Front([*made("a").front], "macs", (1e6, 100e6))
    run = made("b", searcher="mobo-rs", front=wide, visits=[50e6])
    figure, _ = draw_bisection(panels_of([run], search_of))
    assert [axes.get_xscale() for axes in figure.axes] == ["log", "linear"]


def test_costs_that_are_not_known_are_in_no_bin(made: Made) -> None:
    runs = [made(searcher="mobo-rs", visits=[20e6, None, 1e9, 30e6])]
    _, numbers = draw_bisection(panels_of(runs, search_of))
    assert sum(numbers["histograms"]["without bisection"]["percent"]) == 50


def test_overheads_are_over_slim_with_the_same_seed(made: Made) -> None:
    runs = [
        made(every=10, seed=0, seconds=110.0),
        made(every=10, seed=1, seconds=260.0),
        made(every=2, seed=0, seconds=150.0),
        made(method="slim", seed=0, seconds=100.0),
        made(method="slim", seed=1, seconds=200.0),
    ]
    figure, numbers = draw_every(panels_of(runs, every_of))
    small, large = numbers["overhead"]
    assert (small["every"], small["each"], small["deviation"]) == (2, pytest.approx([50.0]), None)
    assert (large["every"], large["each"]) == (10, pytest.approx([10.0, 30.0]))
    assert large["mean"] == pytest.approx(20)
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["Slim", "K = 2", "K = 10"]
    assert [label.get_text() for label in figure.axes[1].get_xticklabels()] == ["2", "10"]


def test_five_values_of_k_and_slim_have_six_markers(made: Made) -> None:
    runs = [made(every=k) for k in (2, 3, 5, 8, 13)]
    figure, _ = draw_every(panels_of([made(method="slim"), *runs], every_of))
    assert len({line.get_marker() for line in figure.axes[0].get_lines()}) == 6


def test_a_seed_that_slim_has_not_is_measured_by_its_mean(made: Made) -> None:
    runs = [made(every=2, seed=7, seconds=90.0), made(method="slim", seconds=60.0)]
    _, numbers = draw_every(panels_of(runs, every_of))
    assert numbers["overhead"][0]["mean"] == pytest.approx(50)


def test_no_overhead_without_slim(made: Made) -> None:
    with pytest.raises(UserError, match="none of method slim"):
        draw_every(panels_of([made()], every_of))


def test_no_overhead_without_times(made: Made) -> None:
    runs = [made("a", seconds=None), made("b", method="slim")]
    with pytest.raises(UserError, match=r"a' has no wall time"):
        draw_every(panels_of(runs, every_of))


def test_one_network_only(made: Made) -> None:
    runs = [made("a"), made("b", data="cifar10")]
    with pytest.raises(UserError, match="draw them apart"):
        draw_bisection(panels_of(runs, search_of))
