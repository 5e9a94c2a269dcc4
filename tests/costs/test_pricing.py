"""Pricer: terms of a blueprint for many children at once, in exact integers."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import joslim
from joslim.costs.pricing import Pricer
from joslim.slimmable.blueprint import Blueprint, Layout, Stretch, Term
from joslim.widths import Dim, Knob, WidthSpace

STEPS = (1, 4, 1)
UNITS = (16, 6, 2048)


def blueprint() -> Blueprint:
    dims = tuple(Dim(f"d{i}", units * s, step=s) for i, (units, s) in enumerate(zip(UNITS, STEPS)))
    knobs = tuple(Knob(dim.name, (i,), 0.01) for i, dim in enumerate(dims))
    return Blueprint(WidthSpace(dims, knobs), (), (), ())


stretches = st.one_of(
    st.builds(lambda length: Stretch(None, 0, length), st.integers(1, 50)),
    st.builds(
        lambda dim, each: Stretch(dim, each, UNITS[dim] * each),
        st.integers(0, 2),
        st.integers(1, 9),
    ),
)
layouts = st.builds(lambda s: Layout(tuple(s)), st.lists(stretches, min_size=1, max_size=4))
terms = st.lists(
    st.builds(lambda n, ls: Term(n, tuple(ls)), st.integers(0, 50), st.lists(layouts, max_size=3)),
    max_size=5,
)
children = st.lists(st.tuples(*(st.integers(1, units) for units in UNITS)), max_size=4)


@given(terms, children)
def test_a_term_is_the_product_of_its_axes(terms: list[Term], units: list[tuple[int, ...]]) -> None:
    counts = np.array(units, dtype=np.int64).reshape(-1, 3) * STEPS
    prices = Pricer(blueprint(), terms)(counts)
    assert prices.shape == (len(terms), len(units))
    for row, child in zip(prices.T, units):
        for price, term in zip(row, terms):
            expected = term.times
            for layout in term.layouts:
                expected *= layout.size(child)
            assert price == expected


def test_large_counts_stay_exact() -> None:
    """Odd, and past what single precision holds: the last unit would be lost."""
    wide = Layout((Stretch(2, 1, 2048),))
    odd = Layout((Stretch(2, 4001, 2048 * 4001), Stretch(None, 0, 1)))
    term = Term(224 * 224 - 1, (wide, odd))
    counts = np.array([[16, 24, 2047]])
    assert int(Pricer(blueprint(), [term])(counts)[0, 0]) == 50175 * 2047 * (2047 * 4001 + 1)


def test_counts_are_not_changed() -> None:
    counts = np.array([[3, 8, 5]])
    Pricer(blueprint(), [Term(7, (Layout((Stretch(1, 1, 6),)),))])(counts)
    assert counts.tolist() == [[3, 8, 5]]


class Everything(nn.Module):
    """Groups, a concat, a transposed conv, a module used twice, a flatten, and tied parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.scale = nn.Parameter(torch.ones(12, 1, 1))
        self.grouped = nn.Conv2d(12, 12, 3, padding=1, groups=4)
        self.side = nn.Conv2d(12, 7, (1, 5), padding=(0, 2), bias=False)
        self.up = nn.ConvTranspose2d(19, 8, 2, stride=2)
        self.twice = nn.Conv2d(8, 8, 3, padding=1)
        self.hidden = nn.Linear(8 * 16 * 16, 9)
        self.tied, self.same = nn.Linear(9, 9, bias=False), nn.Linear(9, 9, bias=False)
        self.same.weight = self.tied.weight
        self.head = nn.Linear(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x)) * self.scale
        x = self.up(torch.cat([x, self.side(self.grouped(x))], 1))
        x = self.hidden(self.twice(self.twice(x)).flatten(1))
        return self.head(self.same(F.relu(self.tied(x))))


class Attention(nn.Module):
    """Products of two maps, which have no weights."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, 1)
        self.v, self.out = nn.Conv2d(3, 10, 1), nn.Conv2d(10, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).flatten(2) for layer in (self.q, self.k, self.v))
        mixed = v @ torch.softmax(q.transpose(1, 2) @ k, -1).transpose(1, 2)
        return self.out(mixed.unflatten(2, x.shape[2:]))


class Signal(nn.Module):
    """One-dimensional convs, strided and dilated."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv1d(3, 8, 3, dilation=2), nn.Conv1d(8, 6, 3, stride=2, bias=False)
        self.c = nn.Conv1d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(F.relu(self.b(F.relu(self.a(x)))))


@pytest.mark.parametrize(
    ("make", "shape", "knobs"),
    [(Everything, (3, 8, 8), 4), (Attention, (3, 4, 4), 2), (Signal, (3, 20), 2)],
)
def test_blueprints_of_all_kinds_of_layers(
    make: Callable[[], nn.Module],
    shape: tuple[int, ...],
    knobs: int,
    counted: Callable[[nn.Module, tuple[int, ...]], tuple[float, int]],
) -> None:
    net = joslim.slim(make(), torch.zeros(1, *shape))
    assert len(net.space) == knobs
    macs, params = joslim.cost("macs", net), joslim.cost("params", net)
    rng = np.random.default_rng(0)
    for child in [net.space.smallest, net.space.full, *(net.space.random(rng) for _ in range(8))]:
        assert (macs(child), params(child)) == counted(net.child(child), shape)


def test_a_single_channel_that_is_flattened(
    counted: Callable[[nn.Module, tuple[int, ...]], tuple[float, int]],
) -> None:
    layers = nn.Conv2d(3, 6, 3, padding=1), nn.Flatten(), nn.Linear(6 * 64, 9)
    net = joslim.slim(nn.Sequential(*layers), torch.zeros(1, 3, 8, 8), low=0.25)
    smallest = net.space.smallest
    assert smallest.counts == (1,)
    expected = counted(net.child(smallest), (3, 8, 8))
    assert (joslim.cost("macs", net)(smallest), joslim.cost("params", net)(smallest)) == expected
