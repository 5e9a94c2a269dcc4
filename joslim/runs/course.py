"""The course of a training, from the lines of metrics.jsonl: its losses, and the time it took."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from joslim.runs.visits import number

# So many places of a curve are enough to see how it went.
PLACES = 150
PACES = 40

Line = Mapping[str, Any]


def steps_of(metrics: Sequence[Line]) -> list[Line]:
    """Without the line of a finished run that says what its front took."""
    return [line for line in metrics if "phase" not in line]


def curves_of(metrics: Sequence[Line]) -> dict[str, list[float | None]]:
    """Losses over the steps, by the role of the child; each place is the mean of some lines."""
    steps = steps_of(metrics)
    size = max(1, math.ceil(len(steps) / PLACES))
    chunks = [steps[at : at + size] for at in range(0, len(steps), size)]
    curves: dict[str, list[float | None]] = {
        "step": [number(chunk[-1], "step") for chunk in chunks],
        "full": [mean(number(line, "loss") for line in chunk) for chunk in chunks],
        "sampled": [mean(x for line in chunk for x in sampled(line)) for chunk in chunks],
        "smallest": [mean(number(line, "smallest_loss") for line in chunk) for chunk in chunks],
    }
    return {name: values for name, values in curves.items() if any(x is not None for x in values)}


def sampled(line: Line) -> list[float | None]:
    """The losses but the first, of the full network, and that of the smallest."""
    losses = line.get("losses")
    others = losses[1:] if isinstance(losses, list) else []
    if (smallest := line.get("smallest_loss")) in others:
        others.remove(smallest)
    return [number({"loss": loss}, "loss") for loss in others]


def mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return short(sum(known) / len(known)) if known else None


def times_of(metrics: Sequence[Line], every: float | None) -> dict[str, Any]:
    """Seconds, also by part and over the steps, and passes through the network."""
    steps = steps_of(metrics)
    if not steps:
        return {}
    last = metrics[-1]
    return {
        **{name: number(last, name) for name in ("seconds", "passes", "scoring_passes")},
        "step": number(steps[-1], "step"),
        "step_seconds": number(steps[-1], "seconds"),
        "parts": parts_of(steps[-1], last),
        "pace": pace(steps, max(1.0, every or 1.0)),
    }


def parts_of(step: Line, last: Line) -> dict[str, float]:
    """Seconds by part: those written down, and what is left of the steps and of the judging.

    step: the line of the last step. last: that of the front, if the run has come so far.
    """
    parts = known_parts(last)
    if not parts:
        return {}
    within_steps = seconds_of(step) - sum(known_parts(step).values())
    later = sum(parts.values()) - sum(known_parts(step).values())
    judging = seconds_of(last) - seconds_of(step) - later
    found = {"training": within_steps, **parts, "judging": judging}
    return {name: seconds for name, seconds in found.items() if seconds > 0}


def known_parts(line: Line) -> dict[str, float]:
    parts = part(line, "parts")
    named = {name: number(parts, name) for name in parts}
    return {name: seconds for name, seconds in named.items() if seconds is not None}


def seconds_of(line: Line) -> float:
    return number(line, "seconds") or 0.0


def pace(steps: Sequence[Line], every: float) -> list[list[float]]:
    """[step, seconds since the start] at some steps, whole rounds apart: each has one search."""
    last = number(steps[-1], "step") or 0.0
    gap = every * max(1, math.ceil(last / every / PACES))
    places: list[list[float]] = []
    for line in steps:
        step, seconds = number(line, "step"), number(line, "seconds")
        if step is None or seconds is None:
            continue
        if not places or step >= places[-1][0] + gap:
            places.append([step, seconds])
    return places


def part(record: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = record.get(key)
    return value if isinstance(value, dict) else {}


def short(value: float) -> float:
    """Enough digits for a picture."""
    return float(f"{value:.5g}")
