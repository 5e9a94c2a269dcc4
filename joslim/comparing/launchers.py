"""Engines that run the trainings of a comparison: local processes, or jobs of a cluster.

An engine starts a command, in one of its places, and returns a handle. `poll` returns the exit code
once there is one; `send_signal` passes a signal on, after which a training writes a checkpoint and
ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

from joslim.errors import UserError, first_line, imported, unknown

ENGINES = ("local", "submitit")
# The default time limit is a day; that of submitit is five minutes.
MINUTES = 24 * 60
# Prefix of the folder that holds the jobs of a cluster.
JOBS = "cluster-"


def make_engine(
    name: str,
    runs: int,
    at_once: int | None,
    device: str,
    threads: int | None,
    folder: Path,
    processes: int = 1,
) -> Engine:
    if at_once is not None and (isinstance(at_once, bool) or not 1 <= at_once <= 10_000):
        raise UserError(f"at_once: {at_once} given; allowed: a whole number from 1 to 10000")
    kind, options = parsed_engine(name)
    if kind == "submitit":
        return Cluster(folder, options, at_once or runs, threads)
    return Local(at_once, runs, visible_gpus(device), threads, processes)


def parsed_engine(text: str) -> tuple[str, dict[str, Any]]:
    """Split `submitit:timeout_min=600,slurm_partition=gpu` into the name and its options."""
    kind, _, rest = text.partition(":")
    if kind not in ENGINES:
        raise unknown("engine", kind, ENGINES)
    if rest and kind == "local":
        raise UserError(f"engine: {text!r} given; local takes no options")
    options: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key.isidentifier():
            raise UserError(
                f"engine: {part!r} is not an option; type submitit:timeout_min=600,gpus_per_node=1"
            )
        options[key] = int(value) if value.isdecimal() else value
    return kind, options


class Local:
    """Processes of this machine, which share its cores or take turns at its GPUs."""

    def __init__(
        self,
        at_once: int | None,
        runs: int,
        gpus: Sequence[str],
        threads: int | None,
        processes: int = 1,
    ) -> None:
        if gpus and processes > len(gpus):
            raise UserError(
                f"processes: {processes} given, each needs a GPU and there are {len(gpus)}"
            )
        # The GPUs of each place, one for each process of a training.
        self.gpus = [gpus[at : at + processes] for at in range(0, len(gpus), processes)]
        self.gpus = [some for some in self.gpus if len(some) == processes]
        places = len(self.gpus) or max(1, cores() // ((threads or 1) * processes))
        self.at_once = at_once or max(1, min(places, runs))
        # More threads than cores would slow all processes down.
        share = max(1, cores() // (self.at_once * processes))
        self.threads = threads or (None if gpus else share)

    def start(self, command: Sequence[str], log: Path, place: int) -> subprocess.Popen[bytes]:
        settings = {"PYTHONUNBUFFERED": "1"}
        if self.gpus:
            settings["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus[place % len(self.gpus)])
        if self.threads is not None:
            settings["OMP_NUM_THREADS"] = str(self.threads)
        with log.open("ab") as stream:
            # In its own session, Ctrl-C reaches it only once, through `send_signal`.
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env={**os.environ, **settings},
                start_new_session=True,
            )


def cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def visible_gpus(device: str, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Names of the GPUs that the runs share; none if the user has chosen a device."""
    if device not in ("auto", "cuda"):
        return []
    if (named := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in named.split(",") if name and name != "-1"]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


class Cluster:
    """Jobs of submitit: Slurm if it is there, else processes of this machine."""

    def __init__(
        self, folder: Path, options: Mapping[str, Any], at_once: int, threads: int | None
    ) -> None:
        submitit = imported("submitit", "engine", "'joslim[cluster]'")
        self.at_once, self.threads = at_once, threads
        # Its results are pickles, so the folder has a name that nobody could have guessed.
        self.executor = submitit.AutoExecutor(folder=folder / f"{JOBS}{token_hex(8)}")
        given = {"timeout_min": MINUTES, "name": "joslim", **options}
        try:
            self.executor.update_parameters(**given)
        except (NameError, TypeError, ValueError) as error:
            raise UserError(f"engine: submitit refuses its options: {first_line(error)}") from error

    def start(self, command: Sequence[str], log: Path, place: int) -> ClusterJob:
        return ClusterJob(self.executor.submit(run_command, list(command), str(log)), log)


class ClusterJob:
    def __init__(self, job: Any, log: Path) -> None:
        self.job, self.log = job, log

    def poll(self) -> int | None:
        if not self.job.done():
            return None
        try:
            return int(self.job.result())
        except Exception as error:  # any failure of the cluster
            line = str(error).strip().splitlines()[-1] if str(error).strip() else "no reason given"
            with self.log.open("a", encoding="utf-8") as stream:
                stream.write(f"job {self.job.job_id} has failed: {line}\n")
            return 1

    def send_signal(self, sig: int, /) -> None:
        self.job.cancel(check=False)


# An engine runs `at_once` commands at the same time, each with `threads` unless it says otherwise.
Engine = Local | Cluster
Handle = subprocess.Popen[bytes] | ClusterJob


def run_command(command: list[str], log: str) -> int:
    """Run the command of a job on the cluster, and pass signals on to it."""
    with Path(log).open("ab") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL, start_new_session=True
        )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda given, frame: process.send_signal(given))
    return process.wait()
