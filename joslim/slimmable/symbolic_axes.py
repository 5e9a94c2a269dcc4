"""Symbolic axes: the channels that an axis of a tensor is made of, found by unification.

This is the algebra behind tracing. Every axis of every tensor is a sequence of segments. A segment
is either fixed (the same number of entries at every width) or has `inner` entries for each unit of
a `Var`, an unknown number of channels that may be slimmed. While the network runs under
`tracing.Tracer`, the rules in op_rules.py equate axes (an addition needs equal axes; the input of a
conv has the channels of its weight). A Var that is equated with more structure is *bound* to it:

    add(conv -> [v], concat -> [a, b])     v becomes [a, b]
    chunk([v], 2)                          v becomes [w, w]: equal halves
    add([v], a constant)                   v becomes fixed

Vars that are unbound at the end can be slimmed: plan.py turns them into Dims, and the segments of
an axis into the prefixes that a child keeps of it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple


class Var:
    """Channels whose number may be slimmed: `full` in all, `units` in the present trial child."""

    __slots__ = ("bound", "full", "units")

    def __init__(self, full: int) -> None:
        self.full = full
        self.units = full
        self.bound: Axis | None = None


class Segment(NamedTuple):
    """`inner` entries for each unit of `var`, or `inner` fixed entries and the reason."""

    var: Var | None
    inner: int
    why: str = ""

    @property
    def length(self) -> int:
        return self.inner if self.var is None else self.var.units * self.inner


Axis = tuple[Segment, ...]


class Locked(Exception):
    """A Var would have to be bound after the plan is final: these Vars must be frozen instead."""

    def __init__(self, variables: set[Var], why: str) -> None:
        super().__init__(why)
        self.variables = variables
        self.why = why


def fresh(units: int, why: str = "") -> Axis:
    """Return an axis of which only the length is known; a single entry cannot be slimmed."""
    return (Segment(Var(units), 1),) if units > 1 else fixed(units, why)


def fixed(length: int, why: str = "") -> Axis:
    return (Segment(None, length, why),)


def resolve(axis: Axis) -> Axis:
    """Replace every bound Var of an axis by the axis that it is bound to."""
    if all(segment.var is None or segment.var.bound is None for segment in axis):
        return axis
    result: list[Segment] = []
    for segment in axis:
        if segment.var is None or segment.var.bound is None:
            result.append(segment)
        else:
            # Stored again, so that a chain of bindings is followed only once.
            segment.var.bound = resolve(segment.var.bound)
            result += scale(segment.var.bound, segment.inner)
    return tuple(result)


def length(axis: Axis) -> int:
    return sum(segment.length for segment in resolve(axis))


def full_length(axis: Axis) -> int:
    """Return the length at full width, also while a trial child is traced."""
    return sum(s.inner if s.var is None else s.var.full * s.inner for s in resolve(axis))


def scale(axis: Axis, times: int) -> Axis:
    """Replace each entry by `times` neighbouring ones, as flattening (C, H, W) does."""
    return axis if times == 1 else tuple(Segment(s.var, s.inner * times, s.why) for s in axis)


def variables(axis: Axis) -> set[Var]:
    return {segment.var for segment in resolve(axis) if segment.var is not None}


def is_fixed(axis: Axis) -> bool:
    return not variables(axis)


def form(axis: Axis) -> tuple[int, dict[Var, int]]:
    """Return the length as a linear form: a constant, and a coefficient for each Var."""
    constant, coefficients = 0, dict[Var, int]()
    for segment in resolve(axis):
        if segment.var is None:
            constant += segment.inner
        else:
            coefficients[segment.var] = coefficients.get(segment.var, 0) + segment.inner
    return constant, coefficients


def cuts_inside(axis: Axis, row: int) -> Iterator[tuple[Segment, list[int]]]:
    """Yield each segment with the positions inside it where rows of this length begin."""
    start = 0
    for segment in axis:
        stop = start + segment.length
        yield segment, [at - start for at in range(start - start % row + row, stop, row)]
        start = stop


class Algebra:
    """The operations that bind Vars. Once `locked`, they raise `Locked` instead."""

    def __init__(self) -> None:
        self.locked = False
        # Results of true divisions of symbolic integers, by their value: see Tracer.recall.
        self.shares: dict[int, int] = {}

    def bind(self, var: Var, axis: Axis, why: str) -> None:
        assert var.bound is None
        if self.locked:
            raise Locked({var} | variables(axis), why)
        var.bound = axis

    def freeze(self, axis: Axis, why: str) -> None:
        if self.locked and not is_fixed(axis):
            raise Locked(variables(axis), why)
        for var in variables(axis):
            self.bind(var, fixed(var.units, why), why)

    def unify(self, a: Axis, b: Axis, why: str) -> None:
        """Make two axes the same, entry by entry."""
        if length(a) != length(b):
            self.freeze(a + b, f"sizes differ at {why}")
            return
        left, right = deque(resolve(a)), deque(resolve(b))
        while left and right:
            p, q = left.popleft(), right.popleft()
            if (now := resolve((p,))) != (p,) or not p.length:
                left.extendleft(reversed(now if p.length else ()))
                right.appendleft(q)
            elif (now := resolve((q,))) != (q,) or not q.length:
                right.extendleft(reversed(now if q.length else ()))
                left.appendleft(p)
            elif p.length > q.length:
                left.extendleft(reversed(self._split(p, [q.length], why)))
                right.appendleft(q)
            elif p.length < q.length:
                right.extendleft(reversed(self._split(q, [p.length], why)))
                left.appendleft(p)
            else:
                self._join(p, q, why)

    def cut(self, axis: Axis, at: int, why: str) -> tuple[Axis, Axis]:
        """Split an axis into its first `at` entries and the rest."""
        first: list[Segment] = []
        rest: list[Segment] = []
        start = 0
        for segment in resolve(axis):
            stop = start + segment.length
            pieces = self._split(segment, [at - start], why) if start < at < stop else (segment,)
            for piece in pieces:
                (first if start < at else rest).append(piece)
                start += piece.length
        return resolve(tuple(first)), resolve(tuple(rest))

    def rows(self, axis: Axis, count: int, why: str) -> Axis:
        """(count x row) -> row: read the axis as equal rows, as a chunk or a view does."""
        axis = resolve(axis)
        total = length(axis)
        if total % count:
            self.freeze(axis, f"it does not divide evenly at {why}")
            return fixed(total // count, why)
        if count == 1:
            return axis
        if not self._can_cut(axis, total // count) and all(s.inner % count == 0 for s in axis):
            # The rows would split units, but each unit can give its share to every row: 3 entries
            # of each of 5 units are 3 rows of 5. The rows of a child then hold other channels than
            # those of the full network, but in the right number, and the child runs like that.
            return tuple(Segment(s.var, s.inner // count, s.why) for s in axis)
        rows = self._cut_all(axis, total // count, why)
        for row in rows[1:]:
            self.unify(rows[0], row, why)
        return resolve(rows[0])

    def quotient(self, axis: Axis, by: int, why: str) -> Axis:
        """(outer x by) -> outer: the inverse of `scale`."""
        axis = resolve(axis)
        while coarse := [s for s in axis if s.var and s.inner % by]:
            self._coarsen(coarse[0], by, why)
            axis = resolve(axis)
        if any(segment.inner % by for segment in axis):
            self.freeze(axis, f"it does not divide evenly at {why}")
            return fixed(length(axis) // by, why)
        return tuple(Segment(s.var, s.inner // by, s.why) for s in axis)

    def merge(self, axes: list[Axis], why: str) -> Axis:
        """Read several axes as one, the last one varying fastest, as flatten does.

        Of two slimmable axes the inner one freezes: whole heads leave, and their size stays.
        """
        result = axes[-1]
        for axis in reversed(axes[:-1]):
            if is_fixed(result):
                result = scale(resolve(axis), length(result))
            elif is_fixed(axis):
                result = resolve(result) * length(axis)
            else:
                self.freeze(result, f"two slimmable axes are merged by {why}")
                result = scale(resolve(axis), length(result))
        return result

    def _can_cut(self, axis: Axis, row: int) -> bool:
        """Tell whether rows of this length begin between units (once locked: between segments)."""
        return not any(
            segment.var and cuts and (self.locked or any(at % segment.inner for at in cuts))
            for segment, cuts in cuts_inside(axis, row)
        )

    def _cut_all(self, axis: Axis, row: int, why: str) -> list[Axis]:
        """Cut an axis into rows, with all cuts of a segment at once, because there may be many."""
        while torn := [(s, cuts) for s, cuts in cuts_inside(axis, row) if s.var and cuts]:
            self._split(*torn[0], why)
            axis = resolve(axis)
        rows: list[Axis] = []
        for segment, cuts in cuts_inside(axis, row):
            for piece in self._split(segment, cuts, why) if cuts else (segment,):
                if rows and length(rows[-1]) < row:
                    rows[-1] += (piece,)
                else:
                    rows.append((piece,))
        return rows

    def _split(self, segment: Segment, cuts: list[int], why: str) -> Axis:
        """Split a segment after these numbers of entries."""
        sizes = [stop - start for start, stop in pairwise([0, *cuts, segment.length])]
        if segment.var is not None and any(cut % segment.inner for cut in cuts):
            self.freeze((segment,), f"it does not divide evenly at {why}")
            segment = Segment(None, segment.length, why)
        if segment.var is None:
            return tuple(Segment(None, size, segment.why) for size in sizes)
        alone = f"only single units are left at {why}"
        pieces = tuple(s for size in sizes for s in fresh(size // segment.inner, alone))
        self.bind(segment.var, pieces, why)
        return scale(pieces, segment.inner)

    def _join(self, p: Segment, q: Segment, why: str) -> None:
        """Equate two segments of equal length."""
        if p.var is q.var:
            if p.inner != q.inner:
                self.freeze((p,), f"it meets itself at {why}")
        elif p.var is None:
            self.freeze((q,), p.why or f"it meets a fixed size at {why}")
        elif q.var is None:
            self.freeze((p,), q.why or f"it meets a fixed size at {why}")
        elif p.inner % q.inner == 0:
            self.bind(q.var, (Segment(p.var, p.inner // q.inner),), why)
        elif q.inner % p.inner == 0:
            self._join(q, p, why)
        else:
            self._join(p, self._coarsen(q, p.inner, why), why)

    def _coarsen(self, segment: Segment, by: int, why: str) -> Segment:
        """Merge units until `by` divides the entries of each; freeze the segment if none do."""
        assert segment.var is not None
        times = by // math.gcd(segment.inner, by)
        if times == 1:
            return segment
        if segment.var.units % times:
            self.freeze((segment,), f"it does not divide evenly at {why}")
            return Segment(None, segment.length, why)
        alone = f"only a single unit is left at {why}"
        (coarse,) = fresh(segment.var.units // times, alone)
        self.bind(segment.var, scale((coarse,), times), why)
        return Segment(coarse.var, coarse.inner * segment.inner * times, coarse.why)
