"""Many processes that train one network: who am I, and what do the others have to say.

Alone (no `torchrun`, no process group) every function here does nothing, at no cost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from joslim.errors import RunFailed, UserError

T = TypeVar("T")

# A search, a checkpoint or the judging of many children keeps the others waiting.
PATIENCE = timedelta(hours=2)


def rank() -> int:
    return dist.get_rank() if together() else 0


def world() -> int:
    return dist.get_world_size() if together() else 1


def is_first() -> bool:
    """Whether this is the process that searches, writes and speaks."""
    return rank() == 0


def together() -> bool:
    return dist.is_available() and dist.is_initialized()


def restarted() -> bool:
    """Whether torchrun began this job anew, after one of its processes died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def started_by_torchrun() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def local_rank() -> int:
    """Which of this machine's GPUs is ours."""
    return int(os.environ.get("LOCAL_RANK", "0"))


@contextmanager
def joined() -> Iterator[None]:
    """Inside, the processes that torchrun started know each other; a group that is there stays."""
    if together() or not started_by_torchrun():
        yield
        return
    # Tensors on GPUs go by nccl, everything else by gloo.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    store, me, all_of_us = next(rendezvous("env://", timeout=PATIENCE))
    dist.init_process_group(
        backend, store=of_this_attempt(store), rank=me, world_size=all_of_us, timeout=PATIENCE
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def of_this_attempt(store: Any) -> Any:
    """After a restart torchrun's store still has the addresses of processes that are gone.

    On one machine all know the number of the attempt. On several they do not: there torchrun has
    to be told to take a new store (docs/many-gpus.md).
    """
    if os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE"):
        return store
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"joslim, attempt {attempt}", store)


def broadcast(value: T) -> T:
    """What the first process gives, to all."""
    if world() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def on_first(task: Callable[[], T]) -> T:
    """The task's result, or its complaint, on all processes; only the first one does it."""
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
    """The part of the items that this process has to deal with."""
    return items[rank() :: world()]


def gathered(results: Sequence[T]) -> list[T]:
    """The results of all parts that `shared_out` made, in the order of the items."""
    if world() == 1:
        return list(results)
    parts: list[Any] = [None] * world()
    dist.all_gather_object(parts, list(results))
    found: list[Any] = [None] * sum(len(part) for part in parts)
    for number, part in enumerate(parts):
        found[number :: world()] = part
    return found


def averaged(values: Tensor) -> Tensor:
    """The mean over the processes."""
    if world() == 1:
        return values
    total = values.detach().clone()
    dist.all_reduce(total)
    return total / world()


def any_asked(number: int | None, device: torch.device) -> int | None:
    """What any of the processes was asked (the number of a signal), or None."""
    if world() == 1:
        return number
    highest = torch.tensor(number or 0, device=device)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    return int(highest) or None


def alike(tensors: Iterable[Tensor]) -> None:
    """Give all processes the values that the first one has."""
    if world() > 1:
        for tensor in tensors:
            dist.broadcast(tensor, src=0)
