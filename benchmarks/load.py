"""A long run: memory that stays flat, files that grow evenly, and a large run that opens fast.

A tiny network makes thousands of steps on digits, and its search visits thousands of children. The
resident size is read from the system as it goes. The search begins with more children than its
surrogate looks at (1,200): up to there it takes more memory with every child, and no more beyond.

Targets: in the last tenth of the steps at most 5% more than in the second; history.jsonl and
metrics.jsonl grow as much late as early (1.1); a run of 5,000 children opens (load, front and
history) in 2 s, and one of 20,000 children and 10,000 scorings in 3 s.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from reporting import at_most, report
from torch import Tensor, nn

import joslim
from joslim.costs import cost
from joslim.runs.driver import Progress
from joslim.runs.folder import RunFolder
from joslim.runs.logs import HistoryLog
from joslim.search.gp import MAX_POINTS
from joslim.search.history import History
from joslim.training import exploring

CHILDREN = 5_000
# So many visits, with a scoring after every second one.
MOST_CHILDREN = 20_000
LINES = ("history.jsonl", "metrics.jsonl")


class Tiny(nn.Module):
    """Two layers that can be slimmed, and a head."""

    def __init__(self, channels: int = 96) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, stride=3, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 1)
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.norm(self.first(x)).relu()).relu().mean((2, 3)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000, help="default: %(default)s")
    parser.add_argument("--every", type=int, default=50, help="steps of a round (%(default)s)")
    parser.add_argument("--samples", type=int, default=4, help="children of one (%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    exploring.start_size = lambda space: 2 * MAX_POINTS  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        rows, figures = long_run(path / "long", options)
        for children, gap, figure, most in (
            (CHILDREN, 10, "seconds_to_open", 2.0),
            (MOST_CHILDREN, 2, "seconds_to_open_largest", 3.0),
        ):
            folder = path / str(children)
            large_run(path / "long", folder, children, gap)
            opening = [seconds_to_open(folder, children) for _ in range(5)]
            median = statistics.median(opening)
            rows.append({"what": f"opening {children} children, s", "value": median})
            figures[figure] = at_most(max(opening), most)
    title = f"{options.steps} steps, {options.samples} new children every {options.every}"
    report(title, rows, figures)


def long_run(
    path: Path, options: argparse.Namespace
) -> tuple[list[dict[str, object]], dict[str, dict[str, object]]]:
    seen: dict[int, tuple[float, dict[str, int]]] = {}
    tenth, highest = options.steps // 10, 0.0

    def watch(progress: Progress) -> None:
        nonlocal highest
        if progress.phase != "train":
            return
        highest = max(highest, resident_megabytes())
        if progress.done % tenth == 0:
            sizes = {file: os.path.getsize(path / file) for file in LINES}
            seen[progress.done] = (highest, sizes)
            print(
                f"step {progress.done}: {progress.children} children, {highest:.1f} MB", flush=True
            )
            highest = 0.0

    started = time.perf_counter()
    run = joslim.train(
        Tiny(), "digits", out=path, watch=watch, steps=options.steps, every=options.every,
        samples=options.samples, batch=8, score_images=32, front_images=64, rescore=128, threads=1,
        lr=0.02, full_first=0,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    steps = [*seen]
    warm, end = seen[steps[1]], seen[steps[-1]]
    grown = {file: growth([sizes[file] for _, sizes in seen.values()]) for file in LINES}
    rows: list[dict[str, object]] = [
        {"what": "seconds", "value": seconds},
        {"what": "children visited", "value": len(run.history)},
        {"what": f"most MB in steps {steps[0]} to {steps[1]}", "value": warm[0]},
        {"what": f"most MB in steps {steps[-2]} to {steps[-1]}", "value": end[0]},
        *({"what": f"{file}, bytes a step", "value": end[1][file] / steps[-1]} for file in LINES),
        *({"what": f"{file}, late over early", "value": grown[file]} for file in LINES),
    ]
    figures = {
        "memory_end_over_warm": at_most(end[0] / warm[0], 1.05),
        **{f"{file.partition('.')[0]}_growth": at_most(grown[file], 1.1) for file in LINES},
    }
    return rows, figures


def growth(sizes: list[int]) -> float:
    """Of ten sizes: what the last four tenths have added, over what four tenths did before."""
    return (sizes[9] - sizes[5]) / (sizes[4] - sizes[0])


def resident_megabytes() -> float:
    """Of this process, now."""
    if sys.platform != "linux":
        raise SystemExit("this benchmark reads /proc, which only Linux has")
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def large_run(source: Path, path: Path, children: int, gap: int) -> None:
    """The run, with a history of children of ResNet20, 64 of which are scored at every gap."""
    net = joslim.slim(joslim.models.resnet20(), torch.zeros(1, 3, 32, 32))
    folder, history = RunFolder(path), History(cost("macs", net))
    path.mkdir()
    for file in ("config.json", "front.json"):
        (path / file).write_bytes((source / file).read_bytes())
    rng = np.random.default_rng(0)
    while len(history) < children:
        history.visit(net.space.random(rng), step=len(history))
        if len(history) % gap == 0:
            ids = rng.choice(len(history), min(64, len(history)), replace=False)
            history.record({int(child): float(rng.random()) for child in ids}, len(history))
    HistoryLog(folder, history).update()


def seconds_to_open(path: Path, children: int) -> float:
    started = time.perf_counter()
    run = joslim.load(path)
    parts: tuple[Any, ...] = (run.config, run.front, run.history.scored())
    assert len(parts[-1]) > children // 2
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
