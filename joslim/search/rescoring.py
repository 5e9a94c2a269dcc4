"""Which children are scored anew in a round: the weights move, and old losses go stale."""

from __future__ import annotations

from joslim.front import non_dominated
from joslim.search.history import History

# A budget without a limit: Algorithm 1, line 4.
ALL = 10**9


def due(history: History, budget: int) -> list[int]:
    """Ids, at most `budget` of them.

    First those that were never scored. Of what is left, one half goes to the front, which the next
    choice leans on, and one half to the stalest of all, so that every child comes round.
    """
    everyone = list(range(len(history)))
    if len(everyone) <= budget:
        return everyone
    stalest = sorted(everyone, key=lambda child: (history.tried(child), child))
    new = [child for child in stalest if history.tried(child) < 0][:budget]
    scored = history.scored()
    on_front = set(scored.ids[non_dominated(scored.estimates, scored.costs)].tolist())
    front = [child for child in stalest if child in on_front][: (budget - len(new)) // 2]
    chosen = dict.fromkeys([*new, *front, *stalest])
    return sorted(list(chosen)[:budget])
