"""What `--channels-last` gains: a training pass with the channels innermost over the usual layout.

python benchmarks/layout.py

Both take the same network, widths and batch in one interleaved run. Target: never slower.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from reporting import at_most, report

import joslim

CASES = {
    "resnet8": (16, 128),
    "resnet20": (16, 128),
    "mobilenet_v2": (64, 64),
    "resnet18": (64, 32),
}
LAYOUTS = {"usual": torch.contiguous_format, "channels last": torch.channels_last}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: list[dict[str, object]] = []
    figures = {}
    for name, (size, batch) in CASES.items():
        times = interleaved(name, size, batch, options.rounds)
        ratios = [last / usual for usual, last in zip(*times.values())]
        low, median, high = statistics.quantiles(ratios, n=4)
        seconds = {label: statistics.median(values) for label, values in times.items()}
        what = {"network": name, "pixels": size, "batch": batch}
        rows.append({**what, **seconds, "ratio": median, "quartiles": f"{low:.3f} to {high:.3f}"})
        figures[f"{name}_channels_last_over_usual"] = at_most(median, 1.0)
    report(f"seconds of a pass at 0.7 of the width, {options.rounds} rounds", rows, figures)


def interleaved(name: str, size: int, batch: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each layout in each round; the first round warms up."""
    torch.manual_seed(0)
    x, y = torch.randn(batch, 3, size, size), torch.randint(10, (batch,))
    nets = {
        label: joslim.slim(joslim.models.MODELS[name](), x[:1]).to(memory_format=layout)
        for label, layout in LAYOUTS.items()
    }
    times: dict[str, list[float]] = {label: [] for label in nets}
    for _ in range(rounds + 1):
        for label, net in nets.items():
            start = time.perf_counter()
            with net.at(net.space.uniform(0.7)):
                F.cross_entropy(net(x), y).backward()
            times[label].append(time.perf_counter() - start)
    return {label: values[1:] for label, values in times.items()}


if __name__ == "__main__":
    main()
