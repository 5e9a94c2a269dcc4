"""Checkpoints: whole or not at all, the last good one kept, damage noticed."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from joslim.errors import RunFailed, UserError
from joslim.models import resnet8
from joslim.runs import checkpoint
from joslim.runs.checkpoint import (
    MODEL,
    STATE,
    STATISTICS,
    SUMMARY,
    find,
    load_state,
    load_weights,
    save,
    verify,
)
from joslim.runs.folder import RunFolder
from joslim.runs.run import Run, load
from joslim.slimmable import SlimmableNet, recalibrate, slim

FILES = (MODEL, STATISTICS, STATE, SUMMARY)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


@pytest.fixture
def net() -> SlimmableNet:
    torch.manual_seed(0)
    net = slim(resnet8(), torch.zeros(1, 3, 8, 8))
    for share in (0.5, 0.7):
        with net.at(net.space.uniform(share)):
            recalibrate(net, [torch.randn(8, 3, 8, 8)])
    return net


def step_of(path: Path | None) -> int:
    assert path is not None
    return int(json.loads((path / SUMMARY).read_text())["step"])


def fill(net: SlimmableNet, value: float) -> None:
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(value)


def test_there_and_back(folder: RunFolder, net: SlimmableNet) -> None:
    state = {"steps": 7, "list": [1, 2.5, None], "tensor": torch.arange(3)}
    save(folder, net, state, 7)
    path = find(folder)
    assert path == folder.file("checkpoint")
    assert step_of(path) == 7
    verify(path)
    other = slim(resnet8(), torch.zeros(1, 3, 8, 8))
    load_weights(path, other)
    for name, tensor in net.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name
    assert other.statistics.keys() == net.statistics.keys()
    for child, norms in net.statistics.items():
        for norm, pair in norms.items():
            assert all(map(torch.equal, other.statistics[child][norm], pair))
    read = load_state(path)
    assert (read["steps"], read["list"]) == (7, [1, 2.5, None])
    assert sorted(os.listdir(folder.path)) == ["checkpoint"]


def test_a_second_load_replaces_statistics(folder: RunFolder, net: SlimmableNet) -> None:
    kept = dict(net.statistics)
    save(folder, net, {}, 1)
    with net.at(net.space.smallest):
        recalibrate(net, [torch.randn(8, 3, 8, 8)])
    load_weights(folder.file("checkpoint"), net)
    assert net.statistics.keys() == kept.keys()


def test_nothing_there(folder: RunFolder) -> None:
    assert find(folder) is None


class Crash(Exception):
    pass


def crashing(real: Callable[..., Any], at: int) -> Callable[..., Any]:
    """The function, which crashes at its n-th call before it does anything."""
    calls = 0

    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise Crash
        return real(*arguments, **options)

    return call


@pytest.mark.parametrize(
    ("where", "name", "at", "expected"),
    [
        (checkpoint, "write_tensors", 1, 1),
        (checkpoint, "write_tensors", 2, 1),
        (torch, "save", 1, 1),
        (checkpoint, "checksum", 1, 1),
        (checkpoint, "checksum", 3, 1),
        (checkpoint, "sync", 1, 1),
        (checkpoint, "sync", 4, 1),
        (checkpoint, "swap_in", 1, 1),
        (os, "rename", 1, 1),
        (os, "rename", 2, 1),
        (checkpoint, "load_state", 1, 1),
    ],
)
def test_a_crash_leaves_the_last_good_one(
    where: Any,
    name: str,
    at: int,
    expected: int,
    folder: RunFolder,
    net: SlimmableNet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(net, 1.0)
    save(folder, net, {"steps": 1}, 1)
    fill(net, 2.0)
    with monkeypatch.context() as patch:
        patch.setattr(where, name, crashing(getattr(where, name), at))
        with pytest.raises(Crash):
            save(folder, net, {"steps": 2}, 2)
    path = find(folder)
    assert step_of(path) == expected
    assert path is not None
    assert load_state(path) == {"steps": expected}
    assert float(load_file(path / MODEL)["conv1.weight"].max()) == expected
    # The run goes on, and what the crash left behind is cleared away.
    fill(net, 3.0)
    save(folder, net, {"steps": 3}, 3)
    assert step_of(find(folder)) == 3
    assert sorted(os.listdir(folder.path)) == ["checkpoint", "checkpoint.old"]


def test_a_crash_while_writing_the_first_one(
    folder: RunFolder, net: SlimmableNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", crashing(os.rename, 1))
        with pytest.raises(Crash):
            save(folder, net, {}, 1)
    assert find(folder) is None
    save(folder, net, {}, 1)
    assert step_of(find(folder)) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_never_replace_good_ones(
    bad: float, folder: RunFolder, net: SlimmableNet
) -> None:
    save(folder, net, {}, 1)
    net.conv1.weight.data[0, 0, 0, 0] = bad
    with pytest.raises(RunFailed, match=r"conv1.weight is not finite after step 2; the last"):
        save(folder, net, {}, 2)
    assert step_of(find(folder)) == 1


@pytest.mark.parametrize("name", [MODEL, STATISTICS, STATE])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_damage_is_noticed(name: str, damage: str, finished: Run, tmp_path: Path) -> None:
    shutil.copytree(finished.path, tmp_path / "run")
    path = tmp_path / "run" / "checkpoint"
    content = bytearray((path / name).read_bytes())
    if damage == "flip":
        content[-5] ^= 1
    (path / name).write_bytes(content[:-7] if damage == "cut" else content)
    if damage == "gone":
        (path / name).unlink()
    with pytest.raises(UserError, match=r"checkpoint: .* is (damaged: its checksum|broken)"):
        load_state(path)
    with pytest.raises(UserError, match="checkpoint: "):
        _ = load(tmp_path / "run").net


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"sha256": 3}', '{"sha256": {}}', '{"sha256": {"../../x": "0"}}']
)
def test_a_broken_summary(text: str, folder: RunFolder, net: SlimmableNet) -> None:
    save(folder, net, {}, 1)
    path = folder.file("checkpoint")
    (path / SUMMARY).write_text(text)
    with pytest.raises(UserError, match="is broken"):
        verify(path)


def test_the_state_holds_no_code(folder: RunFolder, net: SlimmableNet) -> None:
    save(folder, net, {}, 1)
    with pytest.raises(RunFailed, match=r"cannot read .* just written; the last one is kept"):
        save(folder, net, {"bad": Crash()}, 2)
    assert step_of(find(folder)) == 1


def test_the_state_of_a_run_loads_without_code(finished: Run) -> None:
    file = finished.folder.file("checkpoint") / STATE
    state = torch.load(file, weights_only=True)
    assert state.keys() == {"settings", "slimming", "optimizer", "scaler", "best", "average"}
    assert state["slimming"]["steps"] == 6
    assert all(
        isinstance(s["momentum_buffer"], Tensor) for s in state["optimizer"]["state"].values()
    )


def test_weights_of_another_network(folder: RunFolder, net: SlimmableNet) -> None:
    save(folder, net, {}, 1)
    other = slim(resnet8(num_classes=3), torch.zeros(1, 3, 8, 8))
    with pytest.raises(UserError, match="the weights do not fit the network") as caught:
        load_weights(folder.file("checkpoint"), other)
    assert len(str(caught.value).splitlines()) == 1


class Tied(nn.Module):
    """Two convs that share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.a = nn.Conv2d(8, 8, 1)
        self.b = nn.Conv2d(8, 8, 1)
        self.b.weight = self.a.weight
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(self.a(self.stem(x)).relu()).relu()
        return self.head(y.mean((2, 3)))


def test_tied_weights(folder: RunFolder) -> None:
    net = slim(Tied(), torch.zeros(1, 3, 8, 8))
    save(folder, net, {}, 1)
    stored = load_file(folder.file("checkpoint") / MODEL)
    assert ("a.weight" in stored) != ("b.weight" in stored)
    other = slim(Tied(), torch.zeros(1, 3, 8, 8))
    load_weights(folder.file("checkpoint"), other)
    assert torch.equal(other.b.weight, net.a.weight)
    assert other.b.weight is other.a.weight
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(other(x), net(x))


@pytest.mark.parametrize("values", [10, 10**5])
def test_a_full_disk_is_called_so(
    values: int, folder: RunFolder, net: SlimmableNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is full at the first block of the state, or when the file is closed."""
    save(folder, net, {}, 1)
    real = Path.open

    def open_full(self: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        place = Path("/dev/full") if self.name == STATE and "w" in mode else self
        return real(place, mode, *arguments, **options)

    monkeypatch.setattr(Path, "open", open_full)
    with pytest.raises(OSError, match=r"cannot write .*: No space left on device$"):
        save(folder, net, {"momentum": torch.zeros(values)}, 2)
    assert step_of(find(folder)) == 1
