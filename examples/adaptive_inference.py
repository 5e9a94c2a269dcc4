"""Keep to a latency target while the load of the machine changes, by switching children (subnets).

python examples/adaptive_inference.py RUN [--target MS] [--seconds 12] [-o adaptive.png]

Classifies images of the test set batch after batch, once with the full network alone and once with
the controller. In the middle third of the time, other processes keep all cores busy.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import joslim

BATCH = 1024
# The weight of the newest measurement, and the share of the target to aim at, because times vary on
# a busy machine.
NEWEST = 0.3
AIM = 0.85


class Controller:
    """Chooses a child by its latency on an idle machine and the slowdown at the moment."""

    def __init__(self, points: list[joslim.Point], quiet_ms: list[float], target_ms: float) -> None:
        self.points, self.quiet_ms, self.target_ms = points, quiet_ms, target_ms
        self.slowdown = 1.0

    def choose(self) -> int:
        """Return the best child that meets the target at the present speed, else the fastest."""
        fast_enough = [
            number
            for number, ms in enumerate(self.quiet_ms)
            if ms * self.slowdown <= AIM * self.target_ms
        ]
        if not fast_enough:
            return min(range(len(self.points)), key=lambda number: self.quiet_ms[number])
        return min(fast_enough, key=lambda number: self.points[number].train_loss)

    def learn(self, number: int, ms: float) -> None:
        self.slowdown += NEWEST * (ms / self.quiet_ms[number] - self.slowdown)


@dataclass
class Served:
    """One batch: its start, its latency, the child, and the share of right answers."""

    second: float
    ms: float
    number: int
    right: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument(
        "--target", type=float, help="target in ms; by default 1.3 times that of the full network"
    )
    parser.add_argument(
        "--seconds", type=float, default=12, help="duration of each part (%(default)s)"
    )
    parser.add_argument(
        "-o", "--out", default="adaptive.png", help="picture to write (%(default)s)"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        run = joslim.load(options.run)
        points = list(run.front)
    except joslim.UserError as error:
        parser.error(str(error))
    data = joslim.load_data(
        run.config.data, run.config.data_root, size=run.net.example[0].shape[-1]
    )
    images, labels = next(iter(data.sweep("test", data.sizes["test"])))
    stream = batches_of(images, labels)
    quiet_ms = measured_alone(run.net, points, next(stream)[0])
    target_ms = options.target or 1.3 * quiet_ms[-1]
    print(f"target {target_ms:.1f} ms for {BATCH} images; full network alone {quiet_ms[-1]:.1f} ms")

    def serve(choose: Callable[[], int], learn: Callable[[int, float], None]) -> list[Served]:
        with load_in_the_middle(options.seconds):
            return list(serving(run.net, points, stream, options.seconds, choose, learn))

    controller = Controller(points, quiet_ms, target_ms)
    fixed = serve(lambda: len(points) - 1, lambda number, ms: None)
    adaptive = serve(controller.choose, controller.learn)
    for name, served in (("full network", fixed), ("controller", adaptive)):
        print(f"{name:<13} {described(served, options.seconds, target_ms)}")
    draw(fixed, adaptive, points, target_ms, options)
    print(f"picture: {options.out}")


def batches_of(
    images: torch.Tensor, labels: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield random images of the test set without end."""
    generator = torch.Generator().manual_seed(0)
    while True:
        drawn = torch.randint(len(images), (BATCH,), generator=generator)
        yield images[drawn], labels[drawn]


def measured_alone(
    net: joslim.SlimmableNet, points: list[joslim.Point], images: torch.Tensor
) -> list[float]:
    """Return the median latency of each child in ms, measured in turns after two warm-up passes."""
    times: list[list[float]] = [[] for _ in points]
    for _ in range(7):
        for point, own in zip(points, times):
            net.use(point)
            forward(net, images)
            own.append(forward(net, images)[0])
    return [statistics.median(own[2:]) for own in times]


def forward(net: joslim.SlimmableNet, images: torch.Tensor) -> tuple[float, torch.Tensor]:
    start = time.perf_counter()
    with torch.inference_mode():
        classes = net(images).argmax(1)
    return 1000 * (time.perf_counter() - start), classes


def serving(
    net: joslim.SlimmableNet,
    points: list[joslim.Point],
    stream: Iterator[tuple[torch.Tensor, torch.Tensor]],
    seconds: float,
    choose: Callable[[], int],
    learn: Callable[[int, float], None],
) -> Iterator[Served]:
    """Serve batches for some seconds, each with its own child: a switch takes microseconds."""
    start = time.perf_counter()
    for images, labels in stream:
        now = time.perf_counter() - start
        if now > seconds:
            return
        number = choose()
        net.use(points[number])
        ms, classes = forward(net, images)
        learn(number, ms)
        yield Served(now, ms, number, (classes == labels).float().mean().item())


@contextmanager
def load_in_the_middle(seconds: float) -> Iterator[None]:
    """Run two busy processes for each core in the second third of the time."""
    begin = time.time() + seconds / 3
    code = (
        f"import time; time.sleep(max(0, {begin} - time.time()))\n"
        f"while time.time() < {begin + seconds / 3}: pass"
    )
    busy = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2 * cores())]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def described(served: list[Served], seconds: float, target_ms: float) -> str:
    loaded = [batch for batch in served if seconds / 3 < batch.second < 2 * seconds / 3]
    return "; ".join(
        f"{name}: within the target {share(batches, target_ms):.0%} of {len(batches)} batches, "
        f"median {statistics.median(b.ms for b in batches):.1f} ms, "
        f"{100 * statistics.fmean(b.right for b in batches):.1f} % right"
        for name, batches in (("all", served), ("under load", loaded))
        if batches
    )


def share(served: list[Served], target_ms: float) -> float:
    return statistics.fmean(batch.ms <= target_ms for batch in served)


def draw(
    fixed: list[Served],
    adaptive: list[Served],
    points: list[joslim.Point],
    target_ms: float,
    options: argparse.Namespace,
) -> None:
    figure = Figure(figsize=(8, 7), layout="constrained")
    latency, size, right = figure.subplots(3, 1, sharex=True)
    for served, name, colour, marker in (
        (fixed, "full network", "#D55E00", "x"),
        (adaptive, "controller", "#0072B2", "o"),
    ):
        at = [batch.second for batch in served]
        style = {"color": colour, "label": name, "lw": 1.5}
        latency.plot(at, [b.ms for b in served], marker, ms=3, color=colour, alpha=0.4)
        latency.plot(at, smooth([b.ms for b in served], statistics.median), **style)
        macs = [points[b.number].costs["macs"] / points[-1].costs["macs"] for b in served]
        size.plot(at, [100 * part for part in macs], **style)
        right.plot(at, smooth([100 * b.right for b in served], statistics.fmean), **style)
    latency.axhline(target_ms, color="black", ls="--", lw=1, label=f"target {target_ms:.1f} ms")
    latency.set_ylim(0, 4 * target_ms)
    latency.set_ylabel(f"ms for {BATCH} images")
    size.set_ylabel("multiply-adds, % of full")
    right.set_ylabel("right answers, %")
    right.set_xlabel("seconds")
    for axes in (latency, size, right):
        dress(axes, options.seconds)
    latency.legend(frameon=False, ncols=3)
    figure.savefig(options.out, dpi=120)


def dress(axes: Axes, seconds: float) -> None:
    axes.axvspan(seconds / 3, 2 * seconds / 3, color="#d8dee4", alpha=0.6, lw=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#d8dee4")


def smooth(values: list[float], middle: Callable[[list[float]], float]) -> list[float]:
    """Smooth each value over the last nine batches."""
    return [middle(values[max(0, at - 8) : at + 1]) for at in range(len(values))]


if __name__ == "__main__":
    main()
