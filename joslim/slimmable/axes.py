"""Which channels is an axis made of, while that is still being found out.

Every axis of every tensor is a sequence of segments. A segment is either fixed (so many entries,
whatever the width) or `inner` entries for each unit of a `Var`, an unknown number of channels that
may be slimmed. Running the network under `tracing.Tracer` equates axes with each other (an addition
needs equal ones, a conv's input has the channels of its weights), and a Var that meets more
structure than it has is *bound* to it:

    add(conv -> [v], concat -> [a, b])     v becomes [a, b]
    chunk([v], 2)                          v becomes [w, w]: equal halves
    add([v], a constant)                   v becomes fixed

What is unbound at the end is free to be slimmed, and every axis says which prefix of which stretch
of it a child keeps.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple


class Var:
    """Channels whose number may be slimmed: `units` of them at full width."""

    __slots__ = ("bound", "units")

    def __init__(self, units: int) -> None:
        self.units = units
        self.bound: Axis | None = None


class Segment(NamedTuple):
    """`inner` entries for each unit of `var`, or `inner` fixed entries and the reason why."""

    var: Var | None
    inner: int
    why: str = ""

    @property
    def length(self) -> int:
        return self.inner if self.var is None else self.var.units * self.inner


Axis = tuple[Segment, ...]


class Locked(Exception):
    """Something would have to be bound after all is settled: these Vars must be frozen."""

    def __init__(self, variables: set[Var], why: str) -> None:
        super().__init__(why)
        self.variables = variables
        self.why = why


def fresh(units: int) -> Axis:
    """An axis of which nothing is known but its length; one entry cannot be slimmed."""
    return (Segment(Var(units), 1),) if units > 1 else fixed(units)


def fixed(length: int, why: str = "") -> Axis:
    return (Segment(None, length, why),)


def resolve(axis: Axis) -> Axis:
    """The axis with every bound Var replaced by what it was bound to."""
    if all(segment.var is None or segment.var.bound is None for segment in axis):
        return axis
    result: list[Segment] = []
    for segment in axis:
        if segment.var is None or segment.var.bound is None:
            result.append(segment)
        else:
            result += scale(resolve(segment.var.bound), segment.inner)
    return tuple(result)


def length(axis: Axis) -> int:
    return sum(segment.length for segment in resolve(axis))


def scale(axis: Axis, times: int) -> Axis:
    """Each entry becomes `times` neighbouring ones, as when (C, H, W) is flattened."""
    return tuple(Segment(s.var, s.inner * times, s.why) for s in axis)


def variables(axis: Axis) -> set[Var]:
    return {segment.var for segment in resolve(axis) if segment.var is not None}


def is_fixed(axis: Axis) -> bool:
    return not variables(axis)


def form(axis: Axis) -> tuple[int, dict[Var, int]]:
    """The length as a linear form: a constant, and a coefficient for each Var."""
    constant, coefficients = 0, dict[Var, int]()
    for segment in resolve(axis):
        if segment.var is None:
            constant += segment.inner
        else:
            coefficients[segment.var] = coefficients.get(segment.var, 0) + segment.inner
    return constant, coefficients


class Algebra:
    """The operations that may bind Vars. Once `locked`, they raise `Locked` instead."""

    def __init__(self) -> None:
        self.locked = False

    def bind(self, var: Var, axis: Axis, why: str) -> None:
        assert var.bound is None
        if self.locked:
            raise Locked({var} | variables(axis), why)
        var.bound = axis

    def freeze(self, axis: Axis, why: str) -> None:
        for var in variables(axis):
            self.bind(var, fixed(var.units, why), why)

    def unify(self, a: Axis, b: Axis, why: str) -> None:
        """Make both axes the same, entry by entry."""
        if length(a) != length(b):
            self.freeze(a + b, why)
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
                left.extendleft(reversed(self._split(p, q.length, why)))
                right.appendleft(q)
            elif p.length < q.length:
                right.extendleft(reversed(self._split(q, p.length, why)))
                left.appendleft(p)
            else:
                self._join(p, q, why)

    def cut(self, axis: Axis, at: int, why: str) -> tuple[Axis, Axis]:
        """The first `at` entries, and the rest."""
        first: list[Segment] = []
        rest = deque(resolve(axis))
        while at > 0:
            segment = rest.popleft()
            if segment.length > at:
                rest.extendleft(reversed(self._split(segment, at, why)))
                rest = deque(resolve(tuple(rest)))
            else:
                first.append(segment)
                at -= segment.length
        return resolve(tuple(first)), resolve(tuple(rest))

    def rows(self, axis: Axis, count: int, why: str) -> Axis:
        """(count x row) -> row: the axis read as equal rows, as a chunk or a view does."""
        total = length(axis)
        if total % count:
            self.freeze(axis, why)
            return fixed(total // count, why)
        first, rest = self.cut(axis, total // count, why)
        for _ in range(count - 1):
            row, rest = self.cut(rest, total // count, why)
            self.unify(first, row, why)
        return resolve(first)

    def quotient(self, axis: Axis, by: int, why: str) -> Axis:
        """(outer x by) -> outer: the inverse of `scale`."""
        result: list[Segment] = []
        for segment in resolve(axis):
            if segment.var is not None and segment.inner % by:
                segment = self._coarsen(segment, by, why)
            if segment.inner % by:
                total = length(axis)
                self.freeze(axis, why)
                return fixed(total // by, why)
            result.append(Segment(segment.var, segment.inner // by, segment.why))
        return tuple(result)

    def merge(self, axes: list[Axis], why: str) -> Axis:
        """Several axes read as one, the last the fastest, as flatten does."""
        result = axes[-1]
        for axis in reversed(axes[:-1]):
            if is_fixed(result):
                result = scale(resolve(axis), length(result))
            elif is_fixed(axis):
                result = resolve(result) * length(axis)
            else:
                total = length(axis) * length(result)
                self.freeze(axis + result, why)
                result = fixed(total, why)
        return result

    def _split(self, segment: Segment, at: int, why: str) -> Axis:
        if segment.var is None:
            return fixed(at, segment.why) + fixed(segment.inner - at, segment.why)
        if at % segment.inner:
            self.freeze((segment,), why)
            return self._split(Segment(None, segment.length, why), at, why)
        units = at // segment.inner
        halves = (Segment(Var(units), 1), Segment(Var(segment.var.units - units), 1))
        self.bind(segment.var, halves, why)
        return scale(halves, segment.inner)

    def _join(self, p: Segment, q: Segment, why: str) -> None:
        """Two segments of equal length."""
        if p.var is q.var:
            if p.inner != q.inner:
                self.freeze((p,), why)
        elif p.var is None:
            self.freeze((q,), p.why or why)
        elif q.var is None:
            self.freeze((p,), q.why or why)
        elif p.inner % q.inner == 0:
            self.bind(q.var, (Segment(p.var, p.inner // q.inner),), why)
        else:
            self.bind(p.var, (Segment(self._coarsen(q, p.inner, why).var, _common(p, q)),), why)

    def _coarsen(self, segment: Segment, by: int, why: str) -> Segment:
        """The segment in units so large that `by` divides the entries of each, or frozen."""
        assert segment.var is not None
        times = by // math.gcd(segment.inner, by)
        if times == 1:
            return segment
        if segment.var.units % times:
            self.freeze((segment,), why)
            return Segment(None, segment.length, why)
        coarse = Var(segment.var.units // times)
        self.bind(segment.var, (Segment(coarse, times),), why)
        return Segment(coarse, segment.inner * times)


def _common(p: Segment, q: Segment) -> int:
    """Units of p's Var in one unit of the coarse Var that p and q share."""
    return math.lcm(p.inner, q.inner) // p.inner
