"""The terms of a run: what it was trained with, whichever way that was typed.

Runs that differ in nothing but the seed are repetitions; a fair comparison varies the method, and
how it searches, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joslim.errors import UserError
from joslim.runs.config import SEARCH_OPTIONS, WHERE_AND_HOW, completed
from joslim.runs.folder import CONFIG, LATENCY, RunFolder
from joslim.runs.whereabouts import total_steps
from joslim.untrusted import json_name, json_value, shown
from joslim.widths import WidthSpace

# What is said in other words: the data by what they hold and not by where they lie, the recipe by
# what it sets, epochs by their steps.
REWORDED = frozenset(("data", "recipe", "epochs"))
# What a comparison is of: these tell its runs apart.
COMPARED = frozenset(("model", "cost", "method", "seed", "widths"))
SEARCH = frozenset(
    (
        "preset",
        "searcher",
        *SEARCH_OPTIONS,
        "every",
        "rescore",
        "replay",
        "score_images",
    )
)


def settings_of(facts: Mapping[str, Any], low: float | str | None) -> dict[str, Any]:
    """All settings that decide what a run computes, as it had them.

    facts: what config.json holds. low: the lowest width of its network.
    """
    config = completed(json_value(facts, "config", CONFIG))
    known = {k: v for k, v in config.items() if k not in WHERE_AND_HOW | REWORDED}
    return {**known, "steps": steps_of(facts), "low": low}


def terms_of(run: Path, facts: Mapping[str, Any], space: WidthSpace, where: str) -> dict[str, Any]:
    """What must be the same in one table, or in one panel of a figure; each can be a key.

    where: the file that the facts are from, for the message if something is wrong with them.
    """
    data = json_value(json_value(facts, "data", where), "identity", where)
    always = {"data": json_name(data, f"{where}: data"), "steps": total_steps(facts, where)}
    settings = settings_of(facts, low_of(space))
    alike = {k: v for k, v in settings.items() if k not in COMPARED | SEARCH}
    terms = {**always, **alike, **measured_on(run)}
    return {k: shown(v) if isinstance(v, (list, dict)) else v for k, v in terms.items()}


def measured_on(run: Path) -> dict[str, Any]:
    """What the latencies of a run are of: those of two devices are two costs."""
    if not (run / LATENCY).is_file():
        return {}
    conditions = json_value(RunFolder(run).read(LATENCY), "conditions", LATENCY)
    names = ("device", "threads", "batch", "precision", "backend")
    parts = [f"{name} {shown(json_value(conditions, name, LATENCY))}" for name in names]
    return {"device_file": ", ".join(parts)}


def low_of(space: WidthSpace) -> float | str | None:
    """The lowest width: that of the network where none was typed. Some have several."""
    lows = sorted({knob.low for knob in space.knobs})
    if len(lows) > 1:
        return f"{lows[0]:g} to {lows[-1]:g}"
    return lows[0] if lows else None


def steps_of(facts: Mapping[str, Any]) -> int | None:
    try:
        return total_steps(facts, CONFIG)
    except UserError:
        return None


def in_words(value: Any) -> str:
    """None stands for what was left to the preset, the data or the network."""
    return "default" if value is None else str(value)
