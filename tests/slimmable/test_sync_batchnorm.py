"""Norms over all processes; tests/test_processes.py has the two processes."""

import copy

import pytest
import torch
from torch import nn

import joslim
from joslim.slimmable import sync_batchnorm
from joslim.slimmable.sync_batchnorm import normalised, norms_together


@pytest.fixture
def alone_but_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process that takes itself for a group."""
    monkeypatch.setattr(sync_batchnorm, "_together", True)
    monkeypatch.setattr(sync_batchnorm, "all_reduce", lambda values: values)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [(nn.BatchNorm1d, (6, 4)), (nn.BatchNorm2d, (6, 4, 3, 3)), (nn.BatchNorm3d, (6, 4, 2, 2, 2))],
)
@pytest.mark.usefixtures("alone_but_together")
def test_of_one_process_it_is_torchs(
    kind: type, shape: tuple[int, ...], affine: bool, momentum: float | None
) -> None:
    torch.manual_seed(0)
    ours = kind(4, affine=affine, momentum=momentum)
    if affine:
        nn.init.normal_(ours.weight)
    theirs = copy.deepcopy(ours)
    for _ in range(2):
        x = torch.randn(shape)
        torch.testing.assert_close(normalised(ours, x), theirs(x))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


@pytest.mark.usefixtures("alone_but_together")
def test_children_move_no_statistics() -> None:
    net = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 8, 8)).train()
    before = copy.deepcopy(net.state_dict())
    x = torch.randn(4, 3, 8, 8)
    with net.at(net.space.smallest):
        net(x)
    torch.testing.assert_close(net.state_dict(), before)
    net(x)
    assert not torch.equal(net.state_dict()["bn1.running_mean"], before["bn1.running_mean"])


def test_alone_nothing_is_together() -> None:
    with norms_together():
        assert not sync_batchnorm._together


def test_a_child_has_torchs_own_norms() -> None:
    net = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 8, 8))
    child = net.child(net.space.full)
    assert {type(m) for m in child.modules() if isinstance(m, nn.BatchNorm2d)} == {nn.BatchNorm2d}
