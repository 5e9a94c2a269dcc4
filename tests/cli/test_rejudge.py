"""`joslim rejudge`: what it prints and writes, and what it refuses in one line."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from joslim.training.settings import SEARCH_OPTIONS

if TYPE_CHECKING:
    from joslim.runs.run import Run


@pytest.fixture
def slim(finished: "Run", tmp_path: Path) -> str:
    """A copy of a finished run that says it is of method slim."""
    shutil.copytree(finished.path, tmp_path / "slim")
    file = tmp_path / "slim" / "config.json"
    facts = json.loads(file.read_text())
    searching = dict.fromkeys(("searcher", *SEARCH_OPTIONS))
    facts["config"] |= {"method": "slim", **searching}
    file.write_text(json.dumps(facts))
    return str(tmp_path / "slim")


def test_the_front_is_printed_and_written(joslim: Any, slim: str) -> None:
    printed = joslim("rejudge", slim, "--cost", "memory")
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout.splitlines()[-1] == (
        f"run folder: {slim}-memory, with the weights of {slim}"
    )
    assert json.loads(joslim("front", f"{slim}-memory", "--json").stdout)["cost"] == "memory"
    again = joslim("rejudge", slim, "--cost", "memory", "--json", "--overwrite", "--threads", "1")
    assert json.loads(again.stdout)["run"] == f"{slim}-memory"


def test_one_line_for_bad_input(refused: Any, slim: str, finished: "Run") -> None:
    assert "method: joslim has trained the widths" in refused(
        "rejudge", str(finished.path), "--cost", "memory"
    )
    assert "cost: unknown name 'watts'" in refused("rejudge", slim, "--cost", "watts")
    assert "device_file: it goes with cost latency" in refused(
        "rejudge", slim, "--cost", "memory", "--device-file", "x.json"
    )
    assert "--cost" in refused("rejudge", slim)
