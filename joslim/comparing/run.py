"""`joslim.compare`: methods x seeds x costs x networks, as one job that can be stopped and grown.

Each training is an ordinary run folder and a process of its own, so that one that fails takes no
other with it. Training, checkpoints and resuming are those of `joslim train --resume`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from joslim import __version__
from joslim.comparing.launchers import JOBS, Engine, Handle, make_engine
from joslim.comparing.plan import (
    FILE,
    MOST_PROCESSES,
    Plan,
    Task,
    asked_plan,
    entries_of_plan,
    is_comparison,
    last_line,
    log_of,
)
from joslim.errors import Stopped, UserError, unknown
from joslim.files import json_count, writing
from joslim.results.comparison import SHARES, Comparison
from joslim.results.run_files import CONFIG, is_finished, status_of
from joslim.runs.config import DEFAULTS
from joslim.runs.folder import RunFolder

BAD_INPUT = 2
# Seconds between two looks at the processes, and between two calls of the watcher.
PAUSE = 0.1
REPORT = 1.0


@dataclass(frozen=True)
class Status:
    """How far one training is. state: waiting, training, judging, finished or failed."""

    name: str
    state: str
    done: int = 0
    total: int = 0


Watcher = Callable[[list[Status]], None]


def compare(
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    costs: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    *,
    out: str | Path,
    at_once: int | None = None,
    processes: int | None = None,
    engine: str = "local",
    watch: Watcher = lambda statuses: None,
    against: str | None = None,
    shares: Sequence[float] = SHARES,
    sizes: Sequence[float] = (),
    **config: Any,
) -> Comparison:
    """Train several methods with several seeds on equal terms, and compare them.

    Each training is a run of its own inside the folder. A training that fails does not stop the
    others. After Ctrl-C, or with further methods or seeds, the same call trains only what is
    missing.

    Args:
        methods: Names in `joslim.METHODS`. By default those that the comparison was started with.
        seeds: Random seeds.
        costs: Names in `joslim.COSTS`.
        models: Names in `joslim.models.MODELS`, or "package.module:function".
        out: Folder of the comparison.
        at_once: Number of trainings at the same time; by default one for each GPU, or for each
            core, by the number of processes.
        processes: Number of processes of each training, which torchrun starts on one machine; with
            GPUs, one for each of them. By default 1.
        engine: "local", or "submitit" for a cluster.
        watch: A function that is called every second with the status of each training.
        against: The method that the others are tested against; see `Comparison.table`.
        shares: Costs at which the table shows the error, as shares of the cost of the full network.
        sizes: Costs at which the table shows the error.
        config: All other settings of `joslim.train`, for all trainings.

    Returns:
        The comparison.

    Raises:
        UserError: A setting is not valid, or differs from that of the trainings in the folder.

    Examples:
        >>> settings = dict(steps=4, every=2, threads=1)
        >>> comparison = joslim.compare(["slim"], seeds=[0], out="comparison", **settings)
        >>> [row["method"] for row in comparison.table()]
        ['slim']
    """
    if "RANK" in os.environ:
        raise UserError("compare: its runs are processes of their own; start it without torchrun")
    if processes is not None:
        json_count(processes, "processes", 1, MOST_PROCESSES)
    folder = Path(out)
    _check_folder(folder)
    _check_models(models or ())
    lists = {"models": models, "costs": costs, "methods": methods, "seeds": seeds}
    with RunFolder(folder).locked():
        # Grow the plan of the folder by the runs that are asked for, and train those not finished.
        known = Plan.read(folder) if is_comparison(folder) else None
        asked = asked_plan(lists, config, known, processes)
        plan = asked if known is None else known.grown(asked)
        if against is not None and against not in (names := plan.values("method")):
            raise unknown("against", against, names)
        todo = [task for task in asked.tasks if not is_finished(folder / task.name)]
        device, threads = (plan.settings.get(key, DEFAULTS[key]) for key in ("device", "threads"))
        launcher = make_engine(engine, len(todo), at_once, device, threads, folder, plan.processes)
        plan = plan.running(todo, min(launcher.at_once, len(todo)))
        _write_plan(folder, plan)
        try:
            _train_all(plan, todo, folder, launcher, watch)
        except UserError:
            _take_back(folder, plan, known)
            raise
        comparison = Comparison(entries_of_plan(folder, plan))
        comparison.refuse_unequal_terms()
        comparison.write(folder, against=against, shares=shares, sizes=sizes)
    return comparison


def _check_models(models: Sequence[Any]) -> None:
    """Refuse an unknown network before the trainings of the others begin."""
    from joslim.runs.networks import find_maker

    for model in models if not isinstance(models, str) else ():
        try:
            find_maker(str(model))
        except UserError as error:
            raise UserError(str(error).replace("model:", "models:", 1)) from error


def _check_folder(folder: Path) -> None:
    """Refuse a folder that holds anything else than a comparison."""
    try:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"out: {str(folder)!r} is a file, a folder is needed")
        found = folder.iterdir() if folder.is_dir() else ()
        others = [path for path in found if not path.name.startswith(JOBS)]
    except OSError as error:
        raise UserError(f"out: cannot read {str(folder)!r}: {error.strerror}") from error
    if others and not is_comparison(folder):
        raise UserError(f"out: {str(folder)!r} is not empty and holds no comparison; type another")


def _write_plan(folder: Path, plan: Plan) -> None:
    with writing(folder):
        RunFolder(folder).write(FILE, {"joslim": __version__, **plan.to_json()})


def _take_back(folder: Path, plan: Plan, known: Plan | None) -> None:
    """After bad input, remove the new runs that never started from the plan, and their logs."""
    before = known.tasks if known is not None else ()
    new = [
        task
        for task in plan.tasks
        if task not in before and not (folder / task.name / CONFIG).is_file()
    ]
    for task in new:
        with suppress(OSError):
            log_of(folder / task.name).unlink()
    kept = tuple(task for task in plan.tasks if task not in new)
    if kept:
        settings = plan.settings if known is None else known.settings
        _write_plan(folder, replace(plan, tasks=kept, settings=settings))
    else:
        (folder / FILE).unlink()


# The processes


@dataclass(frozen=True)
class Running:
    task: Task
    handle: Handle
    place: int


def _train_all(
    plan: Plan, todo: Sequence[Task], folder: Path, engine: Engine, watch: Watcher
) -> None:
    """Train as many runs at once as the engine allows, until all have ended or a signal comes."""
    from joslim.runs.driver import stopping

    states = {task.name: "waiting" for task in todo}
    waiting = list(todo)
    due = 0.0
    with stopping() as stop, _stopped_on_exit() as running:
        while waiting or running:
            while len(running) < engine.at_once:
                unfinished = [*waiting, *(run.task for run in running)]
                ready = [task for task in waiting if plan.source(task) not in unfinished]
                if not ready:
                    break
                waiting.remove(ready[0])
                running.append(_started(plan, ready[0], folder, engine, running))
                states[running[-1].task.name] = "training"
            ended = [run for run in running if run.handle.poll() is not None]
            running[:] = [run for run in running if run not in ended]
            for run in ended:
                states[run.task.name] = _state_at_end(run, log_of(folder / run.task.name))
            if not running or time.monotonic() >= due:
                due = time.monotonic() + REPORT
                watch([_status(folder, name, state) for name, state in states.items()])
            if stop.asked is not None:
                left = sum(not is_finished(folder / task.name) for task in todo)
                words = f"stopped with {left} of {len(todo)} runs to go"
                raise Stopped(f"{words}; the same command goes on with them", stop.asked)
            time.sleep(PAUSE)


def _status(folder: Path, name: str, state: str) -> Status:
    if state != "training":
        return Status(name, state)
    status = status_of(folder / name)
    step, total = status.step, status.total or 0
    return Status(name, "judging" if 0 < total == step else "training", step, total)


@contextmanager
def _stopped_on_exit() -> Iterator[list[Running]]:
    """Give a list of processes; after any exception they are told to stop, and waited for."""
    running: list[Running] = []
    try:
        yield running
    except BaseException as error:
        number = error.signal if isinstance(error, Stopped) else signal.SIGTERM
        for run in running:
            run.handle.send_signal(number)
        try:
            while any(run.handle.poll() is None for run in running):
                time.sleep(PAUSE)
        except KeyboardInterrupt:  # a second Ctrl-C does not wait for checkpoints
            for run in running:
                run.handle.send_signal(signal.SIGKILL)
            raise
        raise


def _started(
    plan: Plan, task: Task, folder: Path, engine: Engine, running: Sequence[Running]
) -> Running:
    taken = {run.place for run in running}
    place = next(number for number in range(engine.at_once) if number not in taken)
    log = log_of(folder / task.name)
    if log.is_symlink():
        raise UserError(f"out: {str(log)!r} is a link; a comparison holds its own files")
    command = training_command(
        plan.options(task), folder / task.name, engine.threads, plan.processes
    )
    source = plan.source(task)
    # A source that failed leaves no weights: the task is then trained by itself.
    if source is not None and is_finished(folder / source.name):
        command = rejudging_command(plan.options(task), folder / source.name, folder / task.name)
    try:
        return Running(task, engine.start(command, log, place), place)
    except OSError as error:
        raise UserError(f"out: cannot start {task.name}: {error.strerror or error}") from error


def training_command(
    options: Mapping[str, Any], out: Path, threads: int | None, processes: int = 1
) -> list[str]:
    """The command `joslim train` with these options; several processes are torchrun's."""
    flags = []
    for key, value in {"threads": threads, **options}.items():
        name = key.replace("_", "-")
        if isinstance(value, bool):
            # A default may have no flag: there is no --no-sync-norm.
            if value != DEFAULTS[key]:
                flags.append(f"--{name}" if value else f"--no-{name}")
        elif value is not None:
            flags.append(f"--{name}={value}")
    command = ["-m", "joslim", "train", "--resume", f"--out={out}", *flags]
    if processes > 1:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command = [*torchrun, *command]
    return [sys.executable, *command]


def rejudging_command(options: Mapping[str, Any], source: Path, out: Path) -> list[str]:
    """The command `joslim rejudge`; a folder that a kill has left half written is replaced."""
    own = ("model",) if ":" in options["model"] else ()
    names = [*own, "cost", "device_file", "device", "threads", "data_root"]
    given = {name: options[name] for name in names if options.get(name) is not None}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    command = [sys.executable, "-m", "joslim", "rejudge", str(source), f"--out={out}"]
    return [*command, "--overwrite", *flags]


def _state_at_end(run: Running, log: Path) -> str:
    """Return how a run ended; bad input is most likely that of all runs, and ends all of them."""
    code = run.handle.poll()
    assert code is not None
    if code == BAD_INPUT:
        raise UserError(f"{run.task.name}: {last_line(log)}")
    if code < 0:  # the process could not say so itself
        with log.open("a", encoding="utf-8") as stream:
            stream.write(f"killed by signal {-code} ({signal.Signals(-code).name})\n")
    return "failed" if code else "finished"
