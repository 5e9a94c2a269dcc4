"""Resuming: only the same training goes on, and as it was begun."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import joslim
from joslim.deploy.int8 import data_of
from joslim.errors import Stopped, UserError
from joslim.results.record import read_record
from joslim.runs.driver import Progress, train
from joslim.runs.folder import FORMAT
from joslim.runs.run import Run, load
from joslim.training.slimming import default_every

from .test_driver import assert_same_run, metrics_of

Options = dict[str, Any]
CONFIGS = (', "config": []', ', "config": {}')


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joslim.runs.driver.draw_run", lambda *arguments: None)


def test_a_finished_run_is_extended(finished: Run, tiny: Options, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished.path, run)
    seen: list[Progress] = []
    longer = train(out=run, resume=True, until=9, watch=seen.append, **tiny)
    assert [p.done for p in seen if p.phase == "train"] == [7, 8, 9]
    assert longer.config.steps == 9
    assert [line["step"] for line in metrics_of(run)] == [*range(1, 10), 9]
    assert len(longer.history) > len(finished.history)
    seen.clear()
    again = train(out=run, resume=True, watch=seen.append, **{**tiny, "steps": 9})
    assert not seen, "it is finished now"
    assert again.front == longer.front


def test_bisections_are_counted_through_a_resume(
    tiny: Options, tmp_path: Path, joslim: Callable[..., Any]
) -> None:
    """In the log, on the page and in the words of `joslim report`, as without a stop."""
    paper = {"preset": "paper", "every": 1, "samples": 1, "start": 2, "bisections": 2}
    options = {**tiny, **paper, "steps": 6, "rho": 0.01, "ard": False, "optimistic": True}
    whole = train(out=tmp_path / "whole", **options)

    def stop_at_four(progress: Progress) -> None:
        if progress.done == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        train(out=tmp_path / "run", watch=stop_at_four, **options)
    resumed = train(out=tmp_path / "run", resume=True, **options)
    assert_same_run(whole.path, resumed.path)
    assert len(resumed.history) == 6, "one entry in each round"
    found = read_record(resumed.path).targets
    assert found is not None
    assert found.targets == 4, "the first two children are those of the start"
    assert 4 <= found.bisections <= 8
    assert 0 <= found.missed <= 4
    result = joslim("report", str(resumed.path))
    assert f"{resumed.path}: {found.words}\n" in result.stdout
    page = (resumed.path / "report.html").read_text()
    assert f'"words":"{found.words}"' in page
    assert f'"targets":4,"missed":{found.missed},"bisections":{found.bisections}' in page


def test_the_call_that_began_a_run_extends_it(tiny: Options, tmp_path: Path) -> None:
    """K is left to its default, which would be another for a longer training."""
    options = {key: value for key, value in tiny.items() if key != "every"}
    options |= {"steps": 6002, "method": "slim", "full_first": 0.0}
    file = tmp_path / "run" / "config.json"

    def stop_at_once(progress: Progress) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    for until in (None, 9004):
        with pytest.raises(Stopped):
            train(out=tmp_path / "run", resume=True, until=until, watch=stop_at_once, **options)
    config = json.loads(file.read_text())["config"]
    assert (config["steps"], config["every"]) == (9004, default_every(6002, 2))
    assert default_every(6002, 2) != default_every(9004, 2)


def test_a_k_that_is_left_out_is_that_of_the_run(
    finished: Run, tiny: Options, tmp_path: Path
) -> None:
    """Its default was another in older versions."""
    shutil.copytree(finished.path, tmp_path / "run")
    options = {key: value for key, value in tiny.items() if key != "every"}
    again = train(out=tmp_path / "run", resume=True, **options)
    assert again.config.every == finished.config.every != default_every(6, 2)
    assert again.front == finished.front


def test_until_needs_a_run_and_goes_forward(finished: Run, tiny: Options, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^until: there is no run in .*new' to go on with"):
        train(out=tmp_path / "new", resume=True, until=9, **tiny)
    run = tmp_path / "run"
    shutil.copytree(finished.path, run)
    with pytest.raises(UserError, match=r"^until: 3 is less than the 6 steps that are done"):
        train(out=run, resume=True, until=3, **tiny)
    assert_same_run(finished.path, run)


def test_resume_begins_where_there_is_nothing(finished: Run, tiny: Options, tmp_path: Path) -> None:
    train(out=tmp_path / "a", resume=True, **tiny)
    assert_same_run(finished.path, tmp_path / "a")


@pytest.mark.parametrize(("number", "age"), [(None, "an older"), (1, "an older"), (99, "a newer")])
def test_a_run_of_another_format_is_refused(
    number: int | None, age: str, finished: Run, tiny: Options, tmp_path: Path
) -> None:
    shutil.copytree(finished.path, tmp_path / "a")
    file = tmp_path / "a" / "config.json"
    facts = json.loads(file.read_text())
    assert (
        facts["format"]
        == json.loads((finished.path / "checkpoint" / "checkpoint.json").read_text())["format"]
    ), "one number for all files"
    file.write_text(json.dumps({**facts, "format": number}))
    for use in (
        lambda: train(out=tmp_path / "a", resume=True, **tiny),
        lambda: joslim.load(tmp_path / "a"),
    ):
        with pytest.raises(UserError, match=f"^run: .* was written by {age} joslim") as caught:
            use()
        assert "\n" not in str(caught.value)
    again = train(out=tmp_path / "a", overwrite=True, **tiny)
    assert again.front == finished.front


def test_resume_does_not_take_a_folder_of_somebody_else(tiny: Options, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match="holds no run"):
        train(out=tmp_path, resume=True, **tiny)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lr", 0.2),
        ("model", "resnet20"),
        ("seed", 1),
        ("steps", 7),
        ("every", 3),
        ("method", "slim"),
        ("cost", "params"),
        ("val", 0.2),
        ("low", 0.5),
    ],
)
def test_another_configuration_is_refused(
    field: str, value: Any, finished: Run, tiny: Options
) -> None:
    with pytest.raises(UserError, match=f"^{field}: .*a resumed run cannot change it"):
        train(out=finished.path, resume=True, **{**tiny, field: value})


def test_low_may_be_typed_or_left_to_the_network(
    finished: Run, tiny: Options, tmp_path: Path
) -> None:
    low = finished.config.low
    assert low == finished.net.space.knobs[0].low
    again = train(out=finished.path, resume=True, low=low, **tiny)
    assert again.front == finished.front
    words = rf"^low: {low / 2} given, the run in .* has {low}; a resumed run cannot"
    with pytest.raises(UserError, match=words):
        train(out=finished.path, resume=True, low=low / 2, **tiny)


def test_other_data_are_refused(finished: Run, tiny: Options, tmp_path: Path) -> None:
    pixels = np.zeros((40, 8, 8), dtype=np.uint8)
    pair = [[(image, number % 10) for number, image in enumerate(pixels)]] * 2
    with pytest.raises(UserError, match=r"^data: "):
        train(data=pair, out=finished.path, resume=True, **tiny)
    run = tmp_path / "run"
    shutil.copytree(finished.path, run)
    stored = json.loads((run / "config.json").read_text())
    stored["data"]["identity"] = "digits 3x8x8 1293+144+360 00000000"
    (run / "config.json").write_text(json.dumps(stored))
    with pytest.raises(UserError, match="is not what the run was trained on"):
        train(out=run, resume=True, **tiny)


@pytest.mark.parametrize(
    "text", ["{", *(f'{{"joslim": 1, "format": {FORMAT}{more}}}' for more in ("", *CONFIGS))]
)
def test_a_broken_configuration_is_not_gone_on_with(
    text: str, tiny: Options, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError) as caught:
        train(out=tmp_path, resume=True, **tiny)
    assert len(str(caught.value).splitlines()) == 1


# Data that were moved


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder images/ in the current folder, whose images have four channels."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for number in range(40):
        place = Path("images", "ab"[number % 2])
        place.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (8, 8, 4), dtype=np.uint8)
        Image.fromarray(pixels, "RGBA").save(place / f"{number}.png")
    return tmp_path


def test_a_run_finds_its_data_from_elsewhere(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, joslim: Callable[..., Any]
) -> None:
    """Also where the folder is split, and where the images have four channels."""
    options = "--size 8 --channels 4 --split 0.6/0.2/0.2 --steps 2 --batch 8 --front-images 8"
    result = joslim("train", "--data", "folder:images", *options.split(), "--out", "run")
    assert result.returncode == 0, result.stderr
    assert "24 training, 8 validation, 8 test (split 0.6/0.2/0.2) images" in result.stderr
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert joslim("resume", "../run", "--until", "4").returncode == 0
    facts = json.loads(Path("../run/config.json").read_text())
    assert facts["config"]["data"] == "folder:images"
    assert facts["data"]["path"] == str(pictures / "images")
    run = load("../run")
    assert run.net.conv1.weight.shape[1] == 4
    assert data_of(run) is not None
    (pictures / "images").rename(pictures / "moved")
    result = joslim("resume", "../run", "--until", "6")
    assert result.returncode == 2
    assert "data: there is no folder" in result.stderr
    assert data_of(run) is None
    moved = data_of(run, "folder:../moved")
    assert moved is not None
    assert moved.shape == (4, 8, 8)
    assert joslim("resume", "../run", "--data", "folder:../moved", "--until", "6").returncode == 0
    next((pictures / "moved" / "a").iterdir()).unlink()
    result = joslim("resume", "../run", "--data", "folder:../moved", "--until", "8")
    assert result.returncode == 2
    assert "is not what the run was trained on" in result.stderr
    with pytest.raises(UserError, match=r"^data: 'folder:../moved' is not what the run was"):
        data_of(run, "folder:../moved")
    result = joslim("export", "../run", "--data", "folder:../moved", "-o", "x.onnx")
    assert "data: it is for --int8 and --divisor" in result.stderr
