"""What is drawn together, and the band over seeds, against `Front.pick` itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joslim.front import Front
from joslim.reports.page.groups import boards_of, curve, labels, places, spread
from joslim.runs.story import story_of

MakeRun = Callable[..., Path]


def boards(*folders: Path) -> list[dict[str, Any]]:
    return boards_of([story_of(folder) for folder in folders])


def test_seeds_of_one_run_are_a_band(make_run: MakeRun, tmp_path: Path) -> None:
    folders = [make_run(tmp_path / str(seed), seed=seed, threads=seed or None) for seed in range(3)]
    ((group,),) = [board["groups"] for board in boards(*folders)]
    fronts = [Front.read(folder) for folder in folders]
    assert (group["name"], group["runs"], group["seeds"]) == ("joslim", [0, 1, 2], ["0", "1", "2"])
    areas = [front.area() or 0.0 for front in fronts]
    assert group["area"] == pytest.approx([np.mean(areas), np.std(areas, ddof=1)])
    assert group["children"] == [40, 0]
    band = group["band"]
    assert band["budgets"][0] == max(front[0].costs["macs"] for front in fronts)
    assert band["budgets"][-1] == 4.5e5
    for at in range(0, len(band["budgets"]), 7):
        errors = [front.pick(macs=band["budgets"][at]).test_error or 0.0 for front in fronts]
        assert band["mean"][at] == pytest.approx(np.mean(errors))
        assert band["deviation"][at] == pytest.approx(np.std(errors, ddof=1))


def test_a_copy_is_no_other_seed(make_run: MakeRun, tmp_path: Path) -> None:
    folders = [
        make_run(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    (board,) = boards(*folders)
    assert [group["runs"] for group in board["groups"]] == [[0, 2], [1]]


def test_methods_lie_in_one_chart_and_data_apart(make_run: MakeRun, tmp_path: Path) -> None:
    found = boards(
        make_run(tmp_path / "a"),
        make_run(tmp_path / "b", method="slim"),
        make_run(tmp_path / "c", identity="cifar10", data="cifar10"),
    )
    assert [board["identity"] for board in found] == ["digits 3x8x8", "cifar10"]
    assert [[g["name"] for g in board["groups"]] for board in found] == [
        ["joslim", "slim"],
        ["joslim"],
    ]
    assert [g["band"] for g in found[0]["groups"]] == [None, None]
    assert [g["runs"] for g in found[0]["groups"]] == [[0], [1]]


def test_costs_are_drawn_apart(make_run: MakeRun, tmp_path: Path) -> None:
    story = story_of(make_run(tmp_path / "a"))
    other = {**story, "front": {**story["front"], "key": "memory"}}
    assert [board["key"] for board in boards_of([story, other, story])] == ["macs", "memory"]


def test_a_chart_shows_an_error_that_all_its_runs_know(make_run: MakeRun, tmp_path: Path) -> None:
    one, two = make_run(tmp_path / "a"), make_run(tmp_path / "b", method="slim")
    record = json.loads((two / "front.json").read_text())
    record["children"][3]["test_error"] = None
    (two / "front.json").write_text(json.dumps(record))
    (board,) = boards(one, two)
    assert board["measure"] == "val_error"
    areas = [group["area"][0] for group in board["groups"]]
    assert areas == [Front.read(folder).area("val_error") for folder in (one, two)]


def test_a_run_under_way_is_not_compared(make_run: MakeRun, tmp_path: Path) -> None:
    one, two = make_run(tmp_path / "a"), make_run(tmp_path / "b", seed=1)
    (two / "front.json").unlink()
    ((group,),) = [board["groups"] for board in boards(one, two)]
    assert group["runs"] == [0]
    assert boards(two) == []


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ([{"method": "slim", "low": "0.1"}], ["slim"]),
        ([{"method": "joslim"}, {"method": "slim"}], ["joslim", "slim"]),
        (
            [{"low": "0.1", "method": "joslim"}, {"low": "0.2", "method": "slim"}],
            ["joslim, low 0.1", "slim, low 0.2"],
        ),
        ([{"model": "resnet8"}, {"model": "resnet20"}], ["resnet8", "resnet20"]),
        ([{"searcher": "mobo-rs"}, {"searcher": None}], ["searcher mobo-rs", "searcher default"]),
        ([{"low": "0.1"}, {"low": "0.1"}], ["run 0", "run 1"]),
    ],
)
def test_groups_are_named_by_what_differs(settings: list[Any], names: list[str]) -> None:
    stories = [
        {"terms": terms, "name": f"run {at}", "method": terms.get("method")}
        for at, terms in enumerate(settings)
    ]
    assert labels(stories) == names


def test_low_left_out_and_the_same_low_typed_are_repetitions(
    make_run: MakeRun, tmp_path: Path
) -> None:
    one, two = make_run(tmp_path / "a", low=None), make_run(tmp_path / "b", low=0.125, seed=1)
    ((group,),) = [board["groups"] for board in boards(one, two)]
    assert group["runs"] == [0, 1]
    assert story_of(one)["config"]["low"] == "0.125"


def test_boards_of_one_name_say_what_differs(make_run: MakeRun, tmp_path: Path) -> None:
    digits = [make_run(tmp_path / "a"), make_run(tmp_path / "b", identity="other", val=0.2)]
    assert [board["difference"] for board in boards(*digits)] == [
        "size default, val 0.1",
        "size default, val 0.2",
    ]
    assert [board["difference"] for board in boards(digits[0])] == [""]
    third = make_run(tmp_path / "c", identity="a third")
    named = [board["difference"] for board in boards(*digits, third)]
    assert named == ["digits 3x8x8", "other", "a third"]


def test_what_a_budget_buys_is_what_pick_chooses(make_run: MakeRun, tmp_path: Path) -> None:
    """The front has ties of the training loss."""
    folder = make_run(tmp_path / "a")
    front, children = Front.read(folder), story_of(folder)["front"]["children"]
    assert len({point.train_loss for point in front}) < len(front)
    exact = [point.costs["macs"] for point in front]
    budgets = np.array([*exact, *np.random.default_rng(0).uniform(exact[0], exact[-1], 50)])
    expected = [front.pick(macs=budget).val_error for budget in budgets.tolist()]
    assert curve(children, "macs", "val_error", budgets).tolist() == expected


def test_places_reach_both_ends_exactly() -> None:
    for low, high in ((3.0, 3.0), (1.0, 15.0), (7198.0, 765568.0), (0.0, 5.0), (0.1, 1e9)):
        found = places(low, high)
        assert (found[0], found[-1]) == (low, high)
        assert (np.diff(found) >= 0).all()


def test_a_spread_takes_all_values() -> None:
    assert spread([3.0]) == [3.0, None]
    assert spread([1.0, 3.0]) == [2.0, pytest.approx(2**0.5)]
    assert spread([1.0, None]) is None
