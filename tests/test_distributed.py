"""Many processes: two of them on this machine, started by torchrun, against one."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from joslim import distributed
from joslim.distributed import TIMEOUT
from joslim.errors import UserError

from .worker import images, one_step, step_with_depth

WORKER = Path(__file__).with_name("worker.py")
HALVES = (slice(0, 8), slice(8, 16))


def torchrun(
    task: str, folder: Path, *flags: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [*command, *flags, str(WORKER), task, str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def both(folder: Path) -> list[Any]:
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


def succeed(task: str, folder: Path, *flags: str, **environment: str) -> list[Any]:
    result = torchrun(task, folder, *flags, **environment)
    assert result.returncode == 0, result.stderr
    return both(folder)


# What they say to each other


def test_two_processes_talk(tmp_path: Path) -> None:
    first, second = succeed("talk", tmp_path)
    assert (first.pop("asked"), second.pop("asked")) == ([0], []), "the first alone is asked"
    for found in (first, second):
        assert found["world"] == 2
        assert found["broadcast"] == {"from": 0}
        assert found["on_first"] == 10
        assert found["complaint"] == "out: no"
        assert found["odd"] == [0, 1, 4, 9, 16]
        assert (found["few"], found["none"]) == ([0], [])
        assert found["averaged"][0] == 1.5
        assert found["averaged"][1].isnan()
        assert (found["nobody"], found["one"]) == (None, 15)
        assert found["alike"].tolist() == [0.0, 0.0]


def test_alone_there_is_nobody_to_talk_to() -> None:
    assert (distributed.rank(), distributed.world(), distributed.is_first()) == (0, 1, True)
    assert distributed.broadcast("a") == "a"
    assert distributed.gathered([*distributed.shared_out([1, 2])]) == [1, 2]
    tensor = torch.ones(2)
    assert distributed.averaged(tensor) is tensor
    assert distributed.any_asked(2, torch.device("cpu")) == 2
    distributed.alike([tensor])
    with distributed.joined():
        assert not distributed.together()
    with pytest.raises(UserError, match="no"):
        distributed.on_first(lambda: (_ for _ in ()).throw(UserError("no")))


def test_what_torchrun_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert (distributed.restarted(), distributed.started_by_torchrun()) == (False, False)
    assert distributed.local_rank() == 0
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert (distributed.restarted(), distributed.started_by_torchrun()) == (True, True)
    assert distributed.local_rank() == 3


@pytest.mark.parametrize(
    ("name", "text", "ask"),
    [
        ("WORLD_SIZE", "two", distributed.started_by_torchrun),
        ("WORLD_SIZE", "0", distributed.started_by_torchrun),
        ("LOCAL_RANK", "-1", distributed.local_rank),
        ("TORCHELASTIC_RESTART_COUNT", "", distributed.restarted),
    ],
)
def test_what_torchrun_would_not_say(
    name: str, text: str, ask: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(UserError, match=f"{name}: .* {text!r}, not a whole number .*; start many"):
        ask()


COMPLETE = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "2950"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("RANK", None),
        ("RANK", "2"),
        ("MASTER_PORT", None),
        ("MASTER_PORT", "70000"),
        ("MASTER_ADDR", None),
        ("JOSLIM_TIMEOUT_MINUTES", "soon"),
        ("JOSLIM_TIMEOUT_MINUTES", "nan"),
        ("JOSLIM_TIMEOUT_MINUTES", "0"),
    ],
)
def test_an_environment_that_torchrun_did_not_make(
    name: str, text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for known, value in COMPLETE.items():
        monkeypatch.setenv(known, value)
    if text is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, text)
    with pytest.raises(UserError, match=f"^{name}: the environment variable is"):
        distributed.joined().__enter__()


def test_who_is_to_blame_for_an_error() -> None:
    prefix = "[/src/gloo/transport/tcp/pair.cc:537] "
    closed = RuntimeError(f"{prefix}Connection closed by peer [127.0.0.1]:1. This is typical. GL")
    assert distributed.lost_process(closed) == (
        "another process has died or cannot be reached: Connection closed by peer [127.0.0.1]:1"
    )
    # Which of the two is seen depends on which thread of gloo notices first.
    for text in (
        f"{prefix}Timed out waiting 4000ms for recv",
        "Application timeout caused pair closure",
    ):
        late = distributed.lost_process(RuntimeError(text))
        assert late is not None
        assert late.startswith("another process has not answered for 30 minutes")
    assert distributed.lost_process(RuntimeError("mat1 and mat2 cannot be restored")) is None


# Gradients


@pytest.fixture(scope="module")
def found_gradients(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return succeed("gradients", tmp_path_factory.mktemp("gradients"))


@pytest.mark.parametrize("norm", [False, True])
def test_gradients_are_the_mean_of_the_halves(found_gradients: list[Any], norm: bool) -> None:
    halves = [one_step(norm, half, wrapped=False) for half in HALVES]
    for found in found_gradients:
        assert found["reduced"][norm].keys() == halves[0].keys()
        for name in [name for name in halves[0] if "running" not in name and "num_" not in name]:
            gradient = found["reduced"][norm][name]
            mean = (halves[0][name] + halves[1][name]) / 2
            torch.testing.assert_close(gradient, mean, rtol=1e-6, atol=1e-7)


def test_without_norms_gradients_are_those_of_the_joint_batch(found_gradients: list[Any]) -> None:
    joint = one_step(False, slice(0, len(images()[0])), wrapped=False)
    for found in found_gradients:
        assert_close(found["reduced"][False], joint, 1e-6)


def test_with_synchronised_norms_too(found_gradients: list[Any]) -> None:
    """And so are the running statistics."""
    joint = one_step(True, slice(0, len(images()[0])), wrapped=False)
    assert any("running_var" in name for name in joint)
    for found in found_gradients:
        assert_close(found["synchronised"], joint, 2e-6)


def assert_close(
    found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], by: float
) -> None:
    assert found.keys() == wanted.keys()
    largest = max(t.abs().max().item() for t in wanted.values())
    for name, tensor in found.items():
        scale = max(wanted[name].abs().max().item(), 0.1 * largest)  # a bias before a norm has none
        torch.testing.assert_close(tensor, wanted[name], rtol=by, atol=by * scale)


def test_gradients_of_blocks_that_the_last_child_leaves_out_are_averaged_too(
    found_gradients: list[Any],
) -> None:
    joint = step_with_depth(slice(0, len(images()[0])), wrapped=False)
    assert "1.2.conv.weight" in joint
    for found in found_gradients:
        assert_close(found["depth"], joint, 1e-5)  # the order of the sums differs


def test_gradients_are_reduced_once_a_step(found_gradients: list[Any]) -> None:
    """Four widths are trained, and one bucket holds all gradients of so small a network."""
    assert [found["calls"] for found in found_gradients] == [1, 1]


# Whole trainings


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    succeed("training", folder)
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    run = folder / "run"
    names = ("history.jsonl", "front.json")
    weights = ("model.safetensors", "statistics.safetensors")
    return {name: (run / name).read_bytes() for name in names} | {
        name: (run / "checkpoint" / name).read_bytes() for name in weights
    }


def test_both_have_the_same_widths_and_weights_at_every_step(uninterrupted: Path) -> None:
    first, second = both(uninterrupted)
    assert len(first["steps"]) == len(second["steps"]) == 12
    for ours, theirs in zip(first["steps"], second["steps"]):
        (weights, widths, count), (other_weights, other_widths, other_count) = ours, theirs
        assert torch.equal(weights, other_weights)
        assert widths == other_widths
        assert count == other_count == 16, "half of the batch each"
    assert first["front"] == second["front"] > 0


def test_one_process_writes_as_if_it_were_alone(uninterrupted: Path) -> None:
    run = uninterrupted / "run"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [*range(1, 13), 12]
    children = [line for line in (run / "history.jsonl").read_text().splitlines() if '"id"' in line]
    assert len(children) == lines[-2]["children"]


def test_a_process_that_dies_makes_the_job_go_on(uninterrupted: Path, tmp_path: Path) -> None:
    found = succeed("training", tmp_path, "--max-restarts=1", DIE_AT="7")
    assert all(process["restarted"] for process in found)
    assert all(len(process["steps"]) == 8 for process in found), "from the checkpoint at step 4"
    assert files_of(tmp_path) == files_of(uninterrupted)


def test_processes_that_differ_are_refused_before_the_first_step(tmp_path: Path) -> None:
    found = succeed("differences", tmp_path)
    same = "all processes of a training need the same"
    sizes = "process 0 has 36, process 1 has 43"
    for told in found:
        assert told.keys() == {"classes", "sizes", "labels", "settings", "versions"}
        assert told["classes"] == f"data: class 1: process 0 has 'dog', process 1 has 'emu'; {same}"
        assert told["sizes"] == f"data: number of train images: {sizes}; {same}"
        assert told["labels"].startswith("data: identity: ")
        assert told["settings"] == f"steps: process 0 has 12, process 1 has 13; {same}"
        assert "joslim: process 0 has" in told["versions"]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (signal.SIGSTOP, "another process has not answered for 0.2 minutes"),
        (signal.SIGKILL, "another process has died"),
    ],
)
def test_a_process_that_stands_still_or_dies_ends_the_job(
    sent: signal.Signals, words: str, tmp_path: Path
) -> None:
    """Without torchrun, which would take half a minute to kill a process that stands still."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "joslim", "train", "--steps", "100000", "--batch", "32"]
    command += ["--save-every", "2", "--log-every", "1", "--threads", "1", "--out", str(run)]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1])}
    both = [
        subprocess.Popen(
            command,
            env={**os.environ, **address, "WORLD_SIZE": "2", "RANK": rank, TIMEOUT: "0.2"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    try:
        until = time.monotonic() + 120
        while not (run / "checkpoint" / "checkpoint.json").exists() and time.monotonic() < until:
            time.sleep(0.05)
        both[1].send_signal(sent)
        _, said = both[0].communicate(timeout=60)
    finally:
        for process in both:
            process.kill()
            process.communicate()
    assert both[0].returncode == 1
    (line,) = [line for line in said.splitlines() if line.startswith("joslim: ")]
    assert words in line
    assert "the last checkpoint is" in line
    assert "Traceback" not in said


def test_a_signal_to_one_stops_all_after_the_same_step(uninterrupted: Path, tmp_path: Path) -> None:
    result = torchrun("training", tmp_path, STOP_AT="6")
    assert result.returncode != 0
    assert "stopped at step 6 of 12" in result.stderr
    found = succeed("training", tmp_path, RESUME="1")
    assert files_of(tmp_path) == files_of(uninterrupted)
    assert all(len(process["steps"]) == 6 for process in found)


def test_a_batch_for_scoring_is_decoded_once(tmp_path: Path) -> None:
    """Each process decodes its share, once; an error of one is raised by both."""
    for number in range(40):
        split, name = ("train", "val")[number % 5 == 0], ("cat", "dog")[number % 2]
        path = tmp_path / "pictures" / split / name / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (6 * number, 0, 0)).save(path)
    first, second = succeed("scoring", tmp_path)
    assert first["decoded"] == [0, 1, 2, 3]
    assert second["decoded"] == [4, 5, 6]
    for facts in (first, second):
        for batch in facts["found"]:
            assert all(torch.equal(a, b) for a, b in zip(batch, facts["expected"], strict=True))
        assert facts["error"].startswith("data: cannot read the image")
    assert first["error"] == second["error"]
