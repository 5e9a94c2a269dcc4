"""The figures that are more than curves, against sums by hand and the published numbers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import joslim.paper.drawings as module
from joslim.costs import cost
from joslim.costs.device_file import DeviceFile
from joslim.costs.latency import measure_device, with_both_ends
from joslim.costs.timing import Setting
from joslim.errors import UserError
from joslim.front import Front
from joslim.paper.drawings import (
    TABLE_1,
    US_NETS,
    US_NETS_ACCURACY,
    Clock,
    draw_bisection,
    draw_every,
    draw_imagenet,
    draw_latency,
    draw_table1,
    draw_widths,
    every_of,
    published_lines,
    search_of,
    signed,
    table_texts,
    title_of_row,
)
from joslim.paper.panels import Panel, panels_of
from joslim.results.record import Record, read_record
from joslim.runs.run import Run, load

Made = Callable[..., Record]
IMAGENET = {"model": "mobilenet_v2", "data": "folder:imagenet", "classes": 1000}


def labels(axes: Any) -> list[str]:
    return [line.get_label() for line in axes.get_lines() if not line.get_label().startswith("_")]


def test_runs_of_a_published_network_share_its_panel(made: Made) -> None:
    runs = [made("a", **IMAGENET), made("b", method="slim", **IMAGENET)]
    figure, numbers = draw_table1(panels_of(runs))
    first, second, third = figure.axes
    published = ["Slim, published", "BigNAS, published", "Joslim, published"]
    assert labels(first) == ["Slim", "Joslim", *published, "US-Nets, published"]
    assert labels(second) == labels(third) == published
    assert json.loads(json.dumps(numbers["published"]))["resnet18"]["slim"][0] == [339e6, 38.5]


def test_the_table_has_the_budgets_of_the_paper(made: Made) -> None:
    """Accuracies at 59 to 300 million: of children at 20, 30, ..., 100, which have 50 to 90 %."""
    runs = [made("a", **IMAGENET), made("b", seed=1, shift=2, **IMAGENET)]
    _, numbers = draw_table1(panels_of([*runs, made("c")]))
    ours, _, theirs, other = numbers["tables"]
    assert ours["macs"] == [m * 1e6 for m in TABLE_1["mobilenet_v2"]["macs"]]
    assert ours["published"]["joslim"][0] == 61.5
    assert ours["runs"]["joslim"]["mean"][:4] == pytest.approx([66, 81, 91, 91])
    assert table_texts(ours)[:2] == [
        ["MFLOPs", "Slim, published", "BigNAS, published", "Joslim, published", "Joslim"],
        ["59", "61.4", "61.3", "61.5", "66.0 ± 1.4"],
    ]
    assert (theirs["title"], theirs["runs"]) == ("ResNet18, ImageNet", {})
    assert table_texts(theirs)[-1] == ["1814", "69.6", "69.7", "70.0"]
    assert table_texts(other)[0] == ["MFLOPs", "Joslim"]
    assert table_texts(other)[2:4] == [["40", "60.0"], ["50", "65.0"]]


def test_what_is_drawn_is_what_was_published(made: Made) -> None:
    figure, _ = draw_table1(panels_of([made("a", **IMAGENET)]))
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    for name, label in (("joslim", "Joslim, published"), ("us-nets", "US-Nets, published")):
        drawn = [tuple(xy) for xy in lines[label].get_xydata().tolist()]  # type: ignore[union-attr]
        assert drawn == published_lines("mobilenet_v2")[name]


def test_other_runs_have_a_panel_of_their_own(made: Made) -> None:
    small = {**IMAGENET, "classes": 100}
    runs = [made("a"), made("b", **small)]
    figure, _ = draw_table1(panels_of(runs))
    titles = [axes.get_title("left") for axes in figure.axes]
    assert titles[:3] == ["MobileNetV2, ImageNet", "MobileNetV3, ImageNet", "ResNet18, ImageNet"]
    assert titles[3:] == ["ResNet20, CIFAR-100", "MobileNetV2, ImageNet"]
    assert "Joslim" not in labels(figure.axes[0])


def test_us_nets_stand_beside_mobilenet_v2_in_figure_3(made: Made) -> None:
    resnet = {**IMAGENET, "model": "resnet18"}
    figure, _ = draw_imagenet(panels_of([made("a", **IMAGENET), made("b", **resnet)]))
    assert labels(figure.axes[0]) == ["Joslim", "US-Nets, published"]
    assert labels(figure.axes[1]) == ["Joslim"]


# What the paper says of its own Table 1 holds of ours


# Multiply-adds of the smallest and the full network, as `tests/costs` counts them, in millions.
ENDS = {
    "mobilenet_v2": (59.56, 300.77),
    "mobilenet_v3_large": (43.40, 216.59),
    "resnet18": (338.87, 1814.07),
}
METHODS = ("slim", "bignas", "joslim")


def test_the_table_has_three_networks_of_eight_rows() -> None:
    assert TABLE_1.keys() == ENDS.keys()
    for table in TABLE_1.values():
        assert list(table) == ["macs", *METHODS]
        assert {len(values) for values in table.values()} == {8}


@pytest.mark.parametrize("model", ENDS)
def test_its_ends_are_the_smallest_and_the_full_network(model: str) -> None:
    macs = TABLE_1[model]["macs"]
    assert macs[0] == pytest.approx(ENDS[model][0], abs=1)
    assert macs[-1] == pytest.approx(ENDS[model][1], abs=1)


@pytest.mark.parametrize("model", ENDS)
@pytest.mark.parametrize("method", METHODS)
def test_more_multiply_adds_are_never_worse(model: str, method: str) -> None:
    accuracies = TABLE_1[model][method]
    assert list(accuracies) == sorted(accuracies)


def test_what_is_bold_is_the_highest() -> None:
    """Joslim is, everywhere but for MobileNetV3 at 43 million."""
    for model, table in TABLE_1.items():
        rows = list(zip(table["macs"], *(table[method] for method in METHODS)))
        beaten = [macs for macs, slim, bignas, joslim in rows if joslim < max(slim, bignas)]
        assert beaten == ([43] if model == "mobilenet_v3_large" else [])


def test_the_gain_that_the_abstract_names() -> None:
    table = TABLE_1["mobilenet_v2"]
    gains = [ours - theirs for ours, theirs in zip(table["joslim"], table["slim"])]
    assert max(gains) == pytest.approx(1.7)


def test_lines_are_errors_at_multiply_adds() -> None:
    lines = published_lines("mobilenet_v2")
    assert lines["joslim"][0] == (59e6, 38.5)
    assert lines["slim"][-1] == (300e6, 28.2)
    assert lines[US_NETS] == [
        (59e6, 37.7), (97e6, 34.9), (151e6, 32.4), (209e6, 30.4), (300e6, 28.5)
    ]  # fmt: skip


def test_slim_of_the_paper_follows_us_nets() -> None:
    """That is how the paper checked it: at the ends, which both have, within a percent."""
    slim = TABLE_1["mobilenet_v2"]["slim"]
    assert abs(slim[0] - US_NETS_ACCURACY[0]) < 1
    assert abs(slim[-1] - US_NETS_ACCURACY[-1]) < 1


def test_other_networks_have_nothing() -> None:
    assert published_lines("resnet20") == {}
    assert US_NETS not in published_lines("resnet18")


# Latency


@pytest.fixture(scope="module")
def timed_panels(finished: Run) -> list[Panel]:
    return panels_of([read_record(finished.path)])


@pytest.fixture(scope="module")
def device_file(finished: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    net = load(finished.path).net
    front = {point.widths for point in finished.front}
    some = with_both_ends(net, 12, np.random.default_rng(0))
    chosen = [child for child in some if child not in front]
    path = tmp_path_factory.mktemp("device") / "device.json"
    measure_device(net, chosen, Setting(threads=1, batch=3), repeats=1).write(path)
    return path


def test_children_are_measured_once(
    timed_panels: list[Panel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def counted(net: Any, children: Any, setting: Setting, watch: Any = None) -> DeviceFile:
        calls.append(setting)
        return measure_device(net, children, setting, repeats=1)

    monkeypatch.setattr(module, "measure_device", counted)
    clock = Clock(device="cpu", batch=2, threads=1, kept=tmp_path / "kept.json")
    figure, numbers = draw_latency(timed_panels, clock)
    again = draw_latency(timed_panels, clock)[1]
    assert again == numbers
    assert calls == [Setting(threads=1, batch=2)]
    measured = DeviceFile.read(tmp_path / "kept.json")
    children = {point.widths for point in timed_panels[0].front}
    assert {*measured.children} == children
    (panel,) = numbers["panels"]
    assert panel["cost"] == "latency_ms"
    assert panel["budgets"][-1] == max(measured.ms)
    assert numbers["conditions"][0]["batch"] == 2
    device = numbers["conditions"][0]["device"]
    assert figure.axes[0].get_xlabel() == f"latency of a batch of 2\n{device}"
    draw_latency(timed_panels, Clock(device="cpu", batch=1, threads=1, kept=tmp_path / "kept.json"))
    assert len(calls) == 2, "another batch is measured anew"


def test_a_file_of_another_device_prices_all_children(
    timed_panels: list[Panel], device_file: Path
) -> None:
    _, numbers = draw_latency(timed_panels, Clock(device_file=str(device_file)))
    price = cost("latency", load(timed_panels[0].first.path).net, device_file=device_file)
    prices = [float(price(point.widths)) for point in timed_panels[0].front]
    budgets = numbers["panels"][0]["budgets"]
    assert (budgets[0], budgets[-1]) == (min(prices), max(prices))
    assert numbers["conditions"][0]["batch"] == 3


def test_one_network_at_a_time(made: Made, tmp_path: Path) -> None:
    runs = [made("a"), made("b", data="cifar10")]
    with pytest.raises(UserError, match="one network at a time"):
        draw_latency(panels_of(runs), Clock(kept=tmp_path / "x.json"))


# Bisection and K


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


def test_histograms_leave_out_the_initial_design(made: Made) -> None:
    """The first children are scored before the search proposes any."""
    visits = [100e6, 20e6, 60e6, 21e6, 25e6]
    runs = [made(searcher=name, visits=visits, start=3) for name in ("mobo-ts2", "mobo-rs")]
    _, numbers = draw_bisection(panels_of(runs, search_of))
    for histogram in numbers["histograms"].values():
        assert histogram["percent"][:2] == [50, 50]
    bignas = made(method="bignas", visits=visits, start=3)
    _, numbers = draw_bisection(panels_of([bignas], search_of))
    assert numbers["histograms"]["bignas"]["percent"][:2] == [50, 50]


def test_the_initial_design_is_left_out_where_only_a_part_of_it_was_scored(made: Made) -> None:
    visits = [100e6, 20e6, 60e6, 60e6, 60e6, 21e6, 25e6]
    run = made(searcher="mobo-rs", visits=visits, start=5, samples=1)
    assert run.history is not None
    first = run.history.scorings[0][1]
    del first[3], first[4]
    _, numbers = draw_bisection(panels_of([run], search_of))
    assert numbers["histograms"]["without bisection"]["percent"][:2] == [50, 50]


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


# Widths


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
