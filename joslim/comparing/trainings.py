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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joslim import __version__
from joslim.comparing.comparison import SHARES, Comparison
from joslim.comparing.engines import JOBS, Engine, Handle, make_engine
from joslim.comparing.entries import entries_of_plan, last_line, log_of
from joslim.comparing.plan import FILE, Plan, Task, asked_plan, is_comparison
from joslim.errors import Stopped, UserError, unknown
from joslim.runs.config import DEFAULTS
from joslim.runs.whereabouts import is_finished, where_is

BAD_INPUT = 2
# Seconds between looks at the processes, and between reports to whoever watches.
PAUSE = 0.1
REPORT = 1.0


@dataclass(frozen=True)
class Status:
    """Where one training is: waiting, training, judging, finished, failed or stopped."""

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
    engine: str = "local",
    watch: Watcher = lambda statuses: None,
    against: str | None = None,
    shares: Sequence[float] = SHARES,
    sizes: Sequence[float] = (),
    **config: Any,
) -> Comparison:
    """Train each method with each seed (for each cost and network), or what is missing of that.

    out: the folder of the comparison; what is finished in it is not trained again, and lists and
    settings that are not given are those that it was begun with. at_once: trainings at the same
    time; as many as there are GPUs, or cores, unless given. engine: local, or submitit for a
    cluster. config: the other fields of `Config`, for all trainings. watch: called every second.
    against, shares, sizes: what the table shows, see `Comparison.table`.

    A training that fails does not stop the others: it is an entry with a `failure`. Ctrl-C stops
    them in good order, and the same call goes on.
    """
    from joslim.runs.folder import RunFolder

    if "RANK" in os.environ:
        raise UserError("compare: its runs are processes of their own; start it without torchrun")
    folder = Path(out)
    check_folder(folder)
    check_models(models or ())
    with RunFolder(folder).locked():
        known = Plan.read(folder) if is_comparison(folder) else None
        lists = {"models": models, "costs": costs, "methods": methods, "seeds": seeds}
        asked = asked_plan(lists, config, known)
        plan = asked if known is None else known.grown(asked)
        check_reference(against, plan)
        todo = [task for task in asked.tasks if not is_finished(folder / task.name)]
        device, threads = (plan.settings.get(key, DEFAULTS[key]) for key in ("device", "threads"))
        place = make_engine(engine, len(todo), at_once, device, threads, folder)
        plan = plan.running(todo, min(place.at_once, len(todo)))
        write_plan(folder, plan)
        try:
            train_all(plan, todo, folder, place, watch)
        except UserError:
            take_back(folder, plan, known)
            raise
        comparison = Comparison(entries_of_plan(folder, plan))
        comparison.refuse_unequal_terms()
        comparison.write(folder, against=against, shares=shares, sizes=sizes)
    return comparison


def check_reference(against: str | None, plan: Plan) -> None:
    methods = plan.values("method")
    if against is not None and against not in methods:
        raise unknown("against", against, methods)


def check_models(models: Sequence[Any]) -> None:
    """Before anything is begun: each training would only say it of its own network."""
    from joslim.runs.network import find_maker

    for model in models if not isinstance(models, str) else ():
        try:
            find_maker(str(model))
        except UserError as error:
            raise UserError(str(error).replace("model:", "models:", 1)) from error


def check_folder(folder: Path) -> None:
    """It is empty or not there, or it holds a comparison."""
    try:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"out: {str(folder)!r} is a file, a folder is needed")
        found = folder.iterdir() if folder.is_dir() else ()
        others = [path for path in found if not path.name.startswith(JOBS)]
    except OSError as error:
        raise UserError(f"out: cannot read {str(folder)!r}: {error.strerror}") from error
    if others and not is_comparison(folder):
        raise UserError(f"out: {str(folder)!r} is not empty and holds no comparison; type another")


def write_plan(folder: Path, plan: Plan) -> None:
    from joslim.runs.folder import RunFolder

    try:
        RunFolder(folder).write(FILE, {"joslim": __version__, **plan.to_json()})
    except OSError as error:
        raise UserError(f"out: cannot write into {str(folder)!r}: {error.strerror}") from error


def take_back(folder: Path, plan: Plan, known: Plan | None) -> None:
    """After bad input: what it asked for, and was never begun, leaves no trace."""
    before = known.tasks if known is not None else ()
    new = [task for task in plan.tasks if task not in before and not has_begun(folder, task)]
    for task in new:
        with suppress(OSError):
            log_of(folder / task.name).unlink()
    kept = tuple(task for task in plan.tasks if task not in new)
    if kept:
        settings = plan.settings if known is None else known.settings
        write_plan(folder, Plan(kept, settings, plan.at_once))
    else:
        (folder / FILE).unlink()


def has_begun(folder: Path, task: Task) -> bool:
    return (folder / task.name / "config.json").is_file()


# The processes


@dataclass(frozen=True)
class Running:
    task: Task
    handle: Handle
    place: int


def train_all(
    plan: Plan, todo: Sequence[Task], folder: Path, engine: Engine, watch: Watcher
) -> None:
    """As many at once as the engine allows, until all have ended or a signal comes."""
    from joslim.runs.training import stopping

    states = {task.name: "waiting" for task in todo}
    waiting = list(todo)
    report = Reporter(folder, states, watch)
    with stopping() as stop, ended_with_us() as running:
        while waiting or running:
            while waiting and len(running) < engine.at_once:
                running.append(started(plan, waiting.pop(0), folder, engine, running))
            for run in take_ended(running):
                states[run.task.name] = judged(run, log_of(folder / run.task.name))
            report(running)
            if stop.asked is not None:
                raise stopped(todo, folder, stop.asked)
            time.sleep(PAUSE)


@contextmanager
def ended_with_us() -> Iterator[list[Running]]:
    """A list of processes. On the way out by any exception they are told to stop, and awaited."""
    running: list[Running] = []
    try:
        yield running
    except BaseException as error:
        number = error.signal if isinstance(error, Stopped) else signal.SIGTERM
        for run in running:
            run.handle.stop(number)
        try:
            while any(run.handle.poll() is None for run in running):
                time.sleep(PAUSE)
        except KeyboardInterrupt:  # a second Ctrl-C: no checkpoint is waited for
            for run in running:
                run.handle.stop(signal.SIGKILL)
            raise
        raise


def started(
    plan: Plan, task: Task, folder: Path, engine: Engine, running: Sequence[Running]
) -> Running:
    taken = {run.place for run in running}
    place = next(number for number in range(engine.at_once) if number not in taken)
    log = log_of(folder / task.name)
    if log.is_symlink():
        raise UserError(f"out: {str(log)!r} is a link; a comparison holds its own files")
    command = training_command(plan.options(task), folder / task.name, engine.threads)
    try:
        return Running(task, engine.start(command, log, place), place)
    except OSError as error:
        raise UserError(f"out: cannot start {task.name}: {error.strerror or error}") from error


def training_command(options: Mapping[str, Any], out: Path, threads: int | None) -> list[str]:
    """`joslim train` with these options."""
    given = {"threads": threads, **options}
    flags = [typed(key, value) for key, value in given.items() if needs_typing(key, value)]
    return [sys.executable, "-m", "joslim", "train", "--resume", f"--out={out}", *flags]


def needs_typing(key: str, value: Any) -> bool:
    """A default may be a flag that nobody can type: there is no --no-sync-norm."""
    return value != DEFAULTS[key] if isinstance(value, bool) else value is not None


def typed(key: str, value: Any) -> str:
    name = key.replace("_", "-")
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={value}"


def judged(run: Running, log: Path) -> str:
    """How a run ended. Bad input is most likely that of all runs, and ends the comparison."""
    code = run.handle.poll()
    assert code is not None
    if code == BAD_INPUT:
        raise UserError(f"{run.task.name}: {last_line(log)}")
    if code < 0:  # whatever it said last was said before
        with log.open("a", encoding="utf-8") as stream:
            stream.write(f"killed by signal {-code} ({signal.Signals(-code).name})\n")
    return "failed" if code else "finished"


def take_ended(running: list[Running]) -> list[Running]:
    ended = [run for run in running if run.handle.poll() is not None]
    running[:] = [run for run in running if run not in ended]
    return ended


def stopped(todo: Sequence[Task], folder: Path, number: int) -> Stopped:
    left = sum(not is_finished(folder / task.name) for task in todo)
    return Stopped(
        f"stopped with {left} of {len(todo)} runs to go; the same command goes on with them", number
    )


class Reporter:
    """Tells the watcher where all trainings are, at most once a second."""

    def __init__(self, folder: Path, states: dict[str, str], watch: Watcher) -> None:
        self.folder, self.states, self.watch = folder, states, watch
        self.due = 0.0

    def __call__(self, running: Sequence[Running]) -> None:
        if not running or time.monotonic() >= self.due:
            self.due = time.monotonic() + REPORT
            alive = {run.task.name for run in running}
            self.watch([self.status(name, alive) for name in self.states])

    def status(self, name: str, alive: set[str]) -> Status:
        state = self.states[name]
        if name not in alive:
            return Status(name, state)
        where = where_is(self.folder / name)
        total = where.total or 0
        return Status(name, "judging" if 0 < total == where.step else "training", where.step, total)
