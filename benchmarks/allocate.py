"""One budget, many networks: a dozen networks with hundreds of children, and brute force.

python benchmarks/allocate.py
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from reporting import at_least, at_most, report

from joslim.allocation import allocate, curve
from joslim.front import Front, Point
from joslim.space import Dim, Knob, WidthSpace

SPACE = WidthSpace((Dim("stem", 16),), (Knob("stem", (0,), 0.25),))
COSTS = ("latency_ms", "macs", "memory", "params")
TARGET = 1.0


def made(children: int, rng: np.random.Generator) -> Front:
    """Error falls with the cost, by a power of it and some noise; costs differ by a tenth."""
    full, shares = rng.uniform(2, 50), np.sort(rng.uniform(0.02, 1, children))
    errors = np.sort(10 * shares**-0.4 + rng.normal(0, 0.2, children))[::-1].clip(1, 99)
    points = []
    for share, error in zip(shares, errors):
        costs = {name: full * share * np.exp(rng.normal(0, 0.1)) for name in COSTS}
        costs["latency_ms"] = full * share
        points.append(Point(SPACE.full, costs, error / 25, error, error))
    return Front(points, "latency", (full * 0.02, full))


def budgets_of(fronts: list[Front], count: int, part: float) -> dict[str, float]:
    """A part of the way from the least that all of them can cost to the most."""
    ends = {
        name: [sum(end(p.costs[name] for p in front) for front in fronts) for end in (min, max)]
        for name in COSTS[:count]
    }
    return {name: low + part * (high - low) for name, (low, high) in ends.items()}


def brute_force(fronts: list[Front], most: float) -> float:
    """In plain Python, for one budget."""
    return min(
        sum(p.val_error or 0 for p in points)
        for points in itertools.product(*fronts)
        if sum(p.costs["latency_ms"] for p in points) <= most
    )


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def main() -> None:
    rng = np.random.default_rng(0)
    fronts = [made(300, rng) for _ in range(12)]
    allocate(fronts[:2], latency_ms=100)  # imports SciPy
    rows: list[dict[str, object]] = []
    figures: dict[str, dict[str, object]] = {}
    for count in (1, 2, 3, 4):
        parts = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7)
        shared = [budgets_of(fronts, count, part) for part in parts]
        times = [timed(partial(allocate, fronts, **budgets))[0] for budgets in shared]
        rows.append(
            {"what": f"12 x 300 children, budgets: {count}; longest of 7", "seconds": max(times)}
        )
        figures[f"seconds, budgets: {count}"] = at_most(max(times), TARGET)
    seconds, steps = timed(lambda: curve(fronts, "latency_ms"))
    rows.append({"what": f"their whole curve, {len(steps)} steps", "seconds": seconds})

    few = [made(40, rng) for _ in range(3)]
    most = budgets_of(few, 1, 0.3)["latency_ms"]
    ours, found = timed(lambda: allocate(few, latency_ms=most))
    theirs, error = timed(lambda: brute_force(few, most))
    assert abs(found.error - error) < 1e-9
    rows.append({"what": "3 x 40 children", "seconds": ours})
    rows.append({"what": "3 x 40 children, brute force", "seconds": theirs})
    figures["brute force / allocate, 3 x 40"] = at_least(theirs / ours, 1)
    report("One budget, many networks", rows, figures)


if __name__ == "__main__":
    main()
