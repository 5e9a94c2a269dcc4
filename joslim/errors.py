"""The exceptions of joslim: a mistake of the user, a run that failed, a run that was stopped."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib import import_module
from typing import Any


class UserError(ValueError):
    """Bad input. The message is one line: the field, the value, what is allowed and what to type.

    It is a `ValueError`. The command line prints the line and exits with code 2.

    Examples:
        >>> joslim.load_data("mnist")
        Traceback (most recent call last):
            ...
        joslim.errors.UserError: data: unknown name 'mnist'; allowed: digits, ...
    """


class RunFailed(RuntimeError):
    """A run that cannot go on. The message is one line: what happened, where, and what is kept.

    It is a `RuntimeError`. The command line prints the line and exits with code 1.

    Examples:
        >>> net = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 32, 32))
        >>> x, y = torch.full((4, 3, 32, 32), float("nan")), torch.zeros(4, dtype=torch.long)
        >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> slimming = joslim.Slimming(net, total_steps=10, scoring=[(x, y)])
        >>> try:
        ...     slimming.step(x, y, optimizer, nn.functional.cross_entropy)
        ... except joslim.RunFailed:
        ...     print("the weights are as they were before the step")
        the weights are as they were before the step
    """


class Stopped(BaseException):
    """A training that a signal ended in good order. Its message says how to resume.

    Like KeyboardInterrupt it is no Exception, so that `except Exception` does not catch it.
    """

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


def unknown(field: str, value: str, allowed: Iterable[str], most: int = 8) -> UserError:
    """Make the error for an unknown name: it lists all allowed names, or the nearest of many."""
    names = list(allowed)
    if len(names) <= most:
        hint = f"allowed: {', '.join(names)}"
    else:
        near = difflib.get_close_matches(value, names, n=3, cutoff=0.0)
        hint = f"nearest of {len(names)}: {', '.join(near)}"
    return UserError(f"{field}: unknown name {value!r}; {hint}")


def reason(error: BaseException, most: int = 300) -> str:
    """Type and message of an exception of other code, on one short line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:most].rstrip(":")


def first_line(error: BaseException) -> str:
    """Return the first line of an error message, or the type of an error without one."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def imported(module: str, field: str, install: str | None = None) -> Any:
    """Import a module of an optional package, or say what to type.

    install: What pip installs; by default the extra of joslim that is named after the package.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in (package, install):
            raise UserError(
                f"{field}: the package {missing} is not installed; type pip install "
                f"{install or repr(f'joslim[{package}]')}"
            ) from error
        raise UserError(f"{field}: {package} cannot be imported: {first_line(error)}") from error
    except Exception as error:  # torchvision beside another torch raises RuntimeError
        raise UserError(f"{field}: {package} cannot be imported: {first_line(error)}") from error
