"""The parts of a bundle that is written by hand: neither joslim nor torch is asked."""

import copy
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

# The weight of a 1x1 convolution from 2 channels to 4, the bias of the largest child and that of
# the smallest, and the factors of the smallest.
WEIGHT = np.arange(8, dtype=np.float32).reshape(4, 2, 1, 1) / 4 - 1
BIASES = np.array([1, 2, 3, 4, 0.5, -0.5], np.float32)
FACTORS = np.array([2, -3], np.float32)
VALUES = np.concatenate([WEIGHT.reshape(-1), BIASES, FACTORS])
TENSORS = [
    {"offset": 0, "shape": [4, 2, 1, 1]},
    {"offset": 8, "shape": [4]},
    {"offset": 12, "shape": [2]},
    {"offset": 14, "shape": [2]},
]


def graph() -> bytes:
    """Convolution, and the mean over all pixels: images [n, 2, 3, 3] -> scores [n, channels]."""
    nodes = [
        helper.make_node("Conv", ["images", "w0", "w1"], ["v0"]),
        helper.make_node("ReduceMean", ["v0", "axes"], ["scores"], keepdims=0),
    ]
    axes = onnx.numpy_helper.from_array(np.array([2, 3]), "axes")
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 2, 3, 3])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", None])
    made = helper.make_graph([*nodes], "child", [images], [scores], [axes])
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(made, opset_imports=opsets, ir_version=10).SerializeToString()


def child(name: str, macs: float, loss: float, weights: list[dict[str, Any]]) -> dict[str, Any]:
    costs = {"macs": macs, "memory": 10 * macs}
    row = {"name": name, "costs": costs, "train_loss": loss, "val_error": 2.0, "test_error": None}
    return row | {"channels": [int(macs)], "graph": "graphs/1.onnx", "weights": weights}


def manifest() -> dict[str, Any]:
    small = [{"name": "w0", "of": 0, "keep": [2, 2, 1, 1], "times": 3}, {"name": "w1", "of": 2}]
    # The first and the last channel.
    gap = [{"name": "w0", "of": 0, "keep": [[[0, 1], [3, 4]], 2, 1, 1]}, {"name": "w1", "of": 2}]
    full = [{"name": "w0", "of": 0}, {"name": "w1", "of": 1}]
    return {
        "format": 1,
        "values": len(VALUES),
        "input": "images",
        "output": "scores",
        "shape": [2, 3, 3],
        "mean": [0.5, 0.25],
        "std": [0.5, 0.25],
        "crop": 1.0,
        "classes": ["ant", "bee", "cat", "dog"],
        "dims": [{"name": "conv", "full": 4}],
        "tensors": copy.deepcopy(TENSORS),
        "children": [
            child("child-01", 2, 3.0, small),
            child("child-02", 3, 2.0, gap),
            child("child-03", 4, 1.0, full),
        ],
    }
