"""A bundle that is written by hand."""

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .by_hand import VALUES, graph, manifest

MakeBundle = Callable[..., Path]


@pytest.fixture
def make_bundle(tmp_path: Path) -> MakeBundle:
    """Writes a bundle; `change` may spoil the manifest, `entries` replaces content."""

    def make(
        change: Callable[[dict[str, Any]], object] | None = None,
        entries: dict[str, bytes | None] | None = None,
        stored: tuple[str, ...] = ("weights.low", "weights.int8"),
        honest: bool = True,
    ) -> Path:
        octets = VALUES.view(np.uint8).reshape(-1, 4)
        good: dict[str, bytes | None] = {
            "weights.low": octets[:, :3].T.tobytes(),
            "weights.high": octets[:, 3].tobytes(),
            "graphs/1.onnx": graph(),
        }
        contents = good | (entries or {}) if honest else good
        record = manifest()
        record["files"] = {
            name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in contents.items()
            if content is not None
        }
        if change is not None:
            change(record)
        contents = {"manifest.json": json.dumps(record).encode(), **contents, **(entries or {})}
        path = tmp_path / "net.joslim"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for name, content in contents.items():
                if content is not None:
                    kind = zipfile.ZIP_STORED if name in stored else zipfile.ZIP_DEFLATED
                    file.writestr(name, content, kind)
        return path

    return make
