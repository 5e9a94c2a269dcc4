"""A child of each family in all formats, run by programs that know nothing of joslim."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from joslim.deploy.exporting import Check, export, export_children
from joslim.errors import RunFailed
from joslim.formats import Child, run_folder, write_folder, write_pt2
from joslim.runs.run import Run

HOUSE = Path(__file__).parents[2]
Families = dict[str, tuple[Path, list[Check]]]

# Each is told the folders of the families.
WITH_ONNXRUNTIME = """
import json, pathlib, sys
sys.modules["joslim"] = sys.modules["torch"] = None
import numpy as np
import onnxruntime

for folder in map(pathlib.Path, sys.argv[1:]):
    known = np.load(folder / "expected.npz")
    session = onnxruntime.InferenceSession(folder / "child.onnx")
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["classes"]) == ["ant", "bee", "cat", "dog"]
    assert json.loads(facts["mean"]) == [0.5] * 3
    assert [i.shape for i in session.get_inputs()] == [["batch", *json.loads(facts["shape"])]]
    for batch in (1, 3, 5):
        (scores,) = session.run([facts["output"]], {facts["input"]: known["images"][:batch]})
        np.testing.assert_allclose(scores, known["scores"][:batch], rtol=1e-4, atol=1e-4)
"""
WITH_TORCH = """
import json, pathlib, sys
sys.modules["joslim"] = None
import numpy as np
import torch
from open_child import open_child

for folder in map(pathlib.Path, sys.argv[1:]):
    known = {k: torch.from_numpy(v) for k, v in np.load(folder / "expected.npz").items()}
    extra = {"config.json": ""}
    child = torch.export.load(folder / "child.pt2", extra_files=extra).module()
    forward, facts = open_child(folder / "child")
    assert json.loads(extra["config.json"]) == facts
    pixels = known["images"] * 0.25 + 0.5
    for batch in (1, 3, 5):
        for scores in (child(known["images"][:batch]), forward(pixels[:batch])):
            torch.testing.assert_close(scores, known["scores"][:batch], rtol=1e-4, atol=1e-4)
"""


@pytest.mark.parametrize("program", [WITH_ONNXRUNTIME, WITH_TORCH], ids=["onnxruntime", "torch"])
def test_others_run_a_child_of_each_family(
    program: str, families: Families, tmp_path: Path
) -> None:
    folders = [str(place) for place, _ in families.values()]
    result = subprocess.run(
        [sys.executable, "-c", program, *folders],
        cwd=tmp_path,
        env={"PYTHONPATH": str(HOUSE / "examples"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_every_file_was_checked(families: Families) -> None:
    for _, checks in families.values():
        assert [check.agreeing for check in checks] == [5] * 3  # onnx, pt2 and folder


def test_executorch(tiny_run: Run, tmp_path: Path) -> None:
    pytest.importorskip("executorch.exir")
    from executorch.runtime import Runtime

    check = export(tiny_run, tiny_run.front[0], tmp_path / "child.pte")
    assert check.agreeing == check.samples
    program = Runtime.get().load_program(tmp_path / "child.pte")
    (facts,) = program.load_method("facts").execute([])
    assert json.loads(facts)["classes"] == ["ant", "bee", "cat", "dog"]
    assert str(tmp_path).encode() not in (tmp_path / "child.pte").read_bytes()


def test_several_children_as_methods_of_one_program(
    finished: Run, tmp_path: Path, joslim: Callable[..., Any], refused: Callable[..., str]
) -> None:
    pytest.importorskip("executorch.exir")
    from executorch.runtime import Runtime

    out = tmp_path / "net.pte"
    points = [finished.front[0], finished.front[-1]]
    budgets = [text for p in points for text in ("--macs", str(p.costs["macs"]))]
    result = joslim("export", str(finished.path), *budgets, "-o", str(out))
    assert result.returncode == 0, result.stderr
    assert ", 2 children; the worst of them: largest difference " in result.stdout
    program = Runtime.get().load_program(out)
    assert program.method_names == {"child-01", "child-02", "facts"}
    (text,) = program.load_method("facts").execute([])
    facts = json.loads(text)
    assert [child["costs"] for child in facts["children"].values()] == [p.costs for p in points]
    assert "classes" not in facts["children"]["child-01"]
    assert len(facts["classes"]) == 10
    x = torch.randn(1, 3, 8, 8)
    for name, point in zip(facts["children"], points):
        (scores,) = program.load_method(name).execute([x])
        with torch.no_grad(), finished.net.at(point.widths):
            torch.testing.assert_close(scores, finished.net(x), rtol=1e-4, atol=1e-4)
    again = ("export", str(finished.path), *budgets, "-o", str(out))
    assert "exists; type another, or --overwrite" in refused(*again)
    assert "type -o NAME --format pte" in refused(*again, "--overwrite", "--format", "pt2")


@pytest.mark.usefixtures("broken")
def test_a_wrong_method_leaves_nothing(tiny_run: Run, tmp_path: Path) -> None:
    pytest.importorskip("executorch.exir")
    with pytest.raises(RunFailed, match="differs from the network"):
        export_children(tiny_run, tiny_run.front, tmp_path / "net.pte")
    assert not list(tmp_path.iterdir())


def test_litert(tiny_run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("litert_torch")
    check = export(tiny_run, tiny_run.front[0], tmp_path / "child.tflite")
    assert check.difference < 1e-5
    assert check.agreeing == check.samples == 8
    assert capfd.readouterr().out == ""
    with zipfile.ZipFile(tmp_path / "child.tflite") as parts:
        assert json.loads(parts.read("config.json"))["classes"] == ["ant", "bee", "cat", "dog"]
    assert str(HOUSE).encode() not in (tmp_path / "child.tflite").read_bytes()


def test_coreml_is_only_converted(
    tiny_run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    coremltools = pytest.importorskip("coremltools")
    capfd.readouterr()
    check = export(tiny_run, tiny_run.front[0], tmp_path / "child.coreml")
    assert str(check) == "only converted: nothing here runs this format, so it was not compared"
    assert capfd.readouterr().out == ""
    names = {str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*")}
    assert {"child.coreml/config.json", "child.coreml/model.mlpackage/Manifest.json"} <= names
    package = str(tmp_path / "child.coreml" / "model.mlpackage")
    said = coremltools.models.MLModel(package, skip_model_load=True).get_spec().description
    assert [(port.name, *port.type.multiArrayType.shape) for port in said.input] == [
        ("images", 1, 3, 4, 4)
    ]
    assert [port.name for port in said.output] == ["scores"]
    for file in (tmp_path / "child.coreml").rglob("*.*"):
        assert file.is_dir() or str(HOUSE).encode() not in file.read_bytes()


def test_openvino(tiny_run: Run, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    check = export(tiny_run, tiny_run.front[0], tmp_path / "child.openvino")
    assert check.agreeing == check.samples
    assert sorted(file.name for file in (tmp_path / "child.openvino").iterdir()) == [
        "config.json",
        "manifest.json",
        "model.bin",
        "model.xml",
    ]
    model = openvino.Core().read_model(tmp_path / "child.openvino" / "model.xml")
    assert [port.any_name for port in (*model.inputs, *model.outputs)] == ["images", "scores"]
    assert str(model.inputs[0].partial_shape) == "[?,3,4,4]"
    assert str(tmp_path) not in (tmp_path / "child.openvino" / "model.xml").read_text()


def test_nothing_is_pickled_and_no_path_is_told(families: Families) -> None:
    place, _ = families["resnet8"]
    assert [file.name for file in place.glob("*.onnx*")] == ["child.onnx"], "no external data"
    assert {file.name for file in (place / "child").iterdir()} == {
        "config.json",
        "graph.pt2",
        "model.safetensors",
    }
    for archive in (place / "child.pt2", place / "child" / "graph.pt2"):
        with zipfile.ZipFile(archive) as parts:
            contents = [parts.read(name) for name in parts.namelist()]
        assert not [part for part in contents if part.startswith(b"\x80") or b"data.pkl" in part]
        assert not [part for part in contents if str(HOUSE).encode() in part]
    assert str(HOUSE).encode() not in (place / "child.onnx").read_bytes()
    weights = (place / "child" / "model.safetensors").stat().st_size
    assert (place / "child" / "graph.pt2").stat().st_size < 10 * weights


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 3)
        self.two = nn.Linear(3, 3)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x.flatten(1)))


def test_weights_that_are_shared(tmp_path: Path) -> None:
    child = Child(Tied(), {}, (torch.zeros(2, 3, 1, 1),))
    x = torch.randn(4, 3, 1, 1)
    expected = child.module(x)
    write_folder(child, tmp_path / "child")
    for forward in run_folder(child, tmp_path / "child"):
        torch.testing.assert_close(forward(x), expected)


class Choosy(nn.Module):
    def forward(self, x: Tensor) -> Any:
        if x.sum() > 0:
            raise ValueError("first line\nsecond line")
        return x


class OfTwo(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(2, -1)


@pytest.mark.parametrize("model", [Choosy(), OfTwo()])
def test_a_network_that_torch_cannot_export(model: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"^export: torch cannot export this network: ") as caught:
        write_pt2(Child(model, {}, (torch.zeros(2, 3, 4, 4),)), tmp_path / "child.pt2")
    assert "\n" not in str(caught.value)
