"""No waiting for a GPU: a step between log steps and rounds reads nothing from the device.

There is no GPU here. The losses of a CPU are read only when somebody asks, as those of a GPU are,
and every operation that would make the host wait for a GPU is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from joslim import RunFailed
from joslim.runs.driver import Progress, Run, train
from joslim.search.targeted import Targeted
from joslim.training import step
from joslim.training.distillation import DISTILLATIONS

# With these the host reads from a device. Some of them are no operation that torch dispatches.
METHODS = {
    *(Tensor.item, Tensor.tolist, Tensor.cpu, Tensor.numpy, Tensor.nonzero, Tensor.__bool__),
    *(Tensor.__float__, Tensor.__int__, Tensor.__index__, Tensor.__array__, torch.nonzero),
    *(Tensor.unique, torch.unique, Tensor.masked_select, torch.masked_select, torch.equal),
}
OPERATIONS = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_unique2"}
STEPS, EVERY, LOG_EVERY = 24, 5, 4


class Reads(TorchFunctionMode):
    """Counts them, from Python and from inside of torch."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()
        reads = self

        class Inside(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
                if (name := func.overloadpacket.__name__) in OPERATIONS:
                    reads.found[name] += 1
                return func(*args, **(kwargs or {}))

        self.inside = Inside()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in METHODS:
            self.found[func.__name__] += 1
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> Reads:
        self.inside.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.inside.__exit__(*error)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "reads_for_free", lambda device: False)


@pytest.fixture(autouse=True)
def _no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joslim.runs.driver.draw_run", lambda *arguments: None)
    monkeypatch.setattr("joslim.runs.driver.report_at_end", lambda path: None)


def run(out: Path, **options: Any) -> Run:
    few: dict[str, Any] = {"batch": 8, "front_images": 16, "full_first": 0, "draw": 3, "threads": 1}
    often = {"steps": STEPS, "every": EVERY, "log_every": LOG_EVERY, "save_every": STEPS}
    return train(out=out, **{**few, **often, **options})


def weights(run: Run) -> dict[str, Tensor]:
    return run.net.state_dict()


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("options", [{}, {"amp": "fp16", "clip": 1.0}])
def test_a_step_reads_nothing_from_the_device(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[Counter[str]] = []
    reads = Reads()
    propose = Targeted.propose

    @contextmanager
    def not_counted() -> Iterator[None]:
        before = Counter(reads.found)
        yield
        reads.found = before

    def search(*arguments: Any) -> Any:
        """The search computes on the host, wherever the network is."""
        with not_counted():
            return propose(*arguments)

    def watch(progress: Progress) -> None:
        if progress.phase == "train":
            counts.append(reads.found)
            reads.found = Counter()

    monkeypatch.setattr(Targeted, "propose", search)
    with reads:
        counted = run(tmp_path / "counted", watch=watch, **options)
    assert len(counts) == STEPS
    rounds = [sum(counts[place].values()) for place in range(EVERY, STEPS, EVERY)]
    for place, found in enumerate(counts):
        if place % EVERY and (place + 1) % LOG_EVERY and place + 1 < STEPS:
            assert not found, f"step {place}: {found}"
    # The losses of the steps; the scores, which are copied and then made numbers; and the log step
    # that may fall on the round. Whatever the history holds.
    assert max(rounds) <= 4, rounds

    monkeypatch.undo()
    monkeypatch.setattr("joslim.runs.driver.draw_run", lambda *arguments: None)
    at_once = run(tmp_path / "at-once", **options)
    for name, value in weights(at_once).items():
        assert torch.equal(value, weights(counted)[name]), name


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_nan_stops_the_run_at_the_next_log_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the step and the widths, and the run goes on from its last checkpoint."""
    whole = run(tmp_path / "whole", save_every=2, steps=9, log_every=3)
    real, steps, calls = DISTILLATIONS["soft"], [0], [0]

    def distill(*arguments: Any) -> Tensor:
        calls[0] += 1
        loss: Tensor = real(*arguments)
        return loss * torch.nan if (steps[0], calls[0] % 3) == (4, 2) else loss

    def watch(progress: Progress) -> None:
        steps[0] = progress.done

    with monkeypatch.context() as patch:
        patch.setitem(DISTILLATIONS, "soft", distill)
        with pytest.raises(RunFailed, match=r"the loss is nan at step 4, at widths .*checkpoint"):
            run(tmp_path / "a", save_every=2, steps=9, log_every=3, watch=watch)
    assert steps[0] == 5  # the check is that of the log step, or of the round
    again = run(tmp_path / "a", save_every=2, steps=9, log_every=3, resume=True)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(again)[name]), name
