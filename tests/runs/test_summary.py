"""The words before a training."""

from pathlib import Path

import pytest
from PIL import Image

from joslim.runs.config import config_of
from joslim.runs.setup import set_up
from joslim.runs.summary import summary


def test_a_small_folder_is_not_trained_as_imagenet(tmp_path: Path) -> None:
    for number in range(40):
        place = tmp_path / ("train", "val")[number % 5 == 0] / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(place / f"{number}.png")
    options = {"data": f"folder:{tmp_path}", "size": 8, "steps": 2}
    job = set_up(config_of(options))
    assert (job.config.recipe, job.config.batch) == ("small-data", 29), "cut to the images"
    assert job.config.lr == pytest.approx(0.025 * 29 / 32)
    _, data, recipe, training, children = summary(job)
    assert "test (val/, since there is no test/)" in data
    assert recipe == "recipe: small-data (for 29 training images of 8 pixels)"
    assert "(it follows the batch: 0.025 for 32)" in training
    assert children == (
        "children: 1 of 3 in every step, after the full network alone for 30% of the steps "
        "(the default for fewer than 50 epochs)"
    )
    long = summary(set_up(config_of({**options, "steps": 50})))
    assert long[4] == "children: 3 of 3 in every step (the default for at least 50 epochs)"
    own = summary(set_up(config_of({**options, "draw": 2})))
    assert own[4].endswith("for 30% of the steps")
    by_name = set_up(config_of({**options, "recipe": "imagenet", "batch": 8}))
    assert (by_name.config.lr, by_name.config.label_smoothing) == (0.5 / 128, 0.1)
    assert summary(by_name)[2] == "recipe: imagenet"
