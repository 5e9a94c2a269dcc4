"""What travels with a child: how it was cut, and what its inputs and outputs mean."""

from __future__ import annotations

from typing import Any

from joslim import __version__
from joslim.errors import UserError
from joslim.front import ERRORS, Point
from joslim.runs.folder import CONFIG
from joslim.runs.run import MOST_CHANNELS, MOST_CLASSES, Run
from joslim.untrusted import json_name, json_number, json_rows, json_value
from joslim.widths import Widths

# Goes up when a folder changes so that an older joslim cannot read it.
FORMAT = 1
INPUT, OUTPUT = "images", "scores"


def widths_of(run: Run, point: Any) -> Widths:
    """The widths of a point of this run, for which the network has statistics."""
    net = run.net
    widths = net._checked(getattr(point, "widths", point))
    if isinstance(point, Point) and not any(is_same(point, own) for own in run.front):
        raise UserError(
            f"point: it is not on the front of {str(run.path)!r}, another run may have it; "
            "take one of run.front, or give point.widths if you mean these channels"
        )
    if net._slim_net.norms and widths not in {*net.statistics, net.space.full}:
        raise UserError(
            "point: this child has no BatchNorm statistics of its own; take one of run.front, "
            "or call joslim.recalibrate(run.net, batches) at its widths first"
        )
    return widths


def is_same(point: Point, own: Point) -> bool:
    """But for its costs: milliseconds may be of another device."""
    figures = ("widths", "train_loss", *ERRORS)
    return all(getattr(point, name) == getattr(own, name) for name in figures)


def facts_of(run: Run, widths: Widths) -> dict[str, Any]:
    """All of it as JSON. Inputs are pixels from 0 to 1, less the mean, over the deviation."""
    data = json_value(run.facts, "data", CONFIG)
    classes = json_rows(data, "classes", f"{CONFIG}.data", MOST_CLASSES)
    known: Point | None = next((p for p in run.front if p.widths == widths), None)
    return {
        "format": FORMAT,
        "made_by": f"joslim {__version__}",
        "model": run.config.model,
        "low": run.config.low,
        "channels": widths.channels,
        "costs": known.costs if known else {},
        **{name: getattr(known, name, None) for name in ERRORS},
        "input": INPUT,
        "output": OUTPUT,
        "shape": list(run.net.example[0].shape[1:]),
        "mean": numbers(data, "mean"),
        "std": numbers(data, "std"),
        "classes": [json_name(name, f"{CONFIG}.data.classes") for name in classes],
    }


def numbers(data: Any, key: str) -> list[float]:
    where = f"{CONFIG}.data"
    return [json_number(n, f"{where}.{key}") for n in json_rows(data, key, where, MOST_CHANNELS)]
