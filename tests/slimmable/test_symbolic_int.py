"""A SymbolicInt is the integer that it stands for, in all arithmetic."""

from __future__ import annotations

import operator
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joslim.slimmable.symbolic_axes import (
    Algebra,
    Locked,
    Segment,
    Var,
    fixed,
    fresh,
    is_fixed,
    length,
    resolve,
)
from joslim.slimmable.symbolic_int import DerivedInt, Shape, SymbolicInt

OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "/": operator.truediv,
}
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]

# (operator, a number or the position of a Var, whether the SymbolicInt stands on the right)
steps = st.lists(
    st.tuples(st.sampled_from(list(OPERATORS)), st.integers(-1, 9), st.booleans()), max_size=6
)


def measured(units: int, inner: int = 1) -> tuple[Any, Any]:
    axis = (Segment(Var(units), inner),)
    return SymbolicInt.of(Algebra(), axis), axis


def follow(value: Any, steps: list[tuple[str, int, bool]], other: Any) -> list[Any]:
    """All the numbers on a way of calculation; -1 stands for another length."""
    seen = [value]
    for name, number, right in steps:
        operand = other if number == -1 else number
        left, right_hand = (operand, seen[-1]) if right else (seen[-1], operand)
        try:
            seen.append(OPERATORS[name](left, right_hand))
        except ZeroDivisionError:
            break
        if isinstance(seen[-1], float):
            break
    return seen


@given(st.integers(2, 64), st.integers(1, 5), st.integers(2, 64), steps)
def test_arithmetic_is_that_of_plain_integers(units, inner, others, steps):
    algebra = Algebra()
    one = SymbolicInt.of(algebra, (Segment(Var(units), inner),))
    two = SymbolicInt.of(algebra, fresh(others))
    lengths = follow(one, steps, two)
    numbers = follow(units * inner, steps, others)
    assert [float(a) for a in lengths] == [float(b) for b in numbers]


def test_an_even_part_is_even_at_every_width():
    number, axis = measured(8)
    even = (number // 2 * 2).axis("a test")
    for segment in resolve(axis):
        segment.var.units = 3 if len(resolve(axis)) == 1 else 1
    assert length(even) == length(axis) // 2 * 2


@pytest.mark.parametrize(
    "act", [lambda n: n // 2.5, lambda n: n % 2.5, lambda n: n < 8.5, lambda n: n >= 8.5]
)
def test_fractions_are_not_cut_off(act):
    assert act(measured(8)[0]) == act(8)


@given(st.integers(2, 64), st.integers(1, 7))
def test_true_quotients_are_those_of_plain_integers(units, by):
    number, _ = measured(units)
    assert number / by == units / by
    assert by / number == by / units
    assert int(number * (1 / by)) == int(units * (1 / by))


@given(st.integers(2, 24), steps, st.data())
def test_an_axis_made_of_a_length_has_that_length_at_every_width(units, steps, data):
    algebra, (segment,) = Algebra(), fresh(units)
    plain = [(name, n, right) for name, n, right in steps if name in "+*" and n > 0]
    plain += [(name, n, False) for name, n, _ in steps if name == "//" and n > 0][:1]
    value = follow(SymbolicInt.of(algebra, (segment,)), plain, 0)[-1]
    if not isinstance(value, SymbolicInt) or not value.is_one_axis:
        return
    axis = value.axis("a test")
    assert length(axis) == int(value)
    for var in dict.fromkeys(s.var for s in resolve((segment,))):
        if var is not None:
            var.units = data.draw(st.integers(1, var.units))
    assert length(axis) == follow(length((segment,)), plain, 0)[-1]


@given(st.integers(2, 32), st.integers(2, 32), st.sampled_from(COMPARISONS), st.booleans())
def test_comparisons_are_those_of_plain_integers(a, b, compare, reflected):
    algebra = Algebra()
    one, other = SymbolicInt.of(algebra, fresh(a)), SymbolicInt.of(algebra, fresh(b))
    right: Any = b if reflected else other
    assert compare(one, right) is compare(a, b)
    assert compare(right, one) is compare(b, a)


@given(st.integers(2, 32), st.integers(2, 32), st.sampled_from(COMPARISONS))
def test_a_comparison_comes_out_the_same_at_every_width(a, b, compare):
    algebra, one, other = Algebra(), fresh(a), fresh(b)
    result = compare(SymbolicInt.of(algebra, one), SymbolicInt.of(algebra, other))
    for segment in (*one, *other):
        if segment.var is not None and segment.var.bound is None:
            segment.var.units = 1
    assert compare(length(one), length(other)) is result


def test_a_comparison_with_a_number_freezes():
    number, axis = measured(8)
    assert number == 8
    assert is_fixed(axis)
    why = axis[0].var.bound[0].why
    assert re.fullmatch(r"compared with 8 in test_symbolic_int\.py:\d+", why)
    line = Path(__file__).read_text().splitlines()[int(why.rpartition(":")[2]) - 1]
    assert "assert number == 8" in line


def test_a_comparison_with_another_width_says_so():
    (number, axis), (other, _) = measured(8), measured(12)
    assert number < other
    assert "compared with another size in test_symbolic_int.py:" in axis[0].var.bound[0].why


def test_a_comparison_with_something_else_is_just_false():
    number, axis = measured(8)
    assert number != "8"
    assert number is not None
    assert not is_fixed(axis)


def test_equal_lengths_that_are_compared_are_made_one():
    algebra, a, b = Algebra(), fresh(8), fresh(8)
    assert SymbolicInt.of(algebra, a) == SymbolicInt.of(algebra, b)
    assert not is_fixed(a)
    a[0].var.units = b[0].var.units = 5
    assert length(a) == length(b)


def test_nothing_slimmable_gives_a_plain_integer():
    assert type(SymbolicInt.of(Algebra(), fixed(8))) is int
    assert type(SymbolicInt.of(Algebra(), fixed(8), minus=fixed(3))) is int


def test_a_difference_remembers_both_axes():
    algebra, a, b = Algebra(), fresh(12), fresh(8)
    difference = SymbolicInt.of(algebra, a) - SymbolicInt.of(algebra, b)
    assert difference == 4
    difference = SymbolicInt.of(algebra, fresh(12)) - SymbolicInt.of(algebra, fresh(8))
    assert isinstance(difference, SymbolicInt)
    assert not difference.is_one_axis


def test_half_a_length_is_an_axis_of_half_the_channels():
    number, axis = measured(8)
    half = (number // 2).axis("a test")
    axis_length = length(axis)
    assert length(half) * 2 == axis_length
    half[0].var.units = 1
    assert length(axis) == 2


@pytest.mark.parametrize(
    "derive",
    [
        lambda c: c // 2,
        lambda c: c % 4,
        lambda c: c - 2,
        lambda c: 16 - c,
        lambda c: -c,
        lambda c: abs(c),
        lambda c: c & 1,
        lambda c: c >> 1,
        lambda c: 64 // c,
        lambda c: c**2,
        lambda c: (c % 4) * 3 + 1,
    ],
)
def test_what_is_computed_in_other_ways_freezes_once_something_depends_on_it(derive):
    number, axis = measured(9)
    value = derive(number)
    assert isinstance(value, DerivedInt)
    assert int(value) == derive(9)
    assert not is_fixed(axis)
    assert value == derive(9)
    assert is_fixed(axis)


def test_the_truth_of_a_derived_number_freezes():
    number, axis = measured(9)
    assert number % 4
    assert is_fixed(axis)


def test_a_remainder_of_zero_stays_zero_at_every_width():
    number, axis = measured(12)
    assert number % 4 == 0
    for segment in (s for s in axis[0].var.bound if s.var):
        segment.var.units = 1
    assert length(axis) % 4 == 0


@pytest.mark.parametrize("kind", [hash, int, float, str, bool, range])
def test_it_converts_like_an_integer(kind):
    number, axis = measured(8)
    assert kind(number) == kind(8)
    assert not is_fixed(axis)


def test_comparing_after_all_is_settled_is_locked():
    algebra, axis = Algebra(), fresh(8)
    number = SymbolicInt.of(algebra, axis)
    algebra.locked = True
    with pytest.raises(Locked):
        bool(number > 3)


def test_shapes_that_differ_in_a_fixed_axis_compare_no_lengths():
    number, axis = measured(8)
    other, other_axis = measured(12)
    assert Shape((1, number, 6, 6)) != Shape((1, other, 3, 3))
    assert not is_fixed(axis)
    assert not is_fixed(other_axis)
    assert Shape((1, number, 6, 6)) != Shape((1, other, 6, 6))
    assert is_fixed(axis)
    assert is_fixed(other_axis)


def test_a_shape_counts_its_entries():
    number, _ = measured(8)
    entries = Shape((2, number, 3)).numel()
    assert isinstance(entries, SymbolicInt)
    assert int(entries) == 48


def test_a_length_equals_the_same_number_as_a_float():
    number, axis = measured(8)
    assert number == 8.0
    assert is_fixed(axis)


@pytest.mark.parametrize("compare", COMPARISONS)
@pytest.mark.parametrize("derived_first", [False, True])
def test_both_sides_of_a_comparison_freeze(compare, derived_first):
    (number, axis), (other, other_axis) = measured(9), measured(12)
    sides = (number % 4, other) if derived_first else (other, number % 4)
    compare(*sides)
    assert is_fixed(axis)
    assert is_fixed(other_axis)


def test_a_number_derived_from_two_lengths_freezes_both():
    algebra, a, b = Algebra(), fresh(12), fresh(8)
    product = SymbolicInt.of(algebra, a) * SymbolicInt.of(algebra, b)
    assert isinstance(product, DerivedInt)
    assert product > 3
    assert is_fixed(a)
    assert is_fixed(b)
