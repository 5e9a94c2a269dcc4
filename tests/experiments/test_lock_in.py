"""How far a search locks itself in: the comparison on a small finished run."""

import argparse
import sys
from pathlib import Path

import numpy as np
import pytest

import joslim
from joslim.runs.run import Run

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

import lock_in


def test_children_of_a_run_are_compared(finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_in, "ROWS", {"row": {"data": "small", "size": 8}})
    monkeypatch.setattr(lock_in, "CLASSES", {"small": lambda size: joslim.load_data("digits")})
    monkeypatch.setattr(lock_in, "folder_of", lambda *_: finished.path)
    monkeypatch.setattr(lock_in, "BAND", (0.1, 1.0))
    monkeypatch.setattr(lock_in, "IMAGES", 64)
    before = {name: value.clone() for name, value in finished.net.state_dict().items()}
    options = argparse.Namespace(children=6, steps=2, rate=0.01, runs=None)
    part = lock_in.compared(options, "row", 0)
    assert part["visited"] > 0
    assert 0 <= part["at lowest"] <= 1
    assert -1 <= part["rank"] <= 1
    assert part["ahead before"] != part["ahead after"]  # the children have been trained
    assert all((value == before[name]).all() for name, value in finished.net.state_dict().items())


def test_random_children_are_in_the_band() -> None:
    net = joslim.slim(joslim.models.resnet8(20), (1, 3, 16, 16))
    macs = joslim.cost("macs", net)
    children = lock_in.random_in_band(net, 50, np.random.default_rng(0))
    shares = [macs(child) / macs(net.space.full) for child in children]
    low, high = lock_in.BAND
    assert all(low - 0.02 < share < high + 0.02 for share in shares)
    assert np.ptp(shares) > 0.15


def test_the_line_of_the_cost_is_taken_away() -> None:
    rng = np.random.default_rng(0)
    costs, quality = rng.random(40), rng.normal(size=40)
    left = lock_in.without_cost(3 - 2 * costs + quality, costs)
    assert abs(np.corrcoef(left, costs)[0, 1]) < 1e-9
    assert np.corrcoef(left, quality)[0, 1] > 0.95
