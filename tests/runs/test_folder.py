"""The run folder: whose it is, what is in it, and that nothing is lost."""

import itertools
import json
import math
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from joslim.errors import UserError
from joslim.front import Front
from joslim.results.run_files import (
    CONFIG,
    HISTORY,
    METRICS,
    read_lines,
)
from joslim.runs.folder import CHECKPOINTS, MADE, RunFolder
from joslim.runs.logs import finite
from joslim.runs.run import Run
from joslim.training.schedule import Schedule


def make_run(path: Path) -> RunFolder:
    folder = RunFolder(path)
    folder.prepare()
    folder.write_config({"lr": 1.0})
    return folder


# Whose folder it is


def test_a_new_and_an_empty_folder_will_do(tmp_path: Path) -> None:
    RunFolder(tmp_path).check()
    RunFolder(tmp_path / "new" / "deep").check(overwrite=True)
    assert not (tmp_path / "new").exists()


def test_a_run_is_not_overwritten_by_accident(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    with pytest.raises(UserError, match=r"holds a run; type another, or --overwrite .* --resume"):
        folder.check()
    folder.check(overwrite=True)
    assert folder.exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_without_a_run_is_never_taken(overwrite: bool, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(UserError, match="is not empty and holds no run"):
        RunFolder(tmp_path).check(overwrite)


def test_a_config_file_of_another_program_is_no_run(tmp_path: Path) -> None:
    """Other libraries save a config.json beside their weights too."""
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "checkpoint").mkdir()
    with pytest.raises(UserError, match="is not empty and holds no run"):
        RunFolder(tmp_path).check(overwrite=True)
    assert not RunFolder(tmp_path).exists()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match="is a file, a folder is needed"):
            RunFolder(out).check(overwrite=True)
    assert (tmp_path / "file").read_text() == "mine"


def test_only_what_a_run_made_is_removed(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    for name in MADE:
        (tmp_path / name).write_text("{}")
    for name in CHECKPOINTS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "plots").mkdir()
    folder.prepare()
    assert sorted(os.listdir(tmp_path)) == ["notes.txt", "plots"]


def test_a_link_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    folder = make_run(tmp_path / "run")
    folder.file("checkpoint").symlink_to(elsewhere)
    folder.prepare()
    assert (elsewhere / "file").exists()
    assert not folder.file("checkpoint").exists()


def test_a_place_where_no_folder_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", forbidden)
    with pytest.raises(UserError, match=r"out: cannot write .*: Permission denied"):
        RunFolder(tmp_path / "run").prepare()


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="out: cannot write"):
        RunFolder(tmp_path / "run").prepare()


def test_links_of_an_earlier_run_are_not_followed(tmp_path: Path) -> None:
    """Whether they lead somewhere or not."""
    folder, outside = make_run(tmp_path / "run"), tmp_path / "outside"
    outside.mkdir()
    (outside / "there").write_text("mine")
    folder.file("metrics.jsonl").symlink_to(outside / "there")
    folder.file("front.png").symlink_to(outside / "not there")
    folder.file("checkpoint").symlink_to(outside)
    folder.prepare()
    assert not any(folder.path.iterdir())
    assert (outside / "there").read_text() == "mine"


# Killed


def killed(action: Callable[[], Any]) -> None:
    """Do it in another process, which dies when it has written a side file."""
    if (pid := os.fork()) == 0:
        os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        action()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL


def test_killed_while_the_configuration_is_written(tmp_path: Path) -> None:
    killed(lambda: make_run(tmp_path))
    assert len(os.listdir(tmp_path)) == 1
    folder = RunFolder(tmp_path)
    with pytest.raises(UserError, match="was killed before it began; joslim train --out"):
        folder.read(CONFIG)
    folder.check()
    make_run(tmp_path)
    assert os.listdir(tmp_path) == [CONFIG]


@pytest.mark.parametrize("name", [CONFIG, HISTORY, "latency.json", "front.json"])
def test_killed_while_a_file_is_replaced(name: str, tmp_path: Path) -> None:
    """What was there stays, and what is left of the new one goes at the next start."""
    folder = make_run(tmp_path)
    folder.write(name, {"joslim": "old"})
    before = sorted(os.listdir(tmp_path))
    killed(lambda: folder.write(name, {"joslim": "new"}))
    assert len(os.listdir(tmp_path)) == len(before) + 1
    assert folder.read(name) == {"joslim": "old"}
    (tmp_path / ".notes.0123456789abcdef.new.json").write_text("somebody else's")
    folder.tidy()
    assert sorted(os.listdir(tmp_path)) == sorted([*before, ".notes.0123456789abcdef.new.json"])


def test_killed_while_a_run_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At whatever file: it is still a run, or nothing is left."""
    for most in range(len(MADE) + 1):
        folder = make_run(tmp_path / str(most))
        for name in MADE[1:]:
            folder.file(name).touch()
        removed: list[Path] = []

        def remove(path: Path, most: int = most, removed: list[Path] = removed) -> None:
            if len(removed) == most:
                raise KeyboardInterrupt
            removed.append(path)
            path.unlink()

        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr("joslim.runs.folder.remove", remove)
            folder.prepare()
        folder.check(overwrite=True)


# Files


def test_no_nan_gets_into_a_file(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    with pytest.raises(ValueError, match="JSON"):
        folder.write("front.json", {"loss": float("nan")})
    assert not folder.file("front.json").exists()
    assert [finite(x) for x in (1.5, math.nan, math.inf, -math.inf)] == [1.5, None, None, None]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is broken"),
        ("{", "is broken"),
        ("[" * 100_000, "is broken"),
        ("[]", "holds no JSON object"),
        ("3", "holds no JSON object"),
    ],
    ids=range(5),
)
def test_broken_files(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(text)
    with pytest.raises(UserError, match=words) as caught:
        RunFolder(tmp_path).read(CONFIG)
    assert len(str(caught.value).splitlines()) == 1


def test_folders_that_are_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist; joslim train --out makes one"):
        RunFolder(tmp_path / "nowhere").read(CONFIG)
    with pytest.raises(UserError, match=r"has no config\.json: not a run folder"):
        RunFolder(tmp_path).read(CONFIG)
    (tmp_path / CONFIG).write_bytes(b"\xff")
    with pytest.raises(UserError, match="cannot read"):
        RunFolder(tmp_path).read(CONFIG)


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / METRICS
    file.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert read_lines(file) == [{"step": 1}, {"step": 2}]
    file.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(UserError, match="line 2 is broken"):
        read_lines(file)
    file.write_text('{"step": 1}\n[]\n')
    with pytest.raises(UserError, match="line 2 holds no JSON object"):
        read_lines(file)


# All of a finished run


def test_what_lies_in_a_run(finished: Run) -> None:
    found = sorted(entry.name for entry in finished.path.iterdir())
    assert found == sorted({*MADE, "checkpoint"} - {"tensorboard", "latency.json"})
    assert found == [
        "checkpoint",
        "config.json",
        "front.json",
        "front.png",
        "history.jsonl",
        "metrics.jsonl",
        "report.html",
        "samples.safetensors",
    ]
    inside = sorted(entry.name for entry in finished.folder.file("checkpoint").iterdir())
    assert inside == ["checkpoint.json", "model.safetensors", "state.pt", "statistics.safetensors"]


def test_its_front(finished: Run) -> None:
    record = json.loads(finished.folder.file("front.json").read_text())
    assert record["cost"] == "macs"
    children = record["children"]
    assert children
    keys = {"widths", "channels", "macs", "params", "memory"}
    keys |= {"train_loss", "val_error", "test_error", "mistakes"}
    assert all(child.keys() == keys for child in children)
    assert [c["macs"] for c in children] == sorted(c["macs"] for c in children)
    losses = [c["train_loss"] for c in children]
    assert losses == sorted(losses, reverse=True)
    sizes = finished.facts["data"]["sizes"]
    for child in children:
        for split in ("val", "test"):
            wrong = child[f"{split}_error"] / 100 * sizes[split]
            assert wrong == pytest.approx(round(wrong), abs=1e-9), "so many images, in percent"
        assert len(child["widths"]) == len(finished.net.space)
        assert all(isinstance(count, int) for count in child["channels"].values())
    assert max(child["test_error"] for child in children) > 1, "percent, not shares"
    assert Front.read(finished.path) == finished.front


def test_its_metrics(finished: Run) -> None:
    *lines, end = map(json.loads, finished.folder.file(METRICS).read_text().splitlines())
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert (end["step"], end["phase"]) == (6, "front")
    times = [line["seconds"] for line in (*lines, end)]
    assert times == sorted(times)
    for line in (*lines, end):
        assert line["parts"].keys() == {"data", "search", "scoring", "validation"}
        assert 0 <= sum(line["parts"].values()) <= line["seconds"]
    trained = [len(line["losses"]) for line in lines]
    assert trained[:2] == [1, 1], "the full network alone"
    # Then one more, which may be the full network itself if it is a random one.
    assert {*trained} == {1, 2}
    assert [line["passes"] for line in lines] == [*itertools.accumulate(trained)]
    least, most = finished.front.span
    for line in lines:
        assert len(line["losses"]) == len(line["costs"])
        assert line["loss"] == line["losses"][0]
        assert line["costs"][0] == most
        smallest = line["losses"][-1] if line["costs"][-1] == least else None
        assert line["smallest_loss"] == smallest
    schedule = Schedule("cosine", warmup=0.05, highest=0.05)
    assert [line["lr"] for line in lines] == [schedule(step, 6) for step in range(6)]


def test_its_history(finished: Run) -> None:
    _, *lines = [json.loads(t) for t in finished.folder.file(HISTORY).read_text().splitlines()]
    visits = [line for line in lines if "id" in line]
    scorings = [line for line in lines if "ids" in line]
    assert len(visits) + len(scorings) == len(lines)
    assert [visit["id"] for visit in visits] == list(range(len(visits)))
    assert [scoring["step"] for scoring in scorings] == [2, 4, 6]
    assert all(len(s["ids"]) == len(s["losses"]) for s in scorings)
    assert scorings[-1]["ids"] == list(range(len(visits)))


def test_its_samples(finished: Run) -> None:
    samples = load_file(finished.folder.file("samples.safetensors"))
    assert samples.keys() == {"inputs"}
    assert samples["inputs"].shape == (32, 3, 8, 8)


def test_its_picture(finished: Run) -> None:
    assert finished.folder.file("front.png").read_bytes().startswith(b"\x89PNG")
