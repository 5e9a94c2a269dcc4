"""How many children have to be scored anew in a round?

    python experiments/rescoring.py --budgets all,24,12

Trains joslim with several budgets of re-scoring, all else equal, and prints the area under the
curve of test error against cost, the mean logarithm of the training loss over the same costs (less
noisy where the test set is small), and the passes that were spent on scoring: means over the seeds,
with deviations. Run folders under --out are read, not repeated.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path

import numpy as np

import joslim
from joslim.errors import UserError
from joslim.results.run_files import read_lines

COSTS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--size", type=int)
    parser.add_argument("--low", type=float, default=0.12)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--every", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budgets", default="all,24")
    parser.add_argument("--out", type=Path, default=Path("runs/rescoring"))
    options = parser.parse_args()
    print(f"{'budget':<8} {'test area, %':>16} {'log train loss':>18} {'scoring passes':>15}")
    for budget in options.budgets.split(","):
        results = [trained(options, budget, seed) for seed in range(options.seeds)]
        areas, losses, passes = zip(*results)
        print(f"{budget:<8} {spread(areas):>16} {spread(losses):>18} ", end="")
        print(f"{statistics.mean(passes):>15.0f}", flush=True)


def trained(options: argparse.Namespace, budget: str, seed: int) -> tuple[float, float, int]:
    folder = options.out / f"{budget}-{seed}"
    try:
        run = joslim.load(folder)
        front = run.front
    except UserError:
        run = joslim.train(
            options.model,
            options.data,
            size=options.size,
            low=options.low,
            steps=options.steps,
            every=options.every,
            rescore=10**9 if budget == "all" else int(budget),
            seed=seed,
            threads=1,
            out=folder,
            resume=True,
        )
        front = run.front
    passes = read_lines(folder / "metrics.jsonl")[-1]["scoring_passes"]
    return front.area() or math.nan, mean_log_loss(front), passes


def mean_log_loss(front: joslim.Front) -> float:
    """Over costs spread evenly, of the child that fits with the least training loss."""
    budgets = np.linspace(*front.span, COSTS)
    best = [
        min(p.train_loss for p in front if p.costs[front.key] <= budget + 1e-9)
        for budget in budgets
    ]
    return float(np.mean(np.log(best)))


def spread(values: tuple[float, ...]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.3f} +- {deviation:.3f}"


if __name__ == "__main__":
    main()
