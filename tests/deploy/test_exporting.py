"""Exports of a trained run and their check; children read back, without code of strangers."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import joslim
from joslim.deploy.exporting import (
    Check,
    compared,
    export,
    export_children,
    export_whole,
    metadata,
    outputs_in_place,
    widths_of,
)
from joslim.errors import RunFailed, UserError
from joslim.formats import onnx_session
from joslim.runs.folder import SAMPLES, RunFolder
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
    files = sorted(file.name for file in (tmp_path / "all").iterdir())
    assert files == [*checks, "manifest.json"]


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
    assert len(list((tmp_path / "all").glob("*.pt2"))) == 2


def test_formats_that_there_are_not(tiny_run: Run, tmp_path: Path) -> None:
    assert "unknown suffix" in refused(tiny_run, tiny_run.front[0], tmp_path / "child.h5")
    with pytest.raises(UserError, match=r"^format: unknown name 'h5'; allowed: onnx, pt2, pte, "):
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


# The metadata


def test_facts_of_a_child_of_the_front(finished: Run) -> None:
    point = finished.front[0]
    facts = metadata(finished, point.widths)
    data = finished.facts["data"]
    assert {name: facts[name] for name in ("shape", "mean", "std", "classes")} == {
        name: data[name] for name in ("shape", "mean", "std", "classes")
    }
    assert facts["costs"] == point.costs
    assert facts["test_error"] == point.test_error
    assert facts["channels"] == point.widths.channels
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts


def test_the_full_network_need_not_be_on_the_front(tiny_run: Run) -> None:
    full = widths_of(tiny_run, tiny_run.net.space.full)
    facts = metadata(tiny_run, full)
    assert facts["costs"] == {}
    assert facts["test_error"] is None


@pytest.mark.parametrize(
    ("key", "value"), [("mean", ["0.5"]), ("std", None), ("classes", [["a"]]), ("classes", "ab")]
)
def test_facts_of_a_run_that_are_none(key: str, value: object, tiny_run: Run) -> None:
    broken = Run(tiny_run.folder, tiny_run.net, tiny_run.front)
    broken.facts = {**tiny_run.facts, "data": {**tiny_run.facts["data"], key: value}}
    with pytest.raises(UserError, match=rf"^config\.json\.data\.{key}"):
        metadata(broken, tiny_run.net.space.full)


# The check

SCORES = torch.tensor([[1.0, 2.0], [3.0, -40.0]])


# Both samples, and the first alone.
CASES = [((torch.zeros(n, 1),), [SCORES[:n]]) for n in (2, 1)]


def given(scores: Tensor) -> Check:
    return compared([lambda x: scores[: len(x)]], CASES)


def test_what_is_the_same() -> None:
    assert given(SCORES) == Check(0.0, 2, 2)
    assert str(given(SCORES)) == "largest difference 0.0e+00, classes agree on 2 of 2 samples"


def test_small_differences_are_those_of_the_largest_score() -> None:
    assert given(SCORES + 0.03).difference == pytest.approx(0.03, rel=0.01)
    with pytest.raises(RunFailed, match=r"largest difference 5.0e-02, classes agree on 2 of 2"):
        given(SCORES + 0.05)


@pytest.mark.parametrize("wrong", [SCORES.flip(1), SCORES * torch.nan, SCORES + torch.inf])
def test_large_differences(wrong: Tensor) -> None:
    with pytest.raises(RunFailed, match="differs from the network"):
        given(wrong)


def test_another_shape() -> None:
    with pytest.raises(RunFailed, match=r"the file gives \(2, 1\)"):
        given(SCORES[:, :1])


def test_one_image_alone_counts_too() -> None:
    with pytest.raises(RunFailed, match="differs"):
        compared([lambda x: SCORES[: len(x)] + (len(x) == 1)], CASES)


def test_every_way_counts() -> None:
    ways = [lambda x: SCORES[: len(x)], lambda x: SCORES[: len(x)] + 1]
    with pytest.raises(RunFailed, match="differs"):
        compared(ways, CASES)


def test_outputs_in_place(tiny_run: Run) -> None:
    samples, widths = tiny_run.samples, tiny_run.front[0].widths
    (scores,) = outputs_in_place(tiny_run.net, widths, samples)
    torch.testing.assert_close(scores, tiny_run.net.child(widths).eval()(*samples))
    assert not scores.requires_grad


@pytest.mark.parametrize(
    "tensors",
    [
        {"others": torch.zeros(2, 3, 4, 4)},
        {"inputs": torch.zeros(2, 3, 5, 4)},
        {"inputs": torch.zeros(0, 3, 4, 4)},
        {"inputs": torch.zeros(2, 3, 4, 4, dtype=torch.int64)},
        None,
    ],
)
def test_samples_that_are_none(
    tensors: dict[str, Tensor] | None, tiny_run: Run, tmp_path: Path
) -> None:
    run = Run(RunFolder(tmp_path), tiny_run.net, tiny_run.front)
    run.facts = tiny_run.facts
    if tensors is not None:
        save_file(tensors, tmp_path / SAMPLES)
    with pytest.raises(UserError, match=rf"^run: .*(no samples of inputs|no {SAMPLES})"):
        _ = run.samples


# The whole network


def test_it_is_the_same_network(finished: Run, tmp_path: Path) -> None:
    export_whole(joslim.load(finished.path), tmp_path / "whole")
    run = joslim.load(tmp_path / "whole")
    assert run.front == finished.front
    x = torch.randn(5, 3, 8, 8)
    for point in run.front:
        with torch.no_grad(), run.net.at(point.widths), finished.net.at(point.widths):
            # The same numbers, but the strides of 1x1 kernels may differ, and the kernels of torch.
            torch.testing.assert_close(run.net(x), finished.net(x))
    assert sorted(file.name for file in tmp_path.glob("whole/*")) == [
        "checkpoint",
        "config.json",
        "front.json",
        "manifest.json",
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


# Children read back


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


# Depth and resolution


def test_children_of_several_depths_and_sizes(tmp_path: Path) -> None:
    """A file takes images of the size of its child, and says how they were resized."""
    net = joslim.slim(
        joslim.models.resnet20(), torch.zeros(1, 3, 16, 16), resolutions=(8, 12, 16), depth=True
    ).eval()
    child = net.space.of_counts([*net.space.full.counts[:-4], 1, 3, 2, 12])
    with net.at(child):
        joslim.recalibrate(net, [torch.randn(16, 3, 16, 16)])
    suffixes = [".pt2", ""]
    if pytest.importorskip("onnxscript"):
        suffixes.append(".onnx")
    for suffix in suffixes:
        check = joslim.export(net, child, tmp_path / f"child{suffix}")
        assert check.difference < 1e-4
    (given,) = onnx_session(tmp_path / "child.onnx").get_inputs()
    assert given.shape == ["batch", 3, 12, 12]
    facts = json.loads((tmp_path / "child" / "config.json").read_text())
    assert facts["resize"] == {
        "from": 16,
        "to": 12,
        "interpolation": "bilinear",
        "antialias": True,
    }
    assert facts["channels"]["layer3"] == 2
    again = joslim.load_child(tmp_path / "child", joslim.models.resnet20())
    assert len(again.layer1) == 1
    x = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        assert torch.equal(again(x), net.child(child).eval()(x))


def test_a_trained_child_of_another_size(several_sizes: Run, tmp_path: Path) -> None:
    run = several_sizes
    point = run.front[0]
    joslim.export(run, point, tmp_path / "child")
    facts = json.loads((tmp_path / "child" / "config.json").read_text())
    assert facts["shape"] == [3, 4, 4]
    assert joslim.load_child(tmp_path / "child")(torch.zeros(1, 3, 4, 4)).shape == (1, 4)
    facts["resize"]["from"] = 10**9
    (tmp_path / "child" / "config.json").write_text(json.dumps(facts))
    with pytest.raises(UserError, match=r"resize.from"):
        joslim.load_child(tmp_path / "child")


def test_children_of_a_divisor_are_opened_again(tiny: dict[str, Any], tmp_path: Path) -> None:
    joslim.train(out=tmp_path / "run", divisor=8, **tiny)
    run = joslim.load(tmp_path / "run")
    joslim.export(run, run.front[0], tmp_path / "child")
    counts = json.loads((tmp_path / "child" / "config.json").read_text())["channels"]
    assert all(count % 8 == 0 for count in counts.values())
    child = joslim.load_child(tmp_path / "child")
    (samples,) = run.samples
    with torch.no_grad():
        assert torch.allclose(child(samples), run.net.child(run.front[0])(samples), atol=1e-4)
