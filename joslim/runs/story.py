"""What a run folder has to tell, as one plain dict: for the page, or for whoever likes JSON.

It is read without torch and without the network, from a run that is finished or still going.
Anybody may have written the files: what is broken is a UserError, what is missing is left out.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from joslim.errors import UserError
from joslim.front import ERRORS, LATENCY, Front, Point
from joslim.runs.config import completed
from joslim.runs.course import curves_of, part, short, times_of
from joslim.runs.folder import CONFIG, HISTORY, METRICS, RunFolder, read_lines
from joslim.runs.fronts import timed_fronts
from joslim.runs.opening import facts_of_run
from joslim.runs.terms import low_of, settings_of
from joslim.runs.visits import Visits, number
from joslim.runs.whereabouts import FINISHED, TRAINING, Whereabouts, how_to_go_on, where_is
from joslim.untrusted import json_value, shown
from joslim.widths import WidthSpace

Story = dict[str, Any]

LONGEST_TEXT = 200


class NothingYet(UserError):
    """A run that has only just begun."""


def story_of(path: str | Path, device_file: str | Path | None = None) -> Story:
    """All that is known of one run; see the functions below for its parts.

    device_file: of a device whose milliseconds the children have, in place of the run's own.
    """
    folder = RunFolder(path)
    facts = facts_of_run(folder.path)
    config = json_value(facts, "config", CONFIG)
    if not isinstance(config, dict):
        raise UserError(f"{CONFIG}.config: {shown(config)} is not a JSON object")
    config = completed(config)
    metrics = lines_of(folder, METRICS)
    history = read_history(folder)
    where = where_is(folder.path)
    front = front_of(folder, history, where, device_file)
    if device_file is not None and front["key"] == LATENCY:
        history = None  # the search went by the milliseconds of another device
    config["low"] = front["low"]
    return {
        "name": folder.path.resolve().name or str(path),
        "export": export_command(folder.path, config, device_file),
        **{name: text_of(config.get(name)) for name in ("model", "data", "method", "seed")},
        "identity": text_of(part(facts, "data").get("identity", config.get("data"))),
        "status": {"state": where.state, "step": where.step, "total": where.total},
        "front": front,
        "visits": visits_of(history, front),
        "growth": growth_of(history),
        "curves": curves_of(metrics),
        "times": times_of(metrics, number(config, "every")),
        "config": texts_of(config),
        # What repetitions of a run have in common.
        "terms": texts_of({**settings_of(facts, front["low"]), "seed": None}),
        "facts": data_facts(part(facts, "data"), facts.get("joslim")),
    }


def text_of(value: Any) -> str:
    """Any JSON value in a cell of a table."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def texts_of(settings: Mapping[str, Any]) -> dict[str, str | None]:
    """None where nothing was set."""
    return {text_of(k): None if v is None else text_of(v) for k, v in settings.items()}


def lines_of(folder: RunFolder, name: str) -> list[dict[str, Any]]:
    file = folder.file(name)
    return read_lines(file) if file.exists() else []


def export_command(
    path: Path, config: Mapping[str, Any], device_file: str | Path | None = None
) -> dict[str, Any]:
    """What stands before and after the budget in the command that exports a child.

    unnamed: the network was an object, and only its owner knows the function that makes it.
    """
    place = str(path)
    # A dash in front would be read as an option.
    words = f"./{place}" if place.startswith("-") else place
    model = str(config.get("model"))
    unnamed = model.startswith("<")
    again = f" --model {shlex.quote(model)}" if ":" in model and not unnamed else ""
    if device_file is not None:
        again += f" --device-file {shlex.quote(str(device_file))}"
    before = f"joslim export {shlex.quote(words)}"
    return {"before": before, "after": again, "path": place, "unnamed": unnamed}


# The children


def read_history(folder: RunFolder) -> Visits | None:
    lines = lines_of(folder, HISTORY)
    return Visits(lines) if lines else None


def front_of(
    folder: RunFolder,
    history: Visits | None,
    where: Whereabouts,
    device_file: str | Path | None = None,
) -> dict[str, Any]:
    """The front that was judged; while it trains, that of the losses known so far."""
    if where.state == FINISHED:
        (front,) = timed_fronts([folder.path], [device_file] if device_file else [])
        return judged(front)
    children = history.front(history.losses) if history else []
    if history is None or not children:
        going = f"is still training ({where.place}); wait"
        state = going if where.state == TRAINING else how_to_go_on(folder.path, where)
        raise NothingYet(
            f"run: {str(folder.path)!r} has nothing to show yet, no child was scored: it {state}"
        )
    return provisional(history, children)


def judged(front: Front) -> dict[str, Any]:
    known = [name for name in ERRORS if front.errors(name) is not None]
    return {
        "key": front.key,
        "costs": list(front.costs),
        "measures": [*known, "train_loss"],
        "span": list(front.span),
        "dims": dims_of(front.space),
        "low": low_of(front.space),
        "children": [child_of(point) for point in front],
        "area": {name: front.area(name) for name in known},
        "hypervolume": {name: front.hypervolume(name) for name in known},
        "judged": True,
    }


def child_of(point: Point) -> dict[str, Any]:
    errors = {name: getattr(point, name) for name in ERRORS}
    costs, counts = point.costs, list(point.widths.counts)
    return {"counts": counts, "costs": costs, "train_loss": point.train_loss, **errors}


def provisional(history: Visits, children: Sequence[int]) -> dict[str, Any]:
    costs = [cost for cost in history.costs if math.isfinite(cost)]
    return {
        "key": history.key,
        "costs": [history.key],
        "measures": ["train_loss"],
        "span": [min(costs), max(costs)],
        "dims": dims_of(history.space),
        "low": low_of(history.space),
        "children": [
            {
                "counts": list(history.counts[child]),
                "costs": {history.key: history.costs[child]},
                "train_loss": history.losses[child],
                **dict.fromkeys(ERRORS),
            }
            for child in children
        ],
        "area": {},
        "hypervolume": {},
        "judged": False,
    }


def dims_of(space: WidthSpace) -> list[dict[str, Any]]:
    return [{"name": d.name, "full": d.full, "layers": list(d.layers)} for d in space.dims]


def visits_of(history: Visits | None, front: Mapping[str, Any]) -> list[list[Any]]:
    """[step, cost, loss, whether it is on the front] of all scored children, the oldest first."""
    if history is None:
        return []
    on_front = {tuple(child["counts"]) for child in front["children"]}
    return [
        [history.steps[child], history.costs[child], short(loss), history.counts[child] in on_front]
        for child, loss in sorted(history.losses.items())
        if math.isfinite(history.costs[child]) and math.isfinite(loss)
    ]


def growth_of(history: Visits | None) -> list[dict[str, Any]]:
    """The front at some moments of the training, as [cost, loss]."""
    if history is None:
        return []
    return [
        {
            "step": step,
            "points": [[history.costs[i], short(losses[i])] for i in history.front(losses)],
        }
        for step, losses in history.moments
    ]


# The data


def data_facts(data: Mapping[str, Any], version: Any) -> dict[str, str]:
    """What config.json knows of the data, for the table of the configuration."""
    sizes = part(data, "sizes")
    images = ", ".join(f"{text_of(name)} {text_of(size)}" for name, size in sizes.items())
    classes = data.get("classes")
    shape = data.get("shape")
    facts = {
        "data": text_of(data.get("identity", "")),
        "images": images,
        "shape": " x ".join(text_of(n) for n in shape) if isinstance(shape, list) else "",
        "classes": class_names(classes) if isinstance(classes, list) else "",
        "joslim": text_of(version),
    }
    return {name: text for name, text in facts.items() if text}


def class_names(classes: Sequence[Any]) -> str:
    return text_of(f"{len(classes)}: {', '.join(text_of(name) for name in classes[:100])}")
