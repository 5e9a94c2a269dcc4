"""Small data sets of every kind, in the layouts of their publishers."""

import dataclasses
import gzip
import hashlib
import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from joslim.data import DATASETS, Data, cifar, digits, fashion_mnist, load_data
from joslim.errors import UserError

TRAIN, TEST = 60, 20


class Case(NamedTuple):
    """`load(**options)` makes the data; `ruin_test()` makes its test images unreadable."""

    load: Callable[..., Data]
    ruin_test: Callable[[], None]


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def pixels(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 256, shape, dtype=np.uint8)


def write_pickle(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=3))


def fake_cifar(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> cifar.Cifar:
    """Files of the official names and keys, with few images, and their md5 in place of the real."""
    real: cifar.Cifar = getattr(cifar, name.upper())
    rng = np.random.default_rng(0)
    for file in (*real.train, real.test):
        count = TEST if file == real.test else TRAIN // len(real.train)
        content = {
            "data": pixels(rng, count, 3072),
            real.label_key: [i % 10 for i in range(count)],
            "filenames": ["a.png"] * count,
        }
        write_pickle(root / file, content)
    write_pickle(root / real.meta, {real.class_key: [f"c{i}" for i in range(10)]})
    members = {file: md5(root / file) for file in real.archive.members}
    fake = dataclasses.replace(
        real, archive=dataclasses.replace(real.archive, members=members), test_count=TEST
    )
    monkeypatch.setattr(cifar, name.upper(), fake)
    return fake


def write_idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(head + array.tobytes()))


def fake_fashion_mnist(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    files = {}
    for split, count in (("train", TRAIN), ("test", TEST)):
        images, labels = fashion_mnist.FILES[split]
        write_idx(root / images.path, pixels(rng, count, 28, 28))
        write_idx(root / labels.path, np.arange(count, dtype=np.uint8) % 10)
        files[split] = tuple(
            dataclasses.replace(file, md5=md5(root / file.path)) for file in (images, labels)
        )
    monkeypatch.setattr(fashion_mnist, "FILES", files)
    monkeypatch.setattr(fashion_mnist, "TEST_COUNT", TEST)


def fake_folder(root: Path) -> Path:
    """Three classes, one of them nested as in Tiny-ImageNet; smooth images of several sizes."""
    rng = np.random.default_rng(0)
    for split, count in (("train", TRAIN), ("val", TEST)):
        for i in range(count):
            place = root / split / ("cat", "dog", "owl/images")[i % 3]
            place.mkdir(parents=True, exist_ok=True)
            coarse = Image.fromarray(pixels(rng, 4, 4, 3))
            image = coarse.resize((20 + i % 7, 18 + i % 5), Image.Resampling.BICUBIC)
            image.save(place / f"{i}.{('png', 'JPEG')[i % 2]}")
    return root


def fake_shards(root: Path) -> Path:
    """The images of `fake_folder`, in two shards of training and one of validation images."""
    folder = fake_folder(root.with_name("unpacked"))
    root.mkdir()
    for split, count in (("train", 2), ("val", 1)):
        images = sorted(path for path in (folder / split).rglob("*.*") if path.is_file())
        for number in range(count):
            samples = [(path, path.relative_to(folder / split)) for path in images[number::count]]
            members = {}
            for path, name in samples:
                label = ("cat", "dog", "owl").index(name.parts[0])
                members[str(name)] = path.read_bytes()
                members[str(name.with_suffix(".cls"))] = str(label).encode()
            write_tar(root / f"{split}-{number:06}.tar", members)
    return root


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


class Items(list[Any]):
    """A data set of pairs."""


class Unreadable(Items):
    def __getitem__(self, index: Any) -> Any:
        raise UserError("the test split was read")


def fake_pair() -> tuple[Items, Items]:
    rng = np.random.default_rng(0)
    train = Items((pixels(rng, 10, 12, 3), i % 3) for i in range(TRAIN))
    test = Items((pixels(rng, 10, 12, 3), i % 3) for i in range(TEST))
    return train, test


def ruin(*paths: Path) -> None:
    for path in paths:
        path.write_bytes(b"not an image")


@pytest.fixture
def make_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Case]:
    def named(name: str) -> Callable[..., Data]:
        return lambda **options: load_data(name, root=tmp_path, **options)

    def unreadable(split: str) -> Any:
        if split == "test":
            raise UserError("the test split was read")
        return read_digits(split)

    read_digits = digits.read

    def make(name: str) -> Case:
        if name == "digits":
            return Case(named(name), lambda: monkeypatch.setattr(digits, "read", unreadable))
        if name.startswith("cifar"):
            fake = fake_cifar(name, tmp_path, monkeypatch)
            return Case(named(name), lambda: ruin(tmp_path / fake.test))
        if name == "fashion-mnist":
            fake_fashion_mnist(tmp_path, monkeypatch)
            files = fashion_mnist.FILES["test"]
            return Case(named(name), lambda: ruin(*(tmp_path / file.path for file in files)))
        if name == "folder":
            folder = fake_folder(tmp_path / "images")
            images = [path for path in folder.rglob("val/**/*.*") if path.is_file()]
            small = named(f"folder:{folder}")
            return Case(lambda **options: small(**{"size": 16, **options}), lambda: ruin(*images))
        if name == "shards":
            folder = fake_shards(tmp_path / "shards")

            def ruin_shards() -> None:
                with tarfile.open(folder / "val-000000.tar") as tar:
                    members = {m.name: b"3" * m.size for m in tar if not m.name.endswith("cls")}
                    labels = {f"{name.rpartition('.')[0]}.cls": b"0" for name in members}
                write_tar(folder / "val-000000.tar", members | labels)

            packed = named(f"shards:{folder}")
            return Case(lambda **options: packed(**{"size": 16, **options}), ruin_shards)
        if name == "pair":
            train, test = fake_pair()
            both = [train, test]

            def hide() -> None:
                both[1] = Unreadable(test)

            return Case(lambda **options: load_data((both[0], both[1]), **options), hide)
        raise AssertionError(f"make files for {name}, so that it can sit the exam")

    return make


KINDS = [*DATASETS, "folder", "shards", "pair"]


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest, make_case: Callable[[str], Case]) -> Case:
    """Every data set there is."""
    return make_case(request.param)
