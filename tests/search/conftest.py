"""Networks of one, six and 25 knobs, and histories of them with losses of a known shape."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import joslim
from joslim import Cost, SlimmableNet, Widths
from joslim.search import History

LossOf = Callable[[Widths], float]


@pytest.fixture(scope="session")
def net() -> SlimmableNet:
    return joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 16, 16))


@pytest.fixture(scope="session")
def one_knob() -> SlimmableNet:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    return joslim.slim(model, torch.zeros(1, 3, 8, 8))


@pytest.fixture(scope="session")
def many_knobs() -> SlimmableNet:
    return joslim.slim(joslim.models.mobilenet_v2(), torch.zeros(1, 3, 32, 32))


@pytest.fixture(scope="session")
def macs(net: SlimmableNet) -> Cost:
    return joslim.cost("macs", net)


@pytest.fixture(scope="session")
def loss_of() -> LossOf:
    """Falls with every knob, and with some much more than with others."""

    def loss(widths: Widths) -> float:
        matters = 1.0 + 9.0 * (np.arange(len(widths.space)) % 3 == 0)
        return float(0.3 + 2 * np.exp(-2 * np.average(widths.multipliers, weights=matters)))

    return loss


@pytest.fixture(scope="session")
def history_of(loss_of: LossOf) -> Callable[..., History]:
    """`count` random children of a cost's network, scored by `loss`."""

    def build(cost: Cost, count: int, loss: LossOf = loss_of, seed: int = 0) -> History:
        history, rng = History(cost), np.random.default_rng(seed)
        corners = [cost.space.full, cost.space.smallest]
        for child in [*corners, *(cost.space.random(rng) for _ in range(count))][:count]:
            history.visit(child, 0)
        history.record({i: loss(visit.widths) for i, visit in enumerate(history.visits)}, 0)
        return history

    return build
