"""`joslim demo-page`: bad input, and the line that names the address of the page."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from joslim.deploy import demo_page
from joslim.deploy.bundle import BundleCheck
from joslim.deploy.exporting import Check
from joslim.runs.run import Run

Program = Callable[..., Any]


def test_the_address_is_named(
    finished: Run, tmp_path: Path, joslim: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = BundleCheck(3, 1000, Check(1e-6, 32, 32))
    monkeypatch.setattr(demo_page, "write_demo_page", lambda *_: made)
    result = joslim("demo-page", str(finished.path), "-o", str(tmp_path / "page"))
    assert result.returncode == 0
    assert "3 children; worst child: largest difference 1.0e-06" in result.stdout
    assert f"http.server --bind 127.0.0.1 -d {tmp_path / 'page'} 8000" in result.stdout


def test_bad_input(finished: Run, tmp_path: Path, refused: Program) -> None:
    run = str(finished.path)
    assert "not a run folder?" in refused("demo-page", str(tmp_path), "-o", str(tmp_path / "page"))
    (tmp_path / "mine.txt").write_text("mine")
    assert "with other things in it" in refused("demo-page", run, "-o", str(tmp_path))
    package = str(tmp_path / "nothing")
    line = refused("demo-page", run, "-o", str(tmp_path / "p"), "--onnxruntime-web", package)
    assert "is no package of onnxruntime-web" in line
    assert not (tmp_path / "p").exists()
