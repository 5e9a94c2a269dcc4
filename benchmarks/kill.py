"""A training that is killed at any moment goes on as if nothing had happened.

Each run is a process of its own that is killed by SIGKILL inside a chosen part of the training, or
at any moment at all, and is resumed to the end with `joslim resume`. Then its history, its front,
its weights and its statistics are compared, byte for byte, with those of a run that nobody has
interrupted. Others get SIGTERM, as clusters send it; others are finished runs that are extended
with `resume --until` and killed on the way; others are two processes that train one network, of
which one is killed or stopped.

After every kill two more things are looked at: `history.jsonl` still has all that it had up to the
last checkpoint, and `joslim front` shows no front that belongs to other weights.

The processes are forked from one that has imported torch, which saves seconds each. They announce
on a pipe where they are, so that it is known, and not guessed, where the signal has hit them.

Targets: all identical; no more steps made twice than lie between two checkpoints; after SIGTERM
none at all, a checkpoint within seconds, and exit code 143; of two processes the one that is left
ends within its time limit, in one line.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: no threads, so that it can be forked

from reporting import at_most, report

from joslim.cli import main as joslim_main
from joslim.results.run_files import read_lines
from joslim.runs import checkpoint, driver
from joslim.runs.trainer import Trainer
from joslim.search.targeted import Targeted
from joslim.training.slimming import Slimming

STEPS, SAVE_EVERY = 45, 7
OPTIONS = {
    "model": "resnet8",
    "data": "digits",
    "steps": STEPS,
    "every": 5,
    "batch": 16,
    "save-every": SAVE_EVERY,
    "score-images": 32,
    "front-images": 64,
    "threads": 1,
}
FILES = ("config.json", "history.jsonl", "front.json", "samples.safetensors")
IN_CHECKPOINT = ("model.safetensors", "statistics.safetensors")

# The parts of a training, and where each begins and ends.
PARTS: dict[str, tuple[Any, str]] = {
    "step": (Trainer, "step"),
    "search": (Targeted, "propose"),
    "re-scoring": (Slimming, "rescore"),
    "checkpoint": (checkpoint, "save"),
    "final evaluation": (Trainer, "front"),
    "last files": (driver, "draw_run"),
}
# Files are opened and renamed in microseconds, which no timer hits: some processes kill themselves
# there, from the first file that is written on.
FILES_OF = {
    "start": "file before the first step",
    "resume": "file of a resume before its first step",
    "checkpoint": "file of a checkpoint",
    "end": "file after the last checkpoint",
}
EXTENDED, LONGER = "extended, then killed", STEPS + 15
PAIR = "one of two processes"
KINDS = (
    *PARTS,
    *FILES_OF.values(),
    "before the first checkpoint",
    "twice in a row",
    "any moment",
    EXTENDED,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=60, help="killed by SIGKILL (%(default)s)")
    parser.add_argument("--terms", type=int, default=10, help="by SIGTERM (%(default)s)")
    parser.add_argument("--pairs", type=int, default=6, help="two processes (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        soak = Soak(Path(name), random.Random(options.seed))
        kills = [
            soak.killed(kind) for kind in itertools.islice(itertools.cycle(KINDS), options.runs)
        ]
        terms = [soak.terminated() for _ in range(options.terms)]
        pairs = TwoProcesses(Path(name), soak.train, soak.rng).soak(options.pairs)
    rows = [summary(kind, kills) for kind in KINDS[: len(kills)]]
    rows += [summary("SIGTERM", terms)] if terms else []
    rows += [summary(PAIR, pairs)] if pairs else []
    figures = {
        "identical_after_kill": all_of([end.identical for end in kills]),
        "nothing_forgotten_or_mixed": all_of([end.kept for end in [*kills, *terms]]),
        "hit_where_aimed": all_of([end.hit for end in kills], share=0.8),
        "most_steps_lost": at_most(max(end.lost for end in kills), SAVE_EVERY),
        "checkpoints_lost": at_most(sum(end.rolled_back for end in kills), 0),
        "identical_after_sigterm": all_of([end.identical for end in terms]),
        "sigterm_exit_143": all_of([end.code == 128 + signal.SIGTERM for end in terms]),
        "sigterm_most_seconds": at_most(max([end.seconds for end in terms], default=0.0), 5.0),
        "two_processes_identical": all_of([end.identical for end in pairs]),
        "two_processes_ended_in_one_line": all_of([end.kept for end in pairs]),
        "two_processes_most_seconds": at_most(
            max([end.seconds for end in pairs], default=0.0), 30.0
        ),
        "sigterm_most_steps_lost": at_most(max([end.lost for end in terms], default=0), 0),
    }
    title = f"{len(kills)} killed, {len(terms)} terminated, {len(pairs)} pairs, each resumed"
    report(title, rows, figures)


def all_of(outcomes: list[bool], share: float = 1.0) -> dict[str, object]:
    needed = math.ceil(share * len(outcomes))
    return {"value": sum(outcomes), "target": needed, "ok": sum(outcomes) >= needed}


# One process


@dataclass
class Life:
    """What a process has announced: which parts it began and ended, and the numbers of them."""

    entered: list[tuple[str, int]] = field(default_factory=list)
    inside: list[str] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    saved: int = 0
    files: Counter[str] = field(default_factory=Counter)
    code: int = 0
    signalled: float = 0.0
    ended: float = 0.0

    def take(self, part: str, number: int, sign: str, since: dict[str, float]) -> None:
        if part in FILES_OF.values():
            self.files[part] += 1
        elif sign == "+":
            self.entered.append((part, number))
            self.inside.append(part)
            since[part] = time.perf_counter()
        else:
            self.inside.remove(part)
            self.seconds.setdefault(part, []).append(time.perf_counter() - since[part])
            if part == "checkpoint":
                self.saved = number

    def begun(self) -> Counter[str]:
        """How often each part was begun."""
        return Counter(part for part, _ in self.entered)

    def steps(self) -> list[int]:
        """The numbers of the steps that it has begun."""
        return [number for part, number in self.entered if part == "step"]

    def finished_steps(self) -> int:
        """How far it got."""
        begun = self.steps()
        return begun[-1] + ("step" not in self.inside) if begun else 0


@dataclass(frozen=True)
class Moment:
    """So long after a part has begun for the n-th time."""

    part: str
    count: int = 1
    seconds: float = 0.0
    signal: int = signal.SIGKILL


def live(arguments: list[str], log: Path, moment: Moment | None = None) -> Life:
    """Fork, run `joslim ARGUMENTS`, send the signal at the moment, and wait for the end."""
    receiving, sending = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(receiving)
        be_joslim(arguments, log, sending, moment)
    os.close(sending)
    life, since = Life(), {}
    with os.fdopen(receiving) as lines:
        for line in lines:
            part, number, sign = line.rstrip("\n").rsplit(" ", 2)
            life.take(part, int(number), sign, since)
            if moment is not None and not life.signalled and has_come(moment, part, life):
                time.sleep(moment.seconds)
                life.signalled = time.perf_counter()
                os.kill(pid, moment.signal)
    life.code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    life.ended = time.perf_counter()
    return life


def has_come(moment: Moment, part: str, life: Life) -> bool:
    return part == moment.part in PARTS and life.begun()[part] == moment.count


def be_joslim(arguments: list[str], log: Path, wire: int, moment: Moment | None) -> None:
    """In the new process; it never comes back."""
    code = 1
    try:
        with log.open("a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        announce_parts(arguments, wire, moment)
        joslim_main(arguments)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def announce_parts(arguments: list[str], wire: int, moment: Moment | None) -> None:
    begins = arguments[0] == "train"
    run = os.path.abspath(arguments[-1] if begins else arguments[1])
    inside: list[str] = []
    begun: set[str] = set()
    files: Counter[str] = Counter()

    def say(part: str, number: int, sign: str) -> None:
        os.write(wire, f"{part} {number} {sign}\n".encode())

    def phase() -> str | None:
        if "checkpoint" in inside:
            return "checkpoint"
        if "final evaluation" in begun and not inside:
            return "end"
        if "step" in begun:
            return None
        return "start" if begins else "resume"

    def watch_files(event: str, arguments: tuple[Any, ...]) -> None:
        """Called by Python before it opens, renames or removes a file."""
        if event != "open" and not event.startswith(("os.", "shutil.")):
            return
        if not arguments or not isinstance(arguments[0], (str, os.PathLike)):
            return
        if (where := phase()) is None or not os.path.abspath(arguments[0]).startswith(run):
            return
        files[where] += 1
        say(FILES_OF[where], files[where], "+")
        if moment is not None and (moment.part, moment.count) == (FILES_OF[where], files[where]):
            os.kill(os.getpid(), signal.SIGKILL)

    def announced(part: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            number = number_of(part, real, arguments)
            begun.add(part)
            inside.append(part)
            say(part, number, "+")
            result = real(*arguments, **options)
            say(part, number, "-")
            inside.remove(part)
            return result

        return call

    for part, (owner, name) in PARTS.items():
        setattr(owner, name, announced(part, getattr(owner, name)))
    sys.addaudithook(watch_files)


def number_of(part: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
    """The step, where a part has one."""
    if part == "step":
        return arguments[0].slimming.steps
    if part == "checkpoint":
        return inspect.signature(real).bind(*arguments).arguments["step"]
    return 0


# All of them


@dataclass(frozen=True)
class End:
    """What became of one run."""

    kind: str
    hit: bool
    lost: int
    rolled_back: bool
    identical: bool
    kept: bool
    code: int
    seconds: float


class Soak:
    """Runs in one folder, and those that nobody has interrupted."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng, self.count = folder, rng, 0
        flags = [(f"--{name}", str(value)) for name, value in OPTIONS.items()]
        self.train = ["train", *itertools.chain(*flags)]
        self.reference = folder / "reference"
        command = [sys.executable, "-m", "joslim", *self.train, "--out", str(self.reference)]
        subprocess.run(command, check=True, capture_output=True)
        # Once more, to learn how long each part takes; and a fork is as good as a new process.
        self.whole = self.begin(folder / "whole")
        assert identical(folder / "whole", self.reference), "two runs of one seed differ"
        # What a resume and an extension do when nobody disturbs them.
        self.begin(folder / "halved", Moment("step", STEPS // 2))
        self.resumed = self.resume(folder / "halved")
        self.extended = folder / "extended"
        shutil.copytree(self.reference, self.extended)
        assert self.resume(self.extended, until=LONGER).code == 0
        # Each place once before any comes again.
        counts = self.whole.files + self.resumed.files
        places = {kind: rng.sample(range(1, n + 1), n) for kind, n in counts.items()}
        self.places = {kind: itertools.cycle(order) for kind, order in places.items()}
        say(f"reference: {dict(self.whole.begun())}, {dict(counts)}")

    def begin(self, run: Path, moment: Moment | None = None) -> Life:
        return live([*self.train, "--out", str(run)], run.with_suffix(".log"), moment)

    def resume(self, run: Path, moment: Moment | None = None, until: int | None = None) -> Life:
        longer = [] if until is None else ["--until", str(until)]
        return live(["resume", str(run), *longer], run.with_suffix(".log"), moment)

    def next_run(self) -> Path:
        self.count += 1
        return self.folder / f"run{self.count}"

    def killed(self, kind: str) -> End:
        run = self.next_run()
        if kind == EXTENDED:
            shutil.copytree(self.reference, run)
            moment = Moment("step", self.rng.randint(1, LONGER - STEPS), self.usual("step") / 2)
            return self.ended(kind, run, [self.resume(run, moment, until=LONGER)], self.extended)
        if kind == FILES_OF["resume"]:
            first = self.begin(run, Moment("step", self.rng.randint(SAVE_EVERY + 2, STEPS)))
            return self.ended(kind, run, [first, self.resume(run, self.moment(kind))])
        moment = self.moment(kind)
        lives = [self.begin(run, moment)]
        if kind == "twice in a row":  # the second time as soon as it is there again
            lives.append(self.resume(run, replace(moment, count=1)))
        return self.ended(kind, run, lives)

    def terminated(self) -> End:
        """Not before the first step: until then there is nothing to write."""
        run, part = self.next_run(), self.rng.choice([*PARTS][:5])
        life = self.begin(run, replace(self.moment(part), signal=signal.SIGTERM))
        return self.ended("SIGTERM", run, [life])

    def moment(self, kind: str) -> Moment:
        rng = self.rng
        if kind in FILES_OF.values():
            return Moment(kind, next(self.places[kind]))
        if kind == "before the first checkpoint":
            return Moment("step", rng.randint(1, SAVE_EVERY), rng.random() * self.usual("step"))
        if kind == "any moment":
            return Moment("step", rng.randint(1, STEPS), rng.random() * 20 * self.usual("step"))
        part = rng.choice([*PARTS]) if kind == "twice in a row" else kind
        times = self.whole.begun()[part]
        # The first half of them, where the second kill must find one more.
        count = rng.randint(1, max(1, times // 2 if kind == "twice in a row" else times))
        # Not at its very end: the signal takes a moment to arrive.
        return Moment(part, count, rng.random() * 0.8 * self.usual(part))

    def usual(self, part: str) -> float:
        return sorted(self.whole.seconds[part])[len(self.whole.seconds[part]) // 2]

    def ended(self, kind: str, run: Path, lives: list[Life], reference: Path | None = None) -> End:
        """Look at what is left, resume it to the end, and compare."""
        reference = reference or self.reference
        forgotten, front_shown = forgets(run, reference), self.shows_other_front(run)
        last = self.resume(run)
        if last.code == 2 and not any(life.steps() for life in lives):
            last = self.begin(run)  # killed before there was a configuration: begin again
        chain = [*lives, last]
        starts = [first_step(life, reference) for life in chain]
        same = last.code == 0 and identical(run, reference)
        where = lives[-1].inside[-1] if lives[-1].inside else "between"
        end = End(
            kind=kind,
            hit=all(hit(kind, life) for life in lives),
            lost=max(0, *(life.finished_steps() - start for life, start in zip(chain, starts[1:]))),
            rolled_back=any(start < life.saved for life, start in zip(chain, starts[1:])),
            identical=same,
            kept=not forgotten and not front_shown,
            code=lives[0].code,
            seconds=lives[0].ended - lives[0].signalled,
        )
        verdict = "identical" if same else "DIFFERS"
        verdict += ", FORGETS VISITS" * forgotten + ", SHOWS A FRONT OF OTHER WEIGHTS" * front_shown
        say(f"{run.name}: {kind}: {where}, {end.lost} lost, {verdict}")
        return end

    def shows_other_front(self, run: Path) -> bool:
        """Whether `joslim front` shows a front although the weights have gone on since."""
        if not (run / "front.json").exists() or step_of_checkpoint(run) == STEPS:
            return False
        return live(["front", str(run)], run.with_suffix(".log")).code == 0


class TwoProcesses:
    """Two processes that train one network: one is killed or stopped, and the job is resumed."""

    def __init__(self, folder: Path, train: list[str], rng: random.Random) -> None:
        self.folder, self.train, self.rng = folder, train, rng
        self.reference = folder / "reference-of-two"

    def soak(self, count: int) -> list[End]:
        if count and self.wait(self.start(self.reference)) != [0, 0]:
            raise SystemExit("two processes that nobody disturbed have failed")
        return [self.struck(number) for number in range(count)]

    def start(self, run: Path) -> list[subprocess.Popen[str]]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        common |= {"LOCAL_WORLD_SIZE": "2", "JOSLIM_TIMEOUT_MINUTES": "0.15"}
        command = [sys.executable, "-m", "joslim", *self.train, "--out", str(run), "--resume"]
        return [
            subprocess.Popen(
                command,
                env={**os.environ, **common, "RANK": rank, "LOCAL_RANK": rank},
                stdout=subprocess.DEVNULL,
                stderr=run.with_name(f"{run.name}.{rank}.log").open("w"),
                text=True,
            )
            for rank in ("0", "1")
        ]

    def wait(self, processes: list[subprocess.Popen[str]]) -> list[int]:
        return [process.wait(timeout=300) for process in processes]

    def struck(self, number: int) -> End:
        """Kill or stop one of them after some step; the other has to end by itself, in words."""
        run = self.folder / f"pair{number}"
        victim, sign = self.rng.choice((0, 1)), self.rng.choice((signal.SIGKILL, signal.SIGSTOP))
        step = self.rng.randint(1, STEPS - 5)
        processes = self.start(run)
        metrics = run / "metrics.jsonl"
        while not metrics.exists() or len(metrics.read_text().splitlines()) < step:
            time.sleep(0.02)
        time.sleep(self.rng.random() * 0.2)
        processes[victim].send_signal(sign)
        since, other = time.perf_counter(), processes[1 - victim]
        code = other.wait(timeout=300)
        seconds = time.perf_counter() - since
        processes[victim].kill()
        words = run.with_name(f"{run.name}.{1 - victim}.log").read_text()
        clear = code == 1 and "Traceback" not in words and words.startswith("joslim")
        done = len(read_lines(metrics))
        processes[victim].wait()
        lost = done - step_of_checkpoint(run)
        same = self.wait(self.start(run)) == [0, 0] and identical(run, self.reference)
        verdict = f"{'identical' if same else 'DIFFERS'}, {'' if clear else 'NOT '}in words"
        say(f"pair{number}: rank {victim}, {sign.name} after {step}: {seconds:.1f} s, {verdict}")
        if not clear:
            say(f"exit code {code}, and these words:\n{words}")
        return End(PAIR, True, lost, False, same, clear, code, seconds)


def step_of_checkpoint(run: Path) -> int:
    file = run / "checkpoint" / "checkpoint.json"
    return json.loads(file.read_text())["step"] if file.exists() else 0


def forgets(run: Path, reference: Path) -> bool:
    """Whether history.jsonl lacks something that had been visited before the last checkpoint."""
    if not (step := step_of_checkpoint(run)):
        return False
    has, had = read_lines(run / "history.jsonl"), read_lines(reference / "history.jsonl")
    had = [line for line in had if line.get("step", 0) < step]
    return has[: len(had)] != had


def first_step(life: Life, reference: Path) -> int:
    """Where it went on; one that only judged the front had made all steps."""
    return life.steps()[0] if life.steps() else step_of_checkpoint(reference)


def hit(kind: str, life: Life) -> bool:
    """It did not end by itself; and it was where it should have been."""
    part = "step" if kind == "before the first checkpoint" else kind
    return life.code != 0 and (part not in PARTS or part in life.inside)


def identical(run: Path, reference: Path) -> bool:
    """To the bit, but for the times in metrics.jsonl; and nothing is left lying about."""
    names = [*FILES, *(f"checkpoint/{name}" for name in IN_CHECKPOINT)]
    return (
        all((run / name).read_bytes() == (reference / name).read_bytes() for name in names)
        and metrics_of(run) == metrics_of(reference)
        and sorted(os.listdir(run)) == sorted(os.listdir(reference))
    )


def metrics_of(run: Path) -> list[dict[str, Any]]:
    lines = read_lines(run / "metrics.jsonl")
    return [{key: line[key] for key in line if key not in ("seconds", "parts")} for line in lines]


def summary(kind: str, ends: list[End]) -> dict[str, object]:
    mine = [end for end in ends if end.kind == kind]
    return {
        "killed": kind,
        "runs": len(mine),
        "hit there": sum(end.hit for end in mine),
        "identical": sum(end.identical for end in mine),
        "all kept": sum(end.kept for end in mine),
        "most steps lost": max(end.lost for end in mine),
    }


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
