"""The methods on equal terms: the same network, data, steps and seeds.

    JOSLIM_DATA=folder python experiments/methods.py --data cifar100 --size 16 --steps 3000

Each training is a run folder under --out; one that is there already is read, not repeated. Prints,
for each method, the area under the curve of test error against cost (docs/training.md says how
it is taken), errors at shares of the full cost, and the wall time: means over the seeds, with the
deviation of the area.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import joslim
from joslim.errors import UserError

SHARES = (0.15, 0.25, 0.5, 0.75, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--data", default="cifar100")
    parser.add_argument("--size", type=int)
    parser.add_argument("--cost", default="macs")
    parser.add_argument("--methods", default="joslim,slim,bignas,autoslim")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--every", type=int)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--preset", default="default")
    parser.add_argument("--searcher")
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    options = parser.parse_args()
    print(f"{'method':<10} {'area':>14} " + " ".join(f"{f'at {s:.0%}':>8}" for s in SHARES), end="")
    print(f" {'minutes':>8}")
    for method in options.methods.split(","):
        report(method, [trained(options, method, seed) for seed in range(options.seeds)])


def trained(options: argparse.Namespace, method: str, seed: int) -> tuple[joslim.Front, float]:
    folder = options.out / f"{method}-{options.cost}-{seed}"
    try:
        run = joslim.load(folder)
        return run.front, float((folder / "minutes.txt").read_text())
    except (UserError, OSError):
        pass
    started = time.perf_counter()
    run = joslim.train(
        options.model,
        options.data,
        method=method,
        cost=options.cost,
        size=options.size,
        steps=options.steps,
        every=options.every,
        preset=options.preset,
        searcher=options.searcher,
        seed=seed,
        threads=1,
        out=folder,
        resume=True,
    )
    minutes = (time.perf_counter() - started) / 60
    (folder / "minutes.txt").write_text(f"{minutes}\n")
    return run.front, minutes


def report(method: str, results: list[tuple[joslim.Front, float]]) -> None:
    areas = [front.area() for front, _ in results]
    spread = statistics.stdev(areas) if len(areas) > 1 else 0.0
    errors = [
        statistics.mean(error_within(front, share * front.span[1]) for front, _ in results)
        for share in SHARES
    ]
    minutes = statistics.mean(minutes for _, minutes in results)
    print(f"{method:<10} {statistics.mean(areas):>6.2f} +- {spread:<4.2f} ", end="")
    print(" ".join(f"{error:>8.2f}" for error in errors) + f" {minutes:>8.1f}", flush=True)


def error_within(front: joslim.Front, budget: float) -> float:
    """The test error of the child that fits with the least training loss."""
    fitting = [point for point in front if point.costs[front.key] <= budget]
    return min(fitting, key=lambda point: point.train_loss).test_error if fitting else 100.0


if __name__ == "__main__":
    main()
