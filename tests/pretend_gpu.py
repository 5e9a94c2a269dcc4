"""Joslim on a GPU that is not there. `tests/test_gpu.py` runs this file in a process of its own.

Tensors of torch's FakeTensorMode have shapes, types and devices, and no values. An operation on
tensors of two devices raises, and so does whatever reads a value from the device. torch without
CUDA cannot differentiate fake tensors of "cuda"; the device is a backend that is registered here
instead, "gpu". The program prints the names of the cases that went through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import joslim
from joslim.data.augment import flip_and_clip_colour, flip_and_colour, normalise, shift_and_flip
from joslim.training import evaluate
from joslim.training.distillation import soft_cross_entropy

DEVICE = torch.device("cpu")  # until there is another


class Concat(nn.Module):
    """Channels after a concat are picked by an index, which lies on the device too."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 1)
        self.norm, self.last = nn.BatchNorm2d(16), nn.Conv2d(16, 8, 3, stride=2)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        both = self.norm(torch.cat([self.one(x), self.two(x)], dim=1)).relu()
        return self.head(self.last(both).mean(dim=(2, 3)))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet8": joslim.models.resnet8,
    "concat": Concat,
}


# They are made slimmable before tensors are fake, since that compares values.
SLIMMABLE: dict[str, joslim.SlimmableNet] = {}


def network(name: str) -> joslim.SlimmableNet:
    """Return a network with weights on the device."""
    net = SLIMMABLE[name]
    if next(net.parameters()).device != DEVICE:
        net._apply(lambda t: torch.empty(t.shape, dtype=t.dtype, device=DEVICE))
    return net


def batch() -> tuple[Tensor, Tensor]:
    return torch.empty(4, 3, 32, 32, device=DEVICE), torch.zeros(4, dtype=torch.long, device=DEVICE)


def steps(name: str, make_optimizer: Callable[..., Any]) -> None:
    net = network(name).train()
    x, y = batch()
    slimming = joslim.Slimming(
        net, method="bignas", total_steps=90, scoring=[(x, y)], draw=3, full_first=0,
        distill=soft_cross_entropy,
    )  # fmt: skip
    optimizer = make_optimizer(net.parameters())
    for _ in range(2):
        slimming.step(x, y, optimizer, F.cross_entropy, clip=1.0)
    assert slimming.losses.device.type == DEVICE.type
    assert all(p.grad is None or p.grad.device.type == DEVICE.type for p in net.parameters())


class CopiesToHost(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        there = func is torch.ops.aten._to_copy.default and args[0].device.type == DEVICE.type
        self.count += there and (kwargs or {}).get("device") == torch.device("cpu")
        return func(*args, **(kwargs or {}))


def scoring(name: str) -> None:
    net = network(name)
    space, copies = net.space, []
    for children in ([space.smallest], [space.full, space.uniform(0.7), space.smallest]):
        with CopiesToHost() as mode:
            assert len(evaluate.score(net, children, [batch()], F.cross_entropy)) == len(children)
        copies.append(mode.count)
    assert copies == [1, 1]  # whatever the number of children


def children(name: str) -> None:
    net = network(name).eval()
    x, _ = batch()
    small = net.space.smallest
    with net.at(small):
        joslim.recalibrate(net, [x, x])
    net.use(small)
    with torch.inference_mode():
        assert net(x).device.type == DEVICE.type
    for share in (False, True):
        child = net.child(small, share=share).eval()
        assert {tensor.device.type for tensor in child.state_dict().values()} == {DEVICE.type}
        assert child(x).shape == (4, net(x).shape[1])


def batches() -> None:
    count = 64  # a tensor of a single number would be computed with its value
    images = torch.zeros(count, 3, 8, 8, dtype=torch.uint8, device=DEVICE)
    some = np.random.default_rng(0)
    moments: Any = ((0.5,) * 3, (0.2,) * 3)
    shifts = some.integers(-1, 2, count), some.integers(-1, 2, count), some.random(count) < 0.5
    drawn = some.random((count, 9))
    made = [
        normalise(shift_and_flip(images, *shifts), *moments),
        flip_and_colour(images, drawn, *moments),
        flip_and_clip_colour(images, drawn, *moments),
    ]
    assert {(x.device.type, x.dtype) for x in made} == {(DEVICE.type, torch.float32)}


def mixed() -> None:
    """What this file would find: a tensor of the CPU among those of the device, and a read."""
    x, _ = batch()
    for wrong in (lambda: x + torch.ones(3, 1, 1), lambda: float(x.sum()), lambda: x[0].tolist()):
        try:
            wrong()
        except Exception:
            continue
        raise AssertionError("it was not noticed")


CASES: dict[str, Callable[[], None]] = {
    "a mix of devices raises": mixed,
    **{f"scoring {name}": lambda name=name: scoring(name) for name in NETWORKS},
    **{f"children of {name}": lambda name=name: children(name) for name in NETWORKS},
    **{
        f"step of {name}": lambda name=name: steps(
            name, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)
        )
        for name in NETWORKS
    },
    "step with adamw": lambda: steps("concat", lambda p: torch.optim.AdamW(p, foreach=True)),
    "augmentation": batches,
}


def main() -> None:
    global DEVICE
    _setup_privateuseone_for_python_backend("gpu")
    DEVICE = torch.device("gpu:0")
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    for name, make in NETWORKS.items():
        SLIMMABLE[name] = joslim.slim(make(), torch.zeros(1, 3, 32, 32))
    read = FakeTensor.tolist

    def tolist(self: Tensor) -> Any:
        """Copies on the host have no values either; only the device must not be read."""
        return [0.0] * self.numel() if self.device.type == "cpu" else read(self)

    with FakeTensorMode(allow_non_fake_inputs=True):
        for name, case in CASES.items():
            FakeTensor.tolist = read if case is mixed else tolist  # type: ignore[method-assign]
            case()
            print(name, flush=True)


if __name__ == "__main__":
    main()
