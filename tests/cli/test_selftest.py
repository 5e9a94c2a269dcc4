"""`joslim selftest`: one file, and an exit code that tells whether all is well."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from joslim.cli import app
from joslim.errors import RunFailed
from joslim.runs.selftest import SelfTest


@pytest.mark.parametrize("result", ["ok", "AssertionError: the difference is 1"])
def test_one_file(result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts: dict[str, Any] = {"ok": result == "ok", "checks": {"a child": result}}
    monkeypatch.setattr(SelfTest, "run", lambda self, say: facts)
    out = tmp_path / "selftest.json"
    done = CliRunner().invoke(app, ["selftest", "--device", "cpu", "-o", str(out)])
    assert json.loads(out.read_text()) == facts
    if result == "ok":
        assert done.exit_code == 0
    else:
        assert isinstance(done.exception, RunFailed)
        assert "selftest: failed: a child" in str(done.exception)


def test_bad_input(tmp_path: Path, refused: Callable[..., str]) -> None:
    assert "batch: 1" in refused("selftest", "--device", "cpu", "--batch", "1")
    assert "device: 'abacus'" in refused("selftest", "--device", "abacus")
    assert "out: " in refused("selftest", "--device", "cpu", "-o", str(tmp_path))
