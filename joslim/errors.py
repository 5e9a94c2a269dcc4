"""What joslim raises on purpose: a user's mistake, a run that failed, a run that was stopped."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input. Its message is one line: the field, the value, what is allowed, what to type."""


class RunFailed(RuntimeError):
    """A training that cannot go on. Its message is one line: what happened, where, what is kept."""


class Stopped(BaseException):
    """A training that a signal ended in good order. Its message says how to go on.

    Like KeyboardInterrupt it is no Exception: nobody should catch it by accident.
    """

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


def unknown(field: str, value: str, allowed: Iterable[str], most: int = 8) -> UserError:
    """An unknown name: lists all that is allowed if that is short, else the nearest names."""
    names = list(allowed)
    if len(names) <= most:
        hint = f"allowed: {', '.join(names)}"
    else:
        near = difflib.get_close_matches(value, names, n=3, cutoff=0.0)
        hint = f"nearest of {len(names)}: {', '.join(near)}"
    return UserError(f"{field}: unknown name {value!r}; {hint}")
