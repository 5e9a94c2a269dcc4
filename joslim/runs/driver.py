"""`joslim.train`: from a configuration to a run folder with a front.

`run_training` reads top-down: set up, begin or resume, train, judge, write.
"""

from __future__ import annotations

import logging
import platform
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from joslim import __version__
from joslim.costs.device_file import DeviceFile
from joslim.costs.latency import Latency
from joslim.distributed import (
    any_asked,
    is_first,
    joined,
    lost_process,
    on_first,
    refuse_differences,
    restarted,
    world,
)
from joslim.errors import RunFailed, Stopped, UserError, first_line
from joslim.files import disk_errors, write_tensors, writing
from joslim.front import Front, step_of_front
from joslim.results.plots import draw_run
from joslim.results.record import read_record
from joslim.results.run_files import LATENCY, STOPPED, RunStatus
from joslim.runs import checkpoint
from joslim.runs.config import Config, config_of
from joslim.runs.folder import PICTURE, SAMPLES, RunFolder
from joslim.runs.logs import HistoryLog, MetricsLog, check_tracker, tracker_of
from joslim.runs.report import PAGE, report_at_end
from joslim.runs.resume import restore, set_up_again, write_config
from joslim.runs.run import Run
from joslim.runs.setup import lay_out, refuse_untrained_teacher, set_up
from joslim.runs.summary import summary
from joslim.runs.trainer import Trainer
from joslim.training.exploring import adding_seconds
from joslim.training.settings import WHERE_AND_HOW
from joslim.training.tasks import Task


@dataclass(frozen=True)
class Progress:
    """The progress after a step, or while children are judged (`phase` "front").

    The losses are the last that were read from the device. smallest_loss: None in steps that did
    not train the smallest network. alone_until: The step up to which the full network trains alone.
    """

    phase: str
    done: int
    total: int
    loss: float | None = None
    others_loss: float | None = None
    smallest_loss: float | None = None
    alone_until: int = 0
    children: int = 0
    round: int = 0


log = logging.getLogger("joslim")

Watcher = Callable[[Progress], None]

# Settings that may differ between the processes of one training. All of them save, and look for
# losses that are not finite, after the same steps.
OF_ONE_MACHINE = WHERE_AND_HOW - {"save_every", "log_every"} | {"data", "init"}

# torch raises a RuntimeError with these words wherever the main process happens to be.
DEAD_WORKER = "DataLoader worker"

# Steps of a dry run that are timed.
TRIAL_STEPS = 3
# Numbers of devices that a dry run estimates for, and the bytes a second between two of them.
DEVICES = (2, 8, 64)
BANDWIDTH = 10e9


def train(
    model: str | nn.Module | None = None,
    data: Any = None,
    *,
    cost: Any = "macs",
    init: str | Path | Mapping[str, Tensor] | None = None,
    task: str | Task | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    until: int | None = None,
    watch: Watcher = lambda progress: None,
    **options: Any,
) -> Run:
    """Train a slimmable network and choose its widths at the same time.

    Everything about the training is written into a run folder, which `joslim.load` opens. Under
    torchrun all processes train one network, and the first of them writes.

    Args:
        model: A name in `joslim.models.MODELS`, "package.module:function", or a module. By default
            the recipe decides, else it is "resnet8".
        data: A name in `joslim.DATASETS`, "folder:PATH", a pair of data sets (train, test), or a
            `joslim.Data`. By default the recipe decides, else it is "digits".
        cost: A name in `joslim.COSTS`, or a function of your own from `Widths` to a number.
        init: Trained weights to start from: a .safetensors or .pth file, the folder of a run, or a
            state dict.
        task: A name in `joslim.TASKS`, or a `joslim.Task` of your own. By default that of the data.
        out: The run folder. By default its name is made of data, model and method, inside runs/.
        overwrite: Replace a run that is in the folder already.
        resume: Continue the run that is in the folder, if there is one.
        until: Continue to this step instead of the last step that the run was started with.
        watch: A function that is called with the progress after every step.
        options: All other settings: the fields of `joslim.runs.config.Config`, which are the flags
            of `joslim train`.

    Returns:
        The finished run.

    Raises:
        UserError: A setting is not valid, or the folder holds another run.
        RunFailed: A loss is not finite, the disk is full, or a worker process died.

    Examples:
        >>> run = joslim.train("resnet8", "digits", steps=4, every=2, out="runs/first", threads=1)
        >>> run.front.cost
        'macs'
    """
    config, objects = _named_and_objects(
        options, model=model, data=data, cost=cost, init=init, task=task
    )
    where: dict[str, Any] = {"out": out, "overwrite": overwrite, "resume": resume, "until": until}
    return run_training(config, **where, watch=watch, objects=objects)


def _named_and_objects(options: Mapping[str, Any], **named: Any) -> tuple[Config, dict[str, Any]]:
    """Split arguments that are a name or an object: the configuration takes names only.

    config.json has <...> in place of a model or data, by which they cannot be loaded.
    """
    init = named["init"] = str(named["init"]) if isinstance(named["init"], Path) else named["init"]
    if not isinstance(init, (str, Mapping, type(None))):
        raise UserError(f"init: {type(init).__name__} given; a file or a state dict")
    objects = {key: value for key, value in named.items() if not isinstance(value, str)}
    texts = {key: value for key, value in named.items() if isinstance(value, str)}
    for key in ("model", "data", "task"):
        if (value := objects.get(key)) is not None:
            texts[key] = f"<{getattr(value, '__name__', type(value).__name__)}>"
    if objects.get("cost") is not None:  # a cost of one's own asks for a search, as its name would
        options = {"method": "joslim", **options}
    return config_of({**texts, **options}, trained=objects.get("init") is not None), objects


def default_folder(config: Config) -> Path:
    parts = (config.data.partition(":")[0], config.model.rpartition(":")[2], config.method)
    return Path("runs") / "-".join(part.strip("<>") for part in parts)


@contextmanager
def restoring_torch() -> Iterator[None]:
    """Restore torch's random state and number of threads afterwards."""
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        torch.set_num_threads(threads)


# As decorators, the contexts end after the frame of the function is gone: the reducer of
# DistributedDataParallel must go before its process group does, or both wait for each other.
@restoring_torch()
@joined()
def run_training(
    config: Config,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    until: int | None = None,
    watch: Watcher = lambda progress: None,
    say: Callable[[str], None] = log.info,
    objects: Mapping[str, Any] | None = None,
) -> Run:
    """Train as configured; the arguments are those of `train`.

    objects: The model, data, cost and init that are objects and not named by the configuration.
    say: Called with each line of the summary before the first step.
    """
    folder, objects = RunFolder(out or default_folder(config)), objects or {}
    with ExitStack() as stack:
        resume = resume or restarted()  # torchrun started the processes again: continue
        refuse_differences(_shared_by_all(config, until))
        check_tracker(tracker_of(config))
        # Check before the slow set-up, and again once the lock is held.
        resumed = on_first(lambda: _holds_run(folder, overwrite, resume, until))
        if resumed:
            trainer = set_up_again(config, objects, folder, until)
        else:
            trainer = set_up(config, **objects)
            refuse_untrained_teacher(trainer)
        on_first(lambda: stack.enter_context(folder.locked()))
        on_first(folder.tidy)
        with writing(folder.path):
            if on_first(lambda: _holds_run(folder, overwrite, resume, until)):
                restore(trainer, folder, until)
            else:
                on_first(folder.prepare)
                # It comes first: by it the other files are known to be a run's.
                on_first(lambda: write_config(trainer, folder))
        agree_on_latency(trainer, folder)
        front = on_first(lambda: _finished_front(trainer, folder))
        if front is None:
            with _explained_failures(folder), stopping() as stop:
                writer = RunWriter(trainer, folder)
                # Bad input is refused by now, in one line.
                for line in summary(trainer):
                    say(line)
                train_steps(trainer, writer, watch, stop)
                judged = front = judge(trainer, writer, watch, stop)
                on_first(lambda: writer.finish(judged))
    lay_out(trainer.net, torch.contiguous_format)  # as a network that is loaded
    return Run(folder, trainer.net.eval(), front)


# Train, judge, write


def train_steps(trainer: Trainer, writer: RunWriter, watch: Watcher, stop: Stop) -> None:
    """Make all steps that are left. A signal stops after a step, with a checkpoint."""
    slimming = trainer.slimming
    trainer.net.train()
    batches = trainer.batches()
    while slimming.steps < trainer.total_steps:
        with adding_seconds(slimming.seconds, "data"):
            batch = next(batches)
        try:
            trainer.step(*batch)
        except RunFailed:
            writer.log_visits()
            raise
        losses = slimming.finite.losses  # on a GPU those of the last log step or round
        first = slimming.full_loss
        others = [loss for child, loss in losses.items() if child != slimming.space.full]
        watch(
            Progress(
                "train",
                slimming.steps,
                trainer.total_steps,
                first,
                fmean(others) if others else None,
                losses.get(slimming.space.smallest),
                slimming.alone_until,
                len(slimming.history),
                -(-slimming.steps // slimming.every),
            )
        )
        writer.log_step()
        at_end = slimming.steps == trainer.total_steps
        if (often := trainer.config.val_every) and (at_end or slimming.steps % often == 0):
            writer.log_validation(trainer.validate())
        # All processes stop after the same step.
        stop.asked = any_asked(stop.asked, trainer.device)
        if at_end or stop.asked or slimming.steps % trainer.config.save_every == 0:
            on_first(writer.save)
        stop.raise_if_asked(trainer, writer.folder)


def judge(trainer: Trainer, writer: RunWriter, watch: Watcher, stop: Stop) -> Front:
    """Judge the front. A signal stops it between two children or batches."""
    on_first(writer.write_samples)

    def progress(done: int, total: int) -> None:
        stop.raise_if_asked(trainer, writer.folder)
        watch(Progress("front", done, total, children=len(trainer.slimming.history)))

    return trainer.front(progress)


class RunWriter:
    """Writes the files of a run folder, on the first process only."""

    def __init__(self, trainer: Trainer, folder: RunFolder) -> None:
        self.trainer, self.folder = trainer, folder
        self.visits = HistoryLog(folder, trainer.slimming.history) if is_first() else None
        self.metrics = MetricsLog(trainer, folder) if is_first() else None

    def log_step(self) -> None:
        self.log_visits()
        if self.metrics is not None:
            self.metrics.update()

    def log_validation(self, errors: list[float]) -> None:
        if self.metrics is not None:
            self.metrics.validated(errors)

    def log_visits(self) -> None:
        if self.visits is not None:
            self.visits.update()

    def save(self) -> None:
        slimming, state = self.trainer.slimming, self.trainer.state_dict()
        checkpoint.save(self.folder, self.trainer.net, state, slimming.steps, slimming.finished)

    def write_samples(self) -> None:
        with disk_errors(file := self.folder.file(SAMPLES)):
            write_tensors({"inputs": self.trainer.samples()}, file)

    def finish(self, front: Front) -> None:
        self.log_visits()
        if self.metrics is not None:
            self.metrics.finish()
        self.folder.write_front(front, self.trainer.slimming.steps)
        draw_run(front, read_record(self.folder.path, front).visits, self.folder.file(PICTURE))
        # A run is finished when its checkpoint says so. The page, which says so too, comes last.
        self.save()
        checkpoint.drop_old(self.folder)
        report_at_end(self.folder.path)


# Begin


def _shared_by_all(config: Config, until: int | None) -> dict[str, Any]:
    """Return the versions and settings that all processes must share; paths may differ."""
    python = ".".join(platform.python_version_tuple()[:2])
    settings = {k: value for k, value in config.to_json().items() if k not in OF_ONE_MACHINE}
    versions = {"joslim": __version__, "torch": torch.__version__, "python": python}
    return {**versions, "until": until, **settings}


def _holds_run(folder: RunFolder, overwrite: bool, resume: bool, until: int | None) -> bool:
    """Whether the folder has a run to resume; if not, the folder must be free."""
    resumed = resume and folder.exists()
    if not resumed:
        if until is not None:
            raise UserError(f"until: there is no run in {str(folder.path)!r} to go on with")
        folder.check(overwrite)
    return resumed


def agree_on_latency(trainer: Trainer, folder: RunFolder) -> None:
    """Price all children by one measurement, on all processes and after every resume."""
    cost = trainer.slimming.cost
    if not isinstance(cost, Latency):
        return
    file = folder.file(LATENCY)

    def measured_once() -> DeviceFile:
        if not file.exists():
            if checkpoint.find(folder) is not None:
                raise UserError(
                    f"cost: the run has lost its {LATENCY}, and another measurement would mix two "
                    "sets of prices; put the file back, or begin a new run"
                )
            cost.device_file.write(file)
            return cost.device_file
        kept = DeviceFile.read(file)
        kept.check_fits(cost.net, file)
        return kept

    cost.device_file = on_first(measured_once)


def _finished_front(trainer: Trainer, folder: RunFolder) -> Front | None:
    """Return the front if it was judged after the last step and is in the folder."""
    slimming = trainer.slimming
    if not slimming.finished or step_of_front(folder.path) != slimming.steps:
        return None
    # The run may have been killed just before it was tidied, or before it had its page.
    checkpoint.drop_old(folder)
    if not folder.file(PAGE).exists():
        report_at_end(folder.path)
    return Front.read(folder.path)


# Failures and signals


@contextmanager
def _explained_failures(folder: RunFolder) -> Iterator[None]:
    """Convert disk, memory and worker failures into RunFailed, which names the last checkpoint.

    Other RuntimeErrors are bugs, ours or of the user's network: they keep their trace.
    """
    try:
        yield
    except RunFailed as error:
        raise RunFailed(f"{error}; {_last_checkpoint(folder)}") from error
    except (OSError, MemoryError, RuntimeError) as error:
        known = isinstance(error, (OSError, MemoryError)) or _is_out_of_memory(error)
        if not known and world() == 1 and DEAD_WORKER not in str(error):
            raise
        raise RunFailed(f"{_advice(error)}; {_last_checkpoint(folder)}") from error


def _advice(error: Exception) -> str:
    """Say in one line what has failed, and what helps."""
    line = first_line(error)
    if _is_out_of_memory(error):
        return f"out of memory ({line}); a smaller --batch needs less"
    if DEAD_WORKER in line:
        return f"a process that decodes images died ({line}); fewer --workers need less memory"
    if isinstance(error, OSError):
        return line
    return lost_process(error) or f"a process has failed: {line}"


def _is_out_of_memory(error: Exception) -> bool:
    kinds = (MemoryError, torch.OutOfMemoryError)
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, kinds) or any(word in str(error) for word in words)


def _last_checkpoint(folder: RunFolder) -> str:
    path = checkpoint.find(folder)
    return f"the last checkpoint is {str(path)!r}" if path else "there is no checkpoint yet"


class Stop:
    """Remembers a signal until the run can stop in good order."""

    def __init__(self) -> None:
        self.asked: int | None = None

    def raise_if_asked(self, trainer: Trainer, folder: RunFolder) -> None:
        if self.asked is not None:
            status = RunStatus(STOPPED, trainer.slimming.steps, trainer.total_steps)
            raise Stopped(status.how_to_resume(folder.path), self.asked)


@contextmanager
def stopping() -> Iterator[Stop]:
    """Remember the first Ctrl-C or SIGTERM, to end the step and save; a second one kills."""
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


# Dry run: a few steps on trial networks, timed and scaled


def estimate(config: Config) -> dict[str, Any]:
    """Estimate time, memory and rounds of a training. Nothing is written."""
    trainer = set_up(config)
    refuse_untrained_teacher(trainer)
    slimming, config = trainer.slimming, trainer.config
    alone = slimming.alone_until
    others = trainer.total_steps - alone
    rounds = -(-others // slimming.every) if slimming.method.in_rounds else 0
    searches = slimming.name in slimming.preset.searchers
    facts = {
        "model": config.model,
        "data": trainer.data.identity,
        "method": slimming.name,
        "cost": slimming.cost.name,
        "knobs": len(slimming.space),
        "recipe": config.recipe,
        "batch": config.batch,
        "lr": config.lr,
        "steps": trainer.total_steps,
        "epochs": round(trainer.total_steps * config.batch / trainer.data.sizes["train"], 2),
        "rounds": rounds,
        "every": slimming.every,
        "children": slimming.children if searches else 0,
    }
    seconds_alone = 0.0
    if alone:
        _, seconds_alone = _try_steps(set_up(replace(config, full_first=1.0), data=trainer.data))
    # One round: later ones have more children to learn from, and take a little longer.
    one_round = replace(config, full_first=0.0, every=sys.maxsize)
    trial = set_up(one_round, data=trainer.data)
    widths, seconds = _try_steps(trial)
    spent = trial.slimming.seconds
    seconds_a_round = spent["search"] + spent["scoring"] if rounds else 0.0
    computed = seconds_alone * alone + seconds * others + rounds * spent["scoring"]
    weights = sum(p.nbytes for p in trainer.net.parameters())
    on_many = {
        str(count): round(
            seconds_on(count, computed, rounds * spent["search"], trainer.total_steps * weights)
            / 3600,
            3,
        )
        for count in DEVICES
        if config.batch % count == 0
    }
    return {
        **facts,
        "passes": alone + others * widths,
        "seconds_a_step": round(seconds, 4),
        "hours_of_steps": round((seconds_alone * alone + seconds * others) / 3600, 3),
        "seconds_a_round": round(seconds_a_round, 4),
        "hours_of_rounds": round(seconds_a_round * rounds / 3600, 3),
        "hours_on": on_many,
        "memory_bytes": peak_memory(trainer.device),
    }


def seconds_on(devices: int, computed: float, search: float, reduced: float) -> float:
    """Estimate the seconds of a training on several devices like this one (docs/scaling.md).

    computed: Seconds of steps and scoring on one device, which all share. search: Seconds that the
    first process searches while the others wait. reduced: Bytes of gradients of all steps, which
    go around a ring once to add them up and once to hand them out.
    """
    return computed / devices + search + 2 * (devices - 1) / devices * reduced / BANDWIDTH


def _try_steps(trial: Trainer) -> tuple[int, float]:
    """Make a few steps; returns the number of widths in a step, and the seconds of a step.

    The first step, which warms up and chooses widths, does not count. The fastest of the others
    does, or their mean if each of them draws other widths.
    """
    times = []
    trial.net.train()
    batches = trial.batches()
    for _ in range(TRIAL_STEPS + 1):
        x, y = next(batches)
        started = time.perf_counter()
        trial.step(x, y)
        if trial.device.type == "cuda":
            torch.cuda.synchronize(trial.device)
        times.append(time.perf_counter() - started)
    later = times[1:]
    draws_all = trial.slimming.sandwich.draw > trial.slimming.samples
    return len(trial.slimming.widths), min(later) if draws_all else sum(later) / len(later)


def peak_memory(device: torch.device) -> int:
    """Return the largest number of bytes in use: on the device, or of the program on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
