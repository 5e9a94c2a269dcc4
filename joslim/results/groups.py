"""Group runs: which of them compare, what they have on average, and what a budget buys.

The tables, the plots, the page, `joslim compare` and `joslim figure` all take their groups and
their figures from here. Deviations are those of a sample, over seeds.
"""

from __future__ import annotations

import json
import statistics
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joslim.errors import UserError
from joslim.files import json_value, shown
from joslim.front import ERRORS, Front, MetricName, bought
from joslim.results.record import Record
from joslim.results.run_files import CONFIG, LATENCY, read_object, total_steps
from joslim.training.settings import SEARCH_FIELDS, WHERE_AND_HOW

# Settings that other terms replace: the identity of the data, the settings of the recipe, steps.
REPLACED = frozenset(("data", "recipe", "epochs"))
# Settings that tell the runs of a comparison apart, and settings of the search.
VARIED = {
    "model",
    "cost",
    "method",
    "seed",
    "widths",
    "random_share",
    "channels_only",
    "score_images",
    *SEARCH_FIELDS,
}
LEAST_PAIRS = 3
# Costs that differ by more than this factor are drawn on a logarithmic scale.
WIDE = 20.0
LONGEST_TEXT = 200
# Settings whose values need no name beside them, and settings that change the content of the data.
PLAIN = ("method", "model")
OF_DATA = ("size", "val")


# Which runs compare


def run_settings(record: Record) -> dict[str, Any]:
    """All settings that decide what a run computes, however they were typed."""
    skipped = WHERE_AND_HOW | REPLACED
    known = {name: value for name, value in record.config.items() if name not in skipped}
    try:
        steps: int | None = total_steps(record.facts, CONFIG)
    except UserError:
        steps = None
    return {**known, "steps": steps, "low": record.low}


def terms_of(record: Record) -> dict[str, Any]:
    """The settings that must agree within one table or panel; each value is hashable.

    A fair comparison varies the method, and how it searches, and nothing else.
    """
    steps = total_steps(record.facts, record.where)
    terms: dict[str, Any] = {"data": record.data_identity, "steps": steps}
    for name, value in run_settings(record).items():
        if name not in VARIED:
            terms.setdefault(name, shown(value) if isinstance(value, (list, dict)) else value)
    if (record.path / LATENCY).is_file():  # latencies of two devices are two costs
        conditions = json_value(read_object(record.path, LATENCY), "conditions", LATENCY)
        names = ("device", "threads", "batch", "precision", "backend")
        parts = [f"{name} {shown(json_value(conditions, name, LATENCY))}" for name in names]
        terms["device_file"] = ", ".join(parts)
    return terms


def differences(all_terms: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the terms that do not agree, each with its values; empty terms are left out."""
    known = [terms for terms in all_terms if terms]
    found = {}
    for name in dict.fromkeys(name for terms in known for name in terms):
        values = list(dict.fromkeys(terms.get(name) for terms in known))
        if len(values) > 1:
            found[name] = [value_text(value) for value in values]
    return found


def value_text(value: Any) -> str:
    """Show "default" for a value that was left to the preset, the data or the network."""
    return "default" if value is None else str(value)


def refuse_repetitions(runs: Iterable[tuple[str, int, Path]]) -> None:
    """Refuse two runs with one label and seed: in a table or a line, one would hide the other.

    runs: (label, seed, folder) of each.
    """
    seen: dict[tuple[str, int], Path] = {}
    for label, seed, path in runs:
        if other := seen.get((label, seed)):
            if other.resolve() == path.resolve():
                raise UserError(f"runs: {str(path)!r} is given twice; leave one out")
            both = f"{str(other)!r} and {str(path)!r}"
            raise UserError(f"seed: {both} are both {label} with seed {seed}; leave one out")
        seen[label, seed] = path


# Means over seeds


@dataclass(frozen=True)
class Spread:
    """Mean of the values, and their standard deviation if there are at least two."""

    mean: float | None
    deviation: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        found = list(values)
        return cls(
            statistics.fmean(found) if found else None,
            statistics.stdev(found) if len(found) > 1 else None,
        )

    def named(self, name: str) -> dict[str, float | None]:
        """Return both figures as the columns of a table row."""
        return {name: self.mean, f"{name}_deviation": self.deviation}


def paired_test(
    ours: Mapping[int, float], theirs: Mapping[int, float], reference: str
) -> dict[str, Any] | None:
    """Compute the mean difference over the shared seeds, and the p-value of Student's paired test.

    There is no p-value for fewer than three pairs, nor if all differences are the same.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    gains = [ours[seed] - theirs[seed] for seed in seeds]
    p_value = None
    if len(seeds) >= LEAST_PAIRS and len({round(gain, 9) for gain in gains}) > 1:
        from scipy.stats import ttest_rel  # type: ignore[import-untyped]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            test = ttest_rel([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds])
        p_value = float(test.pvalue)
    return {
        "method": reference,
        "pairs": len(seeds),
        "difference": statistics.fmean(gains),
        "p_value": p_value,
    }


def overhead(seconds: Mapping[int, float], baseline: Mapping[int, float]) -> float | None:
    """Share of time that was needed beyond the baseline's, over the seeds that both have."""
    seeds = seconds.keys() & baseline.keys()
    total = sum(baseline[seed] for seed in seeds)
    return sum(seconds[seed] for seed in seeds) / total - 1 if total else None


# What a budget buys


def shared_measure(fronts: Iterable[Front]) -> str:
    """Return the best measure that all fronts know: test error, validation error, training loss."""
    found = list(fronts)
    known = (name for name in ERRORS if all(front.errors(name) is not None for front in found))
    return next(known, "train_loss")


def curve(
    front: Front, budgets: ArrayLike, key: str | None = None, measure: str = "test_error"
) -> NDArray[np.float64]:
    """[n] budgets -> [n] errors of the child that `pick` would choose; NaN where none fits."""
    cost = key or front.key
    children = sorted(front, key=lambda point: point.costs[cost])
    costs, losses = [p.costs[cost] for p in children], [p.train_loss for p in children]
    return bought(costs, losses, [getattr(p, measure) for p in children], budgets)


def band(
    fronts: Sequence[Front], budgets: NDArray[np.float64], key: str, measure: str
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """[n] budgets -> [n] mean errors over the fronts, and [n] deviations if there are several."""
    curves = np.array([curve(front, budgets, key, measure) for front in fronts])
    return curves.mean(axis=0), curves.std(axis=0, ddof=1) if len(fronts) > 1 else None


def is_wide(values: Sequence[float]) -> bool:
    """Whether an axis of these values is logarithmic."""
    return min(values) > 0 and max(values) / min(values) > WIDE


def spread_budgets(low: float, high: float, count: int) -> NDArray[np.float64]:
    """[count] budgets from end to end, evenly as the axis shows them."""
    budgets = (np.geomspace if is_wide((low, high)) else np.linspace)(low, high, count)
    # Rounding must not take the full network out of its own budget.
    budgets = budgets.clip(low, high)
    budgets[0], budgets[-1] = low, high
    return budgets


# Repetitions on one page


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed. places: their positions among all runs."""

    name: str
    places: tuple[int, ...]
    fronts: tuple[Front, ...]


@dataclass(frozen=True)
class Board:
    """The groups of one data set and cost, which can be drawn together.

    data: as they were typed; identity: what they hold. measure: the best error that all fronts
    know; metric: its words. span: the least and the largest cost of the networks. difference: the
    settings that tell this board from others of the same data and cost.
    """

    data: str
    identity: str
    key: str
    measure: str
    metric: MetricName
    span: tuple[float, float]
    groups: tuple[Group, ...]
    difference: str = ""


def boards_of(records: Sequence[Record]) -> list[Board]:
    """Sort finished runs into boards by data and cost.

    Other runs are left out: their losses cannot be compared with a judged front.
    """
    sorted_fronts: dict[tuple[str, str, MetricName], dict[int, Front]] = {}
    for at, record in enumerate(records):
        if record.front is not None:
            data = record.facts.get("data")
            known = data if isinstance(data, dict) else {}
            identity = cell_text(known.get("identity", record.config.get("data")))
            same = (identity, record.front.key, record.front.metric)
            sorted_fronts.setdefault(same, {})[at] = record.front
    boards = []
    for (identity, key, metric), fronts in sorted_fronts.items():
        groups = _repetitions(records, fronts)
        first = [records[group[0]] for group in groups]
        names = group_names([*map(_setting_texts, first)], [record.name for record in first])
        ends = [end for front in fronts.values() for end in front.span]
        board = Board(
            data=cell_text(first[0].config.get("data")),
            identity=identity,
            key=key,
            measure=shared_measure(fronts.values()),
            metric=metric,
            span=(min(ends), max(ends)),
            groups=tuple(
                Group(name, tuple(group), tuple(fronts[at] for at in group))
                for name, group in zip(names, groups)
            ),
        )
        boards.append(board)
    return [replace(board, difference=_difference(records, board, boards)) for board in boards]


def _repetitions(records: Sequence[Record], places: Iterable[int]) -> list[list[int]]:
    """Collect runs of equal settings and different seeds; a copy of a run is no repetition."""
    groups: dict[Any, list[int]] = {}
    copies: Counter[Any] = Counter()
    for at in places:
        settings = tuple(sorted(_setting_texts(records[at]).items()))
        same = (settings, cell_text(records[at].config.get("seed")))
        groups.setdefault((settings, copies[same]), []).append(at)
        copies[same] += 1
    return list(groups.values())


def _difference(records: Sequence[Record], board: Board, boards: Sequence[Board]) -> str:
    """Return what tells a board from others of the same data and cost; empty if it is alone."""
    alike = [b for b in boards if (b.data, b.key) == (board.data, board.key)]
    if len(alike) == 1:
        return ""
    settings = [_setting_texts(records[b.groups[0].places[0]]) for b in alike]
    texts = [", ".join(_setting_text(found, name) for name in OF_DATA) for found in settings]
    return texts[alike.index(board)] if len({*texts}) == len(texts) else board.identity


def group_names(settings: Sequence[Mapping[str, str | None]], runs: Sequence[str]) -> list[str]:
    """Name groups by up to three settings that differ.

    settings: those of each group. runs: names of their first runs, if the settings do not suffice.
    """
    if len(settings) == 1:
        return [settings[0].get("method") or runs[0]]
    names = dict.fromkeys(name for found in settings for name in found)
    differing = [name for name in names if len({found.get(name) for found in settings}) > 1]
    differing.sort(key=lambda name: PLAIN.index(name) if name in PLAIN else len(PLAIN))
    texts = [", ".join(_setting_text(found, name) for name in differing[:3]) for found in settings]
    return texts if len(set(texts)) == len(texts) else list(runs)


def _setting_text(settings: Mapping[str, str | None], name: str) -> str:
    value = settings.get(name) or "default"
    return value if name in PLAIN else f"{name} {value}"


def _setting_texts(record: Record) -> dict[str, str | None]:
    """The settings that repetitions of a run have in common."""
    settings = run_settings(record)
    return cell_texts({name: value for name, value in settings.items() if name != "seed"})


def cell_text(value: Any) -> str:
    """Any JSON value as the text of a table cell."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def cell_texts(settings: Mapping[str, Any]) -> dict[str, str | None]:
    """The settings as texts; None for values that were not set."""
    return {cell_text(k): None if v is None else cell_text(v) for k, v in settings.items()}
