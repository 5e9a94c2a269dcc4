"""The search for children (subnets) on the Pareto front, while the weights train.

base.py            the base class `Searcher`, and random search
history.py         the visited children, their losses, and which of them to score again
gp.py              the Gaussian process that predicts the loss of a child
cost_targeting.py  target costs, and children that have them
initial_design.py  the first children
targeted.py        our search; mobo.py, nsga2.py: the others
greedy.py          AutoSlim's channel removal, which is no `Searcher`
sensitivity.py     a curve of children of a trained network, which is none either

A new searcher is a dataclass that inherits from `Searcher` and a line in `SEARCHERS`: its fields
are its options, and `--searcher` and tests/search/test_searchers.py find it in the table.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from joslim.errors import UserError, unknown
from joslim.search.base import Random, Searcher
from joslim.search.greedy import greedy_removal, keep_useful
from joslim.search.history import History, Scored, Scoring, Visit
from joslim.search.initial_design import starting_children
from joslim.search.mobo import RandomScalarized, Scalarized
from joslim.search.nsga2 import Evolution
from joslim.search.targeted import Targeted

SEARCHERS: dict[str, type[Any]] = {
    "targeted": Targeted,
    "mobo-ts2": Scalarized,
    "mobo-rs": RandomScalarized,
    "nsga2": Evolution,
    "random": Random,
}
"""The table of searchers: name -> class. Their options are the fields of the class.

Examples:
    >>> sorted(joslim.SEARCHERS)
    ['mobo-rs', 'mobo-ts2', 'nsga2', 'random', 'targeted']
"""

__all__ = [
    "SEARCHERS",
    "History",
    "Random",
    "Scored",
    "Scoring",
    "Searcher",
    "Visit",
    "greedy_removal",
    "keep_useful",
    "searcher",
    "starting_children",
]


def searcher(name: str, **options: Any) -> Searcher:
    """Make the searcher of this name.

    Args:
        name: A name in `SEARCHERS`.
        **options: Values for the fields of its class.

    Raises:
        UserError: The name is unknown, or the searcher has no such option.
    """
    if name not in SEARCHERS:
        raise unknown("searcher", str(name), SEARCHERS)
    for option in options:
        takers = [other for other, kind in SEARCHERS.items() if option in _options(kind)]
        if name not in takers:
            instead = f", or type --searcher {' or '.join(takers)}" if takers else ""
            raise UserError(f"{option}: searcher {name} has none; leave it out{instead}")
    return SEARCHERS[name](**options)


def _options(kind: type[Any]) -> set[str]:
    return {field.name for field in fields(kind) if field.init}
