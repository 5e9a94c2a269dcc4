"""What choosing widths adds to a training: wall time of method joslim over method slim.

Both make the same steps at four widths; joslim also re-scores children and searches, every K steps.
The setting is the paper's: 1000 children over the whole training, two each time. Nothing is
trained through: a few steps are timed, and rounds at some sizes of the history, and both are scaled
to the whole training. Images, and the losses in the history, are random: time does not depend on
them. The children that are judged at the end are not counted; both methods judge some.

Target: joslim at most 1.05 times slim, with torch's own number of threads, on a quiet machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from reporting import at_most, report

import joslim

CHILDREN = 1000
SAMPLES = 2
ROUNDS = CHILDREN // SAMPLES
# Children in the history when a round is timed.
SIZES = (0, 250, 500, 1000)


@dataclass(frozen=True)
class Case:
    model: str
    pixels: int
    batch: int
    every: int
    classes: int


CASES = {
    "resnet20": Case("resnet20", 32, 128, every=313, classes=10),
    "mobilenet_v2": Case("mobilenet_v2", 64, 64, every=625, classes=200),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join(CASES), help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=8, help="timed steps (%(default)s)")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    figures = {}
    for name in options.cases.split(","):
        parts = parts_of(CASES[name], options.steps)
        total = sum(parts.values())
        for part, seconds in parts.items():
            hours, share = seconds / 3600, seconds / parts["training steps"]
            rows.append({"network": name, "part": part, "hours": hours, "share of slim": share})
        ratio = total / parts["training steps"]
        figures[f"{name}_joslim_over_slim"] = at_most(ratio, 1.05)
    title = f"a whole training of {CHILDREN} children, {torch.get_num_threads()} threads"
    report(title, rows, figures)


def parts_of(case: Case, steps: int) -> dict[str, float]:
    """Seconds of a whole training with joslim. Training steps are all that slim does."""
    step = seconds_of_a_step(case, steps)
    say(f"{case.model}: {step:.3f} s a step")
    search, rescoring = [], []
    for size in SIZES:
        found = seconds_of_a_round(case, size)
        search.append(found[0])
        rescoring.append(found[1])
        say(
            f"{case.model}: at {size} children {found[0]:.3f} s search, {found[1]:.3f} s re-scoring"
        )
    return {
        "training steps": step * case.every * ROUNDS,
        "search": over_the_training(search),
        "re-scoring": over_the_training(rescoring),
    }


def over_the_training(seconds: list[float]) -> float:
    """Of all rounds: the history grows evenly, and what lies between two sizes is a line."""
    sizes = np.linspace(0, CHILDREN, ROUNDS)
    return float(np.interp(sizes, SIZES, seconds).sum())


def slimming_of(case: Case, method: str) -> joslim.Slimming:
    torch.manual_seed(0)
    model = joslim.models.MODELS[case.model](num_classes=case.classes)
    net = joslim.slim(model, torch.zeros(1, 3, case.pixels, case.pixels))
    return joslim.Slimming(
        net,
        method=method,
        total_steps=case.every * ROUNDS,
        every=case.every,
        samples=SAMPLES,
        draw=SAMPLES + 1,
        full_first=0,
        scoring=[random_batch(case)],
    )


def random_batch(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(case.batch, 3, case.pixels, case.pixels)
    return images, torch.randint(case.classes, (case.batch,))


def seconds_of_a_step(case: Case, steps: int) -> float:
    """The mean of steps at widths of all kinds, after one that warms up."""
    slimming = slimming_of(case, "slim")
    optimizer = torch.optim.SGD(slimming.net.parameters(), lr=0.01, momentum=0.9)
    x, y = random_batch(case)
    times = []
    for _ in range(steps + 1):
        start = time.perf_counter()
        slimming.step(x, y, optimizer, F.cross_entropy)
        times.append(time.perf_counter() - start)
    return statistics.mean(times[1:])


def seconds_of_a_round(case: Case, size: int) -> tuple[float, float]:
    """Seconds of searching and of re-scoring, with so many children in the history."""
    slimming = slimming_of(case, "joslim")
    slimming.criterion = F.cross_entropy
    if size == 0:
        start = time.perf_counter()
        slimming._choose()  # starting children are visited, scored, and searched with
        return 0.0, time.perf_counter() - start
    visit_random(slimming, size)
    return seconds_of_search(slimming, size), seconds_of_rescoring(slimming)


def visit_random(slimming: joslim.Slimming, count: int) -> None:
    rng = np.random.default_rng(0)
    history = slimming.history
    ids = [history.visit(slimming.space.random(rng), 0) for _ in range(count)]
    history.record({i: float(np.exp(rng.normal(scale=0.3))) for i in ids}, 0)


def seconds_of_search(slimming: joslim.Slimming, size: int) -> float:
    """The mean of as many rounds as lie between two fits of the surrogate, one fit included."""
    rng, history, rounds = np.random.default_rng(1), slimming.history, size // 20
    slimming.searcher.propose(history, SAMPLES, rng)
    spent = 0.0
    for _ in range(rounds):
        start = time.perf_counter()
        children = slimming.searcher.propose(history, SAMPLES, rng)
        spent += time.perf_counter() - start
        ids = [history.visit(child, 0) for child in children]
        history.record({i: float(np.exp(rng.normal(scale=0.3))) for i in ids}, 0)
    return spent / rounds


def seconds_of_rescoring(slimming: joslim.Slimming, rounds: int = 3) -> float:
    slimming.rescore()
    start = time.perf_counter()
    for _ in range(rounds):
        slimming.rescore()
    return (time.perf_counter() - start) / rounds


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
