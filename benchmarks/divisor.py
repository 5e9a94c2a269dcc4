"""Whether round channel counts are faster in onnxruntime: ResNet18 and MobileNetV2.

The same random width multipliers with channel counts rounded down to multiples of 1, 8 and 16.
Rounded children compute less: what counts is latency over multiply-adds, both as shares of the full
network, which is timed in turns with the children. Batch 1, one thread.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from reporting import report

import joslim
from joslim.costs.timing import Setting, measure

DIVISORS = (1, 8, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="resnet18,mobilenet_v2", help="default: %(default)s")
    parser.add_argument("--size", type=int, default=224, help="pixels (%(default)s)")
    parser.add_argument("--children", type=int, default=8, help="%(default)s")
    parser.add_argument("--repeats", type=int, default=20, help="%(default)s")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    for name in options.models.split(","):
        for divisor in DIVISORS:
            model, example = getattr(joslim.models, name)(), torch.zeros(1, 3, *[options.size] * 2)
            net = joslim.slim(model, example, divisor=divisor)
            row = measured(net, options.children, options.repeats)
            rows.append({"network": name, "divisor": divisor, **row})
    report("children as shares of the full network, medians", rows, {})


def measured(net: joslim.SlimmableNet, count: int, repeats: int) -> dict[str, object]:
    space, rng = net.space, np.random.default_rng(0)
    points = rng.uniform(np.maximum(space.low, 0.3), 1.0, size=(count, len(space)))
    children = [space.full, *map(space.of_counts, space.counts(points).tolist())]
    macs = joslim.cost("macs", net)
    work = np.array([macs(child) for child in children], float)
    ms = measure(net, children, Setting(threads=1, backend="onnxruntime"), repeats).ms
    work, shares = work[1:] / work[0], ms[1:] / ms[0]
    return {
        "multiply-adds": float(np.median(work)),
        "latency": float(np.median(shares)),
        "latency / multiply-adds": float(np.median(shares / work)),
        "largest": float(np.max(shares / work)),
        "ms of the full network": float(ms[0]),
    }


if __name__ == "__main__":
    main()
