"""Exports of a trained run: what is written, and that what is wrong is not."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import joslim
from joslim.deploy.children import export, export_children
from joslim.deploy.formats import onnx_session
from joslim.errors import RunFailed, UserError
from joslim.runs.run import Run


def test_a_trained_child_as_onnx(finished: Run, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    run = joslim.load(finished.path)
    point = run.front[0]
    check = joslim.export(run, point, tmp_path / "child.onnx")
    assert check.difference < 1e-4
    assert check.agreeing == check.samples == 32
    x = torch.randn(7, 3, 8, 8)
    (scores,) = onnx_session(tmp_path / "child.onnx").run(None, {"images": x.numpy()})
    run.net.use(point)
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(scores), run.net(x), rtol=1e-4, atol=1e-4)
    assert [file.name for file in tmp_path.iterdir()] == ["child.onnx"]


def test_the_network_stays_as_it_is(tiny_run: Run, tmp_path: Path) -> None:
    net = tiny_run.net
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    active = net.active
    export(tiny_run, tiny_run.front[0], tmp_path / "child")
    assert net.active == active
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_statistics_are_the_childs_own(tiny_run: Run, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    point = tiny_run.front[0]
    export(tiny_run, point, tmp_path / "child")
    weights = load_file(tmp_path / "child" / "model.safetensors")
    mean, var = tiny_run.net.statistics[point.widths]["1"]
    assert torch.equal(weights["1.running_mean"], mean)
    assert torch.equal(weights["1.running_var"], var)


def test_several_children_in_one_call(tiny_run: Run, tmp_path: Path) -> None:
    points = [tiny_run.front[0], tiny_run.net.space.full]
    checks = export_children(tiny_run, points, tmp_path / "all", "pt2")
    assert list(checks) == ["child-01.pt2", "child-02.pt2"]
    assert sorted(file.name for file in (tmp_path / "all").iterdir()) == list(checks)


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("name", ["child.pt2", "child"])
def test_a_mismatch_leaves_nothing(name: str, tiny_run: Run, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="differs from the network: largest difference"):
        export(tiny_run, tiny_run.front[0], tmp_path / name)
    with pytest.raises(RunFailed):
        export_children(tiny_run, tiny_run.front, tmp_path / "all", "pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("broken")
def test_a_mismatch_leaves_an_older_file_alone(tiny_run: Run, tmp_path: Path) -> None:
    (tmp_path / "child.pt2").write_text("older")
    with pytest.raises(RunFailed):
        export(tiny_run, tiny_run.front[0], tmp_path / "child.pt2", overwrite=True)
    assert (tmp_path / "child.pt2").read_text() == "older"
    assert len(list(tmp_path.iterdir())) == 1


# Bad input


def refused(run: Run, point: Any, path: Path) -> str:
    with pytest.raises(UserError) as caught:
        export(run, point, path)
    return str(caught.value)


def test_points_that_are_not_of_this_run(tiny_run: Run, finished: Run, tmp_path: Path) -> None:
    path = tmp_path / "child.pt2"
    assert "belong to another network" in refused(tiny_run, finished.front[0], path)
    assert "Widths needed" in refused(tiny_run, 0.5, path)
    assert "no BatchNorm statistics" in refused(tiny_run, tiny_run.net.space.uniform(0.7), path)
    point = tiny_run.front[0]
    elsewhere = replace(point, train_loss=0.5)
    assert "it is not on the front of" in refused(tiny_run, elsewhere, path)
    assert "it is not on the front of" in refused(tiny_run, replace(point, val_error=3.0), path)
    assert not list(tmp_path.iterdir())


def test_the_same_point_on_another_device(tiny_run: Run, tmp_path: Path) -> None:
    point = tiny_run.front[0]
    timed = replace(point, costs={**point.costs, "latency_ms": 3.0})
    assert export(tiny_run, timed, tmp_path / "a.pt2").difference < 1e-4
    assert export(tiny_run, point.widths, tmp_path / "b.pt2").difference < 1e-4


def test_what_is_there_stays(tiny_run: Run, tmp_path: Path) -> None:
    point = tiny_run.front[0]
    export(tiny_run, point, tmp_path / "child")
    export_children(tiny_run, [point], tmp_path / "all", "pt2")
    assert "exists; type another, or --overwrite" in refused(tiny_run, point, tmp_path / "child")
    with pytest.raises(UserError, match="exists; type another, or --overwrite"):
        export_children(tiny_run, [point, point], tmp_path / "all", "pt2")
    export_children(tiny_run, [point, point], tmp_path / "all", "pt2", overwrite=True)
    assert len(list((tmp_path / "all").iterdir())) == 2


def test_formats_that_there_are_not(tiny_run: Run, tmp_path: Path) -> None:
    assert "unknown suffix" in refused(tiny_run, tiny_run.front[0], tmp_path / "child.h5")
    with pytest.raises(UserError, match=r"^format: unknown name 'h5'; allowed: onnx, pt2, folder$"):
        export_children(tiny_run, tiny_run.front, tmp_path / "all", "h5")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_package_is_named(
    missing: str, tiny_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript")
    monkeypatch.setitem(sys.modules, missing, None)
    line = refused(tiny_run, tiny_run.front[0], tmp_path / "child.onnx")
    assert f"export: a .onnx file needs {missing}; type pip install 'joslim[onnx]'" in line
    assert not list(tmp_path.iterdir())
