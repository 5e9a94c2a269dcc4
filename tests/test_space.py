"""Widths: integer counts that no rounding loses, and one child per set of counts."""

import copy
import json
import math
import pickle
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joslim.errors import UserError
from joslim.space import Dim, Knob, Widths, WidthSpace

# Multipliers on a grid: those next to k / n by less than the tolerance have their own tests.
GRID = 10**6

Case = tuple[WidthSpace, list[float]]


@st.composite
def dims(draw: st.DrawFn, name: str) -> Dim:
    step = draw(st.sampled_from([1, 1, 2, 3, 8]))
    units = draw(st.integers(1, 200))
    divisor = draw(st.sampled_from([1, 1, 4, 6, 8]))
    return Dim(name, full=units * step, step=step, divisor=divisor)


@st.composite
def spaces(draw: st.DrawFn) -> WidthSpace:
    """Up to four knobs, each of which drives up to three Dims that lie anywhere in the network."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    order = draw(st.permutations(range(sum(sizes))))
    positions = iter(order)
    knobs = []
    for number, size in enumerate(sizes):
        members = tuple(sorted(next(positions) for _ in range(size)))
        knobs.append(Knob(f"knob{number}", members, draw(st.integers(1, GRID)) / GRID))
    return WidthSpace(tuple(draw(dims(f"dim{i}")) for i in range(len(order))), tuple(knobs))


@st.composite
def chosen(draw: st.DrawFn) -> Case:
    """A space, and multipliers in it; the ends come up often."""
    space = draw(spaces())
    shares = [draw(st.sampled_from([0, GRID]) | st.integers(0, GRID)) / GRID for _ in space.knobs]
    return space, [min(1.0, round(k.low + (1 - k.low) * t, 6)) for k, t in zip(space.knobs, shares)]


@pytest.fixture
def space() -> WidthSpace:
    """Two knobs; the second drives a Dim that goes in steps and one that is rounded."""
    return WidthSpace(
        (Dim("stem", 16), Dim("groups", 12, step=3), Dim("even", 10, divisor=4)),
        (Knob("stem", (0,), 0.25), Knob("inner", (1, 2), 0.5)),
    )


# Counts


@given(chosen())
def test_counts_are_whole_steps_between_least_and_full(case: Case) -> None:
    space, multipliers = case
    for dim, count in zip(space.dims, space.at(multipliers).counts):
        assert isinstance(count, int)
        assert dim.least <= count <= dim.full
        assert count % dim.step == 0
        assert count % dim.divisor == 0 or count == dim.full


@given(chosen())
def test_counts_are_the_floor_of_multiplier_times_full(case: Case) -> None:
    space, multipliers = case
    child = space.at(multipliers)
    for knob, multiplier in zip(space.knobs, multipliers):
        exact = Fraction(round(multiplier * GRID), GRID)
        for position in knob.dims:
            dim = space.dims[position]
            grain = math.lcm(dim.step, dim.divisor)
            floor = math.floor(exact * dim.full / grain) * grain
            expected = dim.full if exact == 1 else max(floor, min(grain, dim.full))
            assert child.counts[position] == expected


@given(spaces())
def test_full_at_one(space: WidthSpace) -> None:
    assert space.at([1.0] * len(space)) == space.full == space.uniform(1)
    assert space.full.counts == tuple(dim.full for dim in space.dims)


@given(chosen())
def test_smallest_and_full_bound_every_child(case: Case) -> None:
    space, multipliers = case
    counts = space.at(multipliers).counts
    assert all(a <= b <= c for a, b, c in zip(space.smallest.counts, counts, space.full.counts))


@given(chosen(), st.integers(0, GRID))
def test_more_is_never_less(case: Case, more: int) -> None:
    space, multipliers = case
    higher = [min(1.0, m + more / GRID) for m in multipliers]
    assert all(a <= b for a, b in zip(space.at(multipliers).counts, space.at(higher).counts))


@pytest.mark.parametrize("block", range(0, 300, 50))
def test_no_channel_is_lost_to_rounding(block: int) -> None:
    for full in range(block + 1, block + 51):
        space = WidthSpace((Dim("a", full),), (Knob("a", (0,), 1e-3),))
        shares = [[k / full] for k in range(1, full + 1)]
        assert space.counts(shares)[:, 0].tolist() == list(range(1, full + 1))


@pytest.mark.parametrize(("count", "full"), [(29, 200), (13, 184)])
def test_counts_that_public_code_loses(count: int, full: int) -> None:
    assert int(count / full * full) == count - 1, "the reason for this test"
    space = WidthSpace((Dim("a", full),), (Knob("a", (0,), 0.01),))
    assert space.at([count / full]).counts == (count,)


def test_whole_steps_are_not_lost_to_rounding_either() -> None:
    for units in range(1, 100):
        space = WidthSpace((Dim("a", 3 * units, step=3),), (Knob("a", (0,), 1e-3),))
        counts = space.counts([[k / units] for k in range(1, units + 1)])[:, 0]
        assert counts.tolist() == list(range(3, 3 * units + 1, 3))


def test_never_without_channels() -> None:
    space = WidthSpace((Dim("a", 3), Dim("b", 40, step=20)), (Knob("k", (0, 1), 0.01),))
    assert space.smallest.counts == (1, 20)


def test_a_divisor_above_the_full_count_leaves_it_whole() -> None:
    space = WidthSpace((Dim("a", 5, divisor=8),), (Knob("a", (0,), 0.1),))
    assert space.smallest.counts == space.full.counts == (5,)


def test_steps_and_divisors_by_hand(space: WidthSpace) -> None:
    assert [dim.grain for dim in space.dims] == [1, 3, 4]
    assert space.at([0.5, 0.5]).counts == (8, 6, 4)
    assert space.at([0.99, 0.99]).counts == (15, 9, 8)
    assert space.full.counts == (16, 12, 10)
    assert space.at([0.5, 0.5]).units == (8, 2, 4)


@given(chosen(), st.integers(1, 5))
def test_a_matrix_gives_what_its_rows_give(case: Case, rows: int) -> None:
    space, multipliers = case
    matrix = [multipliers, *([1.0] * len(space) for _ in range(rows))]
    counts = space.counts(matrix)
    assert counts.dtype == np.int64
    assert [tuple(row) for row in counts.tolist()] == [space.at(row).counts for row in matrix]


def test_no_rows_give_no_counts(space: WidthSpace) -> None:
    assert space.counts(np.zeros((0, 2))).shape == (0, 3)


# There and back


@given(chosen())
def test_multipliers_give_the_same_child_again(case: Case) -> None:
    space, multipliers = case
    child = space.at(multipliers)
    assert space.at(child.multipliers) == child
    assert space.of_counts(child.counts) == child
    assert (child.multipliers >= space.low).all()
    assert (child.multipliers <= np.array(multipliers) + 1e-9).all(), "the smallest that do"


@given(spaces(), st.integers(0, 2**32))
def test_random_children_come_back_too(space: WidthSpace, seed: int) -> None:
    child = space.random(np.random.default_rng(seed))
    assert space.at(child.multipliers) == child
    assert space.of_counts(child.counts) == child


@pytest.mark.parametrize(
    ("dims", "multiplier"),
    [
        pytest.param((Dim("a", 10), Dim("b", 100)), 0.3 - 5e-11, id="tied"),
        pytest.param((Dim("a", 8), Dim("b", 10, divisor=4)), 1 - 1e-10, id="divisor"),
    ],
)
def test_children_just_below_a_channel_come_back_too(
    dims: tuple[Dim, ...], multiplier: float
) -> None:
    space = WidthSpace(dims, (Knob("k", (0, 1), 0.1),))
    child = space.at([multiplier])
    assert space.at(child.multipliers) == child
    assert space.of_counts(child.counts) == child


def test_the_smallest_multipliers_by_hand(space: WidthSpace) -> None:
    child = space.at([0.6, 0.8])
    assert child.counts == (9, 9, 8)
    assert child.multipliers.tolist() == [9 / 16, 8 / 10]
    assert space.smallest.multipliers.tolist() == [0.25, 0.5]


@pytest.mark.parametrize(
    "counts",
    [
        (3, 6, 4),  # below its low
        (0, 6, 4),
        (-8, 6, 4),
        (17, 6, 4),  # above full
        (8, 7, 4),  # not whole groups
        (8, 6, 5),  # not rounded
        (8, 12, 4),  # two counts of one knob that no multiplier gives together
        (8, 6),
        (8, 6, 4, 4),
        (),
    ],
)
def test_counts_of_no_child_are_refused(space: WidthSpace, counts: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"^widths: [^\n]*$"):
        space.of_counts(counts)


def test_fractions_are_no_counts(space: WidthSpace) -> None:
    with pytest.raises(UserError):
        space.of_counts([8.9, 6, 4])  # type: ignore[list-item]


@given(chosen(), st.data())
def test_a_count_moved_off_its_grain_is_refused(case: Case, data: st.DataObject) -> None:
    space, multipliers = case
    counts = list(space.at(multipliers).counts)
    position = data.draw(st.integers(0, len(counts) - 1))
    counts[position] += data.draw(st.sampled_from([-space.dims[position].full, 10**6]))
    with pytest.raises(UserError):
        space.of_counts(counts)


# One child is one set of counts


@given(chosen())
def test_equal_by_counts_and_not_by_multipliers(case: Case) -> None:
    space, multipliers = case
    a, b = space.at(multipliers), space.at(space.at(multipliers).multipliers)
    assert a == b
    assert hash(a) == hash(b)
    assert len({a, b}) == 1


def test_different_multipliers_of_the_same_child(space: WidthSpace) -> None:
    assert space.at([0.5, 0.6]) == space.at([0.55, 0.7])
    assert {space.at([0.5, 0.6]): "cost"}[space.at([0.55, 0.7])] == "cost"
    assert space.at([0.5, 0.6]) != space.at([0.6, 0.6])
    assert space.full != "full"


def test_the_same_counts_in_another_space_are_another_child(space: WidthSpace) -> None:
    other = WidthSpace(space.dims, (space.knobs[0], Knob("inner", (1, 2), 0.6)))
    assert other.full.counts == space.full.counts
    assert other.full != space.full


def test_spaces_are_equal_by_dims_and_knobs(space: WidthSpace) -> None:
    layers = tuple(Dim(d.name, d.full, d.step, d.divisor, ("here",)) for d in space.dims)
    assert WidthSpace(layers, space.knobs) == space
    assert WidthSpace(layers, space.knobs).full == space.full


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda w: pickle.loads(pickle.dumps(w))])
def test_copies_are_equal(space: WidthSpace, duplicate: Callable[[Widths], Widths]) -> None:
    child = space.at([0.6, 0.8])
    again = duplicate(child)
    assert again == child
    assert hash(again) == hash(child)
    assert again.multipliers.tolist() == child.multipliers.tolist()


def test_a_child_cannot_be_changed(space: WidthSpace) -> None:
    with pytest.raises(AttributeError):
        space.full.counts = (1, 3, 4)  # type: ignore[misc]


def test_printable(space: WidthSpace) -> None:
    child = space.at([0.5, 0.8])
    assert child.channels == {"stem": 8, "groups": 9, "even": 8}
    assert str(child) == "stem=8 groups=9 even=8"
    assert repr(child) == "Widths(stem=8 groups=9 even=8)"


# Ways to choose a child


def test_length_is_the_number_of_knobs(space: WidthSpace) -> None:
    assert len(space) == 2
    assert space.low.tolist() == [0.25, 0.5]


@given(spaces(), st.integers(1, GRID))
def test_uniform_keeps_each_knob_above_its_low(space: WidthSpace, share: int) -> None:
    multiplier = share / GRID
    expected = space.at([max(knob.low, multiplier) for knob in space.knobs])
    assert space.uniform(multiplier) == expected


def test_uniform_and_smallest_by_hand(space: WidthSpace) -> None:
    assert space.smallest == space.at([0.25, 0.5]) == space.uniform(0.01)
    assert space.uniform(0.3).counts == (4, 6, 4)


@given(spaces(), st.integers(0, 2**32))
def test_random_is_a_function_of_the_generator(space: WidthSpace, seed: int) -> None:
    a, b = np.random.default_rng(seed), np.random.default_rng(seed)
    assert [space.random(a) for _ in range(3)] == [space.random(b) for _ in range(3)]


def test_random_does_not_touch_the_global_generator(space: WidthSpace) -> None:
    before = np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    space.random(np.random.default_rng(0))
    assert (np.random.get_state()[1] == before).all()  # type: ignore[index]


def test_random_reaches_everything_but_the_top(space: WidthSpace) -> None:
    rng = np.random.default_rng(0)
    stems = {space.random(rng).counts[0] for _ in range(500)}
    assert stems == set(range(4, 16)), "a count is the floor of its share: full only at 1"


# Bad input


@pytest.mark.parametrize("multipliers", [[], [0.5], [0.5, 0.5, 0.5]])
def test_wrong_lengths_are_refused(space: WidthSpace, multipliers: list[float]) -> None:
    message = f"widths: {len(multipliers)} multipliers given, this network has 2 knobs"
    with pytest.raises(UserError, match=f"^{message}$"):
        space.at(multipliers)
    with pytest.raises(UserError, match=f"^{message}$"):
        space.counts([multipliers, multipliers])


@pytest.mark.parametrize("value", [0.49, 0.0, -1.0, 1.01, math.nan, math.inf, -math.inf])
def test_multipliers_outside_are_refused_by_name(space: WidthSpace, value: float) -> None:
    message = re.escape(f"widths: multiplier {value} for knob 'inner' is outside [0.5, 1]")
    with pytest.raises(UserError, match=f"^{message}$"):
        space.at([0.5, value])
    with pytest.raises(UserError, match=f"^{message}$"):
        space.counts([[0.5, 0.5], [1.0, value]])


def test_the_last_digit_of_an_end_is_forgiven(space: WidthSpace) -> None:
    assert space.at([0.25 - 1e-12, 1 + 1e-12]) == space.at([0.25, 1.0])


@pytest.mark.parametrize("value", [0, -0.5, 1.5, math.nan, math.inf])
def test_uniform_refuses_what_is_no_share(space: WidthSpace, value: float) -> None:
    with pytest.raises(UserError, match=rf"^multiplier: {value} is outside \(0, 1\]$"):
        space.uniform(value)


def test_widths_hold_counts_only(space: WidthSpace) -> None:
    assert Widths(space, (8, 9, 8)) == space.at([0.5, 0.8])


# As JSON


@given(chosen())
def test_json_gives_the_same_space_again(case: Case) -> None:
    space, multipliers = case
    again = WidthSpace.of_json(json.loads(json.dumps(space.to_json(), allow_nan=False)))
    assert again == space
    assert again.at(multipliers) == space.at(multipliers)


def test_the_json_of_a_space() -> None:
    space = WidthSpace((Dim("a", 16, 2, 4, ("a.conv", "b")),), (Knob("k", (0,), 0.25),))
    record = {
        "dims": [{"name": "a", "full": 16, "step": 2, "divisor": 4, "layers": ["a.conv", "b"]}],
        "knobs": [{"name": "k", "dims": [0], "low": 0.25}],
    }
    assert space.to_json() == record
    assert WidthSpace.of_json(record).dims[0].layers == ("a.conv", "b")


@pytest.mark.parametrize(
    ("dim", "knob", "words"),
    [
        ({"full": 0}, {}, "space.dims[0].full: 0 is not a whole number from 1 to"),
        ({"full": True}, {}, "space.dims[0].full: True"),
        ({"full": 1.0}, {}, "space.dims[0].full: 1.0"),
        ({"step": -2}, {}, "space.dims[0].step: -2"),
        ({"divisor": 10**30}, {}, "space.dims[0].divisor: 1000"),
        ({"layers": "conv"}, {}, "space.dims[0].layers: 'conv' is not a list"),
        ({"layers": [3]}, {}, "space.dims[0].layers[0]: 3 is not a name"),
        ({"name": "a\nb"}, {}, r"space.dims[0].name: 'a\nb' is not a name"),
        ({}, {"dims": []}, "space.knobs[0].dims: 0 entries"),
        ({}, {"dims": [1]}, "space.knobs[0].dims[0]: 1 is not a whole number from 0 to 0"),
        ({}, {"low": 1.5}, "space.knobs[0].low: 1.5 is outside (0, 1]"),
        ({}, {"low": math.nan}, "space.knobs[0].low: nan is not a finite number"),
        ({}, {"name": None}, "space.knobs[0].name: None is not a name"),
    ],
)
def test_json_that_is_no_space(dim: dict[str, Any], knob: dict[str, Any], words: str) -> None:
    record = {
        "dims": [{"name": "a", "full": 16, "step": 1, "divisor": 1, "layers": [], **dim}],
        "knobs": [{"name": "k", "dims": [0], "low": 0.25, **knob}],
    }
    with pytest.raises(UserError, match=f"^{re.escape(words)}"):
        WidthSpace.of_json(record)


@pytest.mark.parametrize("record", [None, [], "space", {}, {"dims": [], "knobs": []}])
def test_json_that_is_nothing_like_a_space(record: Any) -> None:
    with pytest.raises(UserError, match=r"^space[^\n]*$"):
        WidthSpace.of_json(record)


# Blocks and pixels: a list of values


def mixed_space() -> WidthSpace:
    dims = (
        Dim("conv", 16),
        Dim("stage", 3, layers=("a", "b", "c"), kind="blocks", values=(1, 2, 3)),
        Dim("input", 224, kind="pixels", values=(96, 160, 192, 224)),
    )
    knobs = (Knob("conv", (0,), 0.25), Knob("stage", (1,), 1 / 3), Knob("input", (2,), 96 / 224))
    return WidthSpace(dims, knobs)


def test_each_value_of_a_list_has_an_equal_share_of_the_range() -> None:
    space = mixed_space()
    points = np.linspace(space.low, 1, 12001)
    counts = space.counts(points)
    for column, values in ((1, (1, 2, 3)), (2, (96, 160, 192, 224))):
        found, each = np.unique(counts[:, column], return_counts=True)
        assert found.tolist() == list(values)
        assert np.ptp(each) <= 2
        assert (np.diff(counts[:, column]) >= 0).all()


def test_children_of_mixed_kinds_keep_their_counts() -> None:
    space = mixed_space()
    assert space.full.counts == (16, 3, 224)
    assert space.smallest.counts == (4, 1, 96)
    assert space.full.multipliers.tolist() == [1, 1, 1]
    assert (space.full.pixels, space.smallest.pixels) == (224, 96)
    assert space.kinds == ("channels", "blocks", "pixels")
    for blocks in (1, 2, 3):
        for pixels in (96, 160, 192, 224):
            child = space.of_counts([7, blocks, pixels])
            assert space.at(child.multipliers) == child
            assert child.channels == {"conv": 7, "stage": blocks, "input": pixels}
    for counts in ([7, 0, 96], [7, 4, 96], [7, 1, 128], [7, 1, 225]):
        with pytest.raises(UserError, match="is not a child of this network"):
            space.of_counts(counts)


def test_a_mixed_space_as_json() -> None:
    space = mixed_space()
    record = json.loads(json.dumps(space.to_json()))
    assert WidthSpace.of_json(record) == space
    assert record["dims"][0].keys() == {"name", "full", "step", "divisor", "layers"}
    assert WidthSpace.of_json(record).full == space.full
    other = copy.deepcopy(record)
    other["dims"][1]["kind"] = "pixels"
    assert WidthSpace.of_json(other) != space


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("dims", 1, "kind"), "kernels", r"space.dims\[1\].kind: 'kernels' given; allowed: blocks"),
        (("dims", 1, "values"), [3, 2, 1], r"space.dims\[1\].values: they do not rise to 3"),
        (("dims", 1, "values"), [1, 2], r"space.dims\[1\].values: they do not rise to 3"),
        (("dims", 1, "values"), [3], r"space.dims\[1\].values"),
        (("dims", 1, "values"), [0, 3], r"space.dims\[1\].values\[0\]"),
        (("dims", 1, "divisor"), 2, r"space.dims\[1\].values: they do not rise to 3"),
        (("knobs", 1, "low"), 0.5, r"space.knobs\[1\]: it does not fit the values"),
    ],
)
def test_broken_values(path: tuple[Any, ...], value: Any, words: str) -> None:
    record = mixed_space().to_json()
    section, position, key = path
    record[section][position][key] = value
    with pytest.raises(UserError, match=words):
        WidthSpace.of_json(record)


def test_widths_of_blocks_that_are_left_out() -> None:
    dims = (
        Dim("a.conv", 8, layers=("a.conv",)),
        Dim("b.conv", 8, layers=("b.conv",)),
        Dim("joint", 8, layers=("a.out", "b.out")),
        Dim("stage", 2, layers=("a", "b"), kind="blocks", values=(1, 2)),
    )
    knobs = tuple(Knob(dim.name, (at,), 0.5) for at, dim in enumerate(dims))
    space = WidthSpace(dims, knobs)
    assert space.full.left_out == frozenset()
    assert space.smallest.left_out == {"b.conv"}
