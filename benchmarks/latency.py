"""How well latency is modelled: 100 children that the model was not fitted to.

ResNet18 and MobileNetV2 at 224 px, batch 1, one thread. The held-out children lie evenly along the
multiply-adds. They are measured in turns with the 64 that the model is fitted to, so that all see
the same machine, and once more afterwards: that says how well the machine repeats itself. Target
for the mean absolute error: 5% of the measured latency, or 1.5 times that repeatability on a
machine that does not repeat so well.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from reporting import at_most, report
from scipy.stats import spearmanr

import joslim
from joslim.costs.latency import (
    CHILDREN,
    REPEATS,
    LatencyModel,
    spread_children,
    with_both_ends,
)
from joslim.costs.timing import Setting, measure

HELD_OUT = 100
TARGET = 0.05
OF_REPEATABILITY = 1.5
SETTING = Setting(threads=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="resnet18,mobilenet_v2", help="default: %(default)s")
    parser.add_argument("--size", type=int, default=224, help="pixels (%(default)s)")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    figures = {}
    for name in options.models.split(","):
        model = getattr(joslim.models, name)()
        row = judged(joslim.slim(model, torch.zeros(1, 3, options.size, options.size)))
        rows.append({"network": name, **{what: round(value, 3) for what, value in row.items()}})
        target = max(TARGET, OF_REPEATABILITY * row["repeats"])
        figures[f"{name}_error"] = at_most(row["error"], target)
    title = f"latency of {HELD_OUT} held-out children; rank correlation of the model and of macs"
    report(title, rows, figures)


def judged(net: joslim.SlimmableNet) -> dict[str, float]:
    start = time.perf_counter()
    # The same children that the cost chooses for itself.
    fitted_to = with_both_ends(net, CHILDREN, np.random.default_rng(0))
    held_out = spread_children(net, HELD_OUT, np.random.default_rng(1), without=fitted_to)
    both = measure(net, [*fitted_to, *held_out], SETTING, REPEATS)
    again = measure(net, held_out, SETTING, REPEATS).ms
    seen, unseen = (np.array([c.counts for c in some]) for some in (fitted_to, held_out))
    model = LatencyModel(net.blueprint, seen, both.ms[: len(seen)])
    ms = both.ms[len(seen) :]
    prices, macs = model(unseen), joslim.cost("macs", net).of_counts(unseen)
    return {
        "error": relative(prices, ms),
        "repeats": relative(again, ms),
        "rank": float(spearmanr(prices, ms).statistic),
        "macs": float(spearmanr(macs, ms).statistic),
        "from ms": float(ms.min()),
        "to": float(ms.max()),
        "spread": float(np.median(both.spread)),
        "s": time.perf_counter() - start,
    }


def relative(values: np.ndarray, measured: np.ndarray) -> float:
    """The mean absolute difference, as a share of what was measured."""
    return float(np.abs(values / measured - 1).mean())


if __name__ == "__main__":
    main()
