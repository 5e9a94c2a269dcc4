"""Fronts of networks with one layer, and device files for them."""

from collections.abc import Sequence
from typing import Any

from joslim.costs.device_file import Conditions, DeviceFile
from joslim.front import Front, Point
from joslim.space import Dim, Knob, Widths, WidthSpace

SPACE = WidthSpace((Dim("stem", 16),), (Knob("stem", (0,), 0.25),))
OTHER = WidthSpace((Dim("stem", 8),), (Knob("stem", (0,), 0.25),))
INPUTS = ((1, 3, 8, 8),)


def front_of(space: WidthSpace, shares: Sequence[float], cost: str = "macs") -> Front:
    """Wider children cost more and have less loss; each took 100 ms on some old device."""
    points = [
        Point(
            space.uniform(share),
            {"macs": int(100 * share), "params": 1, "memory": 1, "latency_ms": 100 * share},
            2 - share,
        )
        for share in shares
    ]
    return Front(points, cost, (25, 100))


def device(children: Sequence[Widths], ms: Sequence[float], inputs: Any = INPUTS) -> DeviceFile:
    conditions = Conditions("phone", 1, 1, "fp32", "eager", "2.0", inputs)
    return DeviceFile(conditions, tuple(children), tuple(ms), (0.0,) * len(ms))
