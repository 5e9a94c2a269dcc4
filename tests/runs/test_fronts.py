"""Fronts of several runs, and the device files that serve them."""

from pathlib import Path
from typing import Any

import pytest

from joslim.errors import UserError
from joslim.front import Front
from joslim.results.device_times import matching_files
from joslim.runs.config import config_of
from joslim.runs.folder import RunFolder
from joslim.runs.fronts import opened, timed_fronts

from ..results.small_fronts import OTHER, SPACE, device, front_of


def run_folder(path: Path, front: Front, model: str = "resnet8") -> Path:
    folder = RunFolder(path)
    folder.prepare()
    config = config_of({"model": model, "steps": 6})
    folder.write_config(config.to_json(), data={"shape": [3, 8, 8]})
    folder.write_front(front, 6)
    return path


def test_each_file_serves_the_runs_of_its_network(tmp_path: Path) -> None:
    small, large = front_of(OTHER, (0.5, 1.0)), front_of(SPACE, (0.25, 1.0))
    folders = [
        run_folder(tmp_path / name, front)
        for name, front in (("a", large), ("b", small), ("c", large), ("d", small))
    ]
    device([p.widths for p in large], (1.0, 2.0)).write(tmp_path / "large.json")
    found = timed_fronts(folders, [tmp_path / "large.json"])
    assert [f[-1].costs["latency_ms"] for f in found] == [2, 100, 2, 100]
    device([p.widths for p in small], (5.0, 6.0)).write(tmp_path / "small.json")
    found = timed_fronts(folders, [tmp_path / "small.json", tmp_path / "large.json"])
    assert [f[-1].costs["latency_ms"] for f in found] == [2, 6, 2, 6]
    assert timed_fronts(folders, []) == [large, small, large, small]


def refused(*arguments: Any) -> str:
    with pytest.raises(UserError) as caught:
        timed_fronts(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_files_that_are_refused(tmp_path: Path) -> None:
    front = front_of(SPACE, (0.25, 1.0))
    folders = [run_folder(tmp_path / name, front) for name in ("a", "b")]
    files = {
        "same": device([p.widths for p in front], (1.0, 2.0)),
        "equal": device([p.widths for p in front], (1.0, 2.0)),
        "other": device([OTHER.full], (1.0,)),
        "large": device([p.widths for p in front], (1.0, 2.0), ((1, 3, 32, 32),)),
    }
    for name, file in files.items():
        file.write(tmp_path / f"{name}.json")
    same, equal, other, large = (tmp_path / f"{name}.json" for name in files)
    assert "are of the same network; type one of them" in refused(folders, [same, equal])
    assert "is of none of these 2 networks; measure one" in refused(folders, [same, other])
    words = refused(folders[:1], [other])
    assert f"{str(other)!r} is of another network: channels of stem with 8 by 1 for stem" in words
    assert "inputs of 1x3x32x32, this network has 1x3x8x8" in refused(folders[:1], [large])
    assert "is of none of these 2 networks" in refused(folders, [large])
    assert "none.json': No such file" in refused(folders, [tmp_path / "none.json"])
    assert "model: it goes with a device file" in refused(folders, [], "own:net")
    assert matching_files(folders, [same]) == dict.fromkeys(folders, same)


def test_a_network_of_somebodys_own(tmp_path: Path) -> None:
    front = front_of(SPACE, (0.25, 1.0))
    folder = run_folder(tmp_path / "run", front, "nets:own")
    device([SPACE.full], (1.0,)).write(tmp_path / "some.json")
    words = refused([folder], [tmp_path / "some.json"])
    assert f"lacks children of {str(folder)!r}, whose 'nets:own' is not imported" in words
    assert words.endswith(f"type joslim latency {folder} --model nets:own -o FILE")
    with pytest.raises(UserError, match=r"type --model nets:own$"):
        opened(folder, None)
    with pytest.raises(UserError, match="'resnet20' given, the run has 'nets:own'; type --model "):
        opened(folder, "resnet20")
    assert "'nets:other' given" in refused([folder], [tmp_path / "some.json"], "nets:other")
    device([p.widths for p in front], (1.0, 2.0)).write(tmp_path / "all.json")
    (found,) = timed_fronts([folder], [tmp_path / "all.json"])
    assert found[0].costs["latency_ms"] == 1


@pytest.mark.parametrize("shape", [None, [], [3, 8, -1], ["a", 8, 8]])
def test_shapes_that_are_none(shape: Any, tmp_path: Path) -> None:
    front = front_of(SPACE, (0.25, 1.0))
    folder = run_folder(tmp_path / "run", front)
    RunFolder(folder).write_config(config_of({}).to_json(), data={"shape": shape})
    device([p.widths for p in front], (1.0, 2.0)).write(tmp_path / "all.json")
    assert "config.json.data" in refused([folder], [tmp_path / "all.json"])
