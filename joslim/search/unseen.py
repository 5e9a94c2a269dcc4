"""Children that were not visited yet are worth more than those that were."""

from __future__ import annotations

from collections.abc import Iterable

from joslim.search.history import History
from joslim.widths import Widths


def first_unseen(
    children: Iterable[Widths], history: History, chosen: Iterable[Widths] = ()
) -> Widths:
    """The first child that is neither visited nor chosen; if there is none, the first of all.

    A small network may have fewer children than a search asks for: then some come again.
    """
    taken = set(chosen)
    first = None
    for child in children:
        if child not in history and child not in taken:
            return child
        first = first or child
    assert first is not None, "there must be a child to choose"
    return first
