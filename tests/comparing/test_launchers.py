"""Where trainings run: processes with their own cores or GPUs, and jobs of a cluster."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from joslim.comparing.launchers import (
    Handle,
    Local,
    cores,
    make_engine,
    parsed_engine,
    run_command,
    visible_gpus,
)
from joslim.errors import UserError


def ended(handle: Handle, seconds: float = 30) -> int:
    until = time.monotonic() + seconds
    while (code := handle.poll()) is None:
        assert time.monotonic() < until, "it did not end"
        time.sleep(0.02)
    return code


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


# How many at once, with how many threads


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joslim.comparing.launchers.cores", lambda: 8)


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("at_once", "runs", "gpus", "threads", "expected"),
    [
        (None, 100, [], None, (8, 1)),  # a core for each
        (None, 3, [], None, (3, 2)),  # few runs share the cores
        (None, 100, [], 4, (2, 4)),  # threads that somebody wants
        (None, 100, [], 16, (1, 16)),
        (2, 100, [], None, (2, 4)),
        (20, 100, [], None, (20, 1)),
        (None, 100, ["0", "3"], None, (2, None)),  # a GPU for each
        (None, 1, ["0", "3"], None, (1, None)),
        (5, 100, ["0", "3"], 2, (5, 2)),
        (None, 0, [], None, (1, 8)),  # nothing to do
    ],
)
def test_shares_of_a_machine(
    at_once: int | None,
    runs: int,
    gpus: list[str],
    threads: int | None,
    expected: tuple[int, int | None],
) -> None:
    engine = Local(at_once, runs, gpus, threads)
    assert (engine.at_once, engine.threads) == expected


def test_cores_are_those_that_we_may_use() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("device", "environment", "expected"),
    [
        ("auto", {"CUDA_VISIBLE_DEVICES": "2,5"}, ["2", "5"]),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-abc"}, ["GPU-abc"]),
        ("auto", {"CUDA_VISIBLE_DEVICES": ""}, []),
        ("auto", {"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ("cpu", {"CUDA_VISIBLE_DEVICES": "2,5"}, []),
        ("cuda:1", {"CUDA_VISIBLE_DEVICES": "2,5"}, []),
    ],
)
def test_gpus(device: str, environment: dict[str, str], expected: list[str]) -> None:
    assert visible_gpus(device, environment) == expected


@pytest.mark.usefixtures("eight_cores")
def test_every_process_has_a_gpu() -> None:
    engine = Local(None, 9, list("01234567"), None, processes=3)
    assert (engine.at_once, engine.threads) == (2, None)
    assert [*map(list, engine.gpus)] == [["0", "1", "2"], ["3", "4", "5"]]
    assert Local(None, 9, list("01"), None, processes=2).at_once == 1
    with pytest.raises(UserError, match=r"^processes: 4 given, each needs a GPU and there are 2$"):
        Local(None, 9, list("01"), None, processes=4)
    engine = Local(None, 3, [], None, processes=2)
    assert (engine.at_once, engine.threads) == (3, 1)
    assert Local(1, 3, [], None, processes=2).threads == 4


def test_gpus_that_torch_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert visible_gpus("auto", {}) == ["0", "1", "2"]


# Processes


def test_a_process_and_what_it_is_told(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("before\n")
    engine = Local(3, 3, ["7", "9"], threads=5)
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['OMP_NUM_THREADS'])"
    for place, gpu in enumerate(("7", "9", "7")):
        assert ended(engine.start(python(code), log, place)) == 0
        assert log.read_text().splitlines()[-1] == f"{gpu} 5"
    assert log.read_text().startswith("before\n")


def test_errors_go_to_the_log_and_the_code_comes_back(tmp_path: Path) -> None:
    handle = Local(1, 1, [], 1).start(python("raise SystemExit('no')"), tmp_path / "a.log", 0)
    assert ended(handle) == 1
    assert (tmp_path / "a.log").read_text() == "no\n"


WAITING = """
import signal, sys, time
def stop(number, frame):
    print("stopped by", number, flush=True)
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on(number: signal.Signals, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    handle = Local(1, 1, [], 1).start(python(WAITING), log, 0)
    until = time.monotonic() + 30
    while "ready" not in log.read_text():
        assert time.monotonic() < until
        time.sleep(0.02)
    assert handle.poll() is None
    handle.send_signal(number)
    assert ended(handle) == 128 + number
    assert log.read_text() == f"ready\nstopped by {number}\n"
    handle.send_signal(number)  # it has ended: nothing happens


def test_a_process_has_a_session_of_its_own(tmp_path: Path) -> None:
    """Ctrl-C of the terminal goes to a whole group, and a second one would kill."""
    log = tmp_path / "a.log"
    ended(Local(1, 1, [], 1).start(python("import os; print(os.getsid(0))"), log, 0))
    assert int(log.read_text()) != os.getsid(0)


# A cluster


def test_names_and_options() -> None:
    assert parsed_engine("local") == ("local", {})
    assert parsed_engine("submitit") == ("submitit", {})
    text = "submitit:timeout_min=600,slurm_partition=gpu,gpus_per_node=1"
    options = {"timeout_min": 600, "slurm_partition": "gpu", "gpus_per_node": 1}
    assert parsed_engine(text) == ("submitit", options)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ray", "engine: unknown name 'ray'; allowed: local, submitit"),
        ("local:x=1", "engine: 'local:x=1' given; local takes no options"),
        ("submitit:fast", "engine: 'fast' is not an option; type submitit:timeout_min=600"),
        ("submitit:a-b=1", "engine: 'a-b=1' is not an option"),
    ],
)
def test_names_that_are_none(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        make_engine(name, 1, None, "cpu", None, tmp_path)
    assert words in str(caught.value)


@pytest.mark.parametrize("at_once", [0, -1, True, 10**6])
def test_numbers_at_once(at_once: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"at_once: .* given; allowed: a whole number from 1"):
        make_engine("local", 1, at_once, "cpu", None, tmp_path)


def test_a_package_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match=r"^engine: the package submitit is not .* 'joslim\[cl"):
        make_engine("submitit", 1, None, "cpu", None, tmp_path)


def test_options_that_no_cluster_knows(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    with pytest.raises(UserError, match=r"engine: submitit refuses its options: .*nonsense"):
        make_engine("submitit:nonsense=1", 1, None, "cpu", None, tmp_path)


def test_jobs_of_a_cluster(tmp_path: Path) -> None:
    """Where there is no Slurm, submitit's jobs are processes of this machine."""
    pytest.importorskip("submitit")
    engine = make_engine("submitit:timeout_min=2", 7, None, "cpu", None, tmp_path)
    assert (engine.at_once, engine.threads) == (7, None)
    other = make_engine("submitit:timeout_min=2", 7, None, "cpu", None, tmp_path)
    folders = {maker.executor.folder for maker in (engine, other)}  # type: ignore[attr-defined]
    assert len(folders) == 2, "pickles of jobs lie where nobody could have put one before"
    codes = "print('done')", "raise SystemExit('no')", WAITING
    logs = [tmp_path / f"{at}.log" for at in range(3)]
    handles = [engine.start(python(code), log, 0) for code, log in zip(codes, logs)]
    assert [ended(handle) for handle in handles[:2]] == [0, 1]
    assert [log.read_text() for log in logs[:2]] == ["done\n", "no\n"]
    until = time.monotonic() + 30
    while not logs[2].exists() or "ready" not in logs[2].read_text():
        assert time.monotonic() < until
        time.sleep(0.05)
    handles[2].send_signal(signal.SIGTERM)
    assert ended(handles[2]) != 0
    assert "stopped by" in logs[2].read_text(), "it was told, and not just killed"


def test_what_a_job_does(tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert run_command(python("print(3); raise SystemExit(5)"), str(tmp_path / "a.log")) == 5
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert (tmp_path / "a.log").read_text() == "3\n"
