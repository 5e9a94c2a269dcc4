"""Run a network without side effects, and compare its outputs.

Tracing, the checks of `slim` and the sorting of channels all run the networks of users, which may
have buffers, dropout and outputs of any structure.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from joslim.errors import UserError

# The arguments of a network: positional ones in a tuple, keyword arguments in a dictionary.
Inputs = tuple[Any, ...] | dict[str, Any]

# Allowed difference of two outputs, as a share of the largest entry.
TOLERANCE = 1e-4


def as_inputs(given: Any) -> Inputs:
    """Return the arguments of a network: the items of a mapping are keyword arguments."""
    if isinstance(given, Mapping):
        return dict(given)
    return given if isinstance(given, tuple) else (given,)


def call(model: Callable[..., Any], inputs: Inputs) -> Any:
    """Run a model on its inputs."""
    return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


def resized(inputs: Any, pixels: int | None) -> Any:
    """Resize the images among the inputs, [n, channels, height, width], unless they have the size.

    The interpolation is bilinear with antialiasing. No size, None, leaves all as they are.
    """
    if pixels is None:
        return inputs
    size = (pixels, pixels)

    def resize(images: Tensor) -> Tensor:
        if images.dim() != 4 or images.shape[2:] == size:  # labels may be among the inputs
            return images
        if images.is_meta:
            return images.new_empty(*images.shape[:2], *size)
        # Half precision has no antialiasing on all devices.
        real = images if images.dtype == torch.float64 else images.float()
        return F.interpolate(real, size, mode="bilinear", antialias=True).to(images.dtype)

    return tree_map_only(Tensor, resize, inputs)


def refuse_meta(net: nn.Module) -> None:
    """Refuse a network on the meta device, where only shapes and costs are known."""
    if any(parameter.is_meta for parameter in net.parameters()):
        raise UserError(
            "net: its weights are on the meta device and have no values; type "
            "net.to_empty(device='cpu') and load its weights first"
        )


@contextmanager
def no_side_effects(model: nn.Module, training: bool | None) -> Iterator[None]:
    """Run in this mode, and restore modes, buffers and random generators afterwards.

    None is eval mode without a call of `train`, which may clear caches.

    Norms stay in eval mode, because a batch of one has no variance to normalise by.
    """
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False)
    ]
    python, numbers = random.getstate(), np.random.get_state()
    cuda = list({p.device for p in model.parameters() if p.device.type == "cuda"})
    if training is not None:
        model.train(training)
    for module in model.modules():
        if training is None:
            module.training = False
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=cuda):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)
        for module, mode in modes:
            module.training = mode
        with torch.no_grad():
            for module, name, buffer, value in buffers:
                if isinstance(module, torch.jit.ScriptModule):  # its _buffers cannot be written
                    getattr(module, name).copy_(value)
                else:
                    module._buffers[name] = buffer.copy_(value)


def tensors_in(tree: Any, depth: int = 8, objects: bool = True) -> list[Tensor]:
    """Return all tensors in nested containers and in the attributes of objects.

    Without `objects`, only those of data classes: other objects hold state, such as the keys and
    values of the past in a language model.
    """
    if isinstance(tree, Tensor):
        return [tree]
    if depth == 0 or isinstance(tree, (str, bytes, type, nn.Module)):
        return []
    if isinstance(tree, Mapping):
        parts: list[Any] = list(tree.values())
    elif isinstance(tree, (Sequence, Set)):
        parts = list(tree)
    elif not objects and not is_dataclass(tree):
        parts = []
    else:
        slots = (name for kind in type(tree).__mro__ for name in getattr(kind, "__slots__", ()))
        parts = [getattr(tree, name, None) for name in slots]
        parts += vars(tree).values() if hasattr(tree, "__dict__") else []
    return [tensor for part in parts for tensor in tensors_in(part, depth - 1, objects)]


def outputs_of(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """Return all tensors that the model returns, and the real numbers behind integer ones.

    An argmax hides most errors of the scores that it was computed from, so these are compared too.
    """
    with RealSources() as sources:
        outputs = tensors_in(call(model, inputs))
    reals = [real for output in outputs for real in sources.of(output)]
    return [tensor.detach().clone() for tensor in [*outputs, *reals]]


class RealSources(TorchFunctionMode):
    """Records, for every integer tensor, the real-valued tensors that it was computed from."""

    def __init__(self) -> None:
        super().__init__()
        self._sources: Any = WeakIdKeyDictionary()

    def of(self, tensor: Tensor) -> list[Tensor]:
        return [] if is_real(tensor) else self._sources.get(tensor, [])

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        written = args[:1] if result is None else result  # an assignment returns nothing
        if integers := [tensor for tensor in tensors_in(written) if not is_real(tensor)]:
            read = tensors_in((args, kwargs))
            found = [real for x in read for real in ([x] if is_real(x) else self.of(x))]
            for tensor in integers:
                self._sources[tensor] = list({id(real): real for real in found}.values())
        return result


def is_real(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def all_agree(
    ones: Sequence[Tensor], others: Sequence[Tensor], tolerance: float = TOLERANCE
) -> bool:
    pairs = zip(ones, others)
    return len(ones) == len(others) and all(agree(a, b, tolerance) for a, b in pairs)


def agree(a: Tensor, b: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Tell whether two outputs differ by no more than rounding.

    The tolerance is the allowed difference of real numbers, as a share of the largest finite one;
    and the share of integers that may differ, because the reals behind them are nearly equal.
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.numel() or a.is_meta:  # there are no values to compare
        return True
    if not is_real(a):
        return float(a.ne(b).double().mean()) <= tolerance
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    a, b = a.double(), b.double()
    apart = tolerance * float(b.nan_to_num(0, 0, 0).abs().max())
    return torch.allclose(a, b, rtol=0, atol=apart, equal_nan=True)
