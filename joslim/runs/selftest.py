"""`joslim selftest`: whether joslim computes the right numbers on a device, and how fast it is.

Nobody has all devices. This is what somebody with another one runs and sends back.
"""

from __future__ import annotations

import copy
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from joslim import __version__
from joslim.costs.device_file import device_name
from joslim.costs.latency import measure_device, with_both_ends
from joslim.costs.timing import Setting
from joslim.errors import RunFailed, first_line
from joslim.models import MODELS
from joslim.runs.driver import train
from joslim.runs.setup import find_device, lay_out
from joslim.runs.trainer import PRECISIONS
from joslim.slimmable import SlimmableNet, recalibrate, slim
from joslim.training.slimming import Slimming

# Largest difference from the CPU, as a share of the largest number: in float64, and in float32.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}


class SelfTest:
    """The checks and measurements on one device."""

    def __init__(self, device: str, batch: int) -> None:
        self.device = find_device(device)
        self.batch = batch
        # MPS has no float64.
        self.dtype = torch.float32 if self.device.type == "mps" else torch.float64

    def run(self, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
        """Return all facts, as JSON has them. A check that fails is among them, and stops nothing.

        say: Called with a line after each check.
        """
        checks: dict[str, str] = {}
        for name, check in self.checks().items():
            try:
                check()
                checks[name] = "ok"
            except Exception as error:  # a report of all failures is what is asked for
                checks[name] = f"{type(error).__name__}: {first_line(error)}"
            say(f"{name}: {checks[name]}")
        speed = self.speed()
        for name, seconds in speed.items():
            say(f"{name}: {1000 * seconds:.4g} ms")
        return {
            "ok": set(checks.values()) == {"ok"},
            "versions": self.versions(),
            "checks": checks,
            "batch": self.batch,
            "seconds": speed,
            "latency": self.latency(),
        }

    def checks(self) -> dict[str, Callable[[], None]]:
        found = {
            "losses and gradients equal those of the CPU": self.gradients,
            "recalibration equals that of the CPU": self.recalibration,
            "a child equals the sliced network": self.child,
            "a step that is not finite changes nothing, and is found": self.not_finite,
            "a run trains, stops and resumes": self.training,
        }
        if self.device.type == "cuda":
            found["a step does not wait for the device"] = self.waiting
        return found

    def net(self, name: str = "resnet8", pixels: int = 16) -> SlimmableNet:
        torch.manual_seed(0)
        return slim(MODELS[name](), torch.zeros(1, 3, pixels, pixels))

    def data(self, pixels: int = 16) -> tuple[Tensor, Tensor]:
        torch.manual_seed(1)
        return torch.randn(self.batch, 3, pixels, pixels), torch.randint(10, (self.batch,))

    def both(self) -> Iterator[tuple[SlimmableNet, Tensor, Tensor]]:
        """The same network and batch, on the CPU and on the device."""
        net, (x, y) = self.net().to(self.dtype), self.data()
        for device in (torch.device("cpu"), self.device):
            yield copy.deepcopy(net).to(device), x.to(device, self.dtype), y.to(device)

    def gradients(self) -> None:
        found = []
        for net, x, y in self.both():
            slimming = slimming_of(net, x, y)
            slimming.backward(x, y, F.cross_entropy)
            grads = [p.grad for p in net.parameters() if p.grad is not None]
            found.append([slimming.losses, *grads])
        self.compare(*found)

    def recalibration(self) -> None:
        found = []
        for net, x, _ in self.both():
            with net.at(net.space.smallest):
                recalibrate(net, [x])
            found.append([t for pair in net.statistics[net.space.smallest].values() for t in pair])
        self.compare(*found)

    def child(self) -> None:
        for net, x, _ in self.both():
            widths = net.space.uniform(0.6)
            with net.at(widths):
                recalibrate(net, [x])
            net.eval().use(widths)
            with torch.no_grad():
                self.compare([net(x)], [net.child(widths).eval()(x)])

    def compare(self, ours: list[Tensor], theirs: list[Tensor]) -> None:
        for one, other in zip(ours, theirs, strict=True):
            gap = (one.cpu() - other.cpu()).abs().max() / one.abs().max().cpu().clamp_min(1e-12)
            assert gap <= TOLERANCE[self.dtype], f"the difference is {gap:.2g} of the largest"

    def not_finite(self) -> None:
        *_, (net, x, y) = self.both()
        slimming = slimming_of(net, x, y)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        slimming.step(x, y, optimizer, F.cross_entropy)
        before = [p.detach().clone() for p in net.parameters()]
        found = ""
        try:
            slimming.step(x * torch.nan, y, optimizer, F.cross_entropy)
            slimming.finite.read()
        except RunFailed as error:
            found = str(error)
        assert "at step 1" in found, f"it was not found: {found!r}"
        assert all(torch.equal(a, b) for a, b in zip(before, net.parameters()))

    def training(self) -> None:
        options: dict[str, Any] = {"steps": 8, "every": 4, "batch": 32, "front_images": 64}
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            train(out=out, device=str(self.device), **options)
            run = train(out=out, device=str(self.device), resume=True, until=12, **options)
            assert all(np.isfinite(point.train_loss) for point in run.front)

    def waiting(self) -> None:
        *_, (net, x, y) = self.both()
        slimming = slimming_of(net, x, y)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, fused=True)
        slimming.step(x, y, optimizer, F.cross_entropy)
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(3):
                slimming.step(x, y, optimizer, F.cross_entropy)
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def speed(self) -> dict[str, float]:
        """Seconds of steps of ResNet20 at 32 pixels."""
        kinds = {"full network alone": ("single", {}), "four widths": ("bignas", {"draw": 3})}
        found = {}
        for precision in (None, "bf16", "fp16") if self.device.type == "cuda" else (None, "bf16"):
            for layout in (torch.contiguous_format, torch.channels_last):
                for kind, (method, options) in kinds.items():
                    net, (x, y) = self.net("resnet20", 32).to(self.device), self.data(32)
                    lay_out(net, layout)
                    x, y = x.to(self.device), y.to(self.device)
                    slimming = slimming_of(net, x, y, method=method, **options)
                    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
                    step = partial(self.step, slimming, optimizer, x, y, precision)
                    last = ", channels last" if layout is torch.channels_last else ""
                    found[f"{kind}, {precision or 'fp32'}{last}"] = self.seconds(step)
        return found

    def step(
        self,
        slimming: Slimming,
        optimizer: torch.optim.Optimizer,
        x: Tensor,
        y: Tensor,
        precision: str | None,
    ) -> None:
        kind = PRECISIONS[precision or "bf16"]
        with torch.autocast(self.device.type, kind, enabled=precision is not None):
            slimming.step(x, y, optimizer, F.cross_entropy)

    def seconds(self, step: Callable[[], None], times: int = 3) -> float:
        """Return the least time of a step, after one that warms up."""
        took = []
        for _ in range(times + 1):
            with self.synchronised():
                started = time.perf_counter()
                step()
            took.append(time.perf_counter() - started)
        return min(took[1:])

    @contextmanager
    def synchronised(self) -> Iterator[None]:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def latency(self) -> dict[str, Any]:
        """Return a device file of a few children."""
        net = self.net().to(self.device)
        children = with_both_ends(net, 12, np.random.default_rng(0))
        return measure_device(net, children, Setting(), repeats=3).to_json()

    def versions(self) -> dict[str, Any]:
        return {
            "joslim": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "system": platform.platform(),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version() if self.device.type == "cuda" else None,
            "device": device_name(self.net().to(self.device)),
            "threads": torch.get_num_threads(),
        }


def slimming_of(net: SlimmableNet, x: Tensor, y: Tensor, **options: Any) -> Slimming:
    defaults: dict[str, Any] = {"method": "bignas", "draw": 3, "full_first": 0}
    return Slimming(net.train(), total_steps=100, scoring=[(x, y)], **{**defaults, **options})
