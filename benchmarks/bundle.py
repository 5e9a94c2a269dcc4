"""What it costs to ship all children in one file: ResNet18 and MobileNetV2, 1,000 classes.

The bundle against the ONNX file of the full network alone; opening a child of the bundle, and
running it, against the ONNX file of that child alone; a switch to a child that is open; and the
memory of a process with several children open. Batch 1, one thread, untrained weights. What is
compared runs in turns.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reporting import at_most, report
from safetensors.torch import save_file
from slicing import interleaved, ratios

import joslim
import joslim_runtime
from joslim.deploy import export_bundle
from joslim.formats import onnx_session
from joslim.front import Front, Point
from joslim.runs.config import config_of
from joslim.runs.folder import SAMPLES, RunFolder
from joslim.runs.run import Run
from joslim_runtime.onnx_bytes import with_weights

NETWORKS = {"resnet18": joslim.models.resnet18, "mobilenet_v2": joslim.models.mobilenet_v2}
COMPARED = 3
OPEN_AT_ONCE = (1, 4, 8)
# Prints the resident memory in MB, with k children open: of a bundle, or as files of their own.
MEMORY = """
import sys, numpy as np, joslim_runtime
import onnxruntime
from joslim_runtime.onnx_bytes import with_weights
path, k, own = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "own"
net = joslim_runtime.open(path, keep=k)
chosen = [net.front[at] for at in np.linspace(0, len(net.front) - 1, k).astype(int)]
models = [with_weights(*net._bundle.parts(child)) for child in chosen] if own else None
if own:
    del net
    import gc; gc.collect()
    options = onnxruntime.SessionOptions(); options.intra_op_num_threads = 1
    sessions = [onnxruntime.InferenceSession(models.pop(0), options) for _ in range(k)]
    x = np.zeros((1, 3, int(sys.argv[4]), int(sys.argv[4])), np.float32)
    [session.run(None, {"images": x}) for session in sessions]
else:
    [net(np.zeros((1, *net.shape), np.float32), child) for child in chosen]
pages = int(open("/proc/self/statm").read().split()[1])
print(pages * 4096 / 1e6)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=224, help="pixels (%(default)s)")
    parser.add_argument("--children", type=int, default=30, help="%(default)s")
    parser.add_argument("--rounds", type=int, default=30, help="%(default)s")
    parser.add_argument("--network", action="append", choices=[*NETWORKS], help="both by default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    figures: dict[str, dict[str, object]] = {}
    for name in options.network or NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            measured = measure(name, Path(folder), options)
        rows += [{"network": name, **row} for row in measured]
        for row in measured:
            if row["target"] != "":
                key = f"{name}_{row['key']}"
                figures[key] = at_most(float(str(row["value"])), float(str(row["target"])))
    for row in rows:
        row.pop("key")
    report(f"Bundles of {options.children} children, {options.size} px", rows, figures)


def measure(name: str, folder: Path, options: argparse.Namespace) -> list[dict[str, object]]:
    run = untrained_run(name, folder / "run", options.size, options.children)
    file = folder / "net.joslim"
    start = time.perf_counter()
    made = export_bundle(run, file)
    seconds = time.perf_counter() - start
    joslim.export(run, run.net.space.full, folder / "full.onnx")
    full = (folder / "full.onnx").stat().st_size
    start = time.perf_counter()
    net = joslim_runtime.open(file, keep=options.children)
    opening = 1000 * (time.perf_counter() - start)
    apart = sum(len(with_weights(*net._bundle.parts(child))) for child in net.front)

    rows = [
        row("storage", "bundle / ONNX file of the full network", made.bytes / full, 1.10),
        row("apart", "the children as separate files / full", apart / full),
        row("write_s", "seconds to write and check the bundle", seconds),
        row("difference", "largest difference of a score", made.check.difference),
        row("bundle_ms", "opening the bundle, once (ms)", opening),
    ]
    opened_over_own: list[float] = []
    ran_over_own: list[float] = []
    image = np.random.default_rng(0).normal(size=(1, *net.shape)).astype(np.float32)
    for position in np.linspace(0, options.children - 1, COMPARED).astype(int):
        own = folder / f"{position}.onnx"
        joslim.export(run, run.front[position], own)
        child = net.front[position]
        times = interleaved(
            {
                "bundle": lambda child=child: net._opened(child),
                "own": lambda own=own: onnx_session(own),
            },
            options.rounds,
        )
        opened_over_own += ratios(times["bundle"], times["own"])
        sessions = {"bundle": net._opened(child), "own": onnx_session(own)}
        # Three times as many rounds: the difference is far smaller than the noise of a pass.
        times = interleaved(
            {key: running(session, image) for key, session in sessions.items()},
            3 * options.rounds,
        )
        ran_over_own += ratios(times["bundle"], times["own"])
    rows += [
        row("open", "opening a child / its own file", statistics.median(opened_over_own), 1.30),
        row("latency", "latency / its own file", statistics.median(ran_over_own), 1.03),
        row("switch_ms", "switch to an open child (ms)", switch_ms(net), 1.0),
    ]
    for kind in ("bundle", "own"):
        for k in OPEN_AT_ONCE:
            what = f"MB of the process, {k} open ({kind})"
            rows.append(row("memory", what, memory(file, k, kind, options.size)))
    return rows


def row(key: str, what: str, value: float, target: float | str = "") -> dict[str, object]:
    return {"key": key, "what": what, "value": value, "target": target}


def running(session: Any, image: Any) -> Callable[[], Any]:
    return lambda: session.run(None, {"images": image})


def switch_ms(net: joslim_runtime.Network) -> float:
    for child in net.front:
        net.use(child)
    times = []
    for _ in range(20):
        for child in net.front:
            start = time.perf_counter()
            net.use(child)
            times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def memory(file: Path, k: int, kind: str, size: int) -> float:
    command = [sys.executable, "-c", MEMORY, str(file), str(k), kind, str(size)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def untrained_run(name: str, path: Path, size: int, children: int) -> Run:
    """A run as a training would leave it, with random children on its front."""
    torch.manual_seed(0)
    shape = (3, size, size)
    net = joslim.slim(NETWORKS[name](), torch.zeros(1, *shape)).eval()
    rng = np.random.default_rng(0)
    costs = {name: joslim.cost(name, net) for name in ("macs", "params", "memory")}
    points = []
    for share in np.linspace(0.42, 1, children):
        widths = net.space.at(np.clip(rng.normal(share, 0.1, len(net.space)), 0.42, 1))
        with net.at(widths):
            joslim.recalibrate(net, [torch.randn(4, 3, 64, 64)])
        points.append(Point(widths, {n: c(widths) for n, c in costs.items()}, 1 - share / 2))
    folder = RunFolder(path)
    folder.prepare()
    data = {"classes": [str(n) for n in range(1000)], "shape": shape, "identity": ""}
    data |= {"mean": [0.5] * 3, "std": [0.25] * 3}
    folder.write_config(config_of({"model": name}).to_json(), data=data)
    save_file({"inputs": torch.randn(4, *shape)}, folder.file(SAMPLES))
    span = (costs["macs"](net.space.smallest), costs["macs"](net.space.full))
    return Run(folder, net, Front(points, "macs", span))


if __name__ == "__main__":
    main()
