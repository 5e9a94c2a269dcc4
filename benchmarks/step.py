"""What `Slimming.step` costs above the four passes written out by hand.

Both train the same network at the same widths on the same batch, in one interleaved run. Target:
the step at most 2% slower. Widths are chosen before the clock starts: a search is no part of this.
"""

from __future__ import annotations

import argparse
import copy
import gc
import random
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from reporting import at_most, report
from torch import Tensor

import joslim

CASES = {"resnet8": (3, 16, 16), "resnet20": (3, 16, 16)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1, help="more than one is noisier")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: list[dict[str, object]] = []
    figures = {}
    for name, shape in CASES.items():
        torch.manual_seed(0)
        x = torch.randn(options.batch, *shape)
        y = torch.randint(10, (options.batch,))
        times = interleaved(name, x, y, options.rounds)
        ratios = [ours / hand for ours, hand in zip(times["Slimming.step"], times["by hand"])]
        for label, values in (*times.items(), ("step / by hand", ratios)):
            low, median, high = statistics.quantiles(values, n=4)
            rows.append(
                {
                    "network": name,
                    "run": label,
                    "median (s, or ratio)": median,
                    "quartiles": f"{low:.4g} to {high:.4g}",
                }
            )
        figures[f"{name}_step_over_by_hand"] = at_most(statistics.median(ratios), 1.02)
    title = f"one step at four widths, batch {options.batch}, {options.rounds} interleaved rounds"
    report(title, rows, figures)


def interleaved(name: str, x: Tensor, y: Tensor, rounds: int) -> dict[str, list[float]]:
    """Seconds of each run in each round, in random order; the first three rounds warm up."""
    net = joslim.slim(joslim.models.MODELS[name](), x)
    other = copy.deepcopy(net)
    four = {"samples": 2, "draw": 3, "full_first": 0}
    slimming = joslim.Slimming(net, method="slim", total_steps=rounds + 3, scoring=[(x, y)], **four)
    optimizers = [torch.optim.SGD(n.parameters(), lr=0.01, momentum=0.9) for n in (net, other)]
    times: dict[str, list[float]] = {"Slimming.step": [], "by hand": []}
    shuffle = random.Random(0).shuffle
    gc.disable()
    for turn in range(rounds + 3):
        slimming._choose()  # before the clock starts: by hand they are given too
        widths = list(slimming.widths)
        runs: list[tuple[str, Callable[[], object]]] = [
            ("Slimming.step", lambda: slimming.step(x, y, optimizers[0], F.cross_entropy)),
            ("by hand", lambda: step_by_hand(other, widths, x, y, optimizers[1])),  # noqa: B023
        ]
        shuffle(runs)
        for label, run in runs:
            start = time.perf_counter()
            run()
            if turn >= 3:
                times[label].append(time.perf_counter() - start)
    gc.enable()
    return times


def step_by_hand(
    net: joslim.SlimmableNet,
    widths: list[joslim.Widths],
    x: Tensor,
    y: Tensor,
    optimizer: torch.optim.Optimizer,
) -> None:
    optimizer.zero_grad(set_to_none=True)
    logits = net(x)
    F.cross_entropy(logits, y).backward()
    target = logits.detach().softmax(dim=1)
    for child in widths[1:]:
        with net.at(child):
            F.cross_entropy(net(x), target).backward()
    optimizer.step()


if __name__ == "__main__":
    main()
