"""The race, on a small network and a few made-up images."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import joslim

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

import race

COURSE = race.Course("resnet8", race.TWENTY, 16, 1.0, 2.0, None)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (100, 16, 16, 3), dtype=np.uint8)
    pairs = [(image, at % 20) for at, image in enumerate(pixels)]
    data = joslim.load_data((pairs[:60], pairs[60:]), val=20)
    settings = {"recipe": "cifar", "batch": 20, "threads": 1, "front_images": 20}
    changes = {"COMMON": settings, "COURSES": {"resnet8": COURSE}, "SHARES": (0.5,)}
    changes |= {"RESULTS": tmp_path / "results", "DOCS": tmp_path / "docs"}
    changes |= {"CLASSES": {race.TWENTY: lambda size: data}}
    for name, value in changes.items():
        monkeypatch.setattr(race, name, value)
    for folder in ("results", "docs"):
        (tmp_path / folder).mkdir()
    return tmp_path


def run(row: str, out: Path) -> dict[str, object]:
    race.race(COURSE, row, 0.03, 0, out)
    return race.kept(COURSE, row, 0.03)[0]


def test_from_the_weights_to_the_page(small: Path) -> None:
    with pytest.raises(SystemExit, match=r"is missing: type python experiments/race.py weights"):
        race.trained_network(COURSE, small)
    race.train_alone(COURSE, small)
    with pytest.raises(SystemExit, match="its budget is the time of joslim"):
        race.race(COURSE, "uniform-total", 0.03, 0, small)
    ours = run("joslim", small)
    assert ours["sizes"][-1]["share"] == 1.0
    race.keep(COURSE, "joslim", 0.03, {**ours, "seconds": 1.0})  # a short race
    theirs = run("uniform-total", small)
    full = 3.13e6
    alone = run("alone", small)
    assert [size["macs"] for size in alone["sizes"]] == [pytest.approx(full, rel=0.03)]
    for found in (ours, theirs):
        macs = [size["macs"] for size in found["sizes"]]
        assert [size["share"] for size in found["sizes"]][:1] == [*race.SHARES]
        assert 0 < macs[0] <= 0.5 * full
        assert all(size["latency_ms"] > 0 for size in found["sizes"])
    # A row that is run again takes what it has, and spends next to nothing.
    steps = {file.name: file.read_text() for file in small.glob("uniform-total-0.03/seed0/*.json")}
    again = run("uniform-total", small)
    errors = [[size["test_error"] for size in found["sizes"]] for found in (theirs, again)]
    assert errors[0] == errors[1]
    del steps["seconds.json"]
    for name, text in steps.items():
        assert (small / "uniform-total-0.03/seed0" / name).read_text() == text
    race.write_page()
    page = (small / "docs" / "race.md").read_text()
    assert re.search(r"\| `joslim` \| 0.03 of 1 \| 1 \| \d", page)
    assert "`scratch-each`" in page
    assert "{{resnet8}}" not in page
    assert (small / "docs" / "race-resnet8.png").stat().st_size > 1000


def test_uniform_children_fit(small: Path) -> None:
    net = joslim.slim(joslim.models.resnet8(20), (1, 3, 16, 16))
    macs = joslim.cost("macs", net)
    for share in (0.75, 0.5, 0.35, 0.25, 0.15):
        assert 0.5 * share < macs(race.uniform_widths(net, share)) / macs(net.space.full) <= share


def test_other_settings_are_other_rows(small: Path) -> None:
    race.keep(COURSE, "joslim", 0.03, {"seed": 1, "seconds": 1.0})
    assert [*race.kept(COURSE, "joslim", 0.03)] == [1]
    assert race.kept(COURSE._replace(joint=3.0), "joslim", 0.03) == {}
    stored = json.loads((small / "results" / "race-resnet8-joslim-0.03.json").read_text())
    assert stored["race"]["joint"] == 2.0


def test_the_rate_is_chosen_by_validation(small: Path) -> None:
    assert race.chosen(COURSE, "joslim") == ("", {})
    for rate, error in ((0.1, 30.0), (0.03, 20.0), (0.01, 25.0)):
        sizes = [{"val_error": error, "test_error": 100 - error}]
        race.keep(COURSE, "joslim", rate, {"seed": 0, "sizes": sizes})
    words, runs = race.chosen(COURSE, "joslim")
    assert words == "0.03 of 3"
    assert runs[0]["sizes"][0]["val_error"] == 20.0


@pytest.mark.parametrize("row", ["torch-pruning", "modelopt"])
def test_competitors(row: str, small: Path) -> None:
    pytest.importorskip(row.replace("-", "_"))
    model = joslim.models.resnet8(20)
    pruned = race.MAKERS[row](model, 0.5, race.data_of(COURSE))
    assert pruned(torch.zeros(2, 3, 16, 16)).shape == (2, 20)
    net = joslim.slim(pruned, (1, 3, 16, 16))
    assert joslim.cost("macs", net)(net.space.full) <= 0.52 * 3.13e6
