"""The self-test: what it checks holds on a CPU, and what fails is in the report."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from joslim.costs.device_file import DeviceFile
from joslim.runs.selftest import SelfTest


@pytest.fixture(autouse=True)
def _one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are not looked at."""
    monkeypatch.setattr(SelfTest, "seconds", lambda self, step, times=1: 1.0)


def test_a_cpu_passes() -> None:
    facts = json.loads(json.dumps(SelfTest("cpu", batch=2).run()))
    assert facts["ok"], facts["checks"]
    assert len(facts["checks"]) == 5
    assert facts["versions"]["torch"] == torch.__version__
    assert DeviceFile.of_json(facts["latency"]).ms
    assert set(facts["seconds"].values()) == {1.0}


def test_a_check_that_fails_is_reported_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = SelfTest.compare

    def compare(self: SelfTest, ours: Any, theirs: Any) -> None:
        real(self, ours, [theirs[0] * 1.1, *theirs[1:]])

    monkeypatch.setattr(SelfTest, "compare", compare)
    monkeypatch.setattr(SelfTest, "training", lambda self: None)
    monkeypatch.setattr(SelfTest, "latency", lambda self: {})
    monkeypatch.setattr(SelfTest, "speed", lambda self: {"full network alone": 0.5})
    lines: list[str] = []
    facts = SelfTest("cpu", batch=2).run(lines.append)
    assert not facts["ok"]
    failed = [name for name, found in facts["checks"].items() if found != "ok"]
    assert len(failed) == 3
    assert "the difference is 0.1" in facts["checks"][failed[0]]
    assert lines[-1] == "full network alone: 500 ms"
    assert len(lines) == 6


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_passes() -> None:
    facts = SelfTest("cuda", batch=8).run()
    assert facts["ok"], facts["checks"]
