"""The table of formats; tests/deploy/test_formats.py exports children in all of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from joslim.deploy import export
from joslim.errors import UserError
from joslim.formats import FORMATS, Child, Format, format_of
from joslim.runs.run import load


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("a.onnx", "onnx"),
        ("x/a.ONNX", "onnx"),
        ("a.pt2", "pt2"),
        ("a.openvino", "openvino"),
        ("a", "folder"),
        ("a.onnx/", "folder"),
        ("v0.5/", "folder"),
        (Path("x.y/a"), "folder"),
    ],
)
def test_the_suffix_says_the_format(path: str | Path, kind: str) -> None:
    assert format_of(path) is FORMATS[kind]


@pytest.mark.parametrize("path", ["a.h5", "a.pt", "a.onnx.gz"])
def test_unknown_suffixes(path: str) -> None:
    with pytest.raises(
        UserError,
        match=r"unknown suffix; type one of \.onnx, \.pt2, .*, \.openvino and \.coreml, or",
    ):
        format_of(path)


def write_npz(child: Child, file: Path) -> None:
    np.savez(file, **{name: tensor.numpy() for name, tensor in child.weights.items()})


def run_npz(child: Child, file: Path) -> list[Any]:
    weights = {name: torch.from_numpy(array) for name, array in np.load(file).items()}
    child.module.load_state_dict(weights)
    return [child.module]


@pytest.fixture
def npz(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two functions and one row: all that a new format takes."""
    row = Format("npz", ".npz", write_npz, run_npz, opened_by="numpy.load")
    monkeypatch.setitem(FORMATS, "npz", row)


def test_a_new_format_is_exported_and_recognized(
    npz: None,
    finished: Any,
    joslim: Callable[..., Any],
    refused: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    check = export(finished, finished.front[0], "child.npz")
    assert check.agreeing == check.samples
    run = str(finished.path)
    assert "classes agree on" in joslim("export", run, "-o", "full.npz").stdout
    assert joslim("export", run, "--all", "--format", "npz", "-o", "all").returncode == 0
    assert Path("all/child-01.npz").is_file()
    with pytest.raises(UserError, match=r"is an exported child, which numpy\.load opens"):
        load("child.npz")
    words = "several children go into a folder, 'x.npz' given; type -o NAME --format npz"
    assert words in refused("export", run, "--all", "-o", "x.npz")
    assert ".openvino, .coreml and .npz" in refused("export", run, "-o", "x.h5")


def test_a_format_whose_package_is_missing_says_what_to_install() -> None:
    row = Format("mobile", ".pte", write_npz, run_npz, "torch", ("no_such_package",), "mobile")
    words = r"^export: a \.pte file needs no_such_package; type pip install 'joslim\[mobile\]'$"
    with pytest.raises(UserError, match=words):
        row.check_installed()
