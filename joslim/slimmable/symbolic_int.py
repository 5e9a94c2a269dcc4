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
            if layer := torch_layer(frame.f_locals.get("self")):
                return f"feeds {layer}, which needs a fixed size"
        elif frame.f_globals.get("__package__") != __package__:
            what = "another size" if isinstance(other, DerivedInt) else other
            return f"compared with {what} in {path.name}:{frame.f_lineno}"
        frame = frame.f_back
    return "compared in forward"


def torch_layer(module: Any) -> str:
    """Return the class of torch that a layer has, such as nn.LSTM, or "" for other modules."""
    layers = (kind for kind in type(module).__mro__ if kind.__module__.startswith("torch.nn.mod"))
    layer = next(layers, torch.nn.Module)
    return "" if layer is torch.nn.Module else f"nn.{layer.__name__}"


class DerivedInt(int):
    """A number that was computed from symbolic sizes by arithmetic that is not followed.

    At another width it may have another value. It freezes its channels as soon as anything depends
    on it: a comparison, a truth value, an argument of a torch operation.
    """

    algebra: Algebra
    sources: Axis  # the axes that the number is computed from

    def freeze(self, why: str) -> None:
        self.algebra.freeze(self.sources, why)

    def _compared(self, other: Any) -> None:
        """Freeze both numbers, because at another width the comparison may end differently."""
        why = reason_of_comparison(other)
        for number in (self, other):
            if isinstance(number, DerivedInt):
                number.freeze(why)

    def __bool__(self) -> bool:
        self._compared(0)
        return int(self) != 0

    __hash__ = int.__hash__


def _arithmetic(name: str) -> Any:
    def operate(self: Any, *others: Any) -> Any:
        value = getattr(int, name)(int(self), *map(plain, others))
        if type(value) is not int:  # NotImplemented for a float, whose own method is called then
            return value
        result = DerivedInt(value)
        result.algebra = self.algebra
        result.sources = sum((getattr(number, "sources", ()) for number in (self, *others)), ())
        return result

    return operate


def _comparison(name: str) -> Any:
    def compare(self: Any, other: Any) -> Any:
        if isinstance(other, (int, float)):
            self._compared(other)
        return getattr(int, name)(int(self), plain(other))

    return compare


for _name in ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"):
    setattr(DerivedInt, f"__{_name}__", _arithmetic(f"__{_name}__"))
    setattr(DerivedInt, f"__r{_name}__", _arithmetic(f"__r{_name}__"))
for _name in ("__neg__", "__abs__", "__invert__", "__pow__"):
    setattr(DerivedInt, _name, _arithmetic(_name))
for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
    setattr(DerivedInt, _name, _comparison(_name))


def plain(number: Any) -> Any:
    """Return a symbolic integer as a plain one."""
    return int(number) if isinstance(number, DerivedInt) else number


def settled(number: Any) -> Any:
    """Return a symbolic integer that has become the same at every width as a plain one."""
    if isinstance(number, Shape):
        return Shape(map(settled, number))
    if isinstance(number, DerivedInt) and is_fixed(number.sources):
        return int(number)
    if isinstance(number, Product) and any(is_fixed(n.sources) for n in (number.a, number.b)):
        return number.a * number.b
    return number


class Product(DerivedInt):
    """The product of two symbolic integers, which is symbolic once one of them is fixed."""

    a: SymbolicInt
    b: SymbolicInt


class SymbolicInt(DerivedInt):
    """The integer (length of `plus` - length of `minus`) / `over`.

    Arithmetic that has no such form gives a DerivedInt.
    """

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
        result.algebra, result.sources = algebra, plus + minus
        result.plus, result.minus, result.over = plus, minus, over
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

    def _pairs_with(self, other: Any) -> bool:
        """Tell whether both numbers are lengths of axes, divided by the same number."""
        if not isinstance(other, SymbolicInt):
            return False
        return self.is_one_axis and other.is_one_axis and self.over == other.over

    def _is_multiple_of(self, other: Any) -> bool:
        """Tell whether both numbers are lengths of axes, and the other one divides this one."""
        if not isinstance(other, SymbolicInt) or not (self.is_one_axis and other.is_one_axis):
            return False
        return int(other) > 0 and int(self) % int(other) == 0

    def __add__(self, other: Any) -> int:
        other = settled(other)
        if type(other) is int and other == 0:
            return self
        if self._pairs_with(other):
            return SymbolicInt.of(self.algebra, self.plus + other.plus, over=self.over)
        if self.is_one_axis and type(other) is int and other > 0:
            plus = self.plus + fixed(other * self.over)
            return SymbolicInt.of(self.algebra, plus, over=self.over)
        return super().__add__(other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> int:
        other = settled(other)
        if type(other) is int and other == 0:
            return self
        if self._pairs_with(other) and self.over == 1:
            return SymbolicInt.of(self.algebra, self.plus, minus=other.plus)
        return super().__sub__(other)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other := settled(other), SymbolicInt):
            if is_fixed(self.sources):
                return other * int(self)
            product = Product(int(self) * int(other))
            product.algebra, product.sources = self.algebra, self.sources + other.sources
            product.a, product.b = self, other
            return product
        if isinstance(other, float) and other > 0 and (1 / other).is_integer():
            return self / int(1 / other)
        if type(other) is not int or not self.is_one_axis or other < 1:
            return super().__mul__(other)
        if self.over % other == 0:
            self.axis("divided")  # c // 2 * 2 is c only where c is even
            return SymbolicInt.of(self.algebra, self.plus, over=self.over // other)
        return SymbolicInt.of(self.algebra, scale(resolve(self.plus), other), over=self.over)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> int:
        other = settled(other)
        if self._is_multiple_of(other):
            # channels // heads is the size of a head, which stays as it is: whole heads leave
            each, why = int(self) // int(other), f"divided by {int(other)}"
            if not self.counts(scale(theirs := other.axis(why), each)):
                self.algebra.unify(self.axis(why), scale(theirs, each), why)
            return each
        if type(other) is not int or not self.is_one_axis or other < 1 or int(self) % other:
            return super().__floordiv__(other)
        return SymbolicInt.of(self.algebra, self.plus, over=self.over * other)

    def __truediv__(self, other: Any) -> float:
        if type(other) is int and other > 0 and int(self) % other == 0:
            self.algebra.shares[int(self) // other] = self // other
        return int(self) / other

    def __mod__(self, other: Any) -> int:
        other = settled(other)
        if self._is_multiple_of(other):
            return self - self // other * other
        if type(other) is int and other > 0 and self.is_one_axis and int(self) % other == 0:
            self.algebra.rows(self.axis("divided"), other, f"divided by {other}")
            return 0
        return super().__mod__(other)

    def _compared(self, other: Any) -> None:
        """Unify the axes of two equal lengths, so that they are equal at every width."""
        if not (
            isinstance(other, SymbolicInt)
            and self.is_one_axis
            and other.is_one_axis
            and int(self) == int(other)
        ):
            return super()._compared(other)
        why = reason_of_comparison(other)
        if not self.counts(theirs := other.axis(why)):
            self.algebra.unify(self.axis(why), theirs, why)
        return None

    __bool__ = int.__bool__
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
