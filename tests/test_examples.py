"""The worked examples of docs/example-*.md at toy size.

A clock that counts its calls stands for the processor time, so that the number of steps of the
networks that are trained alone is known.
"""

import importlib
import itertools
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

HOUSE = Path(__file__).parents[1]
STEPS = 6


@pytest.fixture
def streets(tmp_path: Path) -> Path:
    """A folder as that of CamVid: a bright car (8) on a road (3) below the sky (0)."""
    for split, count in (("train", 16), ("val", 4), ("test", 4)):
        for number in range(count):
            random = np.random.default_rng(number)
            pixels = random.integers(0, 80, (48, 64, 3), dtype=np.uint8)
            mask = np.repeat(np.array([0, 3, 11], dtype=np.uint8), 16)[:, None].repeat(64, axis=1)
            y, x = random.integers(0, 20, 2)
            mask[y : y + 16, x : x + 24] = 8
            pixels[mask == 8] = 200
            for part, picture in (("images", pixels), ("masks", mask)):
                path = tmp_path / "streets" / split / part / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(picture).save(path)
    return tmp_path / "streets"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts can be imported, and the clock of `joint_or_alone` ticks once for each call."""
    monkeypatch.syspath_prepend(str(HOUSE / "examples"))
    joint_or_alone = importlib.import_module("joint_or_alone")
    ticks = map(float, itertools.count())
    monkeypatch.setattr(joint_or_alone.time, "process_time", lambda: next(ticks))
    monkeypatch.setattr(joint_or_alone, "TRIAL", 4)
    monkeypatch.setattr(joint_or_alone, "WARM_UP", 1)
    for name in ("draw_run", "report_at_end"):  # they take a second for each of five trainings
        monkeypatch.setattr(f"joslim.runs.driver.{name}", lambda *_: None)


def run(name: str, arguments: list[str], out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [name, *arguments, "--steps", str(STEPS), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(str(HOUSE / "examples" / f"{name}.py"), run_name="__main__")


def check(out: Path, printed: str, label: str, cost: str) -> None:
    # The joint training takes 7 ticks, a network alone one for each step and one more.
    steps = (STEPS + 1 - 2) // 2
    assert f"joint: {STEPS} steps, {STEPS + 1} s" in printed
    assert f"alone, width 0.5: {steps} steps, {steps + 1} s" in printed
    assert f"alone, width 1: {steps} steps, {steps + 1} s" in printed
    assert f"test {label} at {cost}" in printed
    assert (out / "front.png").stat().st_size > 10_000
    joint, half, full = (
        json.loads((out / run / "front.json").read_text())
        for run in ("joint", "alone-0.5", "alone-1")
    )
    points = half["children"] + full["children"]
    assert [point[cost] for point in points] == sorted(point[cost] for point in points)
    assert joint["span"][1] == full["children"][0][cost]


def test_segmentation(
    streets: Path,
    scripts: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("segmentation", [str(streets), "--size", "16"], tmp_path / "out", monkeypatch)
    check(tmp_path / "out", capsys.readouterr().out, "error (1 - mIoU)", "latency_ms")


def test_language(
    scripts: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for number in range(4):  # these stand for Python's standard library
        (tmp_path / f"module{number}.py").write_text(f"number = {number}\n" * 1000)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    run("language", [], tmp_path / "out", monkeypatch)
    printed = capsys.readouterr().out
    assert "4 modules, 44,000 bytes" in printed
    check(tmp_path / "out", printed, "perplexity", "params")


def test_detection(
    package: Callable[[str], Any],
    streets: Path,
    scripts: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("torchvision", "torchmetrics", "pycocotools"):
        package(name)
    cars = importlib.import_module("detection").Cars(streets)
    mirrored = 0
    for (images, boxes), _ in zip(cars.batches(seed=0, batch=16), range(2)):
        for image, (left, upper, right, lower) in zip(images, boxes[:, 0].int().tolist()):
            bright = image[0] > 1
            assert bright[upper:lower, left:right].all()
            assert bright.sum() == (right - left) * (lower - upper) == 24 * 16
            mirrored += left > 20
    assert 12 <= mirrored <= 20, "half of 32"
    run("detection", [str(streets)], tmp_path / "out", monkeypatch)
    check(tmp_path / "out", capsys.readouterr().out, "error (1 - AP50)", "macs")
