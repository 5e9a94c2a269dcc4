"""The controller on a machine whose speed the test decides."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import joslim_runtime
from joslim_runtime import BundleError, Controller, Network

IMAGES = np.zeros((1, 2, 3, 3), np.float32)


class Machine:
    """A clock that moves on by the multiply-adds of each pass, in ms, times the load."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.load = 0.0, 1.0
        real = Network.__call__

        def passing(net: Network, batch: object, child: joslim_runtime.Child) -> object:
            self.now += self.load * child.costs["macs"] / 1000
            return real(net, batch, child)  # type: ignore[arg-type]

        monkeypatch.setattr(Network, "__call__", passing)

    def __call__(self) -> float:
        return self.now


def test_it_follows_the_load(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch)
    net = joslim_runtime.open(make_bundle())
    controller = Controller(net, target_ms=5, example=IMAGES, clock=machine)
    assert controller.quiet_ms == pytest.approx({"child-01": 2, "child-02": 3, "child-03": 4})
    used = []
    for load in (1.0, 1.4, 2.0, 10.0, 1.0):
        machine.load = load
        for _ in range(20):
            controller(IMAGES)
        used.append(net.active.name)
        assert controller.slowdown == pytest.approx(load, rel=0.05)
    assert used == ["child-03", "child-02", "child-01", "child-01", "child-03"]


def test_no_target(make_bundle: Callable[..., Path]) -> None:
    with pytest.raises(BundleError, match="target_ms: 0 given"):
        Controller(joslim_runtime.open(make_bundle()), 0, IMAGES)
