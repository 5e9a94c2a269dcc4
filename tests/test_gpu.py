"""What can be known of GPUs without one: devices do not mix, and nothing waits by accident."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import joslim

from .pretend_gpu import CASES

HOUSE = Path(__file__).parents[1]
PACKAGE = HOUSE / "joslim"
# What runs in every step or round, and how many tensors each file makes for the host.
HOT = {
    "data/augment.py": 0,
    "slimmable/layers.py": 0,
    "slimmable/batchnorm.py": 0,
    "slimmable/running.py": 0,
    "training/step.py": 0,
    "training/distillation.py": 0,
    "training/evaluate.py": 1,  # the sums of scores, after their one copy
    "training/slimming.py": 1,  # the losses before the first step
}
# A tensor of these is on the CPU unless a device is given.
FACTORIES = re.compile(r"torch\.(tensor|zeros|ones|empty|full|arange|linspace|rand|randn)")


def calls(source: Path) -> list[ast.Call]:
    tree = ast.walk(ast.parse(source.read_text()))
    return [node for node in tree if isinstance(node, ast.Call)]


def test_a_gpu_that_is_not_there() -> None:
    command = [sys.executable, "-W", "ignore", str(HOUSE / "tests" / "pretend_gpu.py")]
    path = {**os.environ, "PYTHONPATH": str(HOUSE)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=path)
    assert done.stdout.splitlines() == list(CASES), done.stderr[-3000:]


def test_no_device_is_typed_into_the_source() -> None:
    for source in PACKAGE.rglob("*.py"):
        found = [call.lineno for call in calls(source) if ast.unparse(call.func).endswith(".cuda")]
        assert not found, f"{source}: .cuda() in lines {found}; type .to(device)"


@pytest.mark.parametrize("name", HOT)
def test_tensors_of_hot_code_have_a_device(name: str) -> None:
    found = [
        call.lineno
        for call in calls(PACKAGE / name)
        if FACTORIES.fullmatch(ast.unparse(call.func))
        and not any(word.arg == "device" for word in call.keywords)
    ]
    assert len(found) == HOT[name], f"lines {found} have no device"


@pytest.mark.parametrize("name", ["data/augment.py", "data/in_memory.py", "data/folder.py"])
def test_batches_move_without_waiting(name: str) -> None:
    """`sent` pins their memory; a bare .to(device) waits for all work that is queued."""
    for function in ast.walk(ast.parse((PACKAGE / name).read_text())):
        if isinstance(function, ast.FunctionDef) and function.name in ("plain", "augmented"):
            assert ".to(" not in ast.unparse(function), function.name
    text = (PACKAGE / "data" / "augment.py").read_text()
    assert "pin_memory().to(device, non_blocking=True)" in text
    assert text.count(".to(images.device") + text.count(".to(self.device") == 0


def test_networks_without_values() -> None:
    """On the meta device a network has costs and children, and refuses to be trained."""
    with torch.device("meta"):
        net = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 32, 32))
    small = net.space.smallest
    assert joslim.cost("macs", net)(small) > 0
    child = net.child(small)
    assert {tensor.device.type for tensor in child.state_dict().values()} == {"meta"}
    with pytest.raises(joslim.UserError, match="meta device"):
        joslim.Slimming(net, total_steps=1, scoring=[(torch.zeros(1, 3, 32, 32), torch.zeros(1))])
