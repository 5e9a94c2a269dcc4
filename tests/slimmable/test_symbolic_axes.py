"""Axes keep their lengths whatever is found out about them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joslim.slimmable.symbolic_axes import (
    Algebra,
    Axis,
    Locked,
    Segment,
    Var,
    fixed,
    form,
    fresh,
    is_fixed,
    length,
    resolve,
    scale,
    variables,
)

WHY = "a test"


@st.composite
def axes(draw: st.DrawFn, total: int | None = None, pool: list[Var] | None = None) -> Axis:
    """Segments over Vars, some of which may repeat, with `total` entries if asked for."""
    pool = [] if pool is None else pool
    result: list[Segment] = []
    left = draw(st.integers(1, 48)) if total is None else total
    while left:
        known = [s for var in pool if (s := Segment(var, 1)).length <= left and var.bound is None]
        kind = draw(st.sampled_from(["fixed", "fresh", "known"] if known else ["fixed", "fresh"]))
        if kind == "known":
            segment = draw(st.sampled_from(known))
        elif kind == "fixed":
            segment = Segment(None, draw(st.integers(1, left)), "given")
        else:
            inner = draw(st.integers(1, min(4, left)))
            segment = Segment(Var(draw(st.integers(1, left // inner))), inner)
            assert segment.var is not None
            pool.append(segment.var)
        result.append(segment)
        left -= segment.length
    return tuple(result)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Axis, Axis]:
    """Two axes of one length that may have Vars in common."""
    pool: list[Var] = []
    total = draw(st.integers(1, 48))
    return draw(axes(total, pool)), draw(axes(total, pool))


def entries(axis: Axis) -> list[object]:
    """Which Var each entry belongs to: equal lists are equal axes, however they are cut up."""
    return [s.var for s in resolve(axis) for _ in range(s.length)]


def slim_down(axis: Axis, data: st.DataObject) -> None:
    """Give every free Var some smaller size."""
    for var in dict.fromkeys(s.var for s in resolve(axis)):
        if var is not None:
            var.units = data.draw(st.integers(1, var.units))


@given(pairs())
def test_unified_axes_keep_their_length_and_become_the_same(pair):
    a, b = pair
    total = length(a)
    Algebra().unify(a, b, WHY)
    assert length(a) == length(b) == total
    assert entries(a) == entries(b)
    assert form(a) == form(b)


@given(pairs())
def test_unifying_twice_changes_nothing_more(pair):
    a, b = pair
    algebra = Algebra()
    algebra.unify(a, b, WHY)
    algebra.locked = True
    before = resolve(a)
    algebra.unify(a, b, WHY)
    assert resolve(a) == before


@given(pairs(), st.data())
def test_unified_axes_stay_the_same_at_every_width(pair, data):
    a, b = pair
    Algebra().unify(a, b, WHY)
    slim_down(a, data)
    assert length(a) == length(b)


@given(axes(), axes())
def test_axes_of_unequal_length_are_frozen(a, b):
    a = a + fixed(length(b))
    Algebra().unify(a, b, WHY)
    assert is_fixed(a)
    assert is_fixed(b)


@given(axes(), st.data())
def test_rows_are_equal_parts(axis, data):
    total = length(axis)
    count = data.draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
    row = Algebra().rows(axis, count, WHY)
    assert length(row) * count == length(axis) == total
    slim_down(axis, data)
    assert length(row) * count == length(axis)


@given(axes(), st.integers(2, 7))
def test_an_axis_that_does_not_divide_is_frozen(axis, count):
    axis = axis + fixed(count + 1 - length(axis) % count)
    Algebra().rows(axis, count, WHY)
    assert is_fixed(axis)


@given(axes(), st.data())
def test_the_parts_of_a_cut_make_the_whole(axis, data):
    total = length(axis)
    at = data.draw(st.integers(0, total))
    first, rest = Algebra().cut(axis, at, WHY)
    assert length(first) == at
    assert length(rest) == total - at
    assert entries(first + rest) == entries(axis)


@given(axes(), st.integers(1, 5))
def test_quotient_undoes_scale(axis, by):
    before = length(axis)
    outer = Algebra().quotient(scale(axis, by), by, WHY)
    assert length(outer) == before
    assert entries(outer) == entries(axis)


def test_an_axis_of_equal_halves_has_a_quotient():
    (half,) = fresh(8)
    row = Algebra().quotient((half, half), 4, WHY)
    assert length(row) == 4


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 6))
def test_quotient_has_the_right_length_at_every_width(units, inner, by):
    axis = (Segment(Var(units), inner),)
    axis = axis + fixed(-length(axis) % by) if length(axis) % by else axis
    outer = Algebra().quotient(axis, by, WHY)
    assert length(outer) * by == length(axis)
    for var in variables(axis):
        var.units = 1
    assert length(outer) * by == length(axis)


@given(st.integers(1, 4), axes(), st.integers(1, 4))
def test_merged_axes_multiply_their_lengths(before, axis, after):
    merged = Algebra().merge([fixed(before), axis, fixed(after)], WHY)
    assert length(merged) == before * length(axis) * after
    assert variables(merged) == variables(axis)


def test_of_two_slimmable_axes_that_merge_the_inner_one_freezes():
    a, b = fresh(4), fresh(6)
    merged = Algebra().merge([a, b], WHY)
    assert merged == scale(a, 6)
    assert is_fixed(b)


@pytest.mark.parametrize(
    "act",
    [
        lambda algebra, axis: algebra.unify(axis, fixed(8), WHY),
        lambda algebra, axis: algebra.unify(axis, fresh(8), WHY),
        lambda algebra, axis: algebra.unify(axis, fresh(3) + fresh(5), WHY),
        lambda algebra, axis: algebra.unify(axis, fixed(9), WHY),
        lambda algebra, axis: algebra.freeze(axis, WHY),
        lambda algebra, axis: algebra.cut(axis, 3, WHY),
        lambda algebra, axis: algebra.rows(axis, 3, WHY),
        lambda algebra, axis: algebra.quotient(axis, 2, WHY),
        lambda algebra, axis: algebra.merge([axis, axis], WHY),
    ],
)
def test_nothing_is_bound_once_locked(act):
    algebra, axis = Algebra(), fresh(8)
    algebra.locked = True
    with pytest.raises(Locked) as caught:
        act(algebra, axis)
    assert axis[0].var in caught.value.variables
    assert WHY in caught.value.why
    assert axis[0].var.bound is None


def test_all_that_must_be_frozen_is_named_at_once():
    algebra, a, b = Algebra(), fresh(8), fresh(6)
    algebra.locked = True
    with pytest.raises(Locked) as caught:
        algebra.freeze(a + b, WHY)
    assert caught.value.variables == {a[0].var, b[0].var}


def test_what_is_settled_may_be_said_again_once_locked():
    algebra, a = Algebra(), fresh(8)
    b, half = fresh(8), fresh(4)
    algebra.unify(a, b, WHY)
    algebra.unify(b, half + half, WHY)
    algebra.locked = True
    algebra.unify(a, b, WHY)
    algebra.freeze(fixed(3), WHY)
    half = resolve(half)
    assert algebra.cut(a, 4, WHY) == (half, half)
    assert algebra.rows(b, 2, WHY) == half
    assert algebra.quotient(scale(resolve(a), 3), 3, WHY) == half + half


def test_a_concat_gives_its_structure_to_what_is_added_to_it():
    one, left, right = fresh(8), fresh(3), fresh(5)
    Algebra().unify(one, left + right, WHY)
    assert resolve(one) == resolve(left + right)
    assert len(variables(one)) == 2


def test_whole_groups_and_single_channels_meet_in_groups():
    groups, channels = scale(fresh(4), 3), fresh(12)
    Algebra().unify(groups, channels, WHY)
    assert resolve(channels) == groups


def test_groups_of_two_and_of_three_meet_in_sixes():
    twos, threes = scale(fresh(12), 2), scale(fresh(8), 3)
    Algebra().unify(twos, threes, WHY)
    (segment,) = resolve(twos)
    assert segment.inner == 6
    assert resolve(threes) == (segment,)


def test_a_reason_is_kept_when_an_axis_is_frozen():
    axis = fresh(8)
    Algebra().unify(axis, fixed(8, "a literal"), WHY)
    assert [segment.why for segment in resolve(axis)] == ["a literal"]


def test_a_single_channel_cannot_be_slimmed():
    assert is_fixed(fresh(1))


def test_long_chains_of_equal_axes_resolve():
    algebra, first = Algebra(), fresh(8)
    axis = first
    for _ in range(500):
        following = fresh(8)
        algebra.unify(following, axis, WHY)
        axis = following
    assert resolve(first) == resolve(axis)
