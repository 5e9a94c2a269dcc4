"""The page as one file: a template, a style, scripts, and records and boards of runs as JSON.

It loads nothing from any network. Names from files reach it as JSON, and the scripts put them in as
text, so that markup in a name is shown and not obeyed.
"""

from __future__ import annotations

import html
import json
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from joslim.costs import COSTS, cost_info
from joslim.front import ERRORS
from joslim.results.groups import (
    Board,
    Group,
    Spread,
    band,
    boards_of,
    cell_text,
    cell_texts,
    spread_budgets,
)
from joslim.results.record import Record, short

Json = dict[str, Any]

BAND_POINTS = 160
MOST_CLASSES = 100
HERE = Path(__file__).parent
STYLES = ("colours.css", "page.css")
# In the order in which the browser reads them.
SCRIPTS = (
    "words.js",
    "charts.js",
    "front.js",
    "mistakes.js",
    "budget.js",
    "compare.js",
    "search.js",
    "course.js",
    "page.js",
)
HOLE = re.compile(r"\{\{(\w+)\}\}")


def page_of(records: Sequence[Record], refresh: int | None = None) -> str:
    """Make the HTML of the page. refresh: seconds after which it reloads while a run trains."""
    title = ", ".join(record.name for record in records[:3])
    more = f" and {len(records) - 3} more" if len(records) > 3 else ""
    parts = {
        "title": html.escape(f"{title}{more}"),
        "style": joined(STYLES),
        "data": embedded(content_of(records, refresh)),
        "scripts": joined(SCRIPTS),
    }
    # All holes are filled at once, so that a name that looks like a hole stays as it is.
    text = HOLE.sub(lambda hole: parts[hole[1]], joined(["template.html"]))
    # A folder may have a name that is no text.
    return text.encode("utf-8", "replace").decode("utf-8")


def joined(names: Sequence[str]) -> str:
    return "\n".join((HERE / name).read_text(encoding="utf-8") for name in names)


def embedded(data: Any) -> str:
    """Write JSON that can neither end the element it stands in nor begin another."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


# The JSON that the scripts read


def content_of(records: Sequence[Record], refresh: int | None = None) -> Json:
    """The data that the page embeds. refresh: seconds after which it is read again."""
    runs = [run_json(record) for record in records]
    keys = dict.fromkeys(key for run in runs if run["front"] for key in run["front"]["costs"])
    flags = {info.key: info.flag for info in COSTS.values()}  # other costs have none
    return {
        "runs": runs,
        "boards": [_board_json(board, records) for board in boards_of(records)],
        "costs": {
            key: {
                "label": info.label,
                "axis": info.axis_label,
                "unit": info.unit,
                "symbol": info.symbol,
                "flag": flags.get(key),
            }
            for key, info in ((key, cost_info(key)) for key in keys)
        },
        "refresh": refresh,
    }


def run_json(record: Record) -> Json:
    """Everything that the page shows of one run."""
    front, history = _front_json(record), record.history
    config = {**record.config, "low": record.low} if front else record.config
    return {
        "name": record.name,
        "export": export_command(record),
        **cell_texts({name: config.get(name) for name in ("model", "data", "method", "seed")}),
        "status": {**asdict(record.status), "alone_until": record.alone_until},
        "front": front,
        "metric": asdict(record.metric),
        "visits": record.visits,
        "growth": [
            {
                "step": step,
                "points": [[history.costs[i], short(losses[i])] for i in history.front(losses)],
            }
            for step, losses in history.moments
        ]
        if history
        else [],
        "curves": record.curves,
        "validation": asdict(validation) if (validation := record.validation) else None,
        "targets": {**asdict(targets), "words": targets.words}
        if (targets := record.targets)
        else None,
        "times": asdict(times) if (times := record.times) else {},
        "config": cell_texts(config),
        "facts": _facts_json(record),
    }


def export_command(record: Record) -> Json:
    """The command that exports a child, before and after its budget.

    unnamed: the network was an object, and only its owner knows the function that makes it.
    """
    place = str(record.path)
    # A dash in front would be read as an option.
    words = f"./{place}" if place.startswith("-") else place
    model = str(record.config.get("model"))
    unnamed = model.startswith("<")
    after = f" --model {shlex.quote(model)}" if ":" in model and not unnamed else ""
    if record.device_file is not None:
        after += f" --device-file {shlex.quote(str(record.device_file))}"
    before = f"joslim export {shlex.quote(words)}"
    return {"before": before, "after": after, "path": place, "unnamed": unnamed}


def _front_json(record: Record) -> Json | None:
    """The judged front; while the run trains, the children that are best by the losses so far.

    None before the first child has been scored.
    """
    front, history = record.front, record.history
    if front is not None:
        costs, span = list(front.costs), list(front.span)
        known = [name for name in ERRORS if front.errors(name) is not None]
        children = [
            {
                "counts": list(point.widths.counts),
                "costs": point.costs,
                "train_loss": point.train_loss,
                **{name: getattr(point, name) for name in ERRORS},
                "rank": rank,
                "mistakes": asdict(point.mistakes) if point.mistakes else None,
            }
            for rank, point in zip(front.ranks(), front)
        ]
    elif history is None or not record.provisional_front:
        return None
    else:
        finite = [cost for cost in history.costs if math.isfinite(cost)]
        costs, span, known = [history.key], [min(finite), max(finite)], []
        children = [
            {
                "counts": list(history.counts[child]),
                "costs": {history.key: history.costs[child]},
                "train_loss": history.losses[child],
                **dict.fromkeys(ERRORS),
                "rank": history.losses[child],
                "mistakes": None,
            }
            for child in record.provisional_front
        ]
    dims = record.space.dims
    return {
        "key": costs[0],
        "costs": costs,
        "measures": [*known, "train_loss"],
        "by": front.by if front else "train_loss",
        "span": span,
        "dims": [
            {"name": d.name, "full": d.full, "layers": list(d.layers), "kind": d.kind} for d in dims
        ],
        "children": children,
        "area": {name: front.area(name) for name in [*known, "train_loss"]} if front else {},
        "hypervolume": {name: front.hypervolume(name) for name in known} if front else {},
        "judged": front is not None,
        "classes": _class_names(record),
    }


def _class_names(record: Record) -> dict[int, str]:
    """The names of the classes that the mistakes of children mention; their number if unknown."""
    points = record.front or ()
    mentioned = {
        number
        for point in points
        if (found := point.mistakes)
        for number in (*(row[0] for row in found.classes), *(row[1] for row in found.confusions))
    }
    data = record.facts.get("data")
    names = data.get("classes") if isinstance(data, dict) else None
    known = names if isinstance(names, list) else []
    return {n: cell_text(known[n]) if n < len(known) else str(n) for n in sorted(mentioned)}


def _facts_json(record: Record) -> dict[str, str]:
    """What config.json knows of the data, for the table of the configuration."""
    data = record.facts.get("data")
    data = data if isinstance(data, dict) else {}
    sizes, shape, classes = (data.get(name) for name in ("sizes", "shape", "classes"))
    facts = {"data": cell_text(data.get("identity", ""))}
    if isinstance(sizes, dict):
        parts = [f"{cell_text(name)} {cell_text(size)}" for name, size in sizes.items()]
        facts["images"] = ", ".join(parts)
    if isinstance(shape, list):
        facts["shape"] = " x ".join(map(cell_text, shape))
    if isinstance(classes, list):
        names = ", ".join(map(cell_text, classes[:MOST_CLASSES]))
        facts["classes"] = cell_text(f"{len(classes)}: {names}")
    if isinstance(source := record.facts.get("weights_of"), dict):
        run, cost = (cell_text(source.get(name)) for name in ("run", "cost"))
        facts["weights"] = f"those of {run}, trained with cost {cost}; judged again"
    facts["joslim"] = cell_text(record.facts.get("joslim"))
    return {name: text for name, text in facts.items() if text}


def _board_json(board: Board, records: Sequence[Record]) -> Json:
    groups = [_group_json(group, board, records) for group in board.groups]
    names = ("data", "key", "measure", "span", "difference")
    words = {"metric": asdict(board.metric), "groups": groups}
    return {**{name: getattr(board, name) for name in names}, **words}


def _group_json(group: Group, board: Board, records: Sequence[Record]) -> Json:
    """A group with [mean, deviation] of its figures; null where some run does not have one."""
    runs, fronts, measure = [records[at] for at in group.places], group.fronts, board.measure
    judged = measure in ERRORS
    curves = None
    if len(fronts) > 1:
        # What a budget buys on average, from the first budget that buys a child of every run.
        cheapest = max(front[0].costs[board.key] for front in fronts)
        dearest = max(max(front.span) for front in fronts)
        budgets = spread_budgets(cheapest, max(cheapest, dearest), BAND_POINTS)
        mean, deviation = band(fronts, budgets, board.key, measure)
        assert deviation is not None
        found = {"budgets": budgets, "mean": mean, "deviation": deviation}
        curves = {name: values.tolist() for name, values in found.items()}
    return {
        "name": group.name,
        "runs": list(group.places),
        "seeds": [cell_text(record.config.get("seed", "")) for record in runs],
        "band": curves,
        "area": _spread_json([f.area(measure) if judged else None for f in fronts]),
        "loss_area": _spread_json([front.area("train_loss") for front in fronts]),
        "hypervolume": _spread_json([f.hypervolume(measure) if judged else None for f in fronts]),
        "children": _spread_json([len(front) for front in fronts]),
        "seconds": _spread_json([times.seconds if (times := r.times) else None for r in runs]),
    }


def _spread_json(values: Sequence[float | None]) -> list[float | None] | None:
    known = [value for value in values if value is not None]
    spread = Spread.of(known)
    return [spread.mean, spread.deviation] if len(known) == len(values) else None
