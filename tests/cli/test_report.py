"""`joslim report`: a page or a picture, and one line for what is wrong."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from joslim.runs.run import Run

Program = Callable[..., Any]


@pytest.fixture
def copied(finished: Run, tmp_path: Path) -> Path:
    shutil.copytree(finished.path, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_page_in_the_folder_of_the_run(copied: Path, joslim: Program) -> None:
    result = joslim("report", str(copied))
    assert (result.returncode, result.stderr) == (0, "")
    page = copied / "report.html"
    assert result.stdout.startswith(f"{page}: ")
    assert result.stdout.endswith("KB\n")
    assert page.read_text().startswith("<!doctype html>")


def test_several_runs_and_pictures(copied: Path, finished: Run, joslim: Program) -> None:
    for name in ("both.html", "both.svg"):
        out = copied / name
        assert joslim("report", str(copied), str(finished.path), "-o", str(out)).returncode == 0
        assert out.stat().st_size > 1000


def test_a_comparison_stands_for_its_runs(
    copied: Path, finished: Run, joslim: Program, refused: Callable[..., str], tmp_path: Path
) -> None:
    names = ["resnet8-macs-joslim-seed0", "resnet8-macs-slim-seed0"]
    tasks = [
        {"model": "resnet8", "cost": "macs", "method": method, "seed": 0}
        for method in ("joslim", "slim")
    ]
    folder = tmp_path / "comparison"
    folder.mkdir()
    (folder / "compare.json").write_text(json.dumps({"settings": {}, "tasks": tasks}))
    shutil.copytree(finished.path, folder / names[0])
    assert f"{names[1]}' does not exist" in refused("report", str(folder))
    shutil.copytree(finished.path, folder / names[1])
    assert joslim("report", str(folder)).returncode == 0
    page = (folder / "report.html").read_text()
    assert all(f'"name":"{name}"' in page for name in names)
    out = str(tmp_path / "more.html")
    assert joslim("report", str(folder), str(copied), "-o", out).returncode == 0
    assert '"name":"copy"' in Path(out).read_text()


def test_watching_a_finished_run_ends_at_once(copied: Path, joslim: Program) -> None:
    result = joslim("report", str(copied), "--watch")
    assert result.stdout.splitlines()[0] == "finished"
    assert (copied / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "run: 'nowhere' does not exist"),
        (["RUN", "RUN"], "is given twice; leave one out"),
        (["RUN", "other"], "out: needed for 2 runs; type -o report.html"),
        (["RUN", "-o", "a.pdf"], "out: 'a.pdf' ends in none of .html, .png, .svg"),
        (["RUN", "-o", "nowhere/a.html"], "out: cannot write 'nowhere/a.html': No such file"),
        (["RUN", "--watch", "-o", "a.svg"], "watch: 'a.svg' is a picture"),
        (["RUN/config.json"], "is a file; a run is a folder"),
        (["RUN/checkpoint"], "has no config.json: not a run folder?"),
        ([], "Missing argument"),
    ],
)
def test_bad_input(
    arguments: list[str],
    words: str,
    finished: Run,
    refused: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [argument.replace("RUN", str(finished.path)) for argument in arguments]
    assert words in refused("report", *given)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_has_only_just_begun(copied: Path, refused: Callable[..., str]) -> None:
    for name in ("front.json", "history.jsonl", "metrics.jsonl"):
        (copied / name).unlink()
    assert "has nothing to show yet" in refused("report", str(copied))


def test_pictures_need_a_front(copied: Path, refused: Callable[..., str]) -> None:
    (copied / "front.json").unlink()
    said = refused("report", str(copied), "-o", str(copied / "a.svg"))
    assert "has no front yet: it stopped at step 6 of 6; joslim resume" in said


def test_a_name_that_is_no_text(shell: Program, tmp_path: Path, finished: Run) -> None:
    run = tmp_path / os.fsdecode(b"caf\xe9")
    shutil.copytree(finished.path, run)
    result = shell("-m", "joslim", "report", str(run))
    assert (result.returncode, result.stderr) == (0, "")
    assert "caf\\udce9/report.html: " in result.stdout
