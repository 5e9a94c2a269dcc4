"""Whether children with odd channel counts are slow in onnxruntime: ResNet18 and MobileNetV2.

Random children, and the same ones with every channel count rounded down and up to multiples of 8
and of 16. A rounded child computes less or more; if round counts were no faster, its latency would
change as its multiply-adds do. Batch 1, one thread; all children of a network run in turns.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from reporting import report

import joslim
from joslim.costs.timing import Setting, measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="resnet18,mobilenet_v2", help="default: %(default)s")
    parser.add_argument("--size", type=int, default=224, help="pixels (%(default)s)")
    parser.add_argument("--children", type=int, default=8, help="%(default)s")
    parser.add_argument("--repeats", type=int, default=20, help="%(default)s")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    for name in options.models.split(","):
        model = getattr(joslim.models, name)()
        net = joslim.slim(model, torch.zeros(1, 3, options.size, options.size))
        rows += [{"network": name, **row} for row in measured(net, options)]
    report("rounded children against the same with odd channel counts, medians", rows, {})


def measured(net: joslim.SlimmableNet, options: argparse.Namespace) -> list[dict[str, object]]:
    space, rng = net.space, np.random.default_rng(0)
    low = np.maximum(space.low, 0.3)
    counts = space.counts(rng.uniform(low, 1.0, size=(options.children, len(space))))
    full = np.array(space.full.counts)
    counts = np.minimum(counts | 1, full - 1)  # full sizes are even
    kinds = {"odd": counts}
    for divisor in (8, 16):
        kinds[f"down to {divisor}"] = np.maximum(counts // divisor, 1) * divisor
        kinds[f"up to {divisor}"] = np.minimum(-(-counts // divisor) * divisor, full)
    children = [space.of_counts(row) for some in kinds.values() for row in some.tolist()]
    setting = Setting(threads=1, backend="onnxruntime")
    ms = measure(net, children, setting, options.repeats).ms.reshape(len(kinds), -1)
    macs = joslim.cost("macs", net)
    work = np.array([macs(child) for child in children], float).reshape(len(kinds), -1)
    return [
        {
            "channels": kind,
            "multiply-adds": float(np.median(work[at] / work[0])),
            "latency": float(np.median(ms[at] / ms[0])),
            "ms": float(np.median(ms[at])),
            "latency per multiply-add": float(np.median(ms[at] / ms[0] / (work[at] / work[0]))),
        }
        for at, kind in enumerate(kinds)
    ]


if __name__ == "__main__":
    main()
