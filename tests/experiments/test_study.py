"""The study: what is kept of runs is what they were, and a page can be made of it."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import joslim
from joslim.comparing import Entry
from joslim.comparing.plan import asked_plan
from joslim.runs.config import SEARCH_OPTIONS
from joslim.runs.run import Run
from joslim.search import searcher
from joslim.training.methods import PRESETS
from joslim.training.settings import Sandwich

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import results  # noqa: E402
import study  # noqa: E402


@pytest.fixture
def kept_rows(finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (study, results):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    alone = [f"single-{size:g}" for size in study.SIZES]
    methods = ("slim", "joslim", "slim-drawn", "joslim-drawn")
    for name in (*methods, *alone, "joslim-labels", "slim-lr-0.15", "slim-lr-0.4"):
        row = study.ROWS[name]
        entries = [
            Entry(row["model"], row["cost"], row["method"], seed, finished.path, finished.front)
            for seed in (0, 1)
        ]
        study.keep(name, [Entry(**{**vars(entry), "seconds": 60.0}) for entry in entries])
    return tmp_path


def test_what_is_kept_is_what_was_found(kept_rows: Path, finished: Run) -> None:
    entries = study.kept("joslim")
    assert [entry.seed for entry in entries] == [0, 1]
    measured = [replace(point, mistakes=None) for point in finished.front]
    for entry in entries:
        assert (list(entry.front), entry.seconds) == (measured, 60)
    assert study.kept("joslim", "ours")[0].method == "ours"


def test_a_page_of_what_there_is(
    kept_rows: Path, finished: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(results, "DOCS", kept_rows)
    results.main()
    assert f"12 of {len(study.ROWS)} rows" in capsys.readouterr().out
    text = (kept_rows / "results.md").read_text()
    row, *_ = (line for line in text.splitlines() if line.startswith("| slim | 2 |"))
    at_full = f"{finished.front[-1].test_error:.1f} ± 0.0"
    validation = f"{finished.front.area('val_error'):.2f}"
    assert f" {at_full} | {validation} | 1.0 | " in row
    area = f"{finished.front.area():.2f} ± 0.00"
    for contest in ("ResNet8, multiply-adds", "ResNet8, multiply-adds, all widths in a step"):
        assert f"| {contest} | {area} |  |  | {area} |" in text, "methods side by side"
    assert "| label_share 1.0 | 2 |" in text
    assert f"| slim | {validation} | {validation} | {validation} |" in text, "the learning rates"
    assert (kept_rows / "results-macs.png").stat().st_size > 10_000
    assert "{{" not in text
    assert "## Against networks trained one by one" in text
    assert f"`{finished.net.space.dims[0].name}`" in text, "the widths that were found"
    assert "| minutes |  | 5.0 | 1.0 | 1.0 |" in text, "five networks, one by one"
    assert "## Other networks" not in text, "no larger network was trained"


@pytest.mark.parametrize("name", study.ROWS)
def test_every_row_is_a_comparison(name: str) -> None:
    if source := study.ROWS[name].get("weights_of"):
        assert source in study.ROWS
        return
    settings = study.asked(name)
    lists = {key: settings.pop(key) for key in ("methods", "costs", "models")}
    plan = asked_plan({**lists, "seeds": [0]}, settings, None)
    assert len(plan.tasks) == 1
    options = {key: settings[key] for key in SEARCH_OPTIONS if key in settings}
    assert searcher(settings.get("searcher", "targeted"), **options)


def test_drawn_rows_are_those_of_the_default() -> None:
    """Their settings are spelled out, for they are what was run, whatever the default becomes."""
    default, row = PRESETS["default"], study.ROWS["joslim-drawn"]
    assert (
        row.items()
        >= {
            name: getattr(Sandwich(), name) for name in ("draw", "full_weight", "full_first")
        }.items()
    )
    assert row["rescore"] == default.rescore(row["every"])
    assert row["log_share"] == default.searchers["joslim"][1]["log_share"]


@pytest.mark.parametrize("method", ["slim", "bignas"])
def test_weights_are_judged_by_another_cost(
    method: str, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = "resnet8"
    row = {"method": method, "model": model, "cost": "memory", "weights_of": "first"}
    monkeypatch.setitem(study.ROWS, "again", row)
    folder = tmp_path / "first" / f"{model}-macs-{method}-seed3"
    run = joslim.train(model, **tiny, method=method, out=folder)
    (entry,) = study.found("again", [3], tmp_path, at_once=None)
    assert entry.front is not None
    assert entry.front.cost == "memory"
    again, before = (
        {point.widths.counts: point.test_error for point in front}
        for front in (entry.front, run.front)
    )
    both = again.keys() & before.keys()
    assert both, "at least the smallest child, which nothing can beat, is in both"
    assert all(again[counts] == before[counts] for counts in both), "the same weights"
    ended = study.end_of_training(folder)
    assert "phase" not in ended
    assert (entry.seconds or 0) > ended["seconds"], "the training, and being judged once"
    parts = study.run_of(entry, entry.front)["parts"]
    assert ("scoring" in parts) == (method == "bignas"), "its own choosing, not the first one's"


def test_seeds_are_added_to_what_is_kept(
    kept_rows: Path, finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = study.ROWS["slim"]
    more = Entry(
        row["model"], row["cost"], row["method"], 7, finished.path, finished.front, seconds=9.0
    )
    study.keep("slim", [more])
    assert [(e.seed, e.seconds) for e in study.kept("slim")] == [(0, 60.0), (1, 60.0), (7, 9.0)]
    monkeypatch.setitem(study.ROWS, "slim", {**row, "lr": 0.5})
    study.keep("slim", [more])
    assert [entry.seed for entry in study.kept("slim")] == [7], "others had other settings"


def test_a_row_that_failed_leaves_what_was_kept(kept_rows: Path) -> None:
    row = study.ROWS["slim"]
    study.keep("slim", [Entry(row["model"], "macs", "slim", 0, kept_rows, failure="no memory")])
    assert len(study.kept("slim")) == 2
