"""Keep to a latency target while the load of the machine changes, without torch.

python examples/adaptive_bundle.py net.joslim [--target MS] [--seconds 6]

Runs batches of a bundle with joslim_runtime.Controller. In the middle third of the time, other
processes keep all cores busy.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

import numpy as np

import joslim_runtime

BATCH = 256
BUSY = "import sys, time; end = time.time() + float(sys.argv[1])\nwhile time.time() < end: pass"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument(
        "--target", type=float, help="target in ms; by default 1.3 times that of the largest child"
    )
    parser.add_argument("--seconds", type=float, default=6, help="duration (%(default)s)")
    options = parser.parse_args()
    try:
        net = joslim_runtime.open(options.bundle, keep=1000)
    except joslim_runtime.BundleError as error:
        parser.error(str(error))
    images = np.random.default_rng(0).normal(size=(BATCH, *net.shape)).astype(np.float32)
    controller = joslim_runtime.Controller(net, options.target or 1e9, images)
    largest = controller.quiet_ms[net.front[-1].name]
    controller.target_ms = options.target or 1.3 * largest
    print(f"target {controller.target_ms:.2f} ms; largest child alone {largest:.2f} ms")
    parts = ("idle", "busy", "idle again")
    for part in parts:
        seconds = options.seconds / len(parts)
        others = []
        if part == "busy":
            command = [sys.executable, "-c", BUSY, str(seconds)]
            others = [subprocess.Popen(command) for _ in range(2 * (os.cpu_count() or 1))]
        times, sizes = serve(controller, images, seconds)
        for other in others:
            other.wait()
        met = statistics.fmean(ms <= controller.target_ms for ms in times)
        share = statistics.fmean(sizes) / net.front[-1].costs["macs"]
        print(
            f"{part:<10} {len(times)} batches, median {statistics.median(times):.2f} ms, within "
            f"the target {met:.0%}, mean size {share:.0%} of the largest child's multiply-adds"
        )


def serve(
    controller: joslim_runtime.Controller, images: np.ndarray, seconds: float
) -> tuple[list[float], list[float]]:
    """Run batches for some seconds; their latencies in ms, and the multiply-adds of each."""
    times, sizes = [], []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        controller(images)
        times.append(1000 * (time.perf_counter() - start))
        sizes.append(controller.net.active.costs["macs"])
    return times, sizes


if __name__ == "__main__":
    main()
