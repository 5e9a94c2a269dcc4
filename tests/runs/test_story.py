"""The story of a run: what its files tell, finished or not, and nothing made up."""

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from joslim.errors import UserError
from joslim.front import Front
from joslim.runs.folder import RunFolder
from joslim.runs.run import Run
from joslim.runs.story import (
    NothingYet,
    export_command,
    story_of,
    text_of,
)
from joslim.runs.training import visits_of


@pytest.fixture
def copied(finished: Run, tmp_path: Path) -> Path:
    shutil.copytree(finished.path, tmp_path / "copy")
    return tmp_path / "copy"


def changed(folder: Path, **settings: Any) -> Path:
    facts = json.loads((folder / "config.json").read_text())
    facts["config"].update(settings)
    (folder / "config.json").write_text(json.dumps(facts))
    return folder


def test_a_finished_run(finished: Run) -> None:
    story, front = story_of(finished.path), Front.read(finished.path)
    assert story["status"] == {"state": "finished", "step": 6, "total": 6}
    assert (story["name"], story["model"], story["data"]) == ("finished", "resnet8", "digits")
    told = story["front"]
    assert (told["key"], told["span"], told["judged"]) == ("macs", list(front.span), True)
    assert told["costs"] == list(front.costs)
    assert told["measures"] == ["test_error", "val_error", "train_loss"]
    assert told["area"] == {name: front.area(name) for name in ("test_error", "val_error")}
    assert told["hypervolume"]["test_error"] == front.hypervolume()
    for child, point in zip(told["children"], front, strict=True):
        assert child["counts"] == list(point.widths.counts)
        assert child["costs"] == point.costs
        assert [child[name] for name in told["measures"]] == [
            point.test_error,
            point.val_error,
            point.train_loss,
        ]
    assert json.loads(json.dumps(story, allow_nan=False)) == json.loads(json.dumps(story))


def test_visits_are_those_of_the_picture(finished: Run) -> None:
    drawn = visits_of(finished.history, finished.front)
    told = story_of(finished.path)["visits"]
    assert [(step, cost, on) for step, cost, _, on in told] == [(s, c, o) for s, c, _, o in drawn]
    assert [row[2] for row in told] == pytest.approx([row[2] for row in drawn], rel=1e-4)
    assert any(row[3] for row in told)


def test_a_run_under_way_shows_the_losses_known_so_far(copied: Path) -> None:
    (copied / "front.json").unlink()
    with RunFolder(changed(copied, steps=3000)).locked():
        assert story_of(copied)["status"]["state"] == "training"
    story = story_of(copied)
    assert story["status"] == {"state": "stopped", "step": 6, "total": 3000}
    front = story["front"]
    assert (front["judged"], front["measures"], front["costs"]) == (False, ["train_loss"], ["macs"])
    losses = [child["train_loss"] for child in front["children"]]
    costs = [child["costs"]["macs"] for child in front["children"]]
    assert costs == sorted(costs)
    assert losses == sorted(losses, reverse=True)
    everything = [visit[1] for visit in story["visits"]]
    assert front["span"] == [min(everything), max(everything)]


def test_a_run_that_goes_on_has_no_front_yet(copied: Path) -> None:
    """Its front.json is of the training before."""
    assert story_of(copied)["front"]["judged"]
    assert not story_of(changed(copied, steps=9))["front"]["judged"]


def test_a_run_that_has_only_just_begun(copied: Path) -> None:
    for name in ("front.json", "metrics.jsonl"):
        (copied / name).unlink()
    header = (copied / "history.jsonl").read_text().splitlines()[0]
    for text in (header + "\n", "", None):
        if text is None:
            (copied / "history.jsonl").unlink()
        else:
            (copied / "history.jsonl").write_text(text)
        words = "has nothing to show yet, no child was scored: "
        with pytest.raises(NothingYet, match=f"{words}it stopped at step 0 of 6; joslim resume"):
            story_of(copied)
        with (
            RunFolder(copied).locked(),
            pytest.raises(NothingYet, match=rf"{words}it is still training \(step 0 of 6\); wait"),
        ):
            story_of(copied)


def test_a_front_alone_is_enough(copied: Path) -> None:
    (copied / "history.jsonl").unlink()
    (copied / "metrics.jsonl").unlink()
    story = story_of(copied)
    assert story["status"]["state"] == "finished"
    assert [story[name] for name in ("visits", "growth", "curves", "times")] == [[], [], {}, {}]


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere' does not exist; joslim train"):
        story_of(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"has no config\.json: not a run folder"):
        story_of(tmp_path)
    file = tmp_path / "a.txt"
    file.write_text("x")
    with pytest.raises(UserError, match="is a file; a run is a folder"):
        story_of(file)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="is not a run folder"):
        story_of(tmp_path)
    (tmp_path / "config.json").write_text('{"joslim": "1", "config": []}')
    with pytest.raises(UserError, match=r"config\.json\.config: \[\] is not a JSON object"):
        story_of(tmp_path)


@pytest.mark.parametrize("name", ["it's", "-o", "a b", "$(rm)", "ü\n", "`x`"])
def test_the_command_names_the_folder_whatever_it_is_called(name: str) -> None:
    command = export_command(Path(name), {"model": "resnet8"})
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
    command = export_command(Path("a"), {"model": model})
    assert shlex.split(command["after"]) == after
    assert command["unnamed"] == str(model).startswith("<")


def test_what_was_not_set_is_none_and_low_is_known(finished: Run) -> None:
    story = story_of(finished.path)
    low = finished.net.space.knobs[0].low
    assert story["config"]["low"] == story["terms"]["low"] == str(low)
    assert story["config"]["searcher"] is None
    assert "null" not in {*story["config"].values(), *story["terms"].values()}


def test_it_is_read_without_torch(
    finished: Run, shell: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = f"""
import sys
from joslim.runs.report import report
report({str(finished.path)!r}, "page.html")
sys.exit("torch" in sys.modules or "matplotlib" in sys.modules)
"""
    assert shell("-c", code).returncode == 0


def test_long_and_strange_values_fit_into_a_cell() -> None:
    assert text_of("x" * 999) == "x" * 200 + "…"
    assert text_of(None) == "null"
    assert text_of([1, {"a": "<b>"}]) == '[1, {"a": "<b>"}]'
