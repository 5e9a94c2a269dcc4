"""Where a run is: finished, training now, or stopped; and what is said of it then."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from joslim.errors import UserError
from joslim.front import Front
from joslim.runs.config import Config
from joslim.runs.folder import RunFolder
from joslim.runs.run import Run
from joslim.runs.whereabouts import (
    FINISHED,
    STOPPED,
    TAIL,
    TRAINING,
    Whereabouts,
    is_finished,
    is_in_use,
    last_record,
    read_front,
    refuse_unfinished,
    seconds_of,
    total_steps,
    where_is,
)


@pytest.fixture
def copied(finished: Run, tmp_path: Path) -> Path:
    shutil.copytree(finished.path, tmp_path / "copy")
    return tmp_path / "copy"


def asked_for(folder: Path, steps: int) -> Path:
    """As if it had been begun with so many steps; six are done."""
    facts = json.loads((folder / "config.json").read_text())
    facts["config"]["steps"] = steps
    (folder / "config.json").write_text(json.dumps(facts))
    return folder


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        refuse_unfinished(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_finished_run(finished: Run) -> None:
    assert where_is(finished.path) == Whereabouts(FINISHED, 6, 6)
    refuse_unfinished(finished.path)
    with RunFolder(finished.path).locked():  # its last checkpoint may be under way
        assert is_finished(finished.path)


def test_a_run_that_trains_and_then_stops(copied: Path) -> None:
    asked_for(copied, 9)
    with RunFolder(copied).locked():
        assert where_is(copied) == Whereabouts(TRAINING, 6, 9)
        assert refusal(copied) == (
            f"run: {str(copied)!r} is still training (step 6 of 9); wait for its end"
        )
    assert where_is(copied) == Whereabouts(STOPPED, 6, 9)
    go_on = f"it stopped at step 6 of 9; joslim resume {copied} goes on"
    assert refusal(copied) == f"run: {str(copied)!r} has only an earlier front: {go_on}"
    assert read_front(copied) == Front.read(copied)
    (copied / "front.json").unlink()
    assert refusal(copied) == f"run: {str(copied)!r} has no front yet: {go_on}"


def test_an_extended_run_that_stopped_while_it_was_judged(copied: Path) -> None:
    """All steps are done, and the front that is there is an earlier one."""
    metrics = copied / "metrics.jsonl"
    *steps, judged = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(steps))
    assert where_is(copied) == Whereabouts(STOPPED, 6, 6)
    assert "has only an earlier front: it stopped at step 6 of 6" in refusal(copied)
    # Judged, and killed before the last checkpoint was in.
    metrics.write_text("".join([*steps, judged]))
    (copied / "checkpoint.old").mkdir()
    assert where_is(copied).state == STOPPED
    (copied / "checkpoint.old").rmdir()
    assert is_finished(copied)


def test_runs_of_older_versions_are_finished_with_their_last_step(copied: Path) -> None:
    lines = [json.loads(line) for line in (copied / "metrics.jsonl").read_text().splitlines()]
    old = [{k: v for k, v in line.items() if k != "parts"} for line in lines if "phase" not in line]
    (copied / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in old))
    assert is_finished(copied)


def test_a_front_that_is_not_there_yet(copied: Path) -> None:
    (copied / "front.json").unlink()
    with pytest.raises(UserError, match="stopped at step 6 of 6; joslim resume"):
        read_front(copied)
    with (
        RunFolder(copied).locked(),
        pytest.raises(UserError, match=r"is still training \(step 6 of 6\)"),
    ):
        read_front(copied)


def test_the_commands_that_need_a_front_say_what_to_do(
    copied: Path, refused: Callable[..., str], tmp_path: Path
) -> None:
    (copied / "front.json").unlink()
    asked_for(copied, 60)
    out = str(tmp_path / "x.onnx")
    commands = [
        ("front", str(copied)),
        ("pick", str(copied), "--macs", "1M"),
        ("allocate", str(copied), "--macs", "1M"),
        ("export", str(copied), "--macs", "1M", "-o", out),
        ("export", str(copied), "--whole", "-o", str(tmp_path / "whole")),
        ("report", str(copied), "-o", str(tmp_path / "x.png")),
        ("compare", str(copied)),
        ("figure", "cifar", str(copied), "-o", str(tmp_path / "x.png")),
    ]
    with RunFolder(copied).locked():
        for command in commands:
            said = refused(*command)
            assert "is still training (step 6 of 60); wait for its end" in said, command
    for command in commands:
        assert f"stopped at step 6 of 60; joslim resume {copied} goes on" in refused(*command)


def test_folders_that_are_no_runs(tmp_path: Path) -> None:
    assert "does not exist; joslim train" in refusal(tmp_path / "nowhere")
    assert "has no config.json: not a run folder?" in refusal(tmp_path)
    for path in (tmp_path / "nowhere", tmp_path / ("x" * 5000)):
        with pytest.raises(UserError):
            read_front(path)
        assert not is_in_use(path)


def test_a_run_without_metrics_is_finished_if_it_has_a_front(copied: Path) -> None:
    (copied / "metrics.jsonl").unlink()
    assert where_is(copied) == Whereabouts(FINISHED, 0, 6)
    (copied / "front.json").unlink()
    assert where_is(copied) == Whereabouts(STOPPED, 0, 6)
    (copied / "config.json").write_text("{")
    assert where_is(copied).place == "step 0"


def test_looking_is_not_training(copied: Path) -> None:
    """Who looks holds the lock for a moment; a training that begins just then waits for it."""
    assert not is_in_use(copied)
    handle = os.open(copied, os.O_RDONLY)
    from joslim.runs import folder

    assert folder.lock(handle)
    naps = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        os.close(handle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder.time, "sleep", nap)
        with RunFolder(copied).locked():
            assert is_in_use(copied)
    assert naps == [folder.LOOK_SECONDS]


# Steps and seconds


@pytest.mark.parametrize(
    ("epochs", "images", "batch"), [(1, 1000, 64), (2.5, 1293, 64), (40, 45000, 128), (0.01, 10, 5)]
)
def test_epochs_are_counted_as_a_training_counts_them(
    epochs: float, images: int, batch: int
) -> None:
    from joslim.runs import job

    config = {"steps": None, "epochs": epochs, "batch": batch}
    data: Any = SimpleNamespace(sizes={"train": images})
    expected = job.total_steps(Config(epochs=epochs, batch=batch), data)
    assert total_steps({"config": config, "data": {"sizes": {"train": images}}}, "x") == expected


@pytest.mark.parametrize(
    "config", [None, [], {}, {"epochs": 2}, {"epochs": 2, "batch": 0}, {"steps": "x"}]
)
def test_steps_that_nobody_can_count(config: Any) -> None:
    with pytest.raises(UserError, match=r"config\.json"):
        total_steps({"config": config, "data": {"sizes": {"train": 10}}}, "config.json")


def test_the_last_line_that_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    assert last_record(tmp_path) == {}
    file.write_text('{"step": 1}\n{"step": 2}\n{"ste')
    assert last_record(tmp_path) == {"step": 2}
    file.write_text('{"step": 0, "filler": "' + "x" * TAIL + '"}\n{"step": 9, "seconds": 4}\n')
    assert last_record(tmp_path)["step"] == 9
    assert seconds_of(tmp_path) == 4.0
    for broken in ("[1]\n", '{"seconds": "x"}\n', '{"seconds": NaN}\n', '{"seconds": true}\n'):
        file.write_text(broken)
        assert seconds_of(tmp_path) is None
        assert where_is(tmp_path).step == 0
