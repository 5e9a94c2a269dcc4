"""Random numbers as pure functions of what they are for.

No generator has a state here: the order of an epoch is a function of (seed, epoch), the
augmentation of an image one of (seed, epoch, index). So nothing depends on how images are put into
batches, on the number of processes or workers, or on where a run was resumed. The bits come from
splitmix64 (G. Steele, D. Lea, C. Flood, 2014), written for whole arrays, and not from numpy's
generators, whose streams may change from one release to the next.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Integers = NDArray[np.int64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST = np.uint64(0xBF58476D1CE4E5B9)
SECOND = np.uint64(0x94D049BB133111EB)
WORD = (1 << 64) - 1


class Step(NamedTuple):
    """The images of one training step: which, and each in which epoch."""

    epochs: Integers
    indices: Integers


def scrambled(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The next output of splitmix64 for each state; arrays of unsigned integers wrap in silence."""
    words = words + GOLDEN
    words = (words ^ (words >> np.uint64(30))) * FIRST
    words = (words ^ (words >> np.uint64(27))) * SECOND
    return words ^ (words >> np.uint64(31))


def bits(seed: int, purpose: str, *keys: ArrayLike) -> NDArray[np.uint64]:
    """64 random bits for each combination of keys, which are broadcast against each other."""
    state = np.array([int(seed) & WORD], dtype=np.uint64)
    state = scrambled(scrambled(state) + np.uint64(zlib.crc32(purpose.encode())))
    for key in keys:
        state = scrambled(state + np.asarray(key).astype(np.uint64))
    return state


def uniforms(
    seed: int, purpose: str, epochs: Integers, indices: Integers, count: int
) -> NDArray[np.float64]:
    """[n, count] numbers in [0, 1) for n images; the first 53 bits, all that a float can hold."""
    drawn = bits(seed, purpose, epochs[:, None], indices[:, None], np.arange(count))
    return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53


# A batch touches one epoch, or two where it straddles them; two data sets may take turns.
@lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, count: int) -> Integers:
    """The order in which this epoch visits the images."""
    order = np.argsort(bits(seed, "order", epoch, np.arange(count)), kind="stable")
    order.setflags(write=False)
    return order


def steps(
    seed: int, count: int, batch: int, start: int = 0, rank: int = 0, world: int = 1
) -> Iterator[Step]:
    """Endless steps over `count` images: epoch after epoch as one stream, cut into full batches.

    Step s has the positions [s * batch, (s + 1) * batch) of the stream; process `rank` of `world`
    gets its contiguous share of them.
    """
    low, high = batch * rank // world, batch * (rank + 1) // world
    for step in itertools.count(start):
        positions = np.arange(step * batch + low, step * batch + high)
        epochs = positions // count
        parts = [
            permutation(seed, int(epoch), count)[positions[epochs == epoch] % count]
            for epoch in np.unique(epochs)
        ]
        yield Step(epochs, np.concatenate(parts))
