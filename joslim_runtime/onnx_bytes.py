"""An ONNX graph and its weights as one model, without the onnx package.

ONNX files are protocol buffers, in which two messages in a row are one message with the fields of
both. A model whose only field is a graph whose only fields are weights can therefore be appended to
a model without weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Tags of fields: their number in onnx.proto, times 8, plus 2 for bytes or 0 for an integer.
GRAPH_OF_MODEL = bytes([7 * 8 + 2])
INITIALIZER_OF_GRAPH = bytes([5 * 8 + 2])
DIMS_OF_TENSOR = bytes([1 * 8])
FLOAT_TENSOR = bytes([2 * 8, 1])
NAME_OF_TENSOR = bytes([8 * 8 + 2])
DATA_OF_TENSOR = bytes([9 * 8 + 2])
EXTERNAL_OF_TENSOR = bytes([13 * 8 + 2])
EXTERNAL_TENSOR = bytes([14 * 8, 1])
# An entry of external data: the key "location", and a name that is no file.
NOWHERE = b"\x0a\x08location\x12\x07nowhere"

Weights = Sequence[tuple[str, NDArray[np.float32]]]


def with_weights(graph: bytes, weights: Weights) -> bytes:
    """Return the model with these weights as initializers.

    Args:
        graph: A serialized ONNX model.
        weights: Names and values.
    """
    parts: list[bytes | memoryview] = []
    for name, value in weights:
        data = np.asarray(value, "<f4", order="C")
        head = head_of(name, data) + DATA_OF_TENSOR + varint(data.nbytes)
        parts += [INITIALIZER_OF_GRAPH + varint(len(head) + data.nbytes) + head]
        if data.nbytes:
            parts += [data.reshape(-1).view(np.uint8).data]
    return appended(graph, parts)


def with_places(graph: bytes, weights: Weights) -> bytes:
    """Return the model with initializers of these names and shapes, whose values are elsewhere."""
    parts = []
    for name, value in weights:
        external = EXTERNAL_OF_TENSOR + varint(len(NOWHERE)) + NOWHERE + EXTERNAL_TENSOR
        parts.append(INITIALIZER_OF_GRAPH + delimited(head_of(name, value) + external))
    return appended(graph, parts)


def head_of(name: str, value: NDArray[np.float32]) -> bytes:
    sizes = [DIMS_OF_TENSOR + varint(size) for size in value.shape]
    return b"".join([*sizes, FLOAT_TENSOR, NAME_OF_TENSOR, delimited(name.encode())])


def appended(graph: bytes, initializers: Sequence[bytes | memoryview]) -> bytes:
    length = sum(len(part) for part in initializers)
    return b"".join([graph, GRAPH_OF_MODEL, varint(length), *initializers])


def delimited(content: bytes) -> bytes:
    return varint(len(content)) + content


def varint(number: int) -> bytes:
    """Encode a whole number: seven bits in each byte, the lowest first."""
    encoded = bytearray()
    while number > 127:
        encoded.append(number % 128 + 128)
        number //= 128
    encoded.append(number)
    return bytes(encoded)
