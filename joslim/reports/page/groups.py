"""What can be drawn together: runs of one data set and cost, those that differ by seed as one.

Stories are the plain dicts of `joslim.runs.story`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joslim.front import bought

Story = Mapping[str, Any]
Board = Mapping[str, Any]

# Costs that differ by more than this are drawn on a logarithmic scale, as in the pictures.
WIDE = 20.0
PLACES = 160
# Names that speak for themselves; a number needs its own name beside it.
FIRST = ("method", "model")
# Settings that change what the data of a name hold.
OF_DATA = ("size", "val")


def boards_of(stories: Sequence[Story]) -> list[dict[str, Any]]:
    """One for each data set and cost, with the groups of runs that belong in it.

    Only finished runs: a front by the losses of a training under way is no match for a judged one.
    """
    places: dict[tuple[str, str], list[int]] = {}
    for at, story in enumerate(stories):
        if story["front"]["judged"]:
            places.setdefault((story["identity"], story["front"]["key"]), []).append(at)
    boards = [board_of(stories, runs) for runs in places.values()]
    return [{**board, "difference": difference(stories, board, boards)} for board in boards]


def difference(stories: Sequence[Story], board: Board, boards: Sequence[Board]) -> str:
    """What tells a board from others of the same name and cost; nothing if there are none."""
    alike = [b for b in boards if (b["data"], b["key"]) == (board["data"], board["key"])]
    if len(alike) == 1:
        return ""
    texts = [
        ", ".join(term(stories[b["groups"][0]["runs"][0]], key) for key in OF_DATA) for b in alike
    ]
    return texts[alike.index(board)] if len({*texts}) == len(texts) else board["identity"]


def board_of(stories: Sequence[Story], runs: Sequence[int]) -> dict[str, Any]:
    fronts = [stories[at]["front"] for at in runs]
    measure = shared_measure(fronts)
    groups = grouped(stories, runs)
    names = labels([stories[group[0]] for group in groups])
    ends = [end for front in fronts for end in front["span"]]
    return {
        "data": stories[runs[0]]["data"],
        "identity": stories[runs[0]]["identity"],
        "key": fronts[0]["key"],
        "measure": measure,
        "span": [min(ends), max(ends)],
        "groups": [
            group_of(name, [stories[at] for at in group], group, measure)
            for name, group in zip(names, groups)
        ],
    }


def shared_measure(fronts: Sequence[Mapping[str, Any]]) -> str:
    """The best one that all fronts know."""
    return next(m for m in fronts[0]["measures"] if all(m in f["measures"] for f in fronts))


def grouped(stories: Sequence[Story], runs: Sequence[int]) -> list[list[int]]:
    """Equal settings and different seeds; a copy of a run is no repetition of it."""
    groups: dict[Any, list[int]] = {}
    copies: Counter[Any] = Counter()
    for at in runs:
        key = tuple(sorted(stories[at]["terms"].items()))
        same = (key, stories[at]["seed"])
        groups.setdefault((key, copies[same]), []).append(at)
        copies[same] += 1
    return list(groups.values())


def labels(stories: Sequence[Story]) -> list[str]:
    """By what the groups differ in; if that tells nothing, by the name of the run."""
    if len(stories) == 1:
        return [stories[0]["method"]]
    keys = dict.fromkeys(key for story in stories for key in story["terms"])
    differing = [key for key in keys if len({story["terms"].get(key) for story in stories}) > 1]
    differing.sort(key=lambda key: FIRST.index(key) if key in FIRST else len(FIRST))
    texts = [", ".join(term(story, key) for key in differing[:3]) for story in stories]
    return texts if len(set(texts)) == len(texts) else [story["name"] for story in stories]


def term(story: Story, key: str) -> str:
    """What was not set is the default of something else."""
    value = story["terms"].get(key) or "default"
    return value if key in FIRST else f"{key} {value}"


def group_of(
    name: str, stories: Sequence[Story], runs: Sequence[int], measure: str
) -> dict[str, Any]:
    fronts = [story["front"] for story in stories]
    return {
        "name": name,
        "runs": list(runs),
        "seeds": [story["seed"] for story in stories],
        "band": band_of(fronts, measure) if len(fronts) > 1 else None,
        "area": spread([front["area"].get(measure) for front in fronts]),
        "hypervolume": spread([front["hypervolume"].get(measure) for front in fronts]),
        "children": spread([len(front["children"]) for front in fronts]),
        "seconds": spread([story["times"].get("seconds") for story in stories]),
    }


def spread(values: Sequence[float | None]) -> list[float | None] | None:
    """[mean, deviation]; the deviation of one value is None, and so is all if one is missing."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return [fmean(known), stdev(known) if len(known) > 1 else None]


def band_of(fronts: Sequence[Mapping[str, Any]], measure: str) -> dict[str, list[float]]:
    """Mean and deviation over the runs of what a budget buys, where all of them have a child."""
    key = fronts[0]["key"]
    cheapest = max(min(child["costs"][key] for child in front["children"]) for front in fronts)
    dearest = max(max(front["span"]) for front in fronts)
    budgets = places(cheapest, max(cheapest, dearest))
    chosen = np.array([curve(front["children"], key, measure, budgets) for front in fronts])
    return {
        "budgets": budgets.tolist(),
        "mean": chosen.mean(axis=0).tolist(),
        "deviation": chosen.std(axis=0, ddof=1).tolist(),
    }


def places(low: float, high: float) -> NDArray[np.float64]:
    if low > 0 and high / low > WIDE:
        return np.geomspace(low, high, PLACES).clip(low, high)
    return np.linspace(low, high, PLACES)


def curve(
    children: Sequence[Mapping[str, Any]], key: str, measure: str, budgets: NDArray[np.float64]
) -> NDArray[np.float64]:
    """[budgets]: the error of the child that `Front.pick` would choose. All budgets fit one."""
    order = sorted(children, key=lambda child: child["costs"][key])
    costs, losses = [child["costs"][key] for child in order], [c["train_loss"] for c in order]
    return bought(costs, losses, [child[measure] for child in order], budgets)
