import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joslim.data.randomness import bits, permutation, scrambled, steps, uniforms

MASK = (1 << 64) - 1


def splitmix64(state: int) -> int:
    """One number at a time, in Python's unbounded integers."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@given(st.lists(st.integers(0, MASK), min_size=1))
def test_scrambled_is_splitmix64(words: list[int]) -> None:
    assert scrambled(np.array(words, dtype=np.uint64)).tolist() == [splitmix64(w) for w in words]


def test_published_values_of_splitmix64() -> None:
    """The first outputs for the seed 1234567, in the tests of many implementations."""
    states = [1234567 + i * 0x9E3779B97F4A7C15 & MASK for i in range(3)]
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert scrambled(np.array(states, dtype=np.uint64)).tolist() == expected


def test_values_stay_what_they_are() -> None:
    """A resume, maybe under another release, must see the same images."""
    drawn = uniforms(0, "augment", np.array([0, 3]), np.array([5, 7]), 2)
    assert drawn.round(6).tolist() == [[0.076351, 0.450773], [0.708095, 0.537964]]
    assert permutation(1, 2, 8).tolist() == [5, 4, 7, 3, 6, 0, 2, 1]


def test_uniforms_are_uniform_and_independent() -> None:
    epochs, indices = np.repeat(np.arange(20), 500), np.tile(np.arange(500), 20)
    drawn = uniforms(0, "test", epochs, indices, 4)
    assert drawn.shape == (10_000, 4)
    assert 0 <= drawn.min() < drawn.max() < 1
    for column in drawn.T:
        counts = np.histogram(column, bins=10, range=(0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 30  # chi-squared, 9 degrees of freedom
    assert np.abs(np.corrcoef(drawn.T) - np.eye(4)).max() < 0.04
    neighbours = np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]
    assert abs(neighbours) < 0.04


def test_every_key_matters() -> None:
    keys = [(0, "a", 1, 2), (1, "a", 1, 2), (0, "b", 1, 2), (0, "a", 2, 2), (0, "a", 2, 1)]
    values = [int(bits(seed, purpose, *rest)[0]) for seed, purpose, *rest in keys]
    assert len({*values}) == len(keys)


@pytest.mark.parametrize("seed", [-1, 0, 2**63, 2**64 + 5, np.int64(3), np.uint8(3)])
def test_any_whole_number_is_a_seed(seed: int) -> None:
    assert sorted(permutation(seed, 0, 10)) == list(range(10))


@given(st.integers(0, 100), st.integers(0, 50), st.integers(1, 300))
def test_permutations(seed: int, epoch: int, count: int) -> None:
    order = permutation(seed, epoch, count)
    assert sorted(order) == list(range(count))
    assert not order.flags.writeable, "it is cached"


@given(st.integers(1, 40), st.data())
def test_every_image_once_an_epoch(count: int, data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, count))
    drawn = list(itertools.islice(steps(0, count, batch), 3 * count // batch + 1))
    epochs = np.concatenate([step.epochs for step in drawn])
    indices = np.concatenate([step.indices for step in drawn])
    assert all(len(step.indices) == batch for step in drawn)
    assert (epochs == np.arange(len(epochs)) // count).all()
    for epoch in range(3):
        assert sorted(indices[epochs == epoch]) == list(range(count))


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 30), st.data())
def test_shares_make_the_batch(count: int, world: int, start: int, data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, count))
    whole = next(steps(4, count, batch, start))
    if batch >= world:
        shares = [next(steps(4, count, batch, start, rank, world)) for rank in range(world)]
        assert (
            np.concatenate([share.indices for share in shares]).tolist() == whole.indices.tolist()
        )
        assert np.concatenate([share.epochs for share in shares]).tolist() == whole.epochs.tolist()
