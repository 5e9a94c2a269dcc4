"""A whole joint training against the full network alone: time for the same steps, as a ratio.

A joint training of the paper's size is scaled from its parts: steps at the widths that it trains,
the full network alone in the first of them if the schedule says so, the choice and the scoring of
1000 children while the history grows, and the judging of the front. The full network alone makes
the same steps. Images are random; the children of a step are those of a run: 40% are held from one
choice of widths to the next, and 60% are drawn anew.

Times are those of the processor, on one thread: what others do on the machine is not counted. Steps
of all kinds are timed in turns all the same, since a busy machine also slows down the processor. In
its turn a training makes one step that is not timed, so that its kernels are in oneDNN's cache as
they would be if it had the process to itself, and then some that are.

Targets: all widths in a step at most 2.9 times the full network, the cheap schedule (one child
beside the full network, which is alone in the first 30% of the steps) at most 1.6. The paper: 4.8.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from overhead import CASES, CHILDREN, ROUNDS, SAMPLES, Case, random_batch, visit_random
from reporting import at_most, report

import joslim
from joslim.runs.setup import lay_out

SCHEDULES = {
    "all": ({"draw": SAMPLES + 1, "full_first": 0.0}, 2.9),
    "cheap": ({"draw": 1, "full_first": 0.3}, 1.6),
}
# Timed steps of a training in its turn.
STEPS = 4
# Children in the history at which rounds are timed; between them, time is a straight line.
SIZES = (100, 1000)
IMAGES = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join(CASES), help="default: %(default)s")
    parser.add_argument("--turns", type=int, default=6, help="timed turns (%(default)s)")
    parser.add_argument("--amp", action="store_true", help="bf16 autocast, for both")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    figures = {}
    for name in options.cases.split(","):
        parts = parts_of(CASES[name], options.turns, options.amp)
        for schedule, (settings, target) in SCHEDULES.items():
            alone = settings["full_first"]
            steps = alone + (1 - alone) * parts[schedule]
            row = {
                "steps": steps,
                "search and scoring": (1 - alone) * parts["round"],
                "judging": parts["judging"],
            }
            total = sum(row.values())
            rows.append({"network": name, "schedule": schedule, **row, "whole": total})
            figures[f"{name}_{schedule}"] = at_most(total, target)
    title = "joint training over the full network alone, as shares of the time of the latter"
    report(title, rows, figures)


def parts_of(case: Case, turns: int, amp: bool) -> dict[str, float]:
    """Each part of a training, as a share of the time of the full network alone."""
    x, y = random_batch(case)
    trainings = {"single": slimming_of(case, "single")}
    for name, (settings, _) in SCHEDULES.items():
        trainings[name] = slimming_of(case, "joslim", draw=settings["draw"])
    steps: dict[str, Callable[[], object]] = {}
    for name, slimming in trainings.items():
        optimizer = torch.optim.SGD(slimming.net.parameters(), lr=0.01, momentum=0.9)

        def step(slimming: joslim.Slimming = slimming, optimizer: object = optimizer) -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=amp):
                slimming.step(x, y, optimizer, F.cross_entropy)

        steps[name] = step
    times = [
        {name: seconds_of_a_turn(step) for name, step in steps.items()} for _ in range(turns + 1)
    ][1:]
    found = {
        name: sum(turn[name] for turn in times) / sum(turn["single"] for turn in times)
        for name in SCHEDULES
    }
    rounds = [beside(steps["single"], lambda size=size: a_round(case, size)) for size in SIZES]
    spread = np.linspace(0, CHILDREN, ROUNDS)
    found["round"] = float(np.interp(spread, SIZES, rounds).mean()) / case.every
    found["judging"] = beside(steps["single"], lambda: judging(case)) / (case.every * ROUNDS)
    return found


def slimming_of(case: Case, method: str, **options: float) -> joslim.Slimming:
    torch.manual_seed(0)
    model = joslim.models.MODELS[case.model](num_classes=case.classes)
    net = joslim.slim(model, torch.zeros(1, 3, case.pixels, case.pixels))
    lay_out(net, torch.channels_last)  # as runs have it
    steps = {"total_steps": case.every * ROUNDS, "every": case.every, "samples": SAMPLES}
    scoring = [random_batch(case)]
    return joslim.Slimming(
        net, method=method, scoring=scoring, **{"full_first": 0, **steps, **options}
    )


def seconds_of_a_turn(step: Callable[[], object]) -> float:
    step()
    return sum(seconds(step) for _ in range(STEPS))


def seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def beside(step: Callable[[], object], run: Callable[[], float]) -> float:
    """Seconds that `run` reports over those of steps right before and after it."""
    before = seconds(step)
    spent = run()
    return spent / ((before + seconds(step)) / 2)


def a_round(case: Case, size: int) -> float:
    """Seconds of one round: re-scoring, a search, and every 5% of growth a fit, in their share."""
    slimming = slimming_of(case, "joslim")
    slimming.criterion = F.cross_entropy
    visit_random(slimming, size)
    rng = np.random.default_rng(1)
    fit = seconds(lambda: slimming.searcher.propose(slimming.history, SAMPLES, rng))
    search = seconds(lambda: slimming.searcher.propose(slimming.history, SAMPLES, rng))
    scoring = seconds(slimming.rescore)
    rounds_a_fit = max(1, size // 20 // SAMPLES)
    return scoring + search + max(0.0, fit - search) / rounds_a_fit


def judging(case: Case, count: int = 4) -> float:
    """Seconds of recalibrating and scoring all finalists on `IMAGES`, from a few of them."""
    slimming = slimming_of(case, "joslim")
    slimming.criterion = F.cross_entropy
    visit_random(slimming, count)
    finalists = min(CHILDREN, slimming.preset.finalists)
    batches = [random_batch(case)]
    spent = seconds(lambda: slimming.judge(count, batches, case.batch))
    return spent / count * finalists * IMAGES / case.batch


if __name__ == "__main__":
    main()
