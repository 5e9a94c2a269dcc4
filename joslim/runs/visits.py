"""The history of a run as its file tells it: read without torch, and without the network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from joslim.errors import UserError
from joslim.front import cost_key, non_dominated
from joslim.runs.folder import HISTORY
from joslim.untrusted import json_count, json_name, json_number, json_rows, json_value
from joslim.widths import WidthSpace

MOST_STEPS = 10**12
MOST_VISITS = 10**6
# So many moments are enough to see how the front grew.
MOMENTS = 12

Moment = tuple[int, dict[int, float]]  # a step, and the losses of children by their id


class Visits:
    """history.jsonl: every visited child with its counts, cost and step, and all its losses."""

    def __init__(self, lines: Sequence[dict[str, Any]]) -> None:
        header, *rest = lines
        self.key = cost_key(json_name(json_value(header, "cost", HISTORY), f"{HISTORY}.cost"))
        self.space = WidthSpace.of_json(json_value(header, "space", HISTORY))
        visits = [line for line in rest if "id" in line]
        self.counts = [self._counts(line) for line in visits]
        # What is not known is NaN, which is on no front.
        costs = [number(line, "cost") for line in visits]
        self.costs = [math.nan if cost is None else cost for cost in costs]
        self.steps = [step_of(line) for line in visits]
        self.scorings = [self._scoring(line) for line in rest if "ids" in line]
        self.moments = self._moments()

    def __len__(self) -> int:
        return len(self.counts)

    def _counts(self, line: dict[str, Any]) -> tuple[int, ...]:
        dims = self.space.dims
        counts = json_rows(line, "widths", HISTORY, len(dims), len(dims))
        return tuple(json_count(n, f"{HISTORY}.widths", 1, d.full) for n, d in zip(counts, dims))

    def _scoring(self, line: dict[str, Any]) -> Moment:
        ids = json_rows(line, "ids", HISTORY, MOST_VISITS)
        losses = json_rows(line, "losses", HISTORY, len(ids), len(ids))
        found = {json_count(i, f"{HISTORY}.ids", 0, len(self) - 1): x for i, x in zip(ids, losses)}
        # JSON has no NaN: null stands for it.
        known = {i: math.nan if x is None else json_number(x, HISTORY) for i, x in found.items()}
        return step_of(line), known

    def _moments(self) -> list[Moment]:
        """Some scorings, evenly spread up to the last one, each with all losses known by then.

        A finished training scores all children once more on the same images; what it then measures
        on other images, to judge the front, is left out.
        """
        scorings = self.scorings
        everyone = [at for at, (_, losses) in enumerate(scorings) if len(losses) == len(self)]
        if everyone and scorings[everyone[-1]][0] == scorings[-1][0]:
            scorings = scorings[: everyone[-1] + 1]
        chosen = {*spread(ends_of_steps([step for step, _ in scorings]))}
        moments: list[Moment] = []
        latest: dict[int, float] = {}
        for at, (step, losses) in enumerate(scorings):
            latest.update(losses)
            if at in chosen:
                moments.append((step, dict(latest)))
        return moments

    @property
    def losses(self) -> dict[int, float]:
        """The latest of all children."""
        return self.moments[-1][1] if self.moments else {}

    def front(self, losses: Mapping[int, float]) -> list[int]:
        """The children that no other one beats by these losses, by rising cost."""
        costs = [self.costs[child] for child in losses]
        mask = non_dominated([*losses.values()], costs)
        kept = [child for child, stays in zip(losses, mask) if stays]
        return sorted(kept, key=lambda child: self.costs[child])


def ends_of_steps(steps: Sequence[int]) -> list[int]:
    """The last position of each step: a search at the end is one moment of many.

    All positions where there is nothing but such a search.
    """
    last = {step: at for at, step in enumerate(steps)}
    return [*last.values()] if len(last) > 2 else [*range(len(steps))]


def spread(positions: Sequence[int]) -> list[int]:
    """As many as are enough, evenly, with the first and the last."""
    if len(positions) <= MOMENTS:
        return [*positions]
    last = len(positions) - 1
    return [positions[round(at * last / (MOMENTS - 1))] for at in range(MOMENTS)]


def step_of(line: Mapping[str, Any]) -> int:
    return json_count(json_value(line, "step", HISTORY), f"{HISTORY}.step", 0, MOST_STEPS)


def number(record: Mapping[str, Any], key: str) -> float | None:
    """A finite number, or None for anything else."""
    try:
        return json_number(record.get(key), key)
    except UserError:
        return None
