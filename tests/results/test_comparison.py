"""What a comparison says about methods, against figures that are worked out by hand."""

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy import stats  # type: ignore[import-untyped]

from joslim.comparing import read
from joslim.errors import UserError
from joslim.results.comparison import Comparison

Make = Callable[..., Path]


@pytest.fixture
def runs(make_run: Make, tmp_path: Path) -> list[Path]:
    """Two methods with three seeds each, errors at half and at the full cost."""
    errors = {"slim": [(60, 40), (62, 41), (61, 45)], "joslim": [(50, 40), (54, 40), (50, 41)]}
    return [
        make_run(
            tmp_path / f"{method}{seed}",
            list(pair),
            method=method,
            seed=seed,
            seconds=100.0 + seed if method == "slim" else 150.0,
        )
        for method, pairs in errors.items()
        for seed, pair in enumerate(pairs)
    ]


def rows(comparison: Comparison, **options: Any) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in comparison.table(**options)}


def test_a_row_for_each_method(runs: list[Path]) -> None:
    comparison = read(runs)
    table = rows(comparison)
    assert list(table) == ["slim", "joslim"]
    slim, joslim = table["slim"], table["joslim"]
    fronts = comparison.fronts()
    for method, row in table.items():
        areas = [front.area() for front in fronts[method]]
        assert row["area"] == pytest.approx(statistics.mean(areas))
        assert row["area_deviation"] == pytest.approx(statistics.stdev(areas))
        by_loss = [front.area("train_loss") for front in fronts[method]]
        assert row["loss_area"] == pytest.approx(statistics.mean(by_loss))
        volumes = [front.hypervolume() for front in fronts[method]]
        assert row["hypervolume"] == pytest.approx(statistics.mean(volumes))
        assert (row["seeds"], row["missing"]) == ([0, 1, 2], [])
    assert slim["against"] is None
    against = joslim["against"]
    assert (against["method"], against["pairs"]) == ("slim", 3)
    assert against["difference"] == pytest.approx(joslim["area"] - slim["area"])
    gains = [a.area() - b.area() for a, b in zip(fronts["joslim"], fronts["slim"])]
    assert against["p_value"] == pytest.approx(stats.ttest_1samp(gains, 0).pvalue)
    assert slim["seconds"] == pytest.approx(101)
    assert joslim["overhead"] == pytest.approx(450 / 303 - 1)
    assert slim["overhead"] is None


def test_errors_at_costs(runs: list[Path]) -> None:
    """Children cost 20M and 40M: what `pick` finds there."""
    table = rows(read(runs), shares=[0.25, 0.5, 0.99, 1], sizes=[20e6, 19e6, 1e9])
    slim = table["slim"]["errors"]
    assert [place["share"] for place in slim] == [0.25, 0.5, 0.99, 1, None, None, None]
    assert [place["budget"] for place in slim] == [10e6, 20e6, 39.6e6, 40e6, 20e6, 19e6, 1e9]
    assert [place["error"] for place in slim] == [None, 61, 61, 42, 61, None, 42]
    assert slim[1]["error_deviation"] == pytest.approx(1)
    for place in table["joslim"]["errors"]:
        fronts = read(runs).fronts()["joslim"]
        if place["budget"] >= 20e6:
            picked = [front.pick(macs=place["budget"]).test_error for front in fronts]
            assert place["error"] == pytest.approx(statistics.mean(picked))  # type: ignore[type-var]


def test_a_reference_of_ones_own(runs: list[Path]) -> None:
    table = rows(read(runs), against="joslim")
    assert table["joslim"]["against"] is None
    assert table["slim"]["against"]["method"] == "joslim"
    assert table["slim"]["against"]["difference"] > 0
    with pytest.raises(UserError, match="against: unknown name 'x'; allowed: slim, joslim"):
        read(runs).table(against="x")


def test_a_reference_that_only_some_tables_have(
    runs: list[Path], make_run: Make, tmp_path: Path
) -> None:
    alone = make_run(tmp_path / "alone", [30, 20], model="resnet20", method="slim")
    *_, joslim, other = read([*runs, alone]).table(against="joslim")
    assert joslim["against"] is None
    assert (other["model"], other["against"]) == ("resnet20", None)


def test_without_slim_the_first_is_the_reference(runs: list[Path], make_run: Make) -> None:
    other = make_run(runs[0].parent / "other", [70, 60], method="bignas")
    table = rows(read([other, *runs[3:]]))
    assert table["joslim"]["against"] == {
        "method": "bignas",
        "pairs": 1,
        "difference": pytest.approx(table["joslim"]["against"]["difference"]),
        "p_value": None,
    }
    assert table["joslim"]["overhead"] is None, "there is no slim to measure by"


def test_models_and_costs_stand_apart(runs: list[Path], make_run: Make, tmp_path: Path) -> None:
    more = [
        make_run(tmp_path / "memory", [30, 20], cost="memory", method="slim"),
        make_run(tmp_path / "large", [30, 20], model="resnet20", method="slim", steps=7, done=7),
    ]
    comparison = read([*runs, *more])
    assert list(comparison.groups()) == [
        ("resnet8", "macs"),
        ("resnet8", "memory"),
        ("resnet20", "macs"),
    ]
    assert [(row["model"], row["cost"], row["method"]) for row in comparison.table()][2:] == [
        ("resnet8", "memory", "slim"),
        ("resnet20", "macs", "slim"),
    ]
    assert len(comparison.fronts("resnet20")["slim"]) == 1
    assert len(comparison.fronts("resnet8", "macs")["slim"]) == 3
    with pytest.raises(UserError, match="model: 3 tables are meant; choose one of: resnet8 macs,"):
        comparison.fronts()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"steps": 50, "done": 50}, "steps: the runs of resnet8 by macs have different ones (100,"),
        ({"batch": 32}, "batch: "),
        ({"low": 0.5}, "low: "),
        ({"identity": "cifar"}, "data: the runs of resnet8 by macs have different ones (digits, c"),
    ],
)
def test_runs_that_do_not_compare(
    changed: dict[str, Any], words: str, runs: list[Path], make_run: Make, tmp_path: Path
) -> None:
    odd = make_run(tmp_path / "odd", [30, 20], method="bignas", **changed)
    with pytest.raises(UserError) as caught:
        read([*runs, odd])
    assert words in str(caught.value)
    assert "--anyway" in str(caught.value)
    anyway = read([*runs, odd], anyway=True)
    assert len(anyway.table()) == 3
    assert list(anyway.to_json()["differences"]["resnet8 macs"]) == [words.partition(":")[0]]


def test_low_left_out_and_the_same_low_typed_compare(make_run: Make, tmp_path: Path) -> None:
    one = make_run(tmp_path / "a", [50, 30], method="slim")
    two = make_run(tmp_path / "b", [50, 30], low=0.25)
    assert read([one, two]).to_json()["differences"] == {}


def test_one_method_and_seed_twice_is_never_compared(make_run: Make, tmp_path: Path) -> None:
    """In a table the one would hide the other."""
    one = make_run(tmp_path / "a", [50, 30])
    two = make_run(tmp_path / "b", [50, 30], lr=0.5)
    with pytest.raises(UserError, match="lr: the runs of resnet8 by macs have different ones"):
        read([one, two])
    with pytest.raises(UserError, match="are both joslim with seed 0; leave one out"):
        read([one, two], anyway=True)


def test_a_run_that_failed_is_missing_and_not_hidden(runs: list[Path]) -> None:
    from dataclasses import replace

    entries = list(read(runs).entries)
    entries[4] = replace(entries[4], front=None, failure="out of memory")
    comparison = Comparison(entries)
    joslim = rows(comparison)["joslim"]
    assert (joslim["seeds"], joslim["missing"]) == ([0, 2], [1])
    assert joslim["against"]["pairs"] == 2
    assert joslim["against"]["p_value"] is None, "two pairs are no test"
    assert [entry.seed for entry in comparison.failures] == [1]
    record = comparison.to_json()
    assert [run["failure"] for run in record["runs"]].count("out of memory") == 1


def test_nothing_has_a_front(runs: list[Path], tmp_path: Path) -> None:
    from dataclasses import replace

    entries = [replace(entry, front=None, failure="x") for entry in read(runs).entries]
    comparison = Comparison(entries)
    (row, _) = comparison.table()
    assert row["area"] is row["hypervolume"] is row["against"] is row["errors"][0]["error"] is None
    comparison.write(tmp_path)
    assert not (tmp_path / "compare.png").exists()
    with pytest.raises(UserError, match="none of them has a front"):
        comparison.draw(tmp_path / "x.png")


def test_files(runs: list[Path], tmp_path: Path) -> None:
    comparison = read(runs)
    comparison.write(tmp_path, shares=[0.5])
    assert json.loads((tmp_path / "table.json").read_text()) == comparison.to_json(shares=[0.5])
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")


def test_single_children_have_no_area(make_run: Make, tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(seed), [40], method="single", seed=seed) for seed in (0, 1)]
    (row,) = read(runs).table()
    assert row["area"] is row["loss_area"] is None
    assert row["errors"][-1]["error"] == 40
    # One poor seed among others counts: it must not make the mean look better.
    other = make_run(tmp_path / "other", [60, 40], method="single", seed=2)
    (row,) = read([*runs, other]).table()
    areas = [entry.front.area() for entry in read([*runs, other]).entries if entry.front]
    assert row["area"] == pytest.approx(statistics.mean(areas))  # type: ignore[type-var]
