"""Communication between the processes that train one network together.

With one process (no `torchrun`, no process group) every function here does nothing, at no cost.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from joslim.errors import RunFailed, UserError, first_line

T = TypeVar("T")

# The ranks that this process has had in groups of its own.
_joined: list[int] = []

# Environment variable: minutes that processes wait for each other. A search, a checkpoint, a
# measurement of latency or a download by one of them keeps the others waiting.
TIMEOUT = "JOSLIM_TIMEOUT_MINUTES"
DEFAULT_MINUTES, MOST_MINUTES = 30.0, 10_000.0
# Words in the errors of the libraries that connect processes; their kinds differ by version.
# Gloo puts no name of its own before "Application timeout caused pair closure".
OF_CONNECTIONS = re.compile(
    r"\b(gloo|nccl|socket|tcpstore|rendezvous|pair closure)\b", re.IGNORECASE
)


def rank() -> int:
    return dist.get_rank() if together() else 0


def world() -> int:
    return dist.get_world_size() if together() else 1


def is_first() -> bool:
    """Whether this is process 0, which searches, writes and prints."""
    return rank() == 0


def together() -> bool:
    return dist.is_available() and dist.is_initialized()


def restarted() -> bool:
    """Whether torchrun has restarted the processes after one of them died."""
    return number_of_torchrun("TORCHELASTIC_RESTART_COUNT", default=0) > 0


def started_by_torchrun() -> bool:
    return number_of_torchrun("WORLD_SIZE", default=1, least=1) > 1


def local_rank() -> int:
    """Return the number of this process on its machine, which is the number of its GPU."""
    return number_of_torchrun("LOCAL_RANK", default=0)


def number_of_torchrun(
    name: str, default: int | None = None, least: int = 0, most: int = 10**6
) -> int:
    """Read a number that torchrun sets in the environment; others may have set it to anything."""
    text = os.environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not re.fullmatch("[0-9]{1,7}", text) or not least <= int(text) <= most:
        has = "is not set" if text is None else f"is {text!r}, not a whole number {least} to {most}"
        raise bad_environment(name, has)
    return int(text)


def bad_environment(name: str, has: str) -> UserError:
    return UserError(
        f"{name}: the environment variable {has}; start many processes with torchrun, "
        "or type unset WORLD_SIZE to train with one"
    )


def timeout_minutes() -> float:
    """Return the minutes that processes wait for each other before they give up."""
    text = os.environ.get(TIMEOUT, str(DEFAULT_MINUTES))
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes <= MOST_MINUTES:
        allowed = f"allowed: minutes above 0, at most {MOST_MINUTES:g}"
        raise UserError(f"{TIMEOUT}: the environment variable is {text!r}; {allowed}")
    return minutes


@contextmanager
def joined() -> Iterator[None]:
    """Join the processes that torchrun started into a group, unless there is one already."""
    if together() or not started_by_torchrun():
        yield
        return
    # Torch needs these to find the other processes.
    number_of_torchrun("RANK", most=number_of_torchrun("WORLD_SIZE") - 1)
    number_of_torchrun("MASTER_PORT", most=65_535)
    if not os.environ.get("MASTER_ADDR"):
        raise bad_environment("MASTER_ADDR", "is not set")
    # Tensors on GPUs go by nccl, everything else by gloo.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    timeout = timedelta(minutes=timeout_minutes())
    try:
        store, me, all_of_us = next(rendezvous("env://", timeout=timeout))
        dist.init_process_group(
            backend, store=of_this_attempt(store), rank=me, world_size=all_of_us, timeout=timeout
        )
        _joined.append(me)
        yield
    except RuntimeError as error:
        if isinstance(error, RunFailed) or not (words := lost_process(error)):
            raise
        raise RunFailed(words) from error
    finally:
        if together():
            dist.destroy_process_group()


def has_joined() -> bool:
    """Whether this process was ever one of several that train one network."""
    return bool(_joined)


def lost_process(error: Exception) -> str | None:
    """Describe an error that another process has caused, or return None for any other error."""
    text = first_line(error)
    is_dist = isinstance(error, getattr(dist, "DistError", ()))
    if not is_dist and not OF_CONNECTIONS.search(text):
        return None
    if "timed out" in text.lower() or "timeout" in text.lower():
        return (
            f"another process has not answered for {timeout_minutes():g} minutes: it hangs, "
            f"has died, or was busy; if it was busy, type export {TIMEOUT}= with more minutes"
        )
    reason = re.sub(r"^\[[^]]*\] *", "", text).split(". ")[0]
    return f"another process has died or cannot be reached: {reason}"


def refuse_differences(facts: Mapping[str, Any]) -> None:
    """Raise the same UserError on all processes if their facts differ from those of process 0."""
    everyone = all_of(dict(facts))
    for number, theirs in enumerate(everyone):
        for name in {**everyone[0], **theirs}:
            wanted, found = everyone[0].get(name), theirs.get(name)
            if found != wanted:
                raise UserError(
                    f"{name}: process 0 has {reprlib.repr(wanted)}, process {number} has "
                    f"{reprlib.repr(found)}; all processes of a training need the same"
                )


def of_this_attempt(store: Any) -> Any:
    """Return a store without the addresses of processes that are gone after a restart.

    On one machine all processes know the number of the attempt. On several machines they do not:
    there torchrun has to be told to take a new store (docs/many-gpus.md).
    """
    if os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE"):
        return store
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"joslim, attempt {attempt}", store)


def broadcast(value: T) -> T:
    """Return the value of process 0 on all processes."""
    if world() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def on_first(task: Callable[[], T]) -> T:
    """Run the task on process 0 only; return its result, or raise its error, on all processes."""
    if world() == 1:
        return task()
    outcome: tuple[Any, Exception | None] = (None, None)
    if is_first():
        try:
            outcome = (task(), None)
        except (UserError, RunFailed, OSError) as error:
            outcome = (None, error)
    result, complaint = broadcast(outcome)
    if complaint is not None:
        raise complaint
    return result


def shared_out(items: Sequence[T]) -> Sequence[T]:
    """Return the items that this process has to deal with."""
    return items[rank() :: world()]


def gathered(results: Sequence[T]) -> list[T]:
    """Return the results of all processes for their `shared_out` items, in order of the items."""
    if world() == 1:
        return list(results)
    parts = all_of(list(results))
    found: list[Any] = [None] * sum(len(part) for part in parts)
    for number, part in enumerate(parts):
        found[number :: world()] = part
    return found


def all_of(value: T) -> list[T]:
    """Return the values of all processes, in order of their ranks."""
    if world() == 1:
        return [value]
    values: list[Any] = [None] * world()
    dist.all_gather_object(values, value)
    return values


def averaged(values: Tensor) -> Tensor:
    """Return the mean over the processes."""
    if world() == 1:
        return values
    total = values.detach().clone()
    dist.all_reduce(total)
    return total / world()


def any_asked(number: int | None, device: torch.device) -> int | None:
    """Return the number of a signal that any of the processes has got, or None.

    The hosts ask each other, which does not wait for GPUs, if their group can do that.
    """
    if world() == 1:
        return number
    hosts = "cpu" in dist.get_backend_config()
    highest = torch.tensor(number or 0, device="cpu" if hosts else device)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    return int(highest) or None


def alike(tensors: Iterable[Tensor]) -> None:
    """Give all processes the values that the first one has."""
    if world() > 1:
        for tensor in tensors:
            dist.broadcast(tensor, src=0)
