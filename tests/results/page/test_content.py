"""The JSON of the page: what is drawn together, and the band over seeds, against `Front.pick`."""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joslim.front import Front
from joslim.results.groups import boards_of, curve
from joslim.results.page import content
from joslim.results.page.content import content_of, embedded, export_command, page_of, run_json
from joslim.results.record import Record, read_record
from joslim.results.run_files import RunStatus
from joslim.runs.run import Run

MakeRun = Callable[..., Path]
ATTACKS = [
    "</script>",
    "<!--",
    "]]>",
    "&lt;",
    "\u2028",
    "{{data}}",
    "\\u003c",
    "\ud800",
    "'\"`${x}",
]


def boards(*folders: Path) -> list[dict[str, Any]]:
    return content_of([read_record(folder) for folder in folders])["boards"]


def test_seeds_of_one_run_are_a_band(make_run: MakeRun, tmp_path: Path) -> None:
    folders = [make_run(tmp_path / str(seed), seed=seed, threads=seed or None) for seed in range(3)]
    ((group,),) = [board["groups"] for board in boards(*folders)]
    fronts = [Front.read(folder) for folder in folders]
    assert (group["name"], group["runs"], group["seeds"]) == ("joslim", [0, 1, 2], ["0", "1", "2"])
    areas = [front.area() or 0.0 for front in fronts]
    assert group["area"] == pytest.approx([np.mean(areas), np.std(areas, ddof=1)])
    by_loss = [front.area("train_loss") for front in fronts]
    assert group["loss_area"] == pytest.approx([np.mean(by_loss), np.std(by_loss, ddof=1)])
    assert group["children"] == [40, 0]
    band = group["band"]
    assert band["budgets"][0] == max(front[0].costs["macs"] for front in fronts)
    assert band["budgets"][-1] == 4.5e5
    for at in range(0, len(band["budgets"]), 7):
        budget = band["budgets"][at]
        picked = [front.pick(by="train_loss", macs=budget) for front in fronts]
        errors = [point.test_error or 0.0 for point in picked]
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
    records = [read_record(tmp_path / name) for name in "abc"]
    assert [board.identity for board in boards_of(records)] == ["digits 3x8x8", "cifar10"]
    assert [[g["name"] for g in board["groups"]] for board in found] == [
        ["joslim", "slim"],
        ["joslim"],
    ]
    assert [g["band"] for g in found[0]["groups"]] == [None, None]
    assert [g["runs"] for g in found[0]["groups"]] == [[0], [1]]


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


def test_low_left_out_and_the_same_low_typed_are_repetitions(
    make_run: MakeRun, tmp_path: Path
) -> None:
    one, two = make_run(tmp_path / "a", low=None), make_run(tmp_path / "b", low=0.125, seed=1)
    ((group,),) = [board["groups"] for board in boards(one, two)]
    assert group["runs"] == [0, 1]
    assert run_json(read_record(one))["config"]["low"] == "0.125"


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


def test_a_curve_is_what_pick_chooses_by_training_loss(make_run: MakeRun, tmp_path: Path) -> None:
    """The front has ties of the training loss."""
    folder = make_run(tmp_path / "a")
    front = Front.read(folder)
    assert len({point.train_loss for point in front}) < len(front)
    exact = [point.costs["macs"] for point in front]
    budgets = np.array([*exact, *np.random.default_rng(0).uniform(exact[0], exact[-1], 50)])
    expected = [front.pick(by="train_loss", macs=b).val_error for b in budgets.tolist()]
    assert curve(front, budgets, "macs", "val_error").tolist() == expected


def test_a_figure_that_some_run_lacks_is_null(make_run: MakeRun, tmp_path: Path) -> None:
    one, two = make_run(tmp_path / "a"), make_run(tmp_path / "b", seed=1)
    ((group,),) = [board["groups"] for board in boards(one, two)]
    assert group["seconds"] == [15.0, 0.0]
    (two / "metrics.jsonl").unlink()
    ((group,),) = [board["groups"] for board in boards(one, two)]
    assert group["seconds"] is None
    assert boards(one)[0]["groups"][0]["seconds"] == [15.0, None]


# One run


def test_a_finished_run(finished: Run) -> None:
    story, front = run_json(read_record(finished.path)), Front.read(finished.path)
    assert story["status"] == {"state": "finished", "step": 6, "total": 6, "alone_until": 2}
    assert (story["name"], story["model"], story["data"]) == ("finished", "resnet8", "digits")
    told = story["front"]
    assert (told["key"], told["span"], told["judged"]) == ("macs", list(front.span), True)
    assert told["costs"] == list(front.costs)
    assert told["measures"] == ["test_error", "val_error", "train_loss"]
    assert told["area"] == {
        name: front.area(name) for name in ("test_error", "val_error", "train_loss")
    }
    assert told["hypervolume"]["test_error"] == front.hypervolume()
    assert {dim["kind"] for dim in told["dims"]} == {"channels"}
    for child, point in zip(told["children"], front, strict=True):
        assert child["counts"] == list(point.widths.counts)
        assert child["costs"] == point.costs
        assert [child[name] for name in told["measures"]] == [
            point.test_error,
            point.val_error,
            point.train_loss,
        ]
    assert json.loads(json.dumps(story, allow_nan=False)) == json.loads(json.dumps(story))


def test_a_run_under_way(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", steps=3000)
    (folder / "front.json").unlink()
    story = run_json(read_record(folder))
    status = {"state": "stopped", "step": 120, "total": 3000, "alone_until": 0}
    assert story["status"] == status
    front = story["front"]
    assert (front["judged"], front["measures"], front["costs"]) == (False, ["train_loss"], ["macs"])
    everything = [visit[1] for visit in story["visits"]]
    assert front["span"] == [min(everything), max(everything)]


def test_parts_that_are_missing_are_empty(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    (folder / "history.jsonl").unlink()
    (folder / "metrics.jsonl").unlink()
    story = run_json(read_record(folder))
    assert [story[name] for name in ("visits", "growth", "curves", "times")] == [[], [], {}, {}]


def run_of(path: Path, model: Any) -> Record:
    return Record(path, "run", {}, {"model": model}, RunStatus("finished", 1, 1))


@pytest.mark.parametrize("name", ["it's", "-o", "a b", "$(rm)", "ü\n", "`x`"])
def test_the_command_names_the_folder_whatever_it_is_called(name: str) -> None:
    command = export_command(run_of(Path(name), "resnet8"))
    words = shlex.split(f"{command['before']} --macs 3{command['after']}")
    assert words[:2] == ["joslim", "export"]
    assert Path(words[2]) == Path(name)
    assert not words[2].startswith("-")
    assert words[3:] == ["--macs", "3"]


@pytest.mark.parametrize(
    ("model", "after"),
    [
        ("resnet8", []),
        ("nets:digits", ["--model", "nets:digits"]),
        ("a:b; rm x", ["--model", "a:b; rm x"]),
        ("<Net>", []),
        ("<a:b>", []),
        (None, []),
    ],
)
def test_a_model_of_ones_own_is_named_again(model: Any, after: list[str]) -> None:
    command = export_command(run_of(Path("a"), model))
    assert shlex.split(command["after"]) == after
    assert command["unnamed"] == str(model).startswith("<")


def test_settings_that_are_off_are_none_and_low_is_known(finished: Run) -> None:
    story = run_json(read_record(finished.path))
    low = finished.net.space.knobs[0].low
    assert story["config"]["low"] == str(low)
    assert story["config"]["clip"] is None
    assert "null" not in {*story["config"].values()}


# The page as a file: whole, alone, and with names that stay as they are


class Elements(HTMLParser):
    """All elements with their attributes, and the text of each script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.found[-1][0] if self.found else "", []).append(data)


@pytest.fixture(scope="module")
def page(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of([read_record(make_run(tmp_path_factory.mktemp("runs") / "a"))])


def test_it_is_one_file_that_asks_for_no_other(page: str) -> None:
    elements = Elements(page).found
    assert not {"img", "iframe", "object", "embed", "base"} & {tag for tag, _ in elements}
    leading = [value for _, a in elements for key in ("src", "href") if (value := a.get(key))]
    assert [value for value in leading if not value.startswith(("#", "data:"))] == []
    assert not re.search(r"@import|url\(", page)
    policy = next(a["content"] for tag, a in elements if tag == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "http:" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "{{" not in page


def test_it_is_small(page: str) -> None:
    assert len(page) < 120_000


def test_scripts_never_read_text_as_markup(page: str) -> None:
    for name in content.SCRIPTS:
        text = (content.HERE / name).read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text), (
            name
        )
        assert "</script" not in text


def test_every_script_and_style_is_in_it() -> None:
    lying = {file.name for file in content.HERE.iterdir() if file.suffix in (".js", ".css")}
    assert lying == {*content.SCRIPTS, *content.STYLES}


@given(
    st.dictionaries(
        st.text(), st.one_of(st.text(), st.floats(allow_nan=False, allow_infinity=False))
    )
)
def test_data_comes_through_and_cannot_end_its_element(data: dict[str, object]) -> None:
    text = embedded(data)
    assert json.loads(text) == data
    assert not set("<>&\u2028\u2029") & set(text)


@pytest.mark.parametrize("attack", ATTACKS)
def test_names_stay_names(attack: str, make_run: MakeRun, tmp_path: Path) -> None:
    record = read_record(make_run(tmp_path / "a", model=attack, method=attack))
    text = page_of([replace(record, name=attack)])
    text.encode("utf-8")
    elements = Elements(text)
    assert [tag for tag, _ in elements.found].count("script") == 2
    data = json.loads(elements.texts["script"][0])
    assert (data["runs"][0]["model"], data["runs"][0]["name"]) == (attack, attack)
    assert "".join(elements.texts["title"]).startswith(attack.encode("utf-8", "replace").decode())


def test_numbers_that_json_does_not_know_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        embedded(float("nan"))


def test_many_runs_have_a_short_title(make_run: MakeRun, tmp_path: Path) -> None:
    folders = [make_run(tmp_path / f"run{at}", children=2, visits=2) for at in range(5)]
    records = [read_record(folder) for folder in folders]
    assert "<title>run0, run1, run2 and 2 more · joslim</title>" in page_of(records)
    assert '"refresh":5' in page_of(records[:1], refresh=5)
