"""Old losses brought up to date: the weights move on, and every round has other images.

Children that are scored again show how losses have changed since. That change is taken to be a
shift and a slope, the same for all children, and is applied to those that were not scored.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# As many pairs as this, all saying that there is no slope, are added to those that were seen.
PSEUDO_PAIRS = 5.0


def carried_over(
    before: NDArray[np.float64], now: NDArray[np.float64], stale: NDArray[np.float64]
) -> NDArray[np.float64]:
    """[m] losses of some children before and [m] now, [n] old losses of others -> [n] theirs now.

    On a logarithmic scale if all are positive: losses fall by a factor, more or less. With no pair
    to learn from, they stay as they are.
    """
    if len(before) == 0 or len(stale) == 0:
        return stale
    if min(before.min(), now.min(), stale.min()) > 0:
        return np.exp(_shifted(np.log(before), np.log(now), np.log(stale)))
    return _shifted(before, now, stale)


def _shifted(
    before: NDArray[np.float64], now: NDArray[np.float64], stale: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Least squares for now = shift + slope * before; few or equal pairs leave the slope at 1."""
    middle, level = before.mean(), now.mean()
    pull = PSEUDO_PAIRS * np.concatenate([before, stale]).var()
    along = ((before - middle) * (now - level)).sum() + pull
    across = ((before - middle) ** 2).sum() + pull
    slope = along / across if across > 0 else 1.0
    # A negative slope would turn good children into bad ones: that is noise.
    return level + max(slope, 0.0) * (stale - middle)
