"""One joint training beside networks of fixed size that are trained alone in the same time.

The examples segmentation.py, language.py and detection.py call `compare`. The networks that are
trained alone share the processor time of the joint training, all of it: training, search and
judging. Each of them makes the same number of steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import joslim
from joslim.results.plots import draw_front

# Steps of a trial that finds the time of a step; the first ones are slower.
TRIAL, WARM_UP = 12, 4


def options(text: str, steps: int) -> argparse.ArgumentParser:
    """Return the options that the examples share: how long to train, and where the results go."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("--steps", type=int, default=steps, help="steps of the joint training")
    parser.add_argument("--out", type=Path, required=True, help="folder of runs and picture")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def timed_train(model: str | Callable[[], nn.Module], **settings: Any) -> tuple[Any, float, float]:
    """Train, and return the run, its processor time, and the time of a step after the warm-up."""
    moments: dict[int, float] = {}

    def watch(progress: Any) -> None:
        if progress.phase == "train":
            moments[progress.done] = time.process_time()

    start = time.process_time()
    torch.manual_seed(settings["seed"])  # of the initial weights, which a run seeds by itself
    model = model if isinstance(model, str) else model()
    run = joslim.train(model, watch=watch, threads=1, overwrite=True, **settings)
    seconds = time.process_time() - start
    first, last = min(WARM_UP, len(moments) - 1), len(moments)
    return run, seconds, (moments[last] - moments[first]) / (last - first)


def compare(
    model: str | Callable[[], nn.Module],
    steps: int,
    out: Path,
    sizes: tuple[float, ...] = (0.5, 1.0),
    **settings: Any,
) -> None:
    """Train jointly, then alone at each size; print a table and draw `out`/front.png."""
    joint, total, _ = timed_train(model, steps=steps, out=out / "joint", **settings)
    front, key = joint.front, joint.front.key
    print(f"joint: {steps} steps, {total:.0f} s, {len(front)} children", flush=True)
    if settings.get("cost") == "latency":  # one measurement for all
        settings["device_file"] = str(out / "joint" / "latency.json")

    fixed = [{**settings, "method": "single", "widths": f"{size:g}"} for size in sizes]
    trials = [timed_train(model, steps=TRIAL, out=out / "trial", **one)[1:] for one in fixed]
    rate = sum(step for _, step in trials)
    rest = sum(seconds - TRIAL * step for seconds, step in trials)
    alone_steps = max(1, round((total - rest) / rate))
    points = []
    for size, one in zip(sizes, fixed):
        run, seconds, _ = timed_train(model, steps=alone_steps, out=out / f"alone-{size:g}", **one)
        points.append(run.front[-1])
        print(f"alone, width {size:g}: {alone_steps} steps, {seconds:.0f} s", flush=True)

    print(f"{front.metric.words('test_error')} at {key}: alone, and the child that costs no more")
    for point in points:
        child = front.pick(**{key: point.costs[key]})
        print(
            *(f"{front.metric.text(p.test_error)} at {p.costs[key]:,.6g}" for p in (point, child)),
            sep="; ",
        )
    points = [replace(point, val_error=None) for point in points]  # nobody picks among these
    alone = joslim.Front(points, front.cost, front.span, metric=front.metric)
    draw_front(
        {"one joint training": front, "trained alone": alone}, out / "front.png", areas=False
    )
