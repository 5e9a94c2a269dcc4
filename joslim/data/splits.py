"""Parts of a data set: the validation images carved from the training images, and fixed subsets."""

from __future__ import annotations

import numpy as np

from joslim.data.randomness import Integers, bits
from joslim.errors import UserError


def balanced_order(labels: Integers) -> Integers:
    """All positions, ordered so that every prefix has the classes in the proportions of the whole.

    Always the same order for the same labels: methods and seeds stay comparable.
    """
    count = len(labels)
    shuffled = np.argsort(bits(0, "balance", np.arange(count)), kind="stable")
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    sorted_labels = labels[by_class]
    starts = np.searchsorted(sorted_labels, sorted_labels, side="left")
    ends = np.searchsorted(sorted_labels, sorted_labels, side="right")
    # The k-th image of a class of n stands at (k + 1/2) / n of the way, whatever the class.
    progress = (np.arange(count) - starts + 0.5) / np.maximum(ends - starts, 1)
    classes_in_no_order = bits(0, "ties", sorted_labels)
    return by_class[np.lexsort((classes_in_no_order, progress))]


def balanced_subset(labels: Integers, limit: int | None) -> Integers:
    """At most `limit` positions, in ascending order, with the classes in proportion."""
    if limit is None or limit >= len(labels):
        return np.arange(len(labels))
    if limit < 1:
        raise UserError(f"limit: {limit} images; at least 1 is needed")
    return np.sort(balanced_order(labels)[:limit])


def carve(labels: Integers, val: float) -> tuple[Integers, Integers]:
    """Positions of the training images that stay, and of those for validation."""
    chosen = balanced_order(labels)[: validation_count(len(labels), val)]
    held_out = np.zeros(len(labels), dtype=bool)
    held_out[chosen] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def validation_count(count: int, val: float) -> int:
    """A fraction below 1, or a whole number of images; some must be left to train on."""
    whole = isinstance(val, (int, np.integer))
    if not (val >= 0 and (whole or val < 1)):
        raise UserError(f"val: {val}; type a fraction from 0 to below 1, or a number of images")
    wanted = int(val) if whole else round(val * count)
    if wanted >= count:
        raise UserError(f"val: {val} leaves none of {count} training images; type a smaller one")
    return wanted
