"""8-bit files, and what is said of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import joslim
from joslim.deploy.exporting import Check
from joslim.deploy.int8 import (
    Batches,
    Quantized,
    data_of,
    export_children_int8,
    export_int8,
    quantize,
)
from joslim.errors import RunFailed, UserError
from joslim.formats import onnx_session
from joslim.runs.run import Run


def test_a_trained_child(finished: Run, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    run = joslim.load(finished.path)
    point = run.front[-1]
    result = export_int8(run, point, tmp_path / "child.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["child.onnx"]
    assert result.bytes[1] == (tmp_path / "child.onnx").stat().st_size < result.bytes[0]
    assert result.agreeing >= 24
    assert result.error is not None
    assert result.error[0] == pytest.approx(point.test_error, abs=0.3)
    assert result.error[1] == pytest.approx(result.error[0], abs=10)
    session = onnx_session(tmp_path / "child.onnx")
    assert "classes" in session.get_modelmeta().custom_metadata_map
    for batch in (1, 3):
        x = torch.randn(batch, 3, 8, 8).numpy()
        assert session.run(None, {"images": x})[0].shape == (batch, 10)


def test_several_children(tiny_run: Run, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    points = [tiny_run.front[0], tiny_run.net.space.full]
    told = export_children_int8(tiny_run, points, tmp_path / "all")
    assert list(told) == ["child-01.onnx", "child-02.onnx"]
    sizes = {file.name: file.stat().st_size for file in (tmp_path / "all").glob("*.onnx")}
    assert sizes == {name: quantized.bytes[1] for name, quantized in told.items()}


def test_a_picture_beside_the_children(
    finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript")
    drawn: list[Any] = []
    monkeypatch.setattr("joslim.deploy.int8.draw_quantized", lambda *given: drawn.append(given))
    run = joslim.load(finished.path)
    points = [run.front[0], run.net.space.full]  # which is no child of the front
    told = [*export_children_int8(run, points, tmp_path / "all").values()][:1]
    ((by_cost, by_latency, path),) = drawn
    assert path.name == "front.png"
    for at, (label, front) in enumerate(by_cost.items()):
        assert label == ("floats", "8 bits")[at]
        assert [p.widths for p in front] == [points[0].widths]
        assert [p.test_error for p in front] == [quantized.error[at] for quantized in told]
        times = [p.costs["latency_ms"] for p in by_latency[label]]
        assert times == sorted(quantized.ms[at] for quantized in told)


def test_what_is_printed() -> None:
    quantized = Quantized(Check(0.0, 4, 4), 0.25, 3, (2000, 500), (1.0, 0.5))
    assert str(quantized) == (
        "8 bits: largest difference 2.5e-01, classes agree on 3 of 4 samples, "
        "1.000 ms -> 0.500 ms, 2,000 -> 500 bytes"
    )


def test_a_slice_of_quantized_weights_is_the_quantized_slice(tiny_run: Run) -> None:
    """With the scales of the full network, one for each output channel: 8 bits can be shared."""

    def integers(weights: Tensor, scales: Tensor) -> Tensor:
        shape = (-1, *[1] * (weights.ndim - 1))
        return (weights / scales.reshape(shape)).round().clamp(-127, 127).to(torch.int8)

    child = tiny_run.net.child(tiny_run.net.space.smallest)
    full = tiny_run.net.state_dict()
    for name in ("0.weight", "4.weight"):
        part, whole = child.state_dict()[name], full[name]
        scales = whole.flatten(1).abs().amax(dim=1) / 127
        kept = integers(whole, scales)[: len(part)]
        if name == "4.weight":  # its inputs are 4 pixels of each channel that the child keeps
            kept = kept[:, : part.shape[1]]
        assert part.numel() < whole.numel()
        assert torch.equal(kept, integers(part, scales[: len(part)]))


def test_batches_end() -> None:
    sizes = [
        len(batch["images"]) for batch in iter(Batches(torch.zeros(70, 1), "images").get_next, None)
    ]
    assert sizes == [32, 32, 6]


@pytest.mark.parametrize(
    "part", [{"data": {"identity": "others"}}, {"config": {"data": "<Data>"}}, {}]
)
def test_data_that_are_not_there(part: dict[str, dict[str, str]], finished: Run) -> None:
    run = Run(finished.folder, finished.net, finished.front)
    run.facts = {
        key: {**value, **part.get(key, {})}
        for key, value in finished.facts.items()
        if isinstance(value, dict)
    }
    assert (data_of(run) is None) == bool(part)


def test_data_have_the_normalisation_of_the_run(finished: Run) -> None:
    """A network of a library may have another one than the data set."""
    run = Run(finished.folder, finished.net, finished.front)
    run.facts = {**finished.facts, "data": {**finished.facts["data"], "mean": [0.1, 0.2, 0.3]}}
    data = data_of(run)
    assert data is not None
    assert data.mean == (0.1, 0.2, 0.3)
    assert data.std == tuple(finished.facts["data"]["std"])


def test_only_onnx(tiny_run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^int8: it goes with ONNX"):
        export_int8(tiny_run, tiny_run.front[0], tmp_path / "child.pt2")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_quantized(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    (tmp_path / "a.onnx").write_text("not a network")
    with pytest.raises(RunFailed, match="cannot quantize this network"):
        quantize(tmp_path / "a.onnx", tmp_path / "b.onnx", torch.zeros(1, 3, 4, 4))
