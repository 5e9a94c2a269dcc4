"""What slimmability costs at run time: forward and backward, ratios in one interleaved run.

Targets: the slimmable network at full width at most 3% slower than the original module; a child
run in place at most 10% slower than the same child cut out. With --knobs, the child also has fewer
blocks and images of half the size, which the network in place resizes. With one thread, times are
of the thread's own clock, which stops while other programs run.
"""

from __future__ import annotations

import argparse
import copy
import gc
import random
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from reporting import at_most, report
from torch import nn

import joslim
from joslim.slimmable.running import resized

CASES = {"resnet20": 32, "mobilenet_v2": 64}
CHILD = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1, help="more than one is noisier")
    parser.add_argument("--knobs", action="store_true", help="depth and input size, too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: list[dict[str, object]] = []
    figures = {}
    for name, side in CASES.items():
        torch.manual_seed(0)
        images = torch.randn(options.batch, 3, side, side)
        original = joslim.models.MODELS[name]()
        sizes = (side // 2, side * 3 // 4, side) if options.knobs else None
        net = joslim.slim(
            copy.deepcopy(original), images, resolutions=sizes, depth=options.knobs or None
        )
        half = net.space.uniform(CHILD)
        with net.at(half):
            joslim.recalibrate(net, [images])
        child = net.child(half)
        runs = {
            "original": stepper(original, images),
            "full width": stepper(net, images),
            "cut out": stepper(child, resized(images, half.pixels)),
            "in place": stepper(net, images, half),
        }
        times = interleaved(runs, options.rounds)
        full = ratios(times["full width"], times["original"])
        sliced = ratios(times["in place"], times["cut out"])
        for label, values in (
            *times.items(),
            ("full / original", full),
            ("in place / cut", sliced),
        ):
            low, median, high = statistics.quantiles(values, n=4)
            rows.append(
                {
                    "network": name,
                    "run": label,
                    "median (s, or ratio)": median,
                    "quartiles": f"{low:.4g} to {high:.4g}",
                }
            )
        figures[f"{name}_full_over_original"] = at_most(statistics.median(full), 1.03)
        figures[f"{name}_sliced_over_cut_out"] = at_most(statistics.median(sliced), 1.10)
    title = f"forward + backward, batch {options.batch}, {options.rounds} interleaved rounds"
    report(title, rows, figures)


def stepper(
    model: nn.Module, images: torch.Tensor, widths: joslim.Widths | None = None
) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad(set_to_none=True)
        with model.at(widths) if widths is not None else nullcontext():  # type: ignore[operator]
            model(images).square().mean().backward()

    model.train()
    return step


def interleaved(runs: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each run in each round, in random order; the first three rounds warm up."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {label: [] for label in runs}
    order = list(runs.items())
    shuffle = random.Random(0).shuffle
    gc.disable()
    for turn in range(rounds + 3):
        shuffle(order)
        for label, run in order:
            start = clock()
            run()
            if turn >= 3:
                times[label].append(clock() - start)
    gc.enable()
    return times


def ratios(slow: list[float], fast: list[float]) -> list[float]:
    """Of runs in the same round: drift of the machine cancels."""
    return [a / b for a, b in zip(slow, fast)]


if __name__ == "__main__":
    main()
