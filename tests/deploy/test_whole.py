"""The whole network with its front: a run that can be used, but not trained on."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import joslim
from joslim.deploy.whole import export_whole
from joslim.errors import UserError
from joslim.runs.run import Run


def test_it_is_the_same_network(finished: Run, tmp_path: Path) -> None:
    export_whole(joslim.load(finished.path), tmp_path / "whole")
    run = joslim.load(tmp_path / "whole")
    assert run.front == finished.front
    x = torch.randn(5, 3, 8, 8)
    for point in run.front:
        with torch.no_grad(), run.net.at(point.widths), finished.net.at(point.widths):
            assert torch.equal(run.net(x), finished.net(x))
    assert sorted(file.name for file in tmp_path.glob("whole/*")) == [
        "checkpoint",
        "config.json",
        "front.json",
        "samples.safetensors",
    ]
    state = "checkpoint/state.pt"
    assert (
        (tmp_path / "whole" / state).stat().st_size < 2000 < (finished.path / state).stat().st_size
    )


def test_its_children_can_be_exported(finished: Run, tmp_path: Path) -> None:
    export_whole(joslim.load(finished.path), tmp_path / "whole")
    run = joslim.load(tmp_path / "whole")
    check = joslim.export(run, run.front[0], tmp_path / "child.pt2")
    assert check.agreeing == check.samples == 32


def test_no_training_goes_on_with_it(
    finished: Run, tmp_path: Path, refused: Callable[..., str]
) -> None:
    export_whole(joslim.load(finished.path), tmp_path / "whole")
    before = sorted(tmp_path.rglob("*"))
    assert "state.pt' holds no state" in refused("resume", str(tmp_path / "whole"))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("front.json", "has no front yet"),
        ("samples.safetensors", "has no samples.safetensors"),
        ("checkpoint/checkpoint.json", "has no checkpoint yet"),
        ("checkpoint/model.safetensors", "is broken"),
    ],
)
def test_a_run_that_is_not_whole(missing: str, message: str, finished: Run, tmp_path: Path) -> None:
    shutil.copytree(finished.path, tmp_path / "copy")
    (tmp_path / "copy" / missing).unlink()
    with pytest.raises(UserError, match=message):
        export_whole(joslim.load(tmp_path / "copy"), tmp_path / "whole")
    assert [file.name for file in tmp_path.iterdir()] == ["copy"]
