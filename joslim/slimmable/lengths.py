"""Integers that remember which channels they count.

While a network is traced, `x.shape[1]` and a layer's `out_channels` are `Length`s, so that
`x.view(b, 2, c // 2, h, w)` and `F.pad(x, (0, 0, 0, 0, 0, out.shape[1] - x.shape[1]))` are seen to
follow the width, while a literal 64 is seen not to.
"""

from __future__ import annotations

import math
from typing import Any

from joslim.slimmable.axes import (
    Algebra,
    Axis,
    fixed,
    form,
    full_length,
    is_fixed,
    length,
    resolve,
    scale,
)

COMPARED = "compared in forward"


class Length(int):
    """(the length of `whole` - the length of `minus`) / `over`."""

    algebra: Algebra
    whole: Axis
    minus: Axis
    over: int

    @staticmethod
    def of(algebra: Algebra, whole: Axis, minus: Axis = (), over: int = 1) -> int:
        """A Length, or a plain integer where nothing can be slimmed."""
        value = (length(whole) - length(minus)) // over
        if is_fixed(whole) and is_fixed(minus):
            return value
        result = Length(value)
        result.algebra, result.whole, result.minus, result.over = algebra, whole, minus, over
        return result

    @property
    def single(self) -> bool:
        """Whether it is the length of an axis, and not a difference of two."""
        return not self.minus

    def axis(self, why: str) -> Axis:
        """The axis of this length; dividing one takes equal rows."""
        assert self.single
        return self.algebra.rows(self.whole, self.over, why) if self.over > 1 else self.whole

    @property
    def full(self) -> int:
        """Its value at full width, also while a trial child is traced."""
        return (full_length(self.whole) - full_length(self.minus)) // self.over

    def counts(self, axis: Axis) -> bool:
        """Whether this is the length of that axis at every width."""
        constant, coefficients = form(axis)
        times = {var: inner * self.over for var, inner in coefficients.items()}
        return self.single and form(self.whole) == (constant * self.over, times)

    def _derived(self, value: Any) -> Any:
        return derived(value, self.algebra, self.whole + self.minus)

    def freeze(self, why: str) -> None:
        self.algebra.freeze(self.whole, why)
        self.algebra.freeze(self.minus, why)

    def __add__(self, other: Any) -> int:
        if type(other) is int and other == 0:
            return self
        if self.single and isinstance(other, Length) and other.single and self.over == other.over:
            return Length.of(self.algebra, self.whole + other.whole, over=self.over)
        if self.single and type(other) is int and other > 0:
            whole = self.whole + fixed(other * self.over)
            return Length.of(self.algebra, whole, over=self.over)
        return self._derived(int(self) + plain(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> int:
        if type(other) is int and other == 0:
            return self
        if (
            isinstance(other, Length)
            and self.single
            and other.single
            and self.over == other.over == 1
        ):
            return Length.of(self.algebra, self.whole, minus=other.whole)
        return self._derived(int(self) - plain(other))

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, float) and other > 0 and (1 / other).is_integer():
            return self / int(1 / other)
        if type(other) is not int or not self.single or other < 1:
            return self._derived(int(self) * plain(other))
        if self.over % other == 0:
            self.axis("divided")  # c // 2 * 2 is c only where c is even
            return Length.of(self.algebra, self.whole, over=self.over // other)
        return Length.of(self.algebra, scale(resolve(self.whole), other), over=self.over)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> int:
        if type(other) is not int or not self.single or other < 1 or int(self) % other:
            return self._derived(int(self) // plain(other))
        return Length.of(self.algebra, self.whole, over=self.over * other)

    def __truediv__(self, other: Any) -> float:
        if type(other) is int and other > 0 and int(self) % other == 0:
            self.algebra.shares[int(self) // other] = self // other
        return int(self) / other

    def __mod__(self, other: Any) -> int:
        if type(other) is int and other > 0 and self.single and int(self) % other == 0:
            self.algebra.rows(self.axis("divided"), other, f"divided by {other}")
            return 0
        return self._derived(int(self) % plain(other))

    def _compared(self, other: Any, result: bool) -> bool:
        """A comparison must come out the same at every width.

        Lengths that are equal are made one. Others could meet at some width: they are frozen.
        """
        if not isinstance(other, (int, float)):
            return result
        if isinstance(other, Length) and self.single and other.single and int(self) == int(other):
            if not self.counts(theirs := other.axis(COMPARED)):
                self.algebra.unify(self.axis(COMPARED), theirs, COMPARED)
        else:
            self.freeze(COMPARED)
            if isinstance(other, Length):
                other.freeze(COMPARED)
        return result

    def __eq__(self, other: object) -> bool:
        return self._compared(other, int.__eq__(self, other) is True)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        return self._compared(other, int(self) < plain(other))

    def __le__(self, other: Any) -> bool:
        return self._compared(other, int(self) <= plain(other))

    def __gt__(self, other: Any) -> bool:
        return self._compared(other, int(self) > plain(other))

    def __ge__(self, other: Any) -> bool:
        return self._compared(other, int(self) >= plain(other))

    __hash__ = int.__hash__


class Shape(tuple):
    """What `x.shape` gives while tracing, in place of a torch.Size, which cannot be subclassed.

    Two shapes that differ in a fixed axis differ at every width, so then no Length is compared.
    """

    __slots__ = ()

    def numel(self) -> int:
        return math.prod(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple) or len(self) != len(other):
            return False
        pairs = list(zip(self, other))
        fixed_pairs = [(a, b) for a, b in pairs if type(a) is int and type(b) is int]
        return all(a == b for a, b in fixed_pairs) and all(a == b for a, b in pairs)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__


def plain(number: Any) -> Any:
    """The number without its memory."""
    return int(number) if isinstance(number, (Length, Derived)) else number


class Derived(int):
    """A number that was computed from a Length in some way that is not followed.

    It may be wrong at another width. So it freezes its channels as soon as anything depends on it:
    a comparison, a truth value, an argument of a torch operation.
    """

    algebra: Algebra
    sources: Axis

    def freeze(self, why: str) -> None:
        self.algebra.freeze(self.sources, why)

    def __bool__(self) -> bool:
        self.freeze(COMPARED)
        return int(self) != 0

    __hash__ = int.__hash__


def derived(value: Any, algebra: Algebra, sources: Axis) -> Any:
    if type(value) is not int:
        return value
    result = Derived(value)
    result.algebra, result.sources = algebra, sources
    return result


def _spread(name: str) -> None:
    """What is made of a Derived number, or of a Length by any other operator, is Derived."""

    def operate(self: Any, *others: Any) -> Any:
        value = getattr(int, name)(int(self), *map(plain, others))
        sources = self.sources if isinstance(self, Derived) else self.whole + self.minus
        for other in others:
            sources += getattr(other, "sources", getattr(other, "whole", ()))
        return derived(value, self.algebra, sources)

    for kind in (Length, Derived):
        if name not in vars(kind):
            setattr(kind, name, operate)


def _compare(name: str) -> None:
    def compare(self: Any, other: Any) -> Any:
        self.freeze(COMPARED)
        return getattr(int, name)(int(self), plain(other))

    setattr(Derived, name, compare)


for _name in ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"):
    _spread(f"__{_name}__")
    _spread(f"__r{_name}__")
for _name in ("neg", "abs", "invert", "pow"):
    _spread(f"__{_name}__")
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _compare(f"__{_name}__")
