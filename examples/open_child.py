"""Open a folder written by `joslim export`, with torch and safetensors alone.

python examples/open_child.py child
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

Forward = Callable[[Tensor], Tensor]


def open_child(folder: str | Path) -> tuple[Forward, dict[str, Any]]:
    """Return the child as a function of pixels in [0, 1], [n, c, h, w], and its metadata."""
    facts = json.loads((Path(folder) / "config.json").read_text())
    weights = dict(sorted(load_file(Path(folder) / "model.safetensors").items()))
    # Only for folders that you trust: torch.export.load may unpickle content of the file.
    graph = torch.export.load(Path(folder) / "graph.pt2").module()
    mean, std = (torch.tensor(facts[name]).view(1, -1, 1, 1) for name in ("mean", "std"))

    def forward(pixels: Tensor) -> Tensor:
        with torch.no_grad():
            return graph(weights, (pixels - mean) / std)

    return forward, facts


def main(folder: str) -> None:
    forward, facts = open_child(folder)
    scores = forward(torch.rand(4, *facts["shape"]))  # in place of your images
    print([facts["classes"][number] for number in scores.argmax(dim=1)])


if __name__ == "__main__":
    main(*sys.argv[1:])
