"""`joslim.train`: from a configuration to a run folder with a front."""

from __future__ import annotations

import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from joslim.costs.device_file import DeviceFile
from joslim.costs.latency import Latency
from joslim.errors import RunFailed, Stopped, UserError
from joslim.front import Front
from joslim.loop import Slimming, timed
from joslim.processes import alike, any_asked, is_first, joined, on_first, restarted, world
from joslim.reports.figures import draw_run
from joslim.runs import checkpoint
from joslim.runs.config import WHERE_AND_HOW, Config, as_begun, completed, config_of
from joslim.runs.folder import (
    CONFIG,
    FRONT,
    HISTORY,
    LATENCY,
    METRICS,
    PICTURE,
    SAMPLES,
    HistoryLog,
    RunFolder,
    finite,
    read_lines,
)
from joslim.runs.job import RESOLVED, Job, lay_out, make_job
from joslim.runs.report import report_at_end
from joslim.runs.run import Run
from joslim.runs.visits import number
from joslim.search.history import History
from joslim.untrusted import json_value, shown
from joslim.widths import WidthSpace


@dataclass(frozen=True)
class Progress:
    """What there is to see after a step, or while children are judged (`phase` front)."""

    phase: str
    done: int
    total: int
    loss: float | None = None
    others_loss: float | None = None
    children: int = 0
    round: int = 0


Watcher = Callable[[Progress], None]

# torch raises a RuntimeError with these words wherever the main process happens to be.
DEAD_WORKER = "DataLoader worker"

# What a state that is not of this training, or that somebody made up, may lead to.
BAD_STATE = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
)


def train(
    model: str | nn.Module | None = None,
    data: Any = None,
    *,
    cost: Any = "macs",
    init: str | Path | Mapping[str, Tensor] | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    until: int | None = None,
    watch: Watcher = lambda progress: None,
    **options: Any,
) -> Run:
    """Train a slimmable network and choose its widths; the result is a folder and this `Run`.

    model: a name, package.module:function, or a module. data: a name, folder:PATH, a pair of data
    sets or a Data. Without them those of the recipe, else resnet8 on digits. cost: a name or a
    function of Widths. init: trained weights to start from. options: the other fields of `Config`.
    out: the run folder. resume: go on with the run in it, if there is one. until: go on to this
    step instead of the one it was begun with. watch: called after every step.

    Under torchrun all processes train one network, and the first of them writes.
    """
    if not isinstance(init, (str, Path, Mapping, type(None))):
        raise UserError(f"init: {type(init).__name__} given; a .safetensors file or a state dict")
    init = str(init) if isinstance(init, Path) else init
    named = {"model": model, "data": data, "cost": cost, "init": init}
    texts = {
        key: value if isinstance(value, str) else label(value)
        for key, value in named.items()
        if value is not None
    }
    if not isinstance(cost, str):
        texts["cost"] = "macs"  # the field only takes names; the run's files have the cost's own
    config = config_of({**texts, "init": init if isinstance(init, str) else None, **options})
    objects = {key: None if isinstance(value, str) else value for key, value in named.items()}
    folder = RunFolder(out or default_folder(config))
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())), joined():
            # Where torchrun began anew, it is to go on.
            going_on = resume or restarted()
            return start(config, objects, folder, overwrite, going_on, until, watch)
    finally:
        torch.set_num_threads(threads)


def label(value: Any) -> str:
    """What stands for an object in config.json; it cannot be loaded by that."""
    return f"<{getattr(value, '__name__', type(value).__name__)}>"


def default_folder(config: Config) -> Path:
    parts = (config.data.partition(":")[0], config.model.rpartition(":")[2], config.method)
    return Path("runs") / "-".join(part.strip("<>") for part in parts)


def start(
    config: Config,
    objects: dict[str, Any],
    folder: RunFolder,
    overwrite: bool,
    resume: bool,
    until: int | None,
    watch: Watcher,
) -> Run:
    if config.tensorboard:
        summary_writer()
    # Twice: before the time that making a job takes, and when nobody else can write any more.
    going_on = on_first(lambda: holds_run(folder, overwrite, resume, until))
    job = job_to_go_on(config, objects, folder, until) if going_on else make_job(config, **objects)
    with ExitStack() as stack:
        on_first(lambda: stack.enter_context(folder.locked()))
        try:
            if on_first(lambda: holds_run(folder, overwrite, resume, until)):
                go_on(job, folder, until)
            else:
                on_first(lambda: begin(job, folder))
        except OSError as error:
            where = f"cannot write into {str(folder.path)!r}"
            raise UserError(f"out: {where}: {error.strerror or error}") from error
        agree_on_latency(job, folder)
        if on_first(lambda: job.slimming.finished and folder.file(FRONT).is_file()):
            front = on_first(lambda: finished_front(folder))
        else:
            front = run_or_fail(job, folder, watch)
    lay_out(job.net, torch.contiguous_format)  # as a network that is loaded
    return Run(folder, job.net.eval(), front)


def holds_run(folder: RunFolder, overwrite: bool, resume: bool, until: int | None) -> bool:
    """Whether there is a run in the folder to go on with; if not, the folder must be free."""
    going_on = resume and folder.exists()
    if not going_on:
        if until is not None:
            raise UserError(f"until: there is no run in {str(folder.path)!r} to go on with")
        folder.check(overwrite)
    return going_on


def finished_front(folder: RunFolder) -> Front:
    checkpoint.drop_old(folder)  # it may have been killed just before it did
    return Front.read(folder.path)


def begin(job: Job, folder: RunFolder) -> None:
    """The configuration is written as soon as there is something to go on with."""
    folder.prepare()
    if isinstance(job.slimming.cost, Latency):
        measured_once(job.slimming.cost, folder)
    write_config(job, folder)


def agree_on_latency(job: Job, folder: RunFolder) -> None:
    """All prices of a run come from one measurement, whoever asks and however often it resumes."""
    cost = job.slimming.cost
    if isinstance(cost, Latency):
        cost.device_file = on_first(lambda: measured_once(cost, folder))


def measured_once(cost: Latency, folder: RunFolder) -> DeviceFile:
    file = folder.file(LATENCY)
    if file.exists():
        kept = DeviceFile.read(file)
        kept.check_fits(cost.net, file)
        return kept
    cost.device_file.write(file)
    return cost.device_file


def write_config(job: Job, folder: RunFolder) -> None:
    facts = {"cost": job.slimming.cost.name, "fresh": job.fresh, "data": facts_of_data(job)}
    folder.write_config(job.config.to_json(), **facts)


def job_to_go_on(
    config: Config, objects: dict[str, Any], folder: RunFolder, until: int | None
) -> Job:
    """As it was begun, by what its folder knows: its defaults, and weights instead of --init."""
    stored = on_first(lambda: json_value(folder.read(CONFIG), "config", CONFIG))
    has_weights = on_first(lambda: checkpoint.find(folder) is not None)
    if until is not None:
        config = replace(config, steps=until, epochs=None)
    # The default may be another for more steps, or in this version.
    begun = as_begun(stored) if isinstance(stored, dict) else stored
    open_ = [name for name in RESOLVED if getattr(config, name) is None]
    config = replace(config, **{name: json_value(begun, name, CONFIG) for name in open_})
    job = make_job(replace(config, init=None) if has_weights else config, **objects)
    job.config = replace(job.config, init=config.init)
    return job


def run_or_fail(job: Job, folder: RunFolder, watch: Watcher) -> Front:
    """What is not our own complaint becomes one: a full disk, no memory, a process that died."""
    try:
        return run_to_the_end(job, folder, watch)
    except (OSError, MemoryError, RuntimeError) as error:
        if not is_expected(error):
            raise
        raise RunFailed(f"{advised(error)}; {what_is_kept(folder)}") from error


def is_expected(error: Exception) -> bool:
    """Other RuntimeErrors are bugs, ours or those of somebody's network: they keep their trace."""
    if isinstance(error, RunFailed):
        return False
    ours = isinstance(error, (OSError, MemoryError)) or out_of_memory(error) or world() > 1
    return ours or DEAD_WORKER in str(error)


def advised(error: Exception) -> str:
    line = (str(error) or type(error).__name__).strip().splitlines()[0]
    if out_of_memory(error):
        return f"out of memory ({line}); a smaller --batch needs less"
    if DEAD_WORKER in line:
        return f"a process that decodes images died ({line}); fewer --workers need less memory"
    return line if isinstance(error, OSError) else f"a process has failed: {line}"


def out_of_memory(error: Exception) -> bool:
    kinds = (MemoryError, torch.OutOfMemoryError)
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, kinds) or any(word in str(error) for word in words)


def facts_of_data(job: Job) -> dict[str, Any]:
    """What a child needs to be told about its inputs."""
    data = job.data
    return {
        "identity": data.identity,
        "shape": list(data.shape),
        "classes": list(data.classes),
        "mean": list(data.mean),
        "std": list(data.std),
        "sizes": dict(data.sizes),
    }


def go_on(job: Job, folder: RunFolder, until: int | None = None) -> None:
    """Back to the last checkpoint, after making sure that it is the same training."""
    state = on_first(lambda: read_back(job, folder, until))
    if state is not None:
        take_state(job, state)
        alike(job.net.state_dict().values())
    on_first(lambda: take_over(job, folder, until))


def read_back(job: Job, folder: RunFolder, until: int | None) -> dict[str, Any] | None:
    """The state of the last good checkpoint, whose weights the network then has."""
    folder.refuse_links()
    check_same_training(job, folder, until)
    if (path := checkpoint.last_good(folder)) is None:
        return None
    state = checkpoint.load_state(path)
    checkpoint.load_weights(path, job.net)
    return state


def take_state(job: Job, state: dict[str, Any]) -> None:
    """The files may be whole and still be of something else."""
    try:
        job.load_state_dict(state)
    except BAD_STATE as error:
        line = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"checkpoint: its state is not one of this training: {line}") from error


def take_over(job: Job, folder: RunFolder, until: int | None) -> None:
    """The files of the run are those of the step at which it goes on."""
    done = job.slimming.steps
    if until is not None:
        if until < done:
            raise UserError(f"until: {until} is less than the {done} steps that are done")
        job.fresh = folder.read(CONFIG).get("fresh", [])
        write_config(job, folder)
    folder.cut_metrics(done, job.slimming.finished)


def check_same_training(job: Job, folder: RunFolder, until: int | None) -> None:
    stored = folder.read(CONFIG)
    theirs = json_value(stored, "config", CONFIG)
    if isinstance(theirs, dict):
        theirs = completed(theirs)
    may_change = WHERE_AND_HOW if until is None else WHERE_AND_HOW | {"steps", "epochs"}
    for key, value in job.config.to_json().items():
        if key in may_change:
            continue
        if (there := json_value(theirs, key, f"{CONFIG}.config")) == value:
            continue
        if key == "low" and None in (value, there) and has_same_widths(job, folder):
            continue
        has = "its default" if there is None else shown(there)
        raise UserError(
            f"{key}: {'nothing' if value is None else repr(value)} given, the run in "
            f"{str(folder.path)!r} has {has}; a resumed run cannot change it"
        )
    if (there := json_value(stored, "cost", CONFIG)) != (mine := job.slimming.cost.name):
        raise UserError(f"cost: {mine!r} given, the run has {shown(there)}; give it again")
    if json_value(json_value(stored, "data", CONFIG), "identity", CONFIG) != job.data.identity:
        raise UserError(f"data: {job.data.identity!r} is not what the run was trained on")


def has_same_widths(job: Job, folder: RunFolder) -> bool:
    """The lowest width may be typed or left to the network: the space of the run tells."""
    file = folder.file(HISTORY)
    header = next(iter(read_lines(file)), {}) if file.exists() else {}
    return "space" in header and WidthSpace.of_json(header["space"]) == job.net.space


def run_to_the_end(job: Job, folder: RunFolder, watch: Watcher) -> Front:
    scribe = Scribe(job, folder)
    with stopping() as stop:
        try:
            train_steps(job, scribe, watch, stop)
        except RunFailed as error:
            scribe.note_visits()
            raise RunFailed(f"{error}; {what_is_kept(folder)}") from error
        front = judge(job, folder, watch, stop)
        on_first(lambda: scribe.finish(front))
    return front


class Scribe:
    """Writes into the run folder what happens; on the first process only."""

    def __init__(self, job: Job, folder: RunFolder) -> None:
        self.job, self.folder = job, folder
        self.visits = HistoryLog(folder, job.slimming.history) if is_first() else None
        self.metrics = MetricsLog(job, folder) if is_first() else None

    def note_step(self) -> None:
        self.note_visits()
        if self.metrics is not None:
            self.metrics.update()

    def note_visits(self) -> None:
        if self.visits is not None:
            self.visits.update()

    def save(self) -> None:
        job = self.job
        checkpoint.save(self.folder, job.net, job.state_dict(), job.slimming.steps)

    def finish(self, front: Front) -> None:
        history = self.job.slimming.history
        self.note_visits()
        if self.metrics is not None:
            self.metrics.finish()
        self.folder.write_front(front)
        draw_run(front, visits_of(history, front), self.folder.file(PICTURE))
        # A run is finished when its checkpoint says so; then its page says it too.
        self.save()
        checkpoint.drop_old(self.folder)
        report_at_end(self.folder.path)


def visits_of(history: History, front: Front) -> list[tuple[int, float, float, bool]]:
    """Step, cost and loss of all children, and whether they are on the front.

    The losses are those of the last time that all were scored on the same images.
    """
    on_front = {point.widths for point in front}
    everyone = [s for s in history.scorings if len(s.losses) == len(history)]
    losses = everyone[-1].losses if everyone else {}
    return [
        (visit.step, visit.cost, losses[child], visit.widths in on_front)
        for child, visit in enumerate(history.visits)
        if child in losses
    ]


def train_steps(job: Job, scribe: Scribe, watch: Watcher, stop: Stop) -> None:
    slimming = job.slimming
    job.net.train()
    batches = job.batches()
    while slimming.steps < job.total_steps:
        with timed(slimming.seconds, "data"):
            batch = next(batches)
        job.step(*batch)
        watch(progress_of(job))
        scribe.note_step()
        # All processes stop after the same step.
        stop.asked = any_asked(stop.asked, job.device)
        at_end = slimming.steps == job.total_steps
        if at_end or stop.asked or slimming.steps % job.save_every == 0:
            on_first(scribe.save)
        stop.raise_if_asked(job, scribe.folder)


def progress_of(job: Job) -> Progress:
    slimming = job.slimming
    return Progress(
        "train",
        slimming.steps,
        job.total_steps,
        slimming.losses[0].item(),
        slimming.losses[1:].mean().item() if len(slimming.losses) > 1 else None,
        len(slimming.history),
        -(-slimming.steps // slimming.every),
    )


def smallest_loss(slimming: Slimming) -> float | None:
    """Of the smallest child, if it was trained in this step."""
    smallest = slimming.space.smallest
    if smallest not in slimming.widths:
        return None
    return slimming.losses[slimming.widths.index(smallest)].item()


def judge(job: Job, folder: RunFolder, watch: Watcher, stop: Stop) -> Front:
    on_first(lambda: write_samples(job, folder))

    def progress(done: int, total: int) -> None:
        stop.raise_if_asked(job, folder)
        watch(Progress("front", done, total, children=len(job.slimming.history)))

    return job.front(progress)


def write_samples(job: Job, folder: RunFolder) -> None:
    with checkpoint.disk_errors(folder.file(SAMPLES)):
        save_file({"inputs": job.samples()}, folder.file(SAMPLES))


class MetricsLog:
    """A line of metrics.jsonl at every log step, and the same in TensorBoard if it is asked for."""

    def __init__(self, job: Job, folder: RunFolder) -> None:
        self.job, self.folder = job, folder
        # A run that goes on counts on.
        last = last_line(folder)
        self.started = time.perf_counter() - (number(last, "seconds") or 0.0)
        parts = last.get("parts")
        for part in ("data", "search", "scoring"):
            known = number(parts, part) if isinstance(parts, dict) else None
            job.slimming.seconds[part] = known or 0.0
        where = folder.file("tensorboard")
        self.board = summary_writer()(where) if job.config.tensorboard else None

    def update(self) -> None:
        slimming = self.job.slimming
        if slimming.steps % self.job.log_every and slimming.steps != self.job.total_steps:
            return
        line = {
            "step": slimming.steps,
            "loss": slimming.losses[0].item(),
            "smallest_loss": smallest_loss(slimming),
            "losses": slimming.losses.tolist(),
            "costs": [finite(slimming.cost(child)) for child in slimming.widths],
            "lr": self.job.optimizer.param_groups[0]["lr"],
            "children": len(slimming.history),
            **self.effort(),
        }
        self.folder.append(METRICS, [line])
        if self.board is not None:
            for key in ("loss", "smallest_loss", "lr", "children"):
                if line[key] is not None:
                    self.board.add_scalar(key, line[key], slimming.steps)
            self.board.flush()

    def finish(self) -> None:
        """A line without a loss: what it took to search at the end and to judge the children."""
        line = {"step": self.job.slimming.steps, "phase": "front", **self.effort()}
        self.folder.append(METRICS, [line])

    def effort(self) -> dict[str, Any]:
        slimming = self.job.slimming
        return {
            "passes": slimming.passes,
            "scoring_passes": slimming.scoring_passes,
            "seconds": round(time.perf_counter() - self.started, 3),
            "parts": {part: round(seconds, 3) for part, seconds in slimming.seconds.items()},
        }


def last_line(folder: RunFolder) -> dict[str, Any]:
    file = folder.file(METRICS)
    lines = read_lines(file) if file.exists() else []
    return lines[-1] if lines else {}


def summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError(
            "tensorboard: not installed; type pip install 'joslim[tensorboard]'"
        ) from error
    return SummaryWriter


def what_is_kept(folder: RunFolder) -> str:
    path = checkpoint.find(folder)
    return f"the last checkpoint is {str(path)!r}" if path else "there is no checkpoint yet"


class Stop:
    """Set by a signal; looked at where the run can be left in good order."""

    def __init__(self) -> None:
        self.asked: int | None = None

    def raise_if_asked(self, job: Job, folder: RunFolder) -> None:
        if self.asked is not None:
            steps = f"{job.slimming.steps} of {job.total_steps} steps"
            how = f"type joslim resume {shlex.quote(str(folder.path))} to go on"
            raise Stopped(f"stopped after {steps}; {how}", self.asked)


@contextmanager
def stopping() -> Iterator[Stop]:
    """The first Ctrl-C or SIGTERM lets the step end and a checkpoint be written; a second kills."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: Any) -> None:
        stop.asked = number
        signal.signal(number, before[number])

    before: dict[int, Any] = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    for which in before:
        signal.signal(which, ask)
    try:
        yield stop
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
