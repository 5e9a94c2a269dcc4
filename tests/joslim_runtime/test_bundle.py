"""Reading of bundles: the values as they were, and one line for whatever is wrong."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import joslim_runtime
from joslim_runtime import BundleError
from joslim_runtime.bundle import Bundle

from .by_hand import VALUES, WEIGHT, graph

MakeBundle = Callable[..., Path]


def test_values_are_exact(make_bundle: MakeBundle) -> None:
    assert np.array_equal(Bundle(make_bundle()).values, VALUES)


def test_weights_of_children(make_bundle: MakeBundle) -> None:
    bundle = Bundle(make_bundle())
    small, gap, full = (bundle.manifest.parts[f"child-0{n}"][1][0] for n in (1, 2, 3))
    factors = np.array([2, -3]).reshape(2, 1, 1, 1)
    assert np.array_equal(bundle.value(small), WEIGHT[:2] * factors)
    assert np.array_equal(bundle.value(gap), WEIGHT[[0, 3]])
    assert np.array_equal(bundle.value(full), WEIGHT)


def refused(path: Path) -> str:
    with pytest.raises(BundleError) as caught:
        joslim_runtime.open(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    assert "there is no such file" in refused(tmp_path / "none.joslim")
    assert "there is no such file" in refused(tmp_path)


def test_another_file(tmp_path: Path) -> None:
    (tmp_path / "net.joslim").write_text("something else")
    assert "is damaged or no bundle" in refused(tmp_path / "net.joslim")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_truncated(share: float, make_bundle: MakeBundle) -> None:
    path = make_bundle()
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused(path)


def test_any_changed_byte_is_noticed_or_harmless(make_bundle: MakeBundle) -> None:
    """Bytes of the zip directory such as dates may change; the values may not."""
    path = make_bundle()
    content = path.read_bytes()
    for at in range(0, len(content), 7):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        try:
            bundle = Bundle(path)
        except BundleError:
            continue
        assert np.array_equal(bundle.values, VALUES), at


@pytest.mark.parametrize("name", ["manifest.json", "weights.low", "weights.high", "graphs/1.onnx"])
def test_missing_entries(name: str, make_bundle: MakeBundle) -> None:
    assert f"it has no '{name}'" in refused(make_bundle(entries={name: None}))


def test_a_checksum_that_differs(make_bundle: MakeBundle) -> None:
    path = make_bundle(entries={"weights.high": bytes(16)}, honest=False)
    assert "'weights.high' differs from its checksum" in refused(path)


def test_fewer_weights_than_stated(make_bundle: MakeBundle) -> None:
    assert "48 are stated" in refused(make_bundle(entries={"weights.low": bytes(45)}))
    assert "16 are stated" in refused(make_bundle(entries={"weights.high": bytes(15)}))


def test_compressed_weights_could_be_of_any_size(make_bundle: MakeBundle) -> None:
    refused(make_bundle(stored=()))


def test_a_graph_that_reads_other_files(make_bundle: MakeBundle) -> None:
    import onnx

    model = onnx.load_from_string(graph())
    tensor = model.graph.initializer.add(name="w0", data_type=1, dims=[2, 2, 1, 1])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    path = make_bundle(entries={"graphs/1.onnx": model.SerializeToString()})
    assert "refers to a file outside of the bundle" in refused(path)


def test_a_graph_outside_of_the_bundle(make_bundle: MakeBundle, tmp_path: Path) -> None:
    """Names are looked up among the entries, and are no paths."""
    (tmp_path / "evil.onnx").write_bytes(graph())
    for name in ("../evil.onnx", str(tmp_path / "evil.onnx")):
        path = make_bundle(lambda record, name=name: record["children"][0].update(graph=name))
        assert re.search("it has no '.*evil.onnx'", refused(path))


INTEGERS = np.array([127, -127, 64, 0, 3, -1, 127, 1], np.int8)


def eight_bits(record: dict[str, Any]) -> None:
    """The weight of the convolution in 8 bits; the biases of the largest child are its scales."""
    record |= {"format": 2, "integers": len(INTEGERS)}
    record["tensors"].append({"offset": 0, "shape": [4, 2, 1, 1], "scale": 1})
    for child in record["children"]:
        child["weights"][0]["of"] = 4


def test_weights_of_8_bits(make_bundle: MakeBundle) -> None:
    bundle = Bundle(make_bundle(eight_bits, {"weights.int8": INTEGERS.tobytes()}))
    small, gap, full = (dict(bundle.parts(c)[1])["w0"] for c in bundle.manifest.children)
    weight = INTEGERS.reshape(4, 2) * np.array([[1], [2], [3], [4]], np.float32)
    assert np.array_equal(full[..., 0, 0], weight)
    assert np.array_equal(gap[..., 0, 0], weight[[0, 3]])
    assert np.array_equal(small[..., 0, 0], weight[:2] * np.array([[2], [-3]]))


@pytest.mark.parametrize(
    ("change", "content", "message"),
    [
        ({}, None, "it has no 'weights.int8'"),
        ({}, b"1234567", "'weights.int8' has 7 bytes, 8 are stated"),
        ({"integers": 7}, b"1234567", r"tensors\[4\]: .* a tensor within 7 values needed"),
        ({"scale": 2}, b"12345678", r"scale: 2 given, a tensor before it with a factor for each"),
        ({"scale": 4}, b"12345678", r"scale: 4 given, a whole number from 0 to 3 needed"),
    ],
)
def test_8_bits_that_are_none(
    change: dict[str, int], content: bytes | None, message: str, make_bundle: MakeBundle
) -> None:
    def spoil(record: dict[str, Any]) -> None:
        eight_bits(record)
        record["integers"] = change.get("integers", 8)
        record["tensors"][4]["scale"] = change.get("scale", 1)

    with pytest.raises(BundleError, match=message):
        Bundle(make_bundle(spoil, {"weights.int8": content}))


def test_compressed_8_bits_could_be_of_any_size(make_bundle: MakeBundle) -> None:
    path = make_bundle(eight_bits, {"weights.int8": bytes(8)}, stored=("weights.low",))
    with pytest.raises(BundleError, match=r"'weights\.int8' has 8 bytes"):
        Bundle(path)
