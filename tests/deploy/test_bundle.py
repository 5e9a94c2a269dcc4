"""A bundle of a trained run: every child as the network computes it, and what is refused."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import joslim as package
import joslim_runtime
from joslim.cli import main
from joslim.deploy import bundle as bundling
from joslim.deploy.bundle import export_bundle
from joslim.errors import RunFailed, UserError
from joslim.formats import onnx_session
from joslim.runs.run import Run

pytest.importorskip("onnxscript")
HOUSE = Path(package.__file__).parents[1]
Program = Callable[..., Any]


@pytest.fixture(scope="module")
def made(finished: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the command line writes it."""
    path = tmp_path_factory.mktemp("bundle") / "net.joslim"
    with pytest.raises(SystemExit) as stopped:
        main(["export", str(finished.path), "--bundle", "-o", str(path)])
    assert stopped.value.code == 0
    return path


def test_every_child_equals_the_network(made: Path, finished: Run) -> None:
    net = joslim_runtime.open(made)
    images = torch.randn(6, 3, 8, 8)
    assert len(net.front) == len(finished.front)
    for child, point in zip(net.front, finished.front):
        with torch.no_grad():
            expected = finished.net.child(point)(images).numpy()
        np.testing.assert_allclose(net(images.numpy(), child), expected, atol=1e-5, rtol=1e-5)


def test_the_manifest_has_the_front(made: Path, finished: Run) -> None:
    net = joslim_runtime.open(made)
    for child, point in zip(net.front, finished.front):
        assert child.costs == point.costs
        assert child.train_loss == point.train_loss
        assert (child.val_error, child.test_error) == (point.val_error, point.test_error)
        names = [name for name, _ in net.dims]
        assert dict(zip(names, child.channels)) == point.widths.channels
    budget = finished.front[len(finished.front) // 2].costs["macs"]
    assert net.use(macs=budget).costs == finished.front.pick(macs=budget).costs
    assert net.classes == tuple("0123456789")
    assert net.shape == (3, 8, 8)


def test_weights_are_there_once(made: Path, finished: Run) -> None:
    """All but the factor and the bias of each channel, which are a child's own."""
    manifest = json.loads(zipfile.ZipFile(made).read("manifest.json"))
    weights = sum(p.numel() for p in finished.net.parameters() if p.ndim > 1)
    norms = [m for m in finished.net.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    channels = sum(len(norm.weight) for norm in norms)
    most = weights + 10 + 2 * channels * len(finished.front)
    assert weights < manifest["values"] <= most
    assert len({child["graph"] for child in manifest["children"]}) == 1


def test_no_path_and_no_name_of_a_layer_is_in_a_graph(made: Path) -> None:
    with zipfile.ZipFile(made) as file:
        graph = file.read("graphs/1.onnx")
    assert b"conv" not in graph
    assert b"layer" not in graph
    assert str(HOUSE).encode() not in graph
    assert len(graph) < 5000


def test_images_are_classified_as_in_the_test(made: Path, finished: Run) -> None:
    from joslim.data.digits import read

    net = joslim_runtime.open(made)
    images = read("test").pixels[:40]
    data = package.load_data("digits")
    plain, _ = data.plain("test", range(40))
    net.use(net.front[0])
    expected = net(plain.numpy()).argmax(1)
    found = [net.classify(image.permute(1, 2, 0).numpy())[0] for image in images]
    assert found == [net.classes[number] for number in expected]


TEN_LINES = """
import sys
sys.modules["torch"] = sys.modules["onnx"] = None  # an import of them fails
import numpy as np
import joslim_runtime

net = joslim_runtime.open(sys.argv[1])
for child in net.front:
    net.use(child.name)
    np.save(f"{sys.argv[2]}/{child.name}.npy", net(np.load(f"{sys.argv[2]}/images.npy")))
"""


def test_a_process_without_torch(made: Path, finished: Run, tmp_path: Path) -> None:
    (images,) = finished.samples
    np.save(tmp_path / "images.npy", images.numpy())
    command = [sys.executable, "-c", TEN_LINES, str(made), str(tmp_path)]
    subprocess.run(command, cwd=HOUSE, check=True)
    for number, point in enumerate(finished.front, start=1):
        with torch.no_grad():
            expected = finished.net.child(point)(images).numpy()
        scores = np.load(tmp_path / f"child-{number:02}.npy")
        np.testing.assert_allclose(scores, expected, atol=1e-5, rtol=1e-5)


def test_files_have_no_date(made: Path) -> None:
    """Equal bundles are equal byte by byte."""
    with zipfile.ZipFile(made) as file:
        assert {info.date_time for info in file.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_a_child_with_a_graph_of_its_own(
    tiny_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is where torch cannot leave the sizes open."""
    monkeypatch.setattr(bundling.Builder, "_shared", lambda self, widths: None)
    check = export_bundle(tiny_run, tmp_path / "net.joslim").check
    assert check.difference < 1e-5
    assert [file.name for file in tmp_path.iterdir()] == ["net.joslim"]


def test_a_mismatch_leaves_nothing(
    tiny_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = bundling.Builder._own
    monkeypatch.setattr(bundling.Builder, "_shared", lambda self, widths: None)
    monkeypatch.setattr(bundling.Builder, "_own", lambda self, value: real(self, value + 1))
    with pytest.raises(RunFailed, match="differs from the network"):
        export_bundle(tiny_run, tmp_path / "net.joslim")
    assert not list(tmp_path.iterdir())


def test_another_suffix(tiny_run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"out: a bundle is a \.joslim file, .* type NAME\.joslim"):
        export_bundle(tiny_run, tmp_path / "net.onnx")


def test_bad_input_on_the_command_line(
    made: Path, finished: Run, tmp_path: Path, refused: Program
) -> None:
    run = str(finished.path)
    line = refused("export", run, "--bundle", "-o", str(made))
    assert "exists; type another, or --overwrite" in line
    out = str(tmp_path / "net.joslim")
    line = refused("export", run, "--bundle", "--macs", "1M", "-o", out)
    assert "a budget and --bundle exclude each other" in line
    assert "type NAME.joslim" in refused("export", run, "--bundle", "-o", str(tmp_path / "net"))
    assert "not a run folder?" in refused("export", str(tmp_path), "--bundle", "-o", out)


def test_children_of_several_depths_share_their_weights(
    tmp_path: Path, tiny: dict[str, Any]
) -> None:
    """Children with the same blocks share a graph."""
    pytest.importorskip("onnxscript")
    options = {**tiny, "steps": 2, "method": "slim", "front_images": 32}
    run = package.train("resnet20", "digits", out=tmp_path / "run", depth=True, **options)
    made = export_bundle(run, tmp_path / "net.joslim")
    assert made.children == len(run.front)
    assert made.check.difference < 1e-4
    net = joslim_runtime.open(tmp_path / "net.joslim")
    depths = {child.channels[-3:] for child in net.front}
    with zipfile.ZipFile(tmp_path / "net.joslim") as bundle:
        graphs = [name for name in bundle.namelist() if name.startswith("graphs/")]
    assert len(graphs) == len(depths)


def test_children_of_several_input_sizes(several_sizes: Run, tmp_path: Path) -> None:
    """Each has its own size in the file; images of the full size are resized as PyTorch does."""
    run, file = several_sizes, tmp_path / "net.joslim"
    assert export_bundle(run, file).check.difference < 1e-4
    net = joslim_runtime.open(file)
    assert net.shape == (3, 8, 8)
    sizes = [child.shape for child in net.front]
    assert sizes == [(3, p.widths.pixels, p.widths.pixels) for p in run.front]
    assert [size[-1] for size in sizes] == [4, 8]
    images = torch.randn(3, 3, 8, 8)
    for child, point in zip(net.front, run.front):
        with run.net.at(point.widths), torch.no_grad():
            expected = run.net.eval()(images).numpy()
        np.testing.assert_allclose(net(images.numpy(), child), expected, atol=1e-4, rtol=1e-4)
        own = torch.nn.functional.interpolate(
            images, child.shape[1:], mode="bilinear", antialias=True
        )
        np.testing.assert_allclose(net(own.numpy(), child), expected, atol=1e-4, rtol=1e-4)
    small = net.use(net.front[0])
    with pytest.raises(
        joslim_runtime.BundleError,
        match=r"batch: shape \(1, 3, 5, 5\) given, \[n, 3, 8, 8\] or \[n, 3, 4, 4\] needed",
    ):
        net(np.zeros((1, 3, 5, 5), np.float32))
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    mean, std = (np.reshape(run.facts["data"][key], (3, 1, 1)) for key in ("mean", "std"))
    pixels = torch.tensor((image.transpose(2, 0, 1) / 255 - mean) / std).float()[None]
    with run.net.at(run.front[0].widths), torch.no_grad():
        shares = run.net(pixels).softmax(1)[0]
    name, share = net.classify(image)
    assert name == net.classes[int(shares.argmax())]
    assert share == pytest.approx(shares.max().item(), abs=1e-4)
    net.save(tmp_path / "small.onnx", small)
    session = onnx_session(tmp_path / "small.onnx")
    assert session.get_inputs()[0].shape[1:] == [3, 4, 4]


# 8 bits


def test_weights_of_8_bits(finished: Run, tmp_path: Path, joslim: Program) -> None:
    """Each child has the rounded weights of the full network, cut, to the last bit."""
    run, out = package.load(finished.path), tmp_path / "net.joslim"
    before = {name: tensor.clone() for name, tensor in run.net.state_dict().items()}
    with bundling.quantized_weights(run.net) as integers:
        rounded = {name: tensor.clone() for name, tensor in run.net.state_dict().items()}
        children = [run.net.child(point) for point in run.front]
        (images,) = run.samples
        with torch.no_grad():
            expected = [child(images).numpy() for child in children]
    for name, tensor in run.net.state_dict().items():
        assert torch.equal(tensor, before[name]), "the network is as it was"
        if name in integers:
            scales = tensor.flatten(1).abs().amax(1) / 127
            apart = (rounded[name] - tensor).flatten(1).abs().amax(1)
            assert (apart <= 0.5001 * scales).all()
        else:
            assert torch.equal(tensor, rounded[name])
    result = joslim("export", str(finished.path), "--bundle", "--int8", "-o", str(out))
    assert result.returncode == 0, result.stderr
    assert "8-bit weights: test errors of the children change by " in result.stdout
    bundle = joslim_runtime.open(out)
    for child, scores in zip(bundle.front, expected):
        np.testing.assert_allclose(bundle(images.numpy(), child), scores, rtol=1e-4, atol=1e-4)
        assert child.val_error is None
        assert child.test_error is not None
    kept = bundle._bundle
    for child, module in zip(bundle.front, children):
        (linear,) = [value for _, value in kept.parts(child)[1] if value.ndim == 2]
        assert np.array_equal(linear, module.state_dict()["fc.weight"].numpy())
    with zipfile.ZipFile(out) as file:
        assert file.getinfo("weights.int8").file_size == sum(q.size for q, _ in integers.values())


def test_errors_of_8_bits_without_the_images(tiny_run: Run, tmp_path: Path) -> None:
    made = export_bundle(tiny_run, tmp_path / "net.joslim", int8=True)
    assert made.errors is None
    assert made.check.difference < 1e-5
    assert joslim_runtime.open(tmp_path / "net.joslim").front[0].test_error is None
