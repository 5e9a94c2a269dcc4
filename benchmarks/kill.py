"""A training that is killed at any moment goes on as if nothing had happened.

Each run is a process of its own that is killed by SIGKILL inside a chosen part of the training, or
at any moment at all, and is resumed to the end with `joslim resume`. Then its history, its front,
its weights and its statistics are compared, byte for byte, with those of a run that nobody has
interrupted. Others get SIGTERM, as clusters send it.

The processes are forked from one that has imported torch, which saves seconds each. They announce
on a pipe where they are, so that it is known, and not guessed, where the signal has hit them.

Targets: all identical; no more steps made twice than lie between two checkpoints; after SIGTERM
none at all, a checkpoint within seconds, and exit code 143.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import math
import os
import random
import signal
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
from joslim.loop import Slimming
from joslim.runs import checkpoint, training
from joslim.runs.folder import read_lines
from joslim.runs.job import Job
from joslim.search.targeted import Targeted

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
    "step": (Job, "step"),
    "search": (Targeted, "propose"),
    "re-scoring": (Slimming, "rescore"),
    "checkpoint": (checkpoint, "save"),
    "final evaluation": (Job, "front"),
    "last files": (training, "draw_run"),
}
# A checkpoint is renamed in microseconds, which no timer hits: some kill themselves there.
FILE = "file of a checkpoint"
KINDS = (*PARTS, FILE, "before the first checkpoint", "twice in a row", "any moment")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50, help="killed by SIGKILL (%(default)s)")
    parser.add_argument("--terms", type=int, default=10, help="by SIGTERM (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        soak = Soak(Path(name), random.Random(options.seed))
        kills = [
            soak.killed(kind) for kind in itertools.islice(itertools.cycle(KINDS), options.runs)
        ]
        terms = [soak.terminated() for _ in range(options.terms)]
    rows = [summary(kind, kills) for kind in KINDS[: len(kills)]]
    rows += [summary("SIGTERM", terms)] if terms else []
    figures = {
        "identical_after_kill": all_of([end.identical for end in kills]),
        "hit_where_aimed": all_of([end.hit for end in kills], share=0.8),
        "most_steps_lost": at_most(max(end.lost for end in kills), SAVE_EVERY),
        "checkpoints_lost": at_most(sum(end.rolled_back for end in kills), 0),
        "identical_after_sigterm": all_of([end.identical for end in terms]),
        "sigterm_exit_143": all_of([end.code == 128 + signal.SIGTERM for end in terms]),
        "sigterm_most_seconds": at_most(max([end.seconds for end in terms], default=0.0), 5.0),
        "sigterm_most_steps_lost": at_most(max([end.lost for end in terms], default=0), 0),
    }
    report(f"{len(kills)} killed, {len(terms)} terminated, each resumed", rows, figures)


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
    files: int = 0
    code: int = 0
    signalled: float = 0.0
    ended: float = 0.0

    def take(self, part: str, number: int, sign: str, since: dict[str, float]) -> None:
        if part == FILE:
            self.files += 1
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
    return part == moment.part != FILE and life.begun()[part] == moment.count


def be_joslim(arguments: list[str], log: Path, wire: int, moment: Moment | None) -> None:
    """In the new process; it never comes back."""
    code = 1
    try:
        with log.open("a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        announce_parts(wire, moment)
        joslim_main(arguments)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def announce_parts(wire: int, moment: Moment | None) -> None:
    inside: list[str] = []
    files = itertools.count(1)

    def say(part: str, number: int, sign: str) -> None:
        os.write(wire, f"{part} {number} {sign}\n".encode())

    def watch_files(event: str, arguments: tuple[Any, ...]) -> None:
        touches = event == "open" or event.startswith(("os.", "shutil."))
        if "checkpoint" in inside and touches and isinstance(arguments[0], (str, os.PathLike)):
            number = next(files)
            say(FILE, number, "+")
            if moment is not None and (moment.part, moment.count) == (FILE, number):
                os.kill(os.getpid(), signal.SIGKILL)

    def announced(part: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            number = number_of(part, real, arguments)
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
    code: int
    seconds: float


class Soak:
    """Runs in one folder, and the one that nobody has interrupted."""

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
        say(f"reference: {dict(self.whole.begun())}")

    def begin(self, run: Path, moment: Moment | None = None) -> Life:
        return live([*self.train, "--out", str(run)], run.with_suffix(".log"), moment)

    def resume(self, run: Path, moment: Moment | None = None) -> Life:
        return live(["resume", str(run)], run.with_suffix(".log"), moment)

    def next_run(self) -> Path:
        self.count += 1
        return self.folder / f"run{self.count}"

    def killed(self, kind: str) -> End:
        run = self.next_run()
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
        if kind == FILE:
            return Moment(FILE, rng.randint(1, self.whole.files))
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

    def ended(self, kind: str, run: Path, lives: list[Life]) -> End:
        """Resume it to the end, and compare."""
        last = self.resume(run)
        chain = [*lives, last]
        starts = [first_step(life) for life in chain]
        same = last.code == 0 and identical(run, self.reference)
        where = lives[0].inside[-1] if lives[0].inside else "between"
        end = End(
            kind=kind,
            hit=all(hit(kind, life) for life in lives),
            lost=max(life.finished_steps() - start for life, start in zip(chain, starts[1:])),
            rolled_back=any(start < life.saved for life, start in zip(chain, starts[1:])),
            identical=same,
            code=lives[0].code,
            seconds=lives[0].ended - lives[0].signalled,
        )
        say(f"{run.name}: {kind}: {where}, {end.lost} lost, {'identical' if same else 'DIFFERS'}")
        return end


def first_step(life: Life) -> int:
    """Where it went on; one that only judged the front had made all steps."""
    return life.steps()[0] if life.steps() else STEPS


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
        "most steps lost": max(end.lost for end in mine),
    }


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
