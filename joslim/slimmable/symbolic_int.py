"""Symbolic integers: sizes that remember which axis they measure, while a network is traced.

During tracing, `x.shape[1]` and the `out_channels` of a layer are `SymbolicInt`s. Therefore
`x.view(b, 2, c // 2, h, w)` and `F.pad(x, (0, 0, 0, 0, 0, out.shape[1] - x.shape[1]))` are known to
follow the width, and a literal 64 is known to be fixed.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from joslim.slimmable.symbolic_axes import (
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

TORCH = Path(torch.__file__).parent


def reason_of_comparison(other: Any) -> str:
    """Describe who compares a size: a layer of torch, or a line of the user's code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(TORCH):
            kinds = type(frame.f_locals.get("self")).__mro__
            layers = [kind for kind in kinds if kind.__module__.startswith("torch.nn.modules")]
            if layers and layers[0] is not torch.nn.Module:
                return f"feeds nn.{layers[0].__name__}, which needs a fixed size"
        elif frame.f_globals.get("__package__") != __package__:
            what = "another size" if isinstance(other, (SymbolicInt, DerivedInt)) else other
            return f"compared with {what} in {path.name}:{frame.f_lineno}"
        frame = frame.f_back
    return "compared in forward"


class SymbolicInt(int):
    """The integer (length of `plus` - length of `minus`) / `over`."""

    algebra: Algebra
    plus: Axis
    minus: Axis
    over: int

    @staticmethod
    def of(algebra: Algebra, plus: Axis, minus: Axis = (), over: int = 1) -> int:
        """Return a SymbolicInt, or a plain integer if it is the same at every width."""
        value = (length(plus) - length(minus)) // over
        if is_fixed(plus) and is_fixed(minus):
            return value
        result = SymbolicInt(value)
        result.algebra, result.plus, result.minus, result.over = algebra, plus, minus, over
        return result

    @property
    def is_one_axis(self) -> bool:
        """Tell whether this is the length of one axis, and not a difference of two."""
        return not self.minus

    def axis(self, why: str) -> Axis:
        """Return the axis of this length; a divided axis is read as equal rows."""
        assert self.is_one_axis
        return self.algebra.rows(self.plus, self.over, why) if self.over > 1 else self.plus

    @property
    def full(self) -> int:
        """The value at full width, also while a trial child is traced."""
        return (full_length(self.plus) - full_length(self.minus)) // self.over

    def counts(self, axis: Axis) -> bool:
        """Tell whether this is the length of that axis at every width."""
        constant, coefficients = form(axis)
        times = {var: inner * self.over for var, inner in coefficients.items()}
        return self.is_one_axis and form(self.plus) == (constant * self.over, times)

    @property
    def sources(self) -> Axis:
        """The axes that this number is computed from."""
        return self.plus + self.minus

    def _derived(self, value: Any) -> Any:
        return derived(value, self.algebra, self.sources)

    def freeze(self, why: str) -> None:
        self.algebra.freeze(self.plus, why)
        self.algebra.freeze(self.minus, why)

    def __add__(self, other: Any) -> int:
        if type(other) is int and other == 0:
            return self
        if (
            self.is_one_axis
            and isinstance(other, SymbolicInt)
            and other.is_one_axis
            and self.over == other.over
        ):
            return SymbolicInt.of(self.algebra, self.plus + other.plus, over=self.over)
        if self.is_one_axis and type(other) is int and other > 0:
            plus = self.plus + fixed(other * self.over)
            return SymbolicInt.of(self.algebra, plus, over=self.over)
        return self._derived(int(self) + plain(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> int:
        if type(other) is int and other == 0:
            return self
        if (
            isinstance(other, SymbolicInt)
            and self.is_one_axis
            and other.is_one_axis
            and self.over == other.over == 1
        ):
            return SymbolicInt.of(self.algebra, self.plus, minus=other.plus)
        return self._derived(int(self) - plain(other))

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, float) and other > 0 and (1 / other).is_integer():
            return self / int(1 / other)
        if type(other) is not int or not self.is_one_axis or other < 1:
            return self._derived(int(self) * plain(other))
        if self.over % other == 0:
            self.axis("divided")  # c // 2 * 2 is c only where c is even
            return SymbolicInt.of(self.algebra, self.plus, over=self.over // other)
        return SymbolicInt.of(self.algebra, scale(resolve(self.plus), other), over=self.over)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> int:
        if type(other) is not int or not self.is_one_axis or other < 1 or int(self) % other:
            return self._derived(int(self) // plain(other))
        return SymbolicInt.of(self.algebra, self.plus, over=self.over * other)

    def __truediv__(self, other: Any) -> float:
        if type(other) is int and other > 0 and int(self) % other == 0:
            self.algebra.shares[int(self) // other] = self // other
        return int(self) / other

    def __mod__(self, other: Any) -> int:
        if type(other) is int and other > 0 and self.is_one_axis and int(self) % other == 0:
            self.algebra.rows(self.axis("divided"), other, f"divided by {other}")
            return 0
        return self._derived(int(self) % plain(other))

    def _compared(self, other: Any, result: bool) -> bool:
        """Make sure that a comparison has the same result at every width.

        The axes of equal numbers are unified. Different numbers could be equal at another width, so
        their axes are frozen.
        """
        if not isinstance(other, (int, float)):
            return result
        why = reason_of_comparison(other)
        if (
            isinstance(other, SymbolicInt)
            and self.is_one_axis
            and other.is_one_axis
            and int(self) == int(other)
        ):
            if not self.counts(theirs := other.axis(why)):
                self.algebra.unify(self.axis(why), theirs, why)
        else:
            self.freeze(why)
            if isinstance(other, SymbolicInt):
                other.freeze(why)
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
    """The value of `x.shape` while tracing. A torch.Size cannot be subclassed.

    Shapes that differ in a fixed axis differ at every width: then no SymbolicInt is compared.
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
    """Return a symbolic integer as a plain one."""
    return int(number) if isinstance(number, (SymbolicInt, DerivedInt)) else number


class DerivedInt(int):
    """A number that was computed from a SymbolicInt by arithmetic that is not followed.

    At another width it may have another value. It freezes its channels as soon as anything depends
    on it: a comparison, a truth value, an argument of a torch operation.
    """

    algebra: Algebra
    sources: Axis

    def freeze(self, why: str) -> None:
        self.algebra.freeze(self.sources, why)

    def __bool__(self) -> bool:
        self.freeze(reason_of_comparison(0))
        return int(self) != 0

    __hash__ = int.__hash__


def derived(value: Any, algebra: Algebra, sources: Axis) -> Any:
    """Return an integer as a DerivedInt, and any other value unchanged."""
    if type(value) is not int:
        return value
    result = DerivedInt(value)
    result.algebra, result.sources = algebra, sources
    return result


def _give_derived(name: str) -> None:
    """Define an operator that gives a DerivedInt, for both classes unless it is defined."""

    def operate(self: Any, *others: Any) -> Any:
        value = getattr(int, name)(int(self), *map(plain, others))
        sources = (getattr(number, "sources", ()) for number in (self, *others))
        return derived(value, self.algebra, sum(sources, ()))

    for kind in (SymbolicInt, DerivedInt):
        if name not in vars(kind):
            setattr(kind, name, operate)


def _freeze_when_compared(name: str) -> None:
    """Define a comparison of DerivedInt, which freezes its channels."""

    def compare(self: Any, other: Any) -> Any:
        self.freeze(reason_of_comparison(other))
        return getattr(int, name)(int(self), plain(other))

    setattr(DerivedInt, name, compare)


for _name in ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"):
    _give_derived(f"__{_name}__")
    _give_derived(f"__r{_name}__")
for _name in ("neg", "abs", "invert", "pow"):
    _give_derived(f"__{_name}__")
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _freeze_when_compared(f"__{_name}__")
