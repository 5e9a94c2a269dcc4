"""Estimates: time, memory and rounds, without a run."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from joslim.runs import driver
from joslim.runs.config import config_of
from joslim.runs.driver import TRIAL_STEPS, estimate, peak_memory
from joslim.runs.setup import Trainer, set_up


def facts_of(**options: Any) -> dict[str, Any]:
    return estimate(config_of({"batch": 8, **options}))


def test_the_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    facts = facts_of(steps=1000, every=30, samples=3)
    assert (facts["steps"], facts["every"], facts["rounds"], facts["children"]) == (
        1000,
        30,
        24,
        72,
    )
    assert facts["passes"] == 300 + 700 * 2
    assert facts["epochs"] == round(1000 * 8 / 1293, 2)
    assert facts["knobs"] == 6
    assert (facts["model"], facts["method"], facts["cost"]) == ("resnet8", "joslim", "macs")
    assert 0 < facts["seconds_a_step"] < 10
    # The other 300 steps train the full network alone, and are timed by themselves.
    assert facts["hours_of_steps"] > facts["seconds_a_step"] * 700 / 3600 - 1e-3
    assert 0 < facts["seconds_a_round"] < 60
    assert facts["hours_of_rounds"] == pytest.approx(facts["seconds_a_round"] * 24 / 3600, abs=1e-3)
    assert os.listdir(tmp_path) == []


def test_memory_is_in_bytes() -> None:
    assert 50e6 < peak_memory(torch.device("cpu")) < 1e12


def test_the_search_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one trial, with other children beside the full network; the other trial is alone."""
    made: list[Trainer] = []
    monkeypatch.setattr(driver, "set_up", lambda *a, **k: made.append(set_up(*a, **k)) or made[-1])
    assert facts_of(steps=100, every=1)["every"] == 1
    asked, alone, together = made
    assert [t.slimming.steps for t in made] == [0, TRIAL_STEPS + 1, TRIAL_STEPS + 1]
    assert (asked.slimming.every, len(asked.slimming.history)) == (1, 0), "nothing has changed"
    assert asked.optimizer.state_dict()["state"] == {}
    assert not alone.slimming.history
    assert len({visit.step for visit in together.slimming.history.visits}) == 1


@pytest.mark.parametrize(("method", "passes"), [("single", 10), ("slim", 3 + 7 * 2)])
def test_methods_without_rounds(method: str, passes: int) -> None:
    facts = facts_of(steps=10, method=method)
    assert (facts["rounds"], facts["passes"]) == (0, passes)
    assert facts["hours_of_rounds"] == 0


def test_children_of_a_search_at_the_end() -> None:
    assert facts_of(steps=100, every=2, method="bignas")["children"] == 70
