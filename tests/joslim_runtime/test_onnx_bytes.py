"""Weights behind a graph, as the onnx package reads them."""

import numpy as np
import onnx
import pytest

from joslim_runtime.onnx_bytes import varint, with_places, with_weights

from .by_hand import graph


def test_weights_are_initializers() -> None:
    rng = np.random.default_rng(0)
    values = {
        "w0": rng.normal(size=(300, 2, 1, 1)).astype(np.float32)[::2],  # not contiguous
        "w1": np.zeros(0, np.float32),
        "ß": np.float32(3.5).reshape(()),
    }
    model = onnx.load_from_string(with_weights(graph(), list(values.items())))
    read = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    assert list(read) == ["axes", *values]
    for name, value in values.items():
        assert read[name].shape == value.shape
        assert np.array_equal(read[name], value)
    assert [node.op_type for node in model.graph.node] == ["Conv", "ReduceMean"]


def test_places_for_weights() -> None:
    model = onnx.load_from_string(with_places(graph(), [("w0", np.zeros((3, 2, 1, 1), "<f4"))]))
    tensor = model.graph.initializer[1]
    assert (tensor.name, list(tensor.dims), tensor.data_type) == ("w0", [3, 2, 1, 1], 1)
    assert tensor.data_location == onnx.TensorProto.EXTERNAL
    assert [(e.key, e.value) for e in tensor.external_data] == [("location", "nowhere")]


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**31])
def test_varint(number: int) -> None:
    total = sum((byte & 127) << (7 * at) for at, byte in enumerate(varint(number)))
    assert total == number
