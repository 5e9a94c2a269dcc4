"""Which children to visit. A new search is a class in a file here and a line in `SEARCHERS`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from joslim.errors import UserError, unknown
from joslim.search.base import Searcher
from joslim.search.evolution import Evolution
from joslim.search.greedy import greedy_removal, keep_useful
from joslim.search.history import History, Scored, Scoring, Visit
from joslim.search.random_widths import Random
from joslim.search.scalarized import RandomScalarized, Scalarized
from joslim.search.start import starting_children
from joslim.search.targeted import Targeted

SEARCHERS: dict[str, type[Any]] = {
    "targeted": Targeted,
    "mobo-ts2": Scalarized,
    "mobo-rs": RandomScalarized,
    "nsga2": Evolution,
    "random": Random,
}

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
    """The search of this name; its options are the fields of its class."""
    if name not in SEARCHERS:
        raise unknown("searcher", str(name), SEARCHERS)
    for option in options:
        if option not in options_of(name):
            takers = [other for other in SEARCHERS if option in options_of(other)]
            instead = f", or type --searcher {takers[0]}" if takers else ""
            raise UserError(f"{option}: searcher {name} has none; leave it out{instead}")
    return SEARCHERS[name](**options)


def options_of(name: str) -> set[str]:
    return {field.name for field in fields(SEARCHERS[name]) if field.init}
