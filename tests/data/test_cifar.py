import dataclasses
import hashlib
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from joslim.data import cifar, load_data
from joslim.errors import UserError

SETS = ["cifar10", "cifar100"]


@pytest.fixture(params=SETS)
def name(request: pytest.FixtureRequest, make_case: Callable[[str], Any]) -> str:
    """Its small files lie in tmp_path."""
    make_case(request.param)
    return request.param


def facts(name: str) -> cifar.Cifar:
    return getattr(cifar, name.upper())


def repickled(path: Path, name: str, monkeypatch: pytest.MonkeyPatch, content: Any) -> None:
    """Puts something else into a file, and its md5 into the table."""
    path.write_bytes(pickle.dumps(content, protocol=2))
    old, digest = facts(name), hashlib.md5(path.read_bytes()).hexdigest()
    key = f"{path.parent.name}/{path.name}"
    archive = dataclasses.replace(old.archive, members={**old.archive.members, key: digest})
    monkeypatch.setattr(cifar, name.upper(), dataclasses.replace(old, archive=archive))


def test_pixels_and_labels_are_those_of_the_files(name: str, tmp_path: Path) -> None:
    data = load_data(name, root=tmp_path, val=0)
    assert data.classes == tuple(f"c{i}" for i in range(10))
    assert (data.shape, data.recipe, data.name) == ((3, 32, 32), "cifar", name)
    assert (data.shift, data.flip) == (4, True)  # type: ignore[attr-defined]
    rows = [
        pickle.loads((tmp_path / file).read_bytes())[b"data"].reshape(-1, 3, 32, 32)
        for file in facts(name).train
    ]
    mean, std = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    x, _ = data.plain("train", range(60))
    torch.testing.assert_close(x * std + mean, torch.from_numpy(np.concatenate(rows)) / 255)


def test_an_archive_is_unpacked(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = facts(name)
    root = tmp_path / "elsewhere"
    root.mkdir()
    path = root / old.archive.file.path
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / Path(old.meta).parent, Path(old.meta).parent)
    digest = hashlib.md5(path.read_bytes()).hexdigest()
    file = dataclasses.replace(old.archive.file, md5=digest)
    new = dataclasses.replace(old, archive=dataclasses.replace(old.archive, file=file))
    monkeypatch.setattr(cifar, name.upper(), new)
    unpacked, packed = load_data(name, root=tmp_path), load_data(name, root=root)
    assert unpacked.identity == packed.identity
    assert torch.equal(unpacked.plain("test", [3])[0], packed.plain("test", [3])[0])


def test_the_root_can_be_in_the_environment(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOSLIM_DATA", str(tmp_path))
    assert load_data(name).sizes["train"] == 54


def test_changed_files_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / facts(name).train[0]).write_bytes(b"short")
    with pytest.raises(UserError, match="is not the official file"):
        load_data(name, root=tmp_path)


def test_missing_files_are_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    old = facts(name)
    file = dataclasses.replace(old.archive.file, url="http://127.0.0.1:9/cifar.tar.gz")
    new = dataclasses.replace(old, archive=dataclasses.replace(old.archive, file=file))
    monkeypatch.setattr(cifar, name.upper(), new)
    (tmp_path / old.train[0]).unlink()
    with pytest.raises(UserError, match=r"^data-root: no cifar-100?-python.tar.gz in "):
        load_data(name, root=tmp_path)


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch trap",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({b"data": Runs()}, r"is refused: it asks to run '\w+.system'"),
        ({b"data": [1, 2]}, "data is not an array of bytes"),
        ({b"data": np.zeros((60, 3072), dtype=np.int64)}, "data is not an array of bytes"),
        ({b"data": np.zeros((60, 3071), dtype=np.uint8)}, r"\(60, 3071\) pixels do not fit"),
        ({b"data": np.zeros((1, 3072), dtype=np.uint8)}, "pixels do not fit"),
        ({b"labels": [b"a"] * 60, b"fine_labels": [b"a"] * 60}, "labels are not whole numbers"),
        ({b"labels": [70] * 60, b"fine_labels": [70] * 60}, "label 70; allowed: 0 to 9"),
    ],
)
def test_files_with_something_else_inside(
    make_case: Callable[[str], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[bytes, Any],
    message: str,
) -> None:
    make_case("cifar100")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "cifar-100-python" / "train"
    content = pickle.loads(path.read_bytes())
    repickled(path, "cifar100", monkeypatch, {**content, **change})
    with pytest.raises(UserError, match=message) as caught:
        load_data("cifar100", root=tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "trap").exists()


def test_a_key_that_is_missing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repickled(tmp_path / facts(name).meta, name, monkeypatch, {"other": 1})
    with pytest.raises(UserError, match=r"has no '\w+'; it has: other"):
        load_data(name, root=tmp_path)


@pytest.mark.skipif("JOSLIM_DATA" not in os.environ, reason="JOSLIM_DATA names no real data")
@pytest.mark.parametrize("name", SETS)
def test_the_real_files(name: str) -> None:
    root = Path(os.environ["JOSLIM_DATA"])
    if not (root / facts(name).meta).exists():
        pytest.skip(f"{name} is not in JOSLIM_DATA")
    data = load_data(name)
    assert data.sizes == {"train": 45_000, "val": 5_000, "test": 10_000}
    assert len(data.classes) == int(name.removeprefix("cifar"))
    assert {*np.bincount(data.labels("val"))} == {5_000 // len(data.classes)}
