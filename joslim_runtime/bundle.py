"""Reading of a bundle: the weights of one network, and the graphs of its children.

A bundle is a zip file with these entries, which are read in place and never unpacked:

manifest.json   inputs, classes, tensors, and for each child its costs, errors and weights, and the
                shape of its images if they are smaller than those of the network
weights.low     all float32 values: the lowest bytes of all of them, then their second bytes, then
                their third bytes; not compressed
weights.high    the highest bytes of all values; compressed, since exponents repeat
weights.int8    all 8-bit values, in bundles that have such; not compressed
graphs/N.onnx   ONNX graphs without weights

Anybody may have written a bundle. Nothing in it is executed, no name in it is used as a path, and
the sizes of all entries are bounded.
"""

from __future__ import annotations

import hashlib
import math
import os
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from joslim_runtime.manifest import BundleError, Child, Manifest, Tensor, Weight, read_manifest

MANIFEST, LOW, HIGH, INT8 = "manifest.json", "weights.low", "weights.high", "weights.int8"
MANIFEST_LIMIT = 64 * 10**6
GRAPH_LIMIT = 64 * 10**6

Floats = NDArray[np.float32]


class Bundle:
    """An opened .joslim file, whose weights are in memory.

    Attributes:
        path: The file.
        manifest: The content of its manifest.
        values: All weights of 32 bits, one after the other.
        integers: All weights of 8 bits.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            if not self.path.is_file():
                raise BundleError("there is no such file; type the path of a .joslim file")
            with zipfile.ZipFile(self.path) as file:
                self.manifest = read_manifest(read_entry(file, MANIFEST, MANIFEST_LIMIT))
                size = self.path.stat().st_size
                self.values = read_values(file, self.manifest, size)
                self.integers = read_integers(file, self.manifest, size)
                self._graphs = {
                    name: read_graph(file, name, self.manifest)
                    for name in {graph for graph, _ in self.manifest.parts.values()}
                }
        except BundleError as error:
            raise BundleError(f"bundle: {str(self.path)!r}: {error}") from error
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            why = getattr(error, "strerror", None) or str(error) or "it ends too early"
            raise BundleError(
                f"bundle: {str(self.path)!r} is damaged or no bundle: {why}; copy it again"
            ) from error
        except (NotImplementedError, RuntimeError) as error:  # other compressions, encryption
            raise BundleError(f"bundle: {str(self.path)!r} is not by joslim: {error}") from error

    def parts(self, child: Child) -> tuple[bytes, list[tuple[str, Floats]]]:
        """Return the graph of a child, and the names and values of its weights."""
        graph, weights = self.manifest.parts[child.name]
        return self._graphs[graph], [(weight.name, self.value(weight)) for weight in weights]

    def value(self, weight: Weight) -> Floats:
        """Cut a weight of a child out of the shared values."""
        value = self._tensor(weight.of)
        for axis, ranges in enumerate(weight.keep):
            parts = [value[(*[slice(None)] * axis, slice(*kept))] for kept in ranges]
            value = parts[0] if len(parts) == 1 else np.concatenate(parts, axis)
        if weight.times is None:
            return value
        return value * self._tensor(weight.times).reshape(-1, *[1] * (value.ndim - 1))

    def _tensor(self, tensor: Tensor) -> Floats:
        end = tensor.offset + math.prod(tensor.shape)
        if tensor.scale is None:
            return self.values[tensor.offset : end].reshape(tensor.shape)
        integers = self.integers[tensor.offset : end].reshape(tensor.shape)
        scales = self._tensor(tensor.scale).reshape(-1, *[1] * (integers.ndim - 1))
        return integers.astype(np.float32) * scales


def read_entry(
    file: zipfile.ZipFile, name: str, limit: int, known: Manifest | None = None
) -> bytes:
    """Read an entry of at most `limit` bytes, and compare it with its checksum in the manifest."""
    if name not in file.namelist():
        raise BundleError(f"it has no {name!r}, so it is damaged, or no bundle of joslim")
    info = file.getinfo(name)
    if info.file_size > limit:
        raise BundleError(f"{name!r} has {info.file_size} bytes, {limit} are allowed")
    with file.open(info) as stream:
        content = stream.read(info.file_size)
    facts = (len(content), hashlib.sha256(content).hexdigest())
    if known is not None and known.files.get(name) != facts:
        raise BundleError(f"{name!r} differs from its checksum; export or copy it again")
    return content


def read_values(file: zipfile.ZipFile, manifest: Manifest, size: int) -> Floats:
    """Read all weights, and put the bytes of each value together again."""
    low, high = (read_entry(file, name, size, manifest) for name in (LOW, HIGH))
    count = manifest.count
    # The lower bytes are not compressed, so that the size of the file bounds that of the weights.
    if file.getinfo(LOW).compress_type != zipfile.ZIP_STORED or len(low) != 3 * count:
        raise BundleError(f"{LOW!r} has {len(low)} bytes, {3 * count} are stated; export it again")
    if len(high) != count:
        raise BundleError(f"{HIGH!r} has {len(high)} bytes, {count} are stated; export it again")
    octets = np.empty((count, 4), np.uint8)
    for position in range(3):
        octets[:, position] = np.frombuffer(low, np.uint8, count, position * count)
    octets[:, 3] = np.frombuffer(high, np.uint8)
    return octets.reshape(-1).view("<f4").astype(np.float32, copy=False)


def read_integers(file: zipfile.ZipFile, manifest: Manifest, size: int) -> NDArray[np.int8]:
    """Read all weights of 8 bits; the size of the file bounds their number."""
    if not manifest.integers:
        return np.zeros(0, np.int8)
    content = read_entry(file, INT8, size, manifest)
    stored = file.getinfo(INT8).compress_type == zipfile.ZIP_STORED
    if not stored or len(content) != manifest.integers:
        raise BundleError(
            f"{INT8!r} has {len(content)} bytes, {manifest.integers} are stated; export it again"
        )
    return np.frombuffer(content, np.int8)


def read_graph(file: zipfile.ZipFile, name: str, manifest: Manifest) -> bytes:
    """Read a graph, and refuse one that refers to other files."""
    graph = read_entry(file, name, GRAPH_LIMIT, manifest)
    # External data of ONNX name their file under this key; the graphs of a bundle have no names.
    if b"location" in graph:
        raise BundleError(f"{name!r} refers to a file outside of the bundle; do not use it")
    return graph
