"""The run that the benchmark of the page writes by hand is one that joslim reads."""

import sys
from pathlib import Path

import numpy as np
import pytest

import joslim
from joslim.results.record import read_record

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import page


def test_the_made_up_run_has_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"VISITS": 60, "CHILDREN": 10, "STEPS": 1000}.items():
        monkeypatch.setattr(page, name, value)
    run = page.made(tmp_path, np.random.default_rng(0))
    record = read_record(run)
    assert len(record.visits) == 60
    assert record.times is not None
    assert 10 <= len(record.front or []) <= 60
    assert joslim.report(run).stat().st_size > 10_000
