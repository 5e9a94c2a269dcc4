"""What the tests of many processes let each process do: torchrun ... tests/worker.py TASK FOLDER.

Each process writes what it found into FOLDER/RANK.pt, for the test to look at.
"""

import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import joslim
from joslim import distributed
from joslim.data import Sweep, load_data
from joslim.data import folder as folder_module
from joslim.errors import UserError
from joslim.runs import driver as training_module
from joslim.runs.driver import train
from joslim.runs.setup import reducing_gradients
from joslim.runs.trainer import Trainer
from joslim.slimmable import norms_together


def talk() -> dict[str, Any]:
    """Every function of joslim.distributed once."""
    me = distributed.rank()

    def complain() -> None:
        raise UserError("out: no")

    try:
        distributed.on_first(complain)
        complaint = ""
    except UserError as error:
        complaint = str(error)
    tensor = torch.full((2,), float(me))
    distributed.alike([tensor])
    asked: list[int] = []
    return {
        "world": distributed.world(),
        "broadcast": distributed.broadcast({"from": me}),
        "on_first": distributed.on_first(lambda: asked.append(me) or me + 10),
        "asked": asked,
        "complaint": complaint,
        "odd": distributed.gathered([n * n for n in distributed.shared_out(range(5))]),
        "few": distributed.gathered([n * n for n in distributed.shared_out(range(1))]),
        "none": distributed.gathered(list(distributed.shared_out([]))),
        "averaged": distributed.averaged(torch.tensor([1.0 + me, float("nan") if me else 0.0])),
        "nobody": distributed.any_asked(None, torch.device("cpu")),
        "one": distributed.any_asked(15 if me else None, torch.device("cpu")),
        "alike": tensor,
    }


def network(norm: bool) -> nn.Module:
    torch.manual_seed(0)
    norms = [nn.BatchNorm2d(8), nn.BatchNorm2d(6)] if norm else [nn.Identity(), nn.Identity()]
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), norms[0], nn.ReLU(), nn.Conv2d(8, 6, 3), norms[1], nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4),
    )  # fmt: skip


def images(count: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 3, 8, 8, generator=generator)
    return x, torch.randint(4, (count,), generator=generator)


def gradients_of(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Of one step at four widths, which do not depend on the last digits of any loss."""
    slimming = joslim.Slimming(net, method="bignas", total_steps=4, scoring=[images(8)])
    net.train()
    slimming.backward(x, y, F.cross_entropy)
    assert len(slimming.widths) > 2
    named = slimming.net.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def one_step(
    norm: bool, share: slice, wrapped: bool, synchronised: bool = False
) -> dict[str, Tensor]:
    """Gradients and buffers after one step on these images."""
    net = joslim.slim(network(norm), torch.zeros(1, 3, 8, 8))
    x, y = images()
    model = reducing_gradients(net) if wrapped else net
    assert isinstance(model, DistributedDataParallel) == wrapped
    with norms_together(synchronised):
        gradients = gradients_of(model, x[share], y[share])
    return gradients | {name: buffer.clone() for name, buffer in net.named_buffers()}


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(6, 6, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.conv(x))


def step_with_depth(share: slice, wrapped: bool) -> dict[str, Tensor]:
    """Gradients after one step at the full and the smallest child, which lacks two blocks."""
    torch.manual_seed(0)
    blocks = nn.Sequential(Residual(), Residual(), Residual())
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))
    whole = nn.Sequential(nn.Conv2d(3, 6, 3), blocks, *head)
    net = joslim.slim(whole, torch.zeros(1, 3, 8, 8), resolutions=(6, 8), depth=True)
    model: nn.Module = DistributedDataParallel(net) if wrapped else net
    x, y = images()
    for child in (net.space.full, net.space.smallest):
        reducing = model.no_sync() if wrapped and child == net.space.full else nullcontext()
        with reducing, net.at(child):
            F.cross_entropy(model(x[share]), y[share]).backward()
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def gradients() -> dict[str, Any]:
    half = slice(8 * distributed.rank(), 8 * distributed.rank() + 8)
    return {
        "reduced": {norm: one_step(norm, half, wrapped=True) for norm in (False, True)},
        "synchronised": one_step(True, half, wrapped=True, synchronised=True),
        "calls": reductions_of_a_step(half),
        "depth": step_with_depth(half, wrapped=True),
    }


def reductions_of_a_step(half: slice) -> int:
    """How often the wrapper reduced its gradients: a hook is called for each bucket."""
    net = joslim.slim(network(norm=True), torch.zeros(1, 3, 8, 8))
    model = DistributedDataParallel(net)
    calls = []

    def hook(state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        calls.append(bucket.index())
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, hook)
    x, y = images()
    gradients_of(model, x[half], y[half])
    return len(calls)


def options(folder: Path) -> dict[str, Any]:
    return {
        "out": folder / "run",
        "steps": 12,
        "every": 3,
        "batch": 32,
        "save_every": 4,
        "score_images": 32,
        "front_images": 64,
        "threads": 1,
    }


def training(folder: Path) -> dict[str, Any]:
    """A run, and what each step left behind on this process."""
    seen: list[Any] = []
    real = Trainer.step

    def step(job: Trainer, x: Tensor, y: Tensor) -> None:
        real(job, x, y)
        weights = torch.cat([p.detach().flatten() for p in job.net.parameters()])
        seen.append((weights, [child.counts for child in job.slimming.widths], len(x)))
        if dies_now(job.slimming.steps):
            os.kill(os.getpid(), signal.SIGKILL)
        if stops_now(job.slimming.steps):
            os.kill(os.getpid(), signal.SIGTERM)

    Trainer.step = step  # type: ignore[method-assign]
    run = train(**options(folder), resume="RESUME" in os.environ)
    return {"steps": seen, "front": len(run.front), "restarted": distributed.restarted()}


def differences(folder: Path) -> dict[str, str]:
    """What a training says whose second process differs from the first one in this."""
    second = distributed.rank() == 1
    common = {**options(folder), "model": network(norm=False)}
    as_usual = Pictures(40)
    attempts: dict[str, dict[str, Any]] = {
        "classes": {"data": Pictures(40, swapped=second)},
        "sizes": {"data": Pictures(48 if second else 40), "steps": None, "epochs": 2},
        "labels": {"data": Pictures(40, turned=second)},
        "settings": {"data": as_usual, "steps": 13 if second else 12},
        "versions": {"data": as_usual},
    }
    told = {}
    for name, changes in attempts.items():
        if name == "versions" and second:
            training_module.__version__ = "0.0.1"
        pictures = changes.pop("data")
        try:
            train(**{**common, **changes, "data": (pictures, as_usual)})
        except UserError as error:
            told[name] = str(error)
    return told


def scoring(folder: Path) -> dict[str, Any]:
    """Batches of a folder of images, loaded together, and the images that this process decoded."""
    decoded: list[int] = []
    real = folder_module._Decoder.image

    def image(decoder: Any, index: int, *others: Any) -> Any:
        decoded.append(index)
        return real(decoder, index, *others)

    data = load_data(f"folder:{folder / 'pictures'}", size=8)
    expected = data.plain("train", np.arange(7))
    folder_module._Decoder.image = image  # type: ignore[method-assign]
    sweep = Sweep(data, "train", np.arange(14), 7, together=True)
    found = sweep[0], sweep[0]
    facts = {"found": found, "expected": expected, "decoded": [*decoded]}
    if distributed.rank() == 1:
        Path(data.files["train"].path(13)).unlink()  # type: ignore[attr-defined]
    try:
        sweep[1]
    except UserError as error:
        facts["error"] = str(error)
    return facts


class Pictures:
    """A data set of noise with four classes."""

    def __init__(self, count: int, swapped: bool = False, turned: bool = False) -> None:
        self.count, self.turned = count, turned
        self.classes = ["cat", "emu", "dog", "fox"] if swapped else ["cat", "dog", "emu", "fox"]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.rand(3, 8, 8), (3 - index if self.turned else index) % 4


def dies_now(step: int) -> bool:
    """One process of the first attempt."""
    wanted = os.environ.get("DIE_AT") == str(step) and os.environ["RANK"] == "1"
    return wanted and not distributed.restarted()


def stops_now(step: int) -> bool:
    return os.environ.get("STOP_AT") == str(step) and os.environ["RANK"] == "1"


def main() -> None:
    task, folder = sys.argv[1], Path(sys.argv[2])
    with distributed.joined():
        tasks = {
            "talk": talk,
            "gradients": gradients,
            "training": lambda: training(folder),
            "scoring": lambda: scoring(folder),
            "differences": lambda: differences(folder),
        }
        torch.save(tasks[task](), folder / f"{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main()
