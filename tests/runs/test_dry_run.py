"""Estimates: time, memory and rounds, without a run."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from joslim.runs import driver
from joslim.runs.config import config_of
from joslim.runs.driver import TRIAL_STEPS, estimate, peak_memory
from joslim.runs.setup import set_up
from joslim.runs.trainer import Trainer
from joslim.search.targeted import Targeted
from joslim.training import exploring


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
    assert os.listdir(tmp_path) == []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes with work alone: a second for each width of a step, and more for a search.

    The first step of a training takes a minute longer.
    """
    now = 0.0

    def slowed(work: Callable[..., Any], seconds: Callable[..., float]) -> Callable[..., Any]:
        def do(*arguments: Any) -> Any:
            nonlocal now
            done = work(*arguments)
            now += seconds(*arguments)
            return done

        return do

    for module in (driver, exploring):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now))

    def of_step(trainer: Trainer, x: Any, y: Any) -> float:
        return len(trainer.slimming.widths) + 60 * (trainer.slimming.steps == 1)

    monkeypatch.setattr(Trainer, "step", slowed(Trainer.step, of_step))
    monkeypatch.setattr(Targeted, "propose", slowed(Targeted.propose, lambda *_: 4.0))
    monkeypatch.setattr(exploring, "score", slowed(exploring.score, lambda *_: 0.5))


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("draw", "widths"), [(1, 2), (3, 4)])
def test_times_are_those_of_the_steps_and_rounds(draw: int, widths: int) -> None:
    """300 steps train the full network alone; the first step of a trial does not count."""
    facts = facts_of(steps=1000, every=30, samples=2, draw=draw)
    assert facts["seconds_a_step"] == widths
    assert facts["hours_of_steps"] == round((300 + 700 * widths) / 3600, 3)
    assert facts["seconds_a_round"] == 4.5
    assert facts["hours_of_rounds"] == round(4.5 * 24 / 3600, 3)


@pytest.mark.usefixtures("clock")
def test_times_without_rounds() -> None:
    facts = facts_of(steps=1000, method="single")
    assert (facts["seconds_a_step"], facts["seconds_a_round"]) == (1, 0)
    assert (facts["hours_of_steps"], facts["hours_of_rounds"]) == (round(1000 / 3600, 3), 0)


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


def test_several_devices(clock: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search is not shared; gradients go around once a step."""
    facts = facts_of(steps=1000, every=30, batch=8)
    assert facts["hours_on"].keys() == {"2", "8"}  # 8 images cannot be shared out over 64
    one = facts["hours_of_steps"] + facts["hours_of_rounds"]
    assert one / 8 < facts["hours_on"]["8"] < facts["hours_on"]["2"] < one
    assert driver.seconds_on(1, 100.0, 7.0, 1e12) == 107.0
    monkeypatch.setattr(driver, "BANDWIDTH", 1e9)
    assert driver.seconds_on(4, 100.0, 7.0, 4e9) == pytest.approx(25 + 7 + 6)
