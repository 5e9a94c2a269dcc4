"""The study: what is kept of runs is what they were, and pages can be made of it."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import joslim
from joslim.results.run_files import last_metrics
from joslim.runs.config import config_of
from joslim.runs.run import Run
from joslim.training.settings import LONG, SHORT, Sandwich, resolved_sandwich

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import results  # noqa: E402
import study  # noqa: E402

LONG_ROWS = ("joslim-30", "slim-30", "bignas-30", "joslim-30-all", "joslim-30-one")
SHORT_ROWS = ("slim", "joslim", "slim-drawn", "joslim-drawn", "slim-lr-0.15", "slim-lr-0.4")
ALONE = (
    *(f"single-{size:g}-30" for size in study.SIZES),
    *(f"single-{size:g}" for size in results.SHORT_SIZES),
)


@pytest.fixture
def kept_rows(finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (study, results):
        monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    (tmp_path / "results").mkdir()
    for name in (*LONG_ROWS, *SHORT_ROWS, *ALONE):
        for seed in (0, 1):
            keep(name, seed, finished, tmp_path)
    return tmp_path


def keep(name: str, seed: int, run: Run, out: Path) -> None:
    """Keep a finished run as if it were one of the study."""
    folder = study.folder_of(name, seed, out)
    folder.parent.mkdir(exist_ok=True)
    folder.symlink_to(run.path.resolve())
    study.keep(name, seed, out)


def test_what_is_kept_is_what_was_found(kept_rows: Path, finished: Run) -> None:
    entries = study.kept("joslim-30")
    assert [entry.seed for entry in entries] == [0, 1]
    measured = [replace(point, mistakes=None) for point in finished.front]
    for entry in entries:
        assert list(entry.front) == measured
        assert entry.seconds == last_metrics(finished.path)["seconds"]
    assert study.kept("joslim-30", "ours")[0].method == "ours"


def test_pages_of_what_there_is(
    kept_rows: Path, finished: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(results, "DOCS", kept_rows)
    results.main()
    kept = len((*LONG_ROWS, *SHORT_ROWS, *ALONE))
    assert f"{kept} of {len(study.ROWS)} rows" in capsys.readouterr().out
    long, short = ((kept_rows / page).read_text() for page in results.PAGES)
    assert "{{" not in long + short
    at_full = f"{finished.front[-1].test_error:.1f} ± 0.0"
    validation = f"{finished.front.area('val_error'):.2f}"
    area = f"{finished.front.area():.2f} ± 0.00"
    row, *_ = (line for line in long.splitlines() if line.startswith("| slim | 2 |"))
    assert f"| slim | 2 | {area} |" in row
    assert f" {at_full} | {validation} | " in row
    assert "| one, after the full network alone for 30% | 2 |" in long
    (alone, *_) = (line for line in long.splitlines() if line.startswith("| 0.5 | "))
    assert f"{finished.front[0].test_error:.1f} ± 0.0" in alone
    assert "## A deeper network" not in long, "none was trained"
    for contest in ("ResNet8, multiply-adds", "ResNet8, multiply-adds, all widths in a step"):
        assert f"| {contest} | {area} |  |  | {area} |" in short, "methods side by side"
    assert f"| slim | {validation} | {validation} | {validation} |" in short, "the learning rates"
    assert f"`{finished.net.space.dims[0].name}`" in short, "the widths that were found"
    assert (kept_rows / "results-macs.png").stat().st_size > 10_000


# Settings of the first round that are gone.
GONE = {"replay"}


@pytest.mark.parametrize("name", study.ROWS)
def test_every_row_can_be_trained(name: str) -> None:
    row = dict(study.ROWS[name])
    if source := row.pop("weights_of", None):
        assert row.items() >= {**study.ROWS[source], "cost": row["cost"]}.items()
    if not GONE & row.keys():
        config_of(row)


def test_rows_are_those_of_the_default() -> None:
    """Their settings are spelled out, for they are what was run, whatever the default becomes."""
    default = Sandwich()
    row, cheap = study.ROWS["joslim-30"], study.ROWS["joslim-8-one"]
    long = resolved_sandwich(default)
    assert (row["draw"], row["full_first"]) == (long.draw, long.full_first)
    assert {name: cheap[name] for name in SHORT} == SHORT
    assert LONG.keys() == SHORT.keys()
    assert row["random_share"] == cheap["random_share"] == default.random_share


@pytest.mark.parametrize("method", ["slim", "bignas"])
def test_weights_are_judged_by_another_cost(
    method: str, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {"model": "resnet8", "method": method, **tiny}
    seed = first.pop("seed", 3)
    monkeypatch.setitem(study.ROWS, "first", {"data": "digits", "cost": "macs", **first})
    monkeypatch.setitem(
        study.ROWS, "again", {**study.ROWS["first"], "cost": "memory", "weights_of": "first"}
    )
    study.train("again", seed, tmp_path)
    again, before = (joslim.load(tmp_path / name / f"seed{seed}") for name in ("again", "first"))
    assert (again.front.cost, before.front.cost) == ("memory", "macs")
    by_counts = [{p.widths.counts: p.test_error for p in run.front} for run in (again, before)]
    both = by_counts[0].keys() & by_counts[1].keys()
    assert both, "at least the smallest child, which nothing can beat, is in both"
    assert all(by_counts[0][counts] == by_counts[1][counts] for counts in both), "the same weights"


def test_seeds_are_added_to_what_is_kept(
    kept_rows: Path, finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep("slim-30", 7, finished, kept_rows)
    assert [entry.seed for entry in study.kept("slim-30")] == [0, 1, 7]
    monkeypatch.setitem(study.ROWS, "slim-30", {**study.ROWS["slim-30"], "lr": 0.5})
    keep("slim-30", 8, finished, kept_rows)
    assert [entry.seed for entry in study.kept("slim-30")] == [8], "others had other settings"


def test_a_study_from_the_command_line(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two rows of its own, in processes of their own; a row that fails leaves the other."""
    copy = tmp_path / "experiments"
    copy.mkdir()
    text = (EXPERIMENTS / "study.py").read_text()
    rows = {
        "good": {"model": "resnet8", "data": "digits", "cost": "macs", "method": "slim", **tiny},
        "bad": {"model": "nonsense", "data": "digits", "cost": "macs", "method": "slim", **tiny},
    }
    for row in rows.values():
        row.pop("seed", None)
    marker = "# The first round"
    assert text.count(marker) == 1
    (copy / "study.py").write_text(text.replace(marker, f"ROWS |= {rows!r}\n{marker}"))
    (copy / "results").mkdir()
    command = [sys.executable, str(copy / "study.py"), "good", "bad", "--seeds", "5"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "runs")], capture_output=True, text=True
    )
    assert "bad, seed 5: failed with exit code" in done.stderr
    assert "good, seed 5: validation area" in done.stdout
    stored = json.loads((copy / "results" / "good.json").read_text())
    assert [run["seed"] for run in stored["runs"]] == [5]
    shutil.rmtree(tmp_path / "runs")
    again = subprocess.run([*command[:3], "--seeds", "5"], capture_output=True, text=True)
    assert (again.stdout, again.stderr) == ("", ""), "what is kept is not trained again"
