"""Throughput of two processes of one thread each against one process of one thread.

Both make the same optimizer steps (same batch for all processes together, four widths), started by
torchrun; images a second without the first steps, in which memory is allocated and the widths of
the first round are chosen. Runs take turns, and the median of the ratios counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from reporting import at_least, report

WARM_UP = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="%(default)s")
    parser.add_argument("--steps", type=int, default=25, help="%(default)s")
    parser.add_argument("--batch", type=int, default=128, help="%(default)s")
    parser.add_argument("--model", default="resnet20", help="%(default)s")
    parser.add_argument("--size", type=int, default=32, help="%(default)s")
    options = parser.parse_args()
    found: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(options.rounds):
        for processes in found:
            found[processes].append(images_per_second(options, processes))
            print(f"{processes}: {found[processes][-1]:.1f} images/s", flush=True)
    ratios = [two / one for one, two in zip(found[1], found[2])]
    rows: list[dict[str, object]] = [
        {
            "processes": processes,
            "images/s (median)": statistics.median(rates),
            "least": min(rates),
            "most": max(rates),
        }
        for processes, rates in found.items()
    ]
    rows.append({"processes": "2 / 1", "images/s (median)": statistics.median(ratios)})
    figure = at_least(statistics.median(ratios), 1.7)
    report(f"{options.model} at {options.size} px", rows, {"two_over_one": figure})


def images_per_second(options: argparse.Namespace, processes: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        arguments = {
            "model": options.model,
            "data": "digits",
            "size": options.size,
            "batch": options.batch,
            "steps": options.steps,
            "every": options.steps,
            "log-every": 1,
            "save-every": options.steps + 1,
            "score-images": 16,
            "front-images": 16,
            "threads": 1,
            "out": run,
        }
        flags = [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
        subprocess.run(
            [*command, f"--nproc-per-node={processes}", "-m", "joslim", "train", *flags],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        lines = (run / "metrics.jsonl").read_text().splitlines()
    seconds = [line["seconds"] for line in map(json.loads, lines) if "loss" in line]
    spent = seconds[-1] - seconds[WARM_UP - 1]
    return options.batch * (options.steps - WARM_UP) / spent


if __name__ == "__main__":
    main()
