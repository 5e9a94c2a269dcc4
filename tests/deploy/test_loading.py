"""`joslim.load_child`: the module again, and no code of strangers."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import joslim
from joslim.deploy.exporting import export
from joslim.errors import UserError
from joslim.runs.run import Run


@pytest.fixture(scope="module")
def folder(finished: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("children") / "child"
    export(joslim.load(finished.path), finished.front[0], path)
    return path


def changed(folder: Path, tmp_path: Path, **facts: Any) -> Path:
    known = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**known, **facts}))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    return tmp_path


def test_an_ordinary_module(folder: Path, finished: Run) -> None:
    child = joslim.load_child(folder)
    point, x = finished.front[0], torch.randn(5, 3, 8, 8)
    assert type(child) is type(joslim.models.resnet8())
    assert not child.training
    with torch.no_grad(), finished.net.at(point.widths):
        torch.testing.assert_close(child(x), finished.net(x), rtol=1e-5, atol=1e-5)


def test_the_graph_is_not_read(folder: Path, tmp_path: Path) -> None:
    assert not (changed(folder, tmp_path) / "graph.pt2").exists()
    joslim.load_child(tmp_path)


def test_random_numbers_go_on(folder: Path) -> None:
    torch.manual_seed(3)
    before = torch.rand(1)
    torch.manual_seed(3)
    joslim.load_child(folder)
    assert torch.rand(1) == before


def own_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4)
    )


def test_a_model_of_ones_own_is_given_again(tiny_run: Run, tmp_path: Path) -> None:
    export(tiny_run, tiny_run.front[0], tmp_path / "child")
    with pytest.raises(UserError, match=r"'nets:own', which is not imported .*model=\.\.\."):
        joslim.load_child(tmp_path / "child")
    child = joslim.load_child(tmp_path / "child", model=own_model())
    x = torch.randn(5, 3, 4, 4)
    with torch.no_grad(), tiny_run.net.at(tiny_run.front[0].widths):
        torch.testing.assert_close(child(x), tiny_run.net(x))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"format": 2}, "has format 2, this joslim reads 1; export it again"),
        ({"format": "1"}, "config.json.format: '1' is not a whole number"),
        ({"model": "antigravity:open"}, "is not imported because a file says so"),
        ({"model": ["resnet8"]}, "config.json.model: ['resnet8'] is not a name"),
        ({"model": "resnet9000"}, "model: unknown name 'resnet9000'"),
        ({"model": "resnet20"}, "config.json.channels"),
        ({"shape": [3, 10**9, 8]}, "config.json.shape: 1000000000"),
        ({"shape": [10**4] * 3}, "is more than"),
        ({"low": "0.1"}, "config.json.low: '0.1' is not a finite number"),
        ({"channels": {}}, "config.json.channels.conv1: missing"),
        ({"channels": None}, "config.json.channels: None is not"),
        ({"classes": ["one"]}, "cannot be loaded"),
    ],
)
def test_whatever_the_file_says(
    facts: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        joslim.load_child(changed(folder, tmp_path, **facts))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "antigravity" not in sys.modules


def test_a_large_input_costs_no_time(folder: Path, tmp_path: Path) -> None:
    started = time.process_time()
    child = joslim.load_child(changed(folder, tmp_path, shape=[3, 4700, 4700]))
    assert time.process_time() - started < 10, "it was 25 seconds"
    known = joslim.load_child(folder)
    for name, tensor in child.state_dict().items():
        assert torch.equal(tensor, known.state_dict()[name])


def test_files_that_are_missing_or_broken(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        joslim.load_child(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"has no config\.json"):
        joslim.load_child(tmp_path)
    (changed(folder, tmp_path) / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(UserError, match="cannot be loaded"):
        joslim.load_child(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match="cannot be loaded"):
        joslim.load_child(tmp_path)
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="is not a file"):
        joslim.load_child(tmp_path)
