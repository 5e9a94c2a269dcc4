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
from joslim.front import ERRORS, Front, Point
from joslim.runs.config import DEFAULTS, WHERE_AND_HOW, steps_in
from joslim.runs.course import curves_of, part, short, times_of
from joslim.runs.folder import CONFIG, FRONT, HISTORY, METRICS, RunFolder, read_lines
from joslim.runs.visits import Visits, number
from joslim.untrusted import json_value, shown
from joslim.widths import WidthSpace

Story = dict[str, Any]

LONGEST_TEXT = 200


class NothingYet(UserError):
    """A run that has only just begun."""


def story_of(path: str | Path) -> Story:
    """All that is known of one run; see the functions below for its parts."""
    folder = RunFolder(path)
    if folder.path.is_file():
        raise UserError(f"run: {str(path)!r} is a file; type the folder of a run")
    facts = folder.read(CONFIG)
    if "joslim" not in facts:
        raise UserError(f"run: {str(path)!r} is not a run folder: its {CONFIG} is not joslim's")
    config = json_value(facts, "config", CONFIG)
    if not isinstance(config, dict):
        raise UserError(f"{CONFIG}.config: {shown(config)} is not a JSON object")
    config = {**DEFAULTS, **config}  # an older version did not know all settings
    metrics = lines_of(folder, METRICS)
    history = read_history(folder)
    status = status_of(folder, facts, config, metrics)
    front = front_of(folder, history, status["finished"])
    return {
        "name": folder.path.resolve().name or str(path),
        "export": export_command(folder.path, config),
        **{name: text_of(config.get(name)) for name in ("model", "data", "method", "seed")},
        "identity": text_of(part(facts, "data").get("identity", config.get("data"))),
        "status": status,
        "front": front,
        "visits": visits_of(history, front),
        "growth": growth_of(history),
        "curves": curves_of(metrics),
        "times": times_of(metrics, number(config, "every")),
        "config": {text_of(key): text_of(value) for key, value in config.items()},
        # What repetitions of a run have in common.
        "terms": {
            text_of(key): text_of(value)
            for key, value in config.items()
            if key not in WHERE_AND_HOW and key != "seed"
        },
        "facts": data_facts(part(facts, "data"), facts.get("joslim")),
    }


def text_of(value: Any) -> str:
    """Any JSON value in a cell of a table."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def lines_of(folder: RunFolder, name: str) -> list[dict[str, Any]]:
    file = folder.file(name)
    return read_lines(file) if file.exists() else []


def export_command(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """What stands before and after the budget in the command that exports a child."""
    place = str(path)
    # A dash in front would be read as an option.
    words = f"./{place}" if place.startswith("-") else place
    model = str(config.get("model"))
    own = "package.module:function" if model.startswith("<") else model
    again = f" --model {shlex.quote(own)}" if ":" in own else ""
    return {"before": f"joslim export {shlex.quote(words)}", "after": again, "path": place}


# How far it is


def status_of(
    folder: RunFolder, facts: Mapping[str, Any], config: Mapping[str, Any], metrics: list[Any]
) -> dict[str, Any]:
    """A run that was asked to go on has a front and is not finished."""
    step = int(number(metrics[-1], "step") or 0) if metrics else 0
    total = total_steps(config, part(part(facts, "data"), "sizes"))
    done = not metrics or total is None or step >= total
    return {"finished": folder.file(FRONT).is_file() and done, "step": step, "total": total}


def total_steps(config: Mapping[str, Any], sizes: Mapping[str, Any]) -> int | None:
    """As the training counts them; None where the file does not say it."""
    if (steps := number(config, "steps")) is not None:
        return int(steps)
    epochs, batch, images = (
        number(config, "epochs"),
        number(config, "batch"),
        number(sizes, "train"),
    )
    if epochs is None or not batch or images is None:
        return None
    return steps_in(epochs, images, batch)


# The children


def read_history(folder: RunFolder) -> Visits | None:
    lines = lines_of(folder, HISTORY)
    return Visits(lines) if lines else None


def front_of(folder: RunFolder, history: Visits | None, finished: bool) -> dict[str, Any]:
    """The front that was judged; while it trains, that of the losses known so far."""
    if finished:
        return judged(Front.read(folder.path))
    children = history.front(history.losses) if history else []
    if history is None or not children:
        raise NothingYet(
            f"run: {str(folder.path)!r} has nothing to show yet: no child was scored; "
            "wait for its first round, or type joslim resume RUN"
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
