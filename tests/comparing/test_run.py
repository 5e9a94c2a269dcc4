"""A comparison as one job: it trains what is missing, can be stopped, grown and repeated.

Most trainings here are stand-ins: real processes that write a run folder in no time.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import joslim
from joslim.comparing import run
from joslim.comparing.plan import Plan, last_line
from joslim.comparing.run import Status, compare, rejudging_command, training_command
from joslim.errors import Stopped, UserError

HOUSE = Path(__file__).parents[2]

# What a stand-in does is the word of its method in the file `orders`; else it finishes.
STAND_IN = """
import json, os, pathlib, shutil, signal, sys, time
template, orders, out, options = *map(pathlib.Path, sys.argv[1:4]), json.loads(sys.argv[4])
with (orders / "calls").open("a") as calls:
    calls.write(out.name + "\\n")
order = (orders / options["method"]).read_text() if (orders / options["method"]).exists() else ""
def begin():
    out.mkdir(exist_ok=True)
    facts = json.loads((template / "config.json").read_text())
    facts["config"].update(options)
    (out / "config.json").write_text(json.dumps(facts))
if order == "fail":
    begin()
    sys.exit("joslim: out of memory (a smaller --batch needs less)")
if order in ("bad", "bad, late"):
    while order == "bad, late" and not (orders / "ready").exists():
        time.sleep(0.01)
    print("joslim: data: no such data; type digits")
    sys.exit(2)
if order == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if order == "wait":
    begin()
    def stop(number, frame):
        print("joslim: stopped at step 3 of 6", flush=True)
        sys.exit(128 + number)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    (orders / "ready").touch()
    time.sleep(60)
if order == "stubborn":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    (orders / "ready").write_text(str(os.getpid()))
    time.sleep(60)
begin()
shutil.copy(template / "metrics.jsonl", out / "metrics.jsonl")
front = json.loads((template / "front.json").read_text())
(out / "front.json").write_text(json.dumps({**front, "cost": options["cost"]}))
shutil.rmtree(out / "checkpoint", ignore_errors=True)  # of a run that was killed
"""


class StandIns:
    def __init__(self, folder: Path, template: Path) -> None:
        self.folder, self.template = folder, template
        (folder / "stand_in.py").write_text(STAND_IN)

    def command(
        self, options: dict[str, Any], out: Path, threads: int | None, processes: int = 1
    ) -> list[str]:
        paths = [self.folder / "stand_in.py", self.template, self.folder, out]
        return [sys.executable, "-S", *map(str, paths), json.dumps(options)]

    def order(self, method: str, word: str) -> None:
        (self.folder / method).write_text(word)

    def calls(self) -> list[str]:
        """The runs that were started since the last call."""
        file = self.folder / "calls"
        names = file.read_text().split() if file.exists() else []
        file.unlink(missing_ok=True)
        return sorted(names)


@pytest.fixture
def stand_ins(
    make_run: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> StandIns:
    (tmp_path / "orders").mkdir()
    found = StandIns(tmp_path / "orders", make_run(tmp_path / "template", [50, 30]))
    monkeypatch.setattr(run, "training_command", found.command)
    monkeypatch.setattr(run, "PAUSE", 0.01)
    return found


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "comparison"


def test_what_is_finished_is_not_trained_again(stand_ins: StandIns, out: Path) -> None:
    first = compare(["slim", "joslim"], [0, 1], out=out, steps=100, at_once=3)
    assert len(stand_ins.calls()) == 4
    assert [(e.method, e.seed, e.failure) for e in first.entries] == [
        ("slim", 0, None),
        ("joslim", 0, None),
        ("slim", 1, None),
        ("joslim", 1, None),
    ]
    assert {entry.at_once for entry in first.entries} == {3}
    assert (out / "table.json").exists()
    assert (out / "compare.png").exists()
    again = compare(["slim", "joslim"], [0, 1], out=out, steps=100)
    assert stand_ins.calls() == []
    assert again.table() == first.table()
    assert compare(out=out).table() == first.table()


def test_a_run_that_was_killed_just_before_its_end_is_ended(stand_ins: StandIns, out: Path) -> None:
    compare(["slim"], [0, 1], out=out)
    stand_ins.calls()
    checkpoint = out / "resnet8-macs-slim-seed1" / "checkpoint" / "checkpoint.json"
    checkpoint.parent.mkdir()
    checkpoint.write_text('{"step": 2, "finished": false}')
    assert not compare(out=out).failures
    assert stand_ins.calls() == ["resnet8-macs-slim-seed1"]


def test_a_comparison_grows(stand_ins: StandIns, out: Path) -> None:
    compare(["slim"], [0], out=out, steps=100)
    stand_ins.calls()
    grown = compare(["joslim", "slim"], out=out)
    assert stand_ins.calls() == ["resnet8-macs-joslim-seed0"]
    assert len(grown.entries) == 2
    grown = compare(seeds=[4], out=out)
    assert stand_ins.calls() == ["resnet8-macs-joslim-seed4", "resnet8-macs-slim-seed4"]
    # Asked for alone; the table still has everything.
    grown = compare(["slim"], [5], models=["resnet20"], out=out)
    assert stand_ins.calls() == ["resnet20-macs-slim-seed5"]
    assert len(grown.entries) == 5


def test_settings_that_differ_are_refused_before_anything_runs(
    stand_ins: StandIns, out: Path
) -> None:
    compare(["slim"], [0], out=out, steps=100)
    stand_ins.calls()
    for words, options in (
        ("steps: 50 given, the comparison has 100", {"steps": 50}),
        ("against: unknown name 'joslim'; allowed: slim", {"against": "joslim"}),
        ("at_once: 0 given", {"at_once": 0}),
    ):
        with pytest.raises(UserError) as caught:
            compare(["slim"], [0, 1], out=out, **options)
        assert words in str(caught.value)
    assert stand_ins.calls() == []
    assert len(Plan.read(out).tasks) == 1, "and nothing was added to the plan"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("nope", "models: unknown name 'nope'; allowed: resnet8, resnet20, "),
        ("nowhere:nope", "models: cannot import 'nowhere'"),
    ],
)
def test_a_network_that_is_not_there_is_refused_before_anything_runs(
    model: str, words: str, stand_ins: StandIns, out: Path
) -> None:
    with pytest.raises(UserError) as caught:
        compare(["slim"], [0], models=["resnet8", model], out=out)
    assert str(caught.value).startswith(words)
    assert stand_ins.calls() == []
    assert not out.exists()


def test_a_run_that_fails_is_named_and_tried_again(stand_ins: StandIns, out: Path) -> None:
    stand_ins.order("joslim", "fail")
    comparison = compare(["slim", "joslim"], [0, 1], out=out)
    assert [(e.method, e.seed) for e in comparison.failures] == [("joslim", 0), ("joslim", 1)]
    words = "out of memory (a smaller --batch needs less)"
    assert {entry.failure for entry in comparison.failures} == {words}
    assert [row["missing"] for row in comparison.table()] == [[], [0, 1]]
    stand_ins.calls()
    stand_ins.order("joslim", "")
    assert not compare(out=out).failures
    assert stand_ins.calls() == ["resnet8-macs-joslim-seed0", "resnet8-macs-joslim-seed1"]


def test_a_run_that_is_killed(stand_ins: StandIns, out: Path) -> None:
    stand_ins.order("slim", "killed")
    (failed,) = compare(["slim", "joslim"], [0], out=out).failures
    assert failed.failure == "killed by signal 9 (SIGKILL)"


def test_bad_input_ends_the_comparison_and_leaves_no_trace(stand_ins: StandIns, out: Path) -> None:
    stand_ins.order("slim", "bad")
    with pytest.raises(UserError) as caught:
        compare(["slim", "joslim"], [0, 1], out=out, data="cifra", at_once=1)
    assert str(caught.value) == "resnet8-macs-slim-seed0: data: no such data; type digits"
    assert stand_ins.calls() == ["resnet8-macs-slim-seed0"]
    assert not any(out.iterdir())
    stand_ins.order("slim", "")
    assert not compare(["slim"], [0], out=out, data="digits").failures
    # In a comparison that is there, only what was new goes.
    stand_ins.order("bignas", "bad")
    with pytest.raises(UserError):
        compare(["bignas"], [0], out=out, threads=3)
    plan = Plan.read(out)
    assert [task.method for task in plan.tasks] == ["slim"]
    assert plan.settings == {"data": "digits"}


def test_bad_input_stops_the_others_in_good_order(stand_ins: StandIns, out: Path) -> None:
    stand_ins.order("slim", "wait")
    stand_ins.order("joslim", "bad, late")
    with pytest.raises(UserError, match="data: no such data; type digits"):
        compare(["slim", "joslim"], [0], out=out, at_once=2)
    assert [task.method for task in Plan.read(out).tasks] == ["slim"]
    log = (out / "resnet8-macs-slim-seed0.log").read_text()
    assert "stopped at step 3 of 6" in log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_in_good_order(
    number: signal.Signals, stand_ins: StandIns, out: Path
) -> None:
    stand_ins.order("slim", "wait")

    def interrupt() -> None:
        while not (stand_ins.folder / "ready").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Stopped) as caught:
        compare(["slim"], [0, 1], out=out, at_once=1)
    thread.join()
    assert caught.value.signal == number
    words = "stopped with 2 of 2 runs to go; the same command goes on with them"
    assert str(caught.value) == words
    log = out / "resnet8-macs-slim-seed0.log"
    assert log.read_text() == "joslim: stopped at step 3 of 6\n"
    assert signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL)
    stand_ins.order("slim", "")
    stand_ins.calls()
    assert not compare(out=out).failures
    assert len(stand_ins.calls()) == 2


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks into /proc")
def test_a_second_signal_kills(stand_ins: StandIns, out: Path) -> None:
    stand_ins.order("slim", "stubborn")
    ready = stand_ins.folder / "ready"

    def interrupt_twice() -> None:
        while not (ready.exists() and ready.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt_twice)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        compare(["slim"], [0], out=out)
    thread.join()
    until = time.monotonic() + 10
    while is_running(ready.read_text()):
        assert time.monotonic() < until, "the training lives on"
        time.sleep(0.01)


def is_running(process: str) -> bool:
    """A zombie, which nobody has asked for its exit code yet, is dead."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_no_more_run_at_once_than_asked(stand_ins: StandIns, out: Path) -> None:
    seen: list[list[Status]] = []
    compare(["slim"], range(5), out=out, at_once=2, watch=seen.append)  # type: ignore[arg-type]
    alive = [sum(s.state in ("training", "judging") for s in statuses) for statuses in seen]
    assert max(alive) <= 2
    assert [status.state for status in seen[-1]] == ["finished"] * 5
    assert len(stand_ins.calls()) == 5


def test_two_comparisons_in_one_folder(stand_ins: StandIns, out: Path) -> None:
    from joslim.runs.folder import RunFolder

    with (
        RunFolder(out).locked(),
        pytest.raises(UserError, match=r"out: .* is in use by another training"),
    ):
        compare(["slim"], [0], out=out)


def test_folders_that_hold_something_else(stand_ins: StandIns, out: Path) -> None:
    out.mkdir()
    (out / "letter.txt").touch()
    with pytest.raises(UserError, match="is not empty and holds no comparison; type another"):
        compare(["slim"], [0], out=out)
    with pytest.raises(UserError, match="is a file, a folder is needed"):
        compare(["slim"], [0], out=out / "letter.txt")


def test_a_log_that_cannot_be_written(stand_ins: StandIns, out: Path) -> None:
    compare(["slim"], [0], out=out)
    (out / "resnet8-macs-slim-seed1.log").mkdir()
    with pytest.raises(UserError, match="out: cannot start resnet8-macs-slim-seed1: Is a dir"):
        compare(["slim"], [1], out=out)


def test_what_a_cluster_left_is_no_obstacle(stand_ins: StandIns, out: Path) -> None:
    (out / "cluster-0123").mkdir(parents=True)
    assert not compare(["slim"], [0], out=out).failures


def test_links_are_not_followed(stand_ins: StandIns, out: Path, tmp_path: Path) -> None:
    compare(["slim"], [0], out=out)
    (out / "resnet8-macs-slim-seed1.log").symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match=r"seed1.log' is a link; a comparison holds its own files"):
        compare(["slim"], [1], out=out)
    assert not (tmp_path / "precious").exists()


def test_under_torchrun(stand_ins: StandIns, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UserError, match=r"compare: .* start it without torchrun"):
        compare(["slim"], [0], out=out)
    assert not out.exists()


def test_the_command_of_a_training() -> None:
    options = {
        "data_root": "-x y",
        "tensorboard": True,
        "sync_norm": False,
        "channels_last": False,
        "samples": 1,
        "steps": 3,
        "model": "a:b",
    }
    command = training_command(options, Path("o u t"), threads=2)
    assert command[:5] == [sys.executable, "-m", "joslim", "train", "--resume"]
    assert command[5:] == [
        "--out=o u t",
        "--threads=2",
        "--data-root=-x y",
        "--tensorboard",
        "--no-channels-last",
        "--samples=1",
        "--steps=3",
        "--model=a:b",
    ]
    assert training_command({"threads": 4}, Path("x"), 2)[6:] == ["--threads=4"]
    assert training_command({}, Path("x"), None)[6:] == []


def test_several_processes_are_torchruns() -> None:
    command = training_command({"steps": 3}, Path("x"), 2, processes=4)
    assert command[:5] == [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=4",
    ]
    assert command[5:] == training_command({"steps": 3}, Path("x"), 2)[1:]


def test_the_number_of_processes_stays(stand_ins: StandIns, out: Path) -> None:
    compare(["slim"], [0], out=out, processes=2)
    assert Plan.read(out).processes == 2
    assert not compare(["slim"], [0, 1], out=out).failures
    assert Plan.read(out).processes == 2
    with pytest.raises(UserError, match=r"^processes: 1 given, the comparison has 2; leave it out"):
        compare(out=out, processes=1)
    with pytest.raises(UserError, match=r"^processes: "):
        compare(out=out, processes=0)


@pytest.mark.parametrize("at_once", [1, 3])
def test_methods_that_do_not_look_at_the_cost_are_trained_once(
    stand_ins: StandIns, out: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Their other costs are judged after the training has finished."""
    judged = []

    def again(options: dict[str, Any], source: Path, place: Path) -> list[str]:
        assert (source / "front.json").exists()
        judged.append((source.name, place.name))
        return stand_ins.command(options, place, None)

    monkeypatch.setattr(run, "rejudging_command", again)
    compare(["slim", "joslim"], [0], ["memory", "macs"], out=out, at_once=at_once)
    assert judged == [("resnet8-memory-slim-seed0", "resnet8-macs-slim-seed0")]
    assert len(stand_ins.calls()) == 4
    compare(["bignas"], [0], ["memory"], out=out)
    compare(["bignas"], [0], ["macs", "params"], out=out)
    assert {source for source, _ in judged[1:]} == {"resnet8-memory-bignas-seed0"}
    assert len(judged) == 3


def test_weights_that_failed_are_trained_for_each_cost(
    stand_ins: StandIns, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "rejudging_command", lambda *_: pytest.fail("there are no weights"))
    stand_ins.order("slim", "fail")
    assert len(compare(["slim"], [0], ["macs", "memory"], out=out).failures) == 2


def test_the_command_that_judges_again() -> None:
    options = {"model": "a:b", "cost": "memory", "method": "slim", "threads": 2, "steps": 3}
    command = rejudging_command(options, Path("s"), Path("o"))
    assert command[1:4] == ["-m", "joslim", "rejudge"]
    flags = ["--out=o", "--overwrite", "--model=a:b", "--cost=memory", "--threads=2"]
    assert command[4:] == ["s", *flags]
    assert "--model" not in " ".join(rejudging_command({**options, "model": "b"}, Path(), Path()))


def test_one_training_for_two_costs(tmp_path: Path, tiny: dict[str, Any]) -> None:
    options = {**tiny, "steps": 2}
    joslim.compare(["slim"], [0], ["macs", "memory"], out=tmp_path, **options)
    trained, judged = (
        joslim.load(tmp_path / f"resnet8-{cost}-slim-seed0") for cost in ("macs", "memory")
    )
    assert judged.facts["weights_of"]["run"] == str(trained.path)
    assert (trained.front.cost, judged.front.cost) == ("macs", "memory")
    assert replace(judged.config, cost="macs") == trained.config


def test_a_training_of_two_processes(tmp_path: Path, tiny: dict[str, Any]) -> None:
    options = {**tiny, "steps": 2, "threads": 1}
    (entry,) = joslim.compare(["slim"], [0], out=tmp_path, processes=2, **options).entries
    assert entry.failure is None
    assert entry.front is not None


def test_what_torchrun_adds_to_a_log_does_not_hide_why(tmp_path: Path) -> None:
    """As it was when two processes could not share a batch."""
    log = tmp_path / "log"
    why = "batch: 9 images cannot be shared out evenly over 2 processes; type 8 or 10"
    torchrun = f"""joslim: {why}
E1118 05:16:31.1 59 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 2)
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
joslim FAILED
------------------------------------------------------------
  exitcode  : 2 (pid: 77)
============================================================
"""
    log.write_text(torchrun)
    assert last_line(log) == why


def test_a_real_training(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Stopped in the middle, and gone on with: the run is one of `joslim train`."""
    out = tmp_path / "c"
    options = {**tiny, "steps": 60, "save_every": 20, "log_every": 1, "widths": "0.5"}
    command = [sys.executable, "-m", "joslim", "compare", f"--out={out}"]
    process = subprocess.Popen(
        [*command, "--methods=single", "--seeds=3", *training_command(options, out, None)[6:]],
        env={**os.environ, "PYTHONPATH": str(HOUSE)},
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = out / "resnet8-macs-single-seed3" / "metrics.jsonl"
    until = time.monotonic() + 90
    while not metrics.exists() or metrics.read_text().count("\n") < 2:
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 130
    assert printed.splitlines()[-1].startswith("joslim: stopped with 1 of 1 runs to go; the same")
    (before,) = joslim.comparing.read([out]).entries  # type: ignore[attr-defined]
    assert "stopped at step" in before.failure
    (entry,) = joslim.compare(out=out).entries
    assert entry.failure is None
    run = joslim.load(entry.path)
    assert (run.config.seed, run.config.widths, run.config.steps) == (3, "0.5", 60)
    assert run.front == entry.front
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert [step for at, step in enumerate(steps) if step not in steps[:at]] == [*range(1, 61)]
