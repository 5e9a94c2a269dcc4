"""`joslim.report`: the right file in the right place, whole or not at all, and kept up."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import joslim
from joslim.errors import UserError
from joslim.runs import report as reporting
from joslim.runs.folder import RunFolder
from joslim.runs.run import Run


@pytest.fixture
def copied(finished: Run, tmp_path: Path) -> Path:
    shutil.copytree(finished.path, tmp_path / "copy")
    return tmp_path / "copy"


def data_of(page: Path) -> dict[str, Any]:
    text = page.read_text()
    start = text.index('id="data">') + len('id="data">')
    return json.loads(text[start : text.index("</script>", start)])


def test_one_run_has_its_page_beside_it(finished: Run, copied: Path) -> None:
    before = sorted(os.listdir(copied))
    assert joslim.report(copied) == copied / "report.html"
    assert sorted(os.listdir(copied)) == sorted({*before, "report.html"})
    data = data_of(copied / "report.html")
    assert (len(data["runs"]), data["refresh"]) == (1, None)
    joslim.report(joslim.load(copied), copied / "other.html")
    assert (copied / "other.html").read_text() == (copied / "report.html").read_text()


def test_several_runs_on_one_page(finished: Run, copied: Path, tmp_path: Path) -> None:
    page = joslim.report([finished, str(copied)], tmp_path / "both.HTML")
    assert [run["name"] for run in data_of(page)["runs"]] == ["finished", "copy"]
    with pytest.raises(UserError, match=r"out: needed for 2 runs; type -o report\.html"):
        joslim.report([finished, copied])


def test_a_run_with_nothing_to_show_is_left_out(
    finished: Run, copied: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("front.json", "history.jsonl", "metrics.jsonl"):
        (copied / name).unlink()
    for runs in ([finished, copied], [copied, finished]):
        page = joslim.report(runs, tmp_path / "both.html")
        assert [run["name"] for run in data_of(page)["runs"]] == ["finished"]
        assert f"left out: run: {str(copied)!r} has nothing to show yet" in caplog.messages.pop()
        caplog.clear()
    with pytest.raises(UserError, match="has nothing to show yet"):
        joslim.report([copied], tmp_path / "none.html")


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_picture_for_a_paper(suffix: str, finished: Run, copied: Path, tmp_path: Path) -> None:
    one = joslim.report(finished, tmp_path / f"one{suffix}")
    two = joslim.report([finished, copied], tmp_path / f"two{suffix}")
    assert min(one.stat().st_size, two.stat().st_size) > 1000
    start = {".png": b"\x89PNG", ".svg": b"<?xml"}[suffix]
    assert one.read_bytes().startswith(start)
    assert two.read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("runs", "path", "words"),
    [
        ([], "a.html", "runs: none given"),
        (3, "a.html", "runs: 3 is neither a run nor the folder of one"),
        ([None], "a.html", "runs: None is neither"),
        ("RUN", "a.pdf", r"out: .*a\.pdf' ends in none of \.html, \.png, \.svg"),
        ("RUN", "a", "out: .*a' ends in none of"),
        ("nowhere", "a.html", "run: 'nowhere'"),
        ("RUN", "nowhere/a.html", r"out: cannot write .*: No such file or directory"),
        ("RUN", "folder.html", r"out: cannot write .*: Is a directory"),
    ],
)
def test_bad_input(runs: Any, path: str, words: str, finished: Run, tmp_path: Path) -> None:
    (tmp_path / "folder.html").mkdir()
    given = finished.path if runs == "RUN" else runs
    with pytest.raises(UserError, match=words):
        joslim.report(given, tmp_path / path)
    assert os.listdir(tmp_path) == ["folder.html"]


@pytest.mark.parametrize("suffix", [".html", ".png", ".svg"])
def test_files_of_strangers_stay(
    suffix: str, finished: Run, tmp_path: Path, refused: Callable[..., str]
) -> None:
    file = tmp_path / f"notes{suffix}"
    file.write_text("my own notes\n")
    with pytest.raises(UserError, match="exists and was not written by joslim"):
        joslim.report(finished, file)
    assert "type another, or --overwrite" in refused("report", str(finished.path), "-o", str(file))
    assert file.read_text() == "my own notes\n"
    joslim.report(finished, file, overwrite=True)
    joslim.report(finished, file)  # its own may be replaced


def test_a_page_never_fails_a_training(
    copied: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reporting.report_at_end(copied)
    assert (copied / "report.html").exists()
    assert not caplog.messages
    monkeypatch.setattr(reporting, "page_of", lambda *_: 1 / 0)
    reporting.report_at_end(copied)
    assert caplog.messages == [
        f"no page: division by zero; joslim report {copied} tries again",
    ]


# Watching


def test_a_watched_run_is_written_until_it_ends(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, told, refreshes = copied / "report.html", [], []
    front, history = (copied / "front.json").read_text(), (copied / "history.jsonl").read_text()
    for name in ("front.json", "report.html"):
        (copied / name).unlink()
    (copied / "history.jsonl").write_text(history.splitlines(keepends=True)[0])
    stages = iter(
        [
            lambda: None,
            lambda: (copied / "history.jsonl").write_text(history),
            lambda: None,
            lambda: (copied / "front.json").write_text(front),
        ]
    )

    def pause(seconds: float) -> None:
        refreshes.append(data_of(page)["refresh"] if page.exists() else "no page")
        next(stages)()

    monkeypatch.setattr(reporting.time, "sleep", pause)
    with RunFolder(copied).locked():
        assert reporting.watch(copied, tell=told.append) == page
    assert told == ["copy: step 6 of 6", "copy: step 6 of 6", "finished"]
    assert refreshes == [reporting.REFRESH] * 4, "the losses of the full network come first"
    data = data_of(page)
    assert (data["refresh"], data["runs"][0]["front"]["judged"]) == (None, True)


def test_a_watch_that_is_ended_leaves_a_page_that_stays(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copied / "front.json").unlink()

    def interrupt(seconds: float) -> None:
        assert data_of(copied / "report.html")["refresh"] == reporting.REFRESH
        raise KeyboardInterrupt

    monkeypatch.setattr(reporting.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        reporting.watch(copied)
    assert data_of(copied / "report.html")["refresh"] is None


def test_a_watch_ends_when_nobody_trains_any_more(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copied / "front.json").unlink()
    naps: list[float] = []
    told: list[str] = []
    monkeypatch.setattr(reporting.time, "sleep", naps.append)
    page = reporting.watch(copied, tell=told.append)
    stopped = f"copy: stopped at step 6 of 6; joslim resume {copied} goes on"
    assert told == [
        stopped,
        "nobody trains here now: waiting 30 s for a training",
        f"ended, nobody trains here: {stopped}",
    ]
    assert sum(naps) == reporting.PATIENCE + reporting.PAUSE
    data = data_of(page)
    assert (data["refresh"], data["runs"][0]["status"]["state"]) == (None, "stopped")


def test_a_training_that_ends_while_it_is_watched(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files do not change when it is killed; its lock is gone."""
    (copied / "front.json").unlink()
    states: list[str] = []
    with ExitStack() as training:
        training.enter_context(RunFolder(copied).locked())

        def pause(seconds: float) -> None:
            states.append(data_of(copied / "report.html")["runs"][0]["status"]["state"])
            if len(states) == 3:
                training.close()

        monkeypatch.setattr(reporting.time, "sleep", pause)
        reporting.watch(copied)
    assert {*states} == {"training"}
    assert len(states) == 3 + reporting.PATIENCE / reporting.PAUSE
    assert data_of(copied / "report.html")["runs"][0]["status"]["state"] == "stopped"


def test_a_watch_may_begin_before_the_training(
    finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path / "not there yet", tmp_path / "empty"):
        told: list[str] = []
        naps: list[float] = []
        (tmp_path / "empty").mkdir()
        (tmp_path / "empty" / "latency.json").touch()  # it is measured before anything else

        def pause(seconds: float) -> None:
            naps.append(seconds)  # noqa: B023
            if len(naps) == 4:  # noqa: B023
                shutil.copytree(finished.path, folder, dirs_exist_ok=True)  # noqa: B023

        monkeypatch.setattr(reporting.time, "sleep", pause)
        assert reporting.watch(folder, tell=told.append) == folder / "report.html"
        assert told == [
            "waiting for the first step",
            "nobody trains here now: waiting 30 s for a training",
            "finished",
        ]
        shutil.rmtree(tmp_path / "empty")


def test_only_pages_of_runs_are_watched(
    finished: Run, copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"watch: .* is a picture"):
        reporting.watch(finished, tmp_path / "a.png")
    with pytest.raises(UserError, match=r"no config\.json: not a run folder"):
        reporting.watch(tmp_path, tmp_path / "a.html")
    monkeypatch.setattr(reporting.time, "sleep", lambda seconds: None)
    with pytest.raises(UserError, match="nowhere' does not exist"):
        reporting.watch(tmp_path / "nowhere", tmp_path / "a.html")
    for name in ("front.json", "history.jsonl", "metrics.jsonl"):
        (copied / name).unlink()
    with pytest.raises(UserError, match="nothing to show yet, no step was logged: it stopped"):
        reporting.watch(copied)


def test_a_run_given_twice(copied: Path) -> None:
    with pytest.raises(UserError, match="is given twice; leave one out"):
        joslim.report([copied, joslim.load(copied)], copied / "twice.html")
