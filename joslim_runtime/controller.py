"""A controller that keeps to a latency target while the load of the machine changes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from numpy.typing import ArrayLike

from joslim_runtime.bundle import Floats
from joslim_runtime.manifest import BundleError, Child
from joslim_runtime.network import Network

# The weight of the newest measurement, and the share of the target to aim at, because times vary on
# a busy machine.
NEWEST = 0.3
AIM = 0.85
ROUNDS = 5


class Controller:
    """Runs each batch with the best child that meets the target at the present speed.

    It measures all children once, on a machine that should be idle then. Afterwards it estimates
    from each pass how much slower the machine is at the moment.

    Attributes:
        quiet_ms: Latency of each child on the idle machine, by its name.
        slowdown: The present latency over that of the idle machine.
    """

    def __init__(
        self,
        net: Network,
        target_ms: float,
        example: ArrayLike,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Measure all children.

        Args:
            net: A network whose `keep` is large enough for the children to stay open.
            target_ms: The latency of a pass to keep to.
            example: A batch as it will be run.
            clock: A function that returns seconds.
        """
        if not target_ms > 0:
            raise BundleError(f"target_ms: {target_ms!r} given, a positive number needed")
        self.net, self.target_ms, self.slowdown = net, target_ms, 1.0
        self._clock = clock
        times: dict[str, list[float]] = {child.name: [] for child in net.front}
        for child in net.front:
            for _ in range(1 + ROUNDS):
                times[child.name].append(self._timed(child, example)[0])
        # The first pass of a child allocates its memory.
        self.quiet_ms = {name: statistics.median(own[1:]) for name, own in times.items()}

    def choose(self) -> Child:
        """Return the best child that meets the target at the present speed, else the fastest."""
        front, aim = self.net.front, AIM * self.target_ms
        fitting = [c for c in front if self.quiet_ms[c.name] * self.slowdown <= aim]
        if not fitting:
            return min(front, key=lambda child: self.quiet_ms[child.name])
        return min(fitting, key=lambda child: child.train_loss)

    def __call__(self, batch: ArrayLike) -> Floats:
        """Run a batch with the child that fits now, and learn from its latency."""
        child = self.choose()
        self.net.use(child)
        ms, scores = self._timed(child, batch)
        self.slowdown += NEWEST * (ms / self.quiet_ms[child.name] - self.slowdown)
        return scores

    def _timed(self, child: Child, batch: ArrayLike) -> tuple[float, Floats]:
        self.net.session(child)  # opening is not part of the latency
        start = self._clock()
        scores = self.net(batch, child)
        return 1000 * (self._clock() - start), scores
