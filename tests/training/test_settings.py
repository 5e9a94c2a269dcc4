"""Settings: one declaration for the loop and the command line, and what a new one takes."""

import json
import math
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import joslim
from joslim.errors import UserError
from joslim.runs.config import config_of
from joslim.training.settings import (
    SHORT_EPOCHS,
    SHORT_FINE_TUNING,
    Sandwich,
    resolved_sandwich,
    sandwich_of,
)

HOUSE = Path(__file__).parents[2]


def test_a_preset_changes_what_is_not_given() -> None:
    assert sandwich_of("default", {}) == Sandwich()
    paper = resolved_sandwich(sandwich_of("paper", {"samples": 4}))
    assert (paper.full_weight, paper.full_first, paper.draw) == (1.0, 0.0, 5), "all are trained"
    assert sandwich_of("paper", {"full_weight": 2, "draw": 1}).full_weight == 2.0


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_a_configuration_and_the_loop_have_the_same_settings(preset: str) -> None:
    net = joslim.slim(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), torch.zeros(2, 4))
    scoring = [(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))]
    slimming = joslim.Slimming(net, total_steps=9, preset=preset, scoring=scoring)
    asked = sandwich_of(preset, {})
    config = config_of({"preset": preset})
    assert all(getattr(asked, item.name) == getattr(config, item.name) for item in fields(Sandwich))
    assert slimming.sandwich == resolved_sandwich(asked)


@pytest.mark.parametrize(
    ("given", "epochs", "draw", "full_first"),
    [
        ({}, 8, 1, 0.3),
        ({}, SHORT_EPOCHS, 3, 0.0),
        ({}, math.inf, 3, 0.0),
        ({"samples": 4}, 100, 5, 0.0),
        ({"draw": 2}, 8, 2, 0.3),
        ({"full_first": 0.1}, 100, 3, 0.1),
        ({"draw": 9}, 8, 3, 0.3),
    ],
)
def test_the_length_decides_what_is_not_given(
    given: dict[str, Any], epochs: float, draw: int, full_first: float
) -> None:
    found = resolved_sandwich(Sandwich(**given), epochs)
    assert (found.draw, found.full_first) == (draw, full_first)


@pytest.mark.parametrize(
    ("given", "epochs", "drawn", "labels", "weight"),
    [
        ({}, 8, True, 1.0, 1.0),
        ({"teacher": "fixed"}, 8, True, 0.0, 1.0),
        ({"teacher": "next"}, 8, False, 0.0, 3.0),
        ({"label_share": 0.5}, 8, False, 0.5, 3.0),
        ({"draw_full": False}, 8, False, 0.0, 3.0),
        ({}, SHORT_FINE_TUNING, False, 0.0, 3.0),
    ],
)
def test_a_short_fine_tuning_draws_the_full_network_too(
    given: dict[str, Any], epochs: float, drawn: bool, labels: float, weight: float
) -> None:
    found = resolved_sandwich(Sandwich(**given), epochs, trained=True)
    assert (found.draw_full, found.label_share, found.full_weight) == (drawn, labels, weight)
    assert not resolved_sandwich(Sandwich(**{**given, "draw_full": None}), epochs).draw_full


def test_a_full_network_that_teaches_cannot_be_drawn() -> None:
    for given in ({"label_share": 0.5}, {"teacher": "next"}):
        with pytest.raises(UserError, match=r"^draw_full: .* type --label-share 1 or --teacher"):
            Sandwich(draw_full=True, **given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("samples", 65),
        ("draw", 0),
        ("full_weight", 1001),
        ("full_weight", "3"),
        ("random_share", -0.1),
    ],
)
def test_both_refuse_the_same_with_the_same_words(name: str, value: Any) -> None:
    net = joslim.slim(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), torch.zeros(2, 4))
    said = []
    for refuse in (
        lambda: config_of({name: value}),
        lambda: joslim.Slimming(net, total_steps=9, scoring=[0], **{name: value}),
    ):
        with pytest.raises(UserError, match=rf"^{name}: .* given; allowed: ") as caught:
            refuse()
        said.append(str(caught.value))
    assert said[0] == said[1]


# A new setting: the lines that a contributor adds, in two files.
DECLARED = """\
    made_up: float = setting(0.5, "Share of nothing.", least=0, most=1)
"""
IN_SLIMMING = {
    "        random_share: float | None = None,\n": "        made_up: float | None = None,\n",
    '            "random_share": random_share,\n': '            "made_up": made_up,\n',
    "        self.passes = 0\n": "        assert 0 <= self.sandwich.made_up <= 1  # used\n",
}
TRIED = """
import json, sys
from joslim.cli import main

def joslim(*words):
    try:
        main([*words])
    except SystemExit as error:
        return error.code

flags = "--steps 3 --every 2 --batch 8 --front-images 8 --score-images 8 --threads 1".split()
codes = {
    "flag": joslim("train", "--made-up", "0.25", "--out", "a", *flags),
    "check": joslim("train", "--made-up", "1.5", "--out", "b", *flags),
    "file": joslim("train", "--config", "c.toml", "--out", "c", *flags),
    "resume": joslim("train", "--made-up", "0.25", "--out", "a", "--resume", *flags),
    "other": joslim("train", "--made-up", "0.75", "--out", "a", "--resume", *flags),
    "help": joslim("train", "--help"),
}
configs = {name: json.load(open(f"{name}/config.json"))["config"]["made_up"] for name in "ac"}
page = open("a/report.html").read()
print(json.dumps({"codes": codes, "configs": configs, "page": '"made_up":"0.25"' in page}))
"""


def test_a_new_setting_is_four_lines_in_two_files(tmp_path: Path) -> None:
    """With them there are its flag, file key, check, config.json, page and check of a resume."""
    package = tmp_path / "source" / "joslim"
    shutil.copytree(HOUSE / "joslim", package, ignore=shutil.ignore_patterns("__pycache__"))
    settings, slimming = package / "training" / "settings.py", package / "training" / "slimming.py"
    text = settings.read_text()
    assert text.count("    random_share: float") == 1
    settings.write_text(
        text.replace("    random_share: float", f"{DECLARED}    random_share: float")
    )
    text = slimming.read_text()
    for after, line in IN_SLIMMING.items():
        assert text.count(after) == 1, after
        text = text.replace(after, after + line)
    slimming.write_text(text)
    (tmp_path / "c.toml").write_text("made-up = 0.125\n")
    environment = {"PATH": "", "PYTHONPATH": f"{package.parent}", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", TRIED],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    codes = {"flag": 0, "check": 2, "file": 0, "resume": 0, "other": 2, "help": 0}
    assert found == {"codes": codes, "configs": {"a": 0.25, "c": 0.125}, "page": True}
    assert "made_up: 1.5 given; allowed: a number, at least 0, at most 1" in result.stderr
    assert "made_up: 0.75 given, the run in 'a' has 0.25" in result.stderr
    assert "--made-up NUMBER" in result.stdout
    assert "Share of nothing. [0.5]" in result.stdout
