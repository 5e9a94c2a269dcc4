"""Which children to visit. A new search is a class in a file here and a line in `SEARCHERS`."""

from __future__ import annotations

from collections.abc import Callable
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

SEARCHERS: dict[str, Callable[..., Searcher]] = {
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
    try:
        return SEARCHERS[name](**options)
    except TypeError as error:
        raise UserError(f"searcher: {name} does not take these options: {options}") from error
