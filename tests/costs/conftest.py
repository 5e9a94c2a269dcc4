"""Networks to price, and an oracle for them that knows nothing of the library."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import joslim
from joslim import SlimmableNet


@pytest.fixture(scope="module")
def net() -> SlimmableNet:
    """A small network with six knobs."""
    return joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 8, 8))


@pytest.fixture(scope="session")
def resnet20() -> SlimmableNet:
    return joslim.slim(joslim.models.resnet20(), torch.zeros(1, 3, 32, 32))


@pytest.fixture(scope="session")
def counted() -> Callable[[nn.Module, tuple[int, ...]], tuple[float, int]]:
    """Multiply-adds of one input by torch's counter, which counts two for each, and parameters.

    A shape of one number is that of tokens. The counter does not know fused attention.
    """

    def count(module: nn.Module, shape: tuple[int, ...]) -> tuple[float, int]:
        x = torch.zeros(1, *shape, dtype=torch.long if len(shape) == 1 else torch.float32)
        math = sdpa_kernel(SDPBackend.MATH)
        with FlopCounterMode(display=False) as counter, torch.no_grad(), math:
            module.eval()(x)
        return counter.get_total_flops() / 2, sum(p.numel() for p in module.parameters())

    return count
