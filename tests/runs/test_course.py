"""Losses and times of a training, from lines that may lack anything."""

import itertools
from typing import Any

import pytest

from joslim.runs.course import curves_of, pace, times_of
from joslim.runs.folder import read_lines
from joslim.runs.run import Run


def line(step: int, **more: Any) -> dict[str, Any]:
    losses = [1.0 * step, 2.0 * step, 4.0 * step, 9.0 * step]
    return {"step": step, "loss": losses[0], "smallest_loss": losses[3], "losses": losses, **more}


def test_curves_are_means_of_some_lines() -> None:
    few = curves_of([line(1), line(2)])
    assert few == {
        "step": [1, 2],
        "full": [1.0, 2.0],
        "sampled": [3.0, 6.0],
        "smallest": [9.0, 18.0],
    }
    many = curves_of([line(step) for step in range(1, 301)])
    assert many["step"] == [*range(2, 301, 2)]
    assert many["full"][0] == 1.5
    assert many["sampled"][0] == 4.5


def test_curves_leave_out_what_is_not_there() -> None:
    alone = curves_of([{"step": 1, "loss": 1.0, "losses": [1.0]}, {"step": 2, "loss": "x"}])
    assert alone == {"step": [1, 2], "full": [1.0, None]}
    assert curves_of([]) == {}
    front = {"step": 2, "phase": "front", "seconds": 1.0}
    assert curves_of([line(1), front])["step"] == [1]


def test_times_of_a_run(finished: Run) -> None:
    lines = read_lines(finished.path / "metrics.jsonl")
    times = times_of(lines, 2)
    for name in ("seconds", "passes", "scoring_passes"):
        assert times[name] == lines[-1][name]
    assert times["step"] == 6
    assert {"training", "search", "scoring"} <= times["parts"].keys()
    assert sum(times["parts"].values()) == pytest.approx(times["seconds"])


def test_parts_add_up_to_the_whole() -> None:
    step = line(4, seconds=10.0, parts={"search": 2.0, "scoring": 1.0})
    front = {"step": 4, "phase": "front", "seconds": 18.0, "parts": {"search": 5.0, "scoring": 1.5}}
    assert times_of([step], 2)["parts"] == {"training": 7.0, "search": 2.0, "scoring": 1.0}
    assert times_of([step, front], 2)["parts"] == {
        "training": 7.0,
        "search": 5.0,
        "scoring": 1.5,
        "judging": 4.5,
    }
    assert times_of([step, front], 2)["step_seconds"] == 10.0


def test_times_of_lines_that_lack_something() -> None:
    assert times_of([line(4, parts=[1])], None)["parts"] == {}
    assert times_of([line(4)], None)["seconds"] is None
    odd = line(4, seconds=3, parts={"search": "x", "<b>": 1})
    assert times_of([odd], 0)["parts"] == {"training": 2, "<b>": 1}
    assert times_of([], 2) == {}


def test_the_pace_is_taken_whole_rounds_apart() -> None:
    lines = [line(step, seconds=step / 10) for step in range(1, 1201)]
    steps = [step for step, _ in pace(lines, 12)]
    assert len(steps) <= 41
    assert {b - a for a, b in itertools.pairwise(steps)} == {36}
    assert pace([line(1)], 12) == []
