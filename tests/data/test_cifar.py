import dataclasses
import hashlib
import os
import pickle
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from joslim.data import cifar, load_data
from joslim.data.cifar import read_pickle
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
        pickle.loads((tmp_path / file).read_bytes())["data"].reshape(-1, 3, 32, 32)
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
    """A pickle that calls a function when it is read."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def test_a_file_that_runs_something(
    make_case: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_case("cifar100")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "cifar-100-python" / "train"
    content = {**pickle.loads(path.read_bytes()), "data": Runs(os.system, "touch trap")}
    repickled(path, "cifar100", monkeypatch, content)
    with pytest.raises(UserError, match=r"^data: a file asks to run '\w+.system'"):
        load_data("cifar100", root=tmp_path)
    assert not (tmp_path / "trap").exists()


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


# Pickles


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train"


def test_what_python_2_wrote(path: Path) -> None:
    """As CIFAR was published: strings of bytes, and the old home of _reconstruct."""

    def short(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + short(b"b") + b"tR"
    )
    kind = b"cnumpy\ndtype\n" + short(b"u1") + b"K\x00K\x01\x87R(K\x03" + short(b"|") + b"NNN"
    kind += b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state = b"(K\x01K\x02K\x03\x86" + kind + b"\x89" + short(b"abcdef") + b"tb"
    path.write_bytes(b"\x80\x02}(" + short(b"data") + array + state + b"u.")
    assert read_pickle(path)["data"].tobytes() == b"abcdef"
    assert read_pickle(path)["data"].shape == (2, 3)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    "function", [os.system, eval, exec, subprocess.Popen, getattr, __import__, print]
)
def test_nothing_is_run(path: Path, function: Any, protocol: int) -> None:
    trap = path.parent / "trap"
    path.write_bytes(pickle.dumps({"data": Runs(function, f"touch {trap}")}, protocol=protocol))
    with pytest.raises(UserError, match=r"^data: a file asks to run '") as caught:
        read_pickle(path)
    assert "\n" not in str(caught.value)
    assert not trap.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cnumpy\nload\n.",
        b"cnumpy.f2py.diagnose\nrun\n.",
        b"cbuiltins\ngetattr\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x11ndarray.__class__\x93.",  # a path through attributes
    ],
)
def test_names_that_are_almost_allowed(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"^data: a file asks to run .*; it is refused$") as caught:
        read_pickle(path)
    assert "\n" not in str(caught.value)
