"""How fast children are priced: 100,000 random children of MobileNetV2 in one call.

Target: under half a second for each of macs, params and memory, on two cores.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch
from reporting import at_most, report

import joslim

CHILDREN = 100_000
REPEATS = 5
TARGET_SECONDS = 0.5


def main() -> None:
    net = joslim.slim(joslim.models.mobilenet_v2(), torch.zeros(1, 3, 224, 224))
    rng = np.random.default_rng(0)
    multipliers = rng.uniform(net.space.low, 1.0, size=(CHILDREN, len(net.space)))
    rows: list[dict[str, object]] = []
    figures = {}
    for name in ("macs", "params", "memory"):
        cost = joslim.cost(name, net)
        times = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            cost.of(multipliers)
            times.append(time.perf_counter() - start)
        one_by_one = seconds_one_by_one(cost, net)
        median = statistics.median(times)
        rows.append(
            {
                "cost": name,
                "median s": median,
                "min s": min(times),
                "max s": max(times),
                "one by one / in one call": one_by_one / median,
            }
        )
        figures[f"{name}_seconds"] = at_most(median, TARGET_SECONDS)
    report(f"{CHILDREN:,} children of MobileNetV2 ({REPEATS} repeats)", rows, figures)


def seconds_one_by_one(cost: joslim.Cost, net: joslim.SlimmableNet, children: int = 500) -> float:
    """What 100,000 calls for one child each would take."""
    rng = np.random.default_rng(1)
    sample = [net.space.random(rng) for _ in range(children)]
    start = time.perf_counter()
    for widths in sample:
        cost(widths)
    return (time.perf_counter() - start) * CHILDREN / children


if __name__ == "__main__":
    main()
