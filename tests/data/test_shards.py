"""Tar files: what is read is what the unpacked folder has, and bad ones are refused in a line."""

import io
import os
import shutil
import signal
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from joslim.data import load_data, shards
from joslim.data.shards import INDEX_SUFFIX, ShardData
from joslim.errors import Stopped, UserError
from joslim.runs.driver import Progress, train
from tests.runs.test_driver import assert_same_run

Members = dict[str, bytes]


@pytest.fixture
def folder(make_case: Callable[[str], Any], tmp_path: Path) -> Path:
    """Three shards; the same images are in the folder unpacked/."""
    make_case("shards")
    return tmp_path / "shards"


def loaded(folder: Path, **options: Any) -> ShardData:
    data = load_data(f"shards:{folder}", **{"size": 16, **options})
    assert isinstance(data, ShardData)
    return data


def jpeg() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "JPEG")
    return stream.getvalue()


def write(path: Path, members: Members) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def test_images_and_labels_are_those_of_the_folder(folder: Path) -> None:
    packed = loaded(folder, val=0)
    plain = load_data(f"folder:{folder.with_name('unpacked')}", size=16, val=0)
    assert packed.sizes == plain.sizes
    assert packed.classes == ("0", "1", "2")
    for split in ("train", "test"):
        order = [os.fsdecode(name) for name in plain.files[split].names]  # type: ignore[attr-defined]
        found = [os.fsdecode(name) for name in packed.files[split].names]
        places = [found.index(name) for name in order]
        for a, b in zip(packed.plain(split, places), plain.plain(split, range(len(order)))):
            assert torch.equal(a, b)


def test_what_it_says_of_itself(folder: Path) -> None:
    data = loaded(folder)
    assert data.sizes == {"train": 54, "val": 6, "test": 20}
    assert data.sources == {
        "train": "2 shards",
        "val": "taken from train",
        "test": "1 shards of val",
    }
    (folder / "classes.txt").write_text("cat\ndog\nowl\n")
    assert loaded(folder).classes == ("cat", "dog", "owl")
    shutil.copy(folder / "val-000000.tar", folder / "imagenet-test-0.tar")
    assert loaded(folder).sizes == {"train": 60, "val": 20, "test": 20}


def test_an_index_is_written_once_and_follows_its_shard(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = loaded(folder).identity
    indices = sorted(folder.glob(f"*{INDEX_SUFFIX}"))
    assert len(indices) == 3
    make = shards._make_index
    made: list[str] = []

    def count(shard: Path) -> Any:
        made.append(shard.name)
        return make(shard)

    monkeypatch.setattr(shards, "_make_index", count)
    assert loaded(folder).identity == before
    assert not made
    # Shards may be moved; an index that is damaged or of other bytes is made anew.
    indices[0].write_bytes(indices[0].read_bytes()[:-9])
    os.utime(folder / "val-000000.tar", (1, 1))
    assert loaded(folder).identity == before
    assert sorted(made) == ["train-000000.tar", "val-000000.tar"]


@pytest.mark.parametrize("wrong", ["offset", "size", "label", "names", "empty"])
def test_an_index_of_somebody_else_is_not_trusted(wrong: str, folder: Path) -> None:
    shard = folder / "train-000000.tar"
    file = shard.with_name(shard.name + INDEX_SUFFIX)
    expected = loaded(folder).identity
    content = {key: value.clone() for key, value in shards.stored_tensors(file).items()}
    if wrong in ("offset", "size", "label"):
        content["numbers"][3, ("label", "offset", "size").index(wrong)] = 2**62
    else:
        content["names"] = content["names"][: 2 if wrong == "names" else 0].clone()
    shards.write_tensors(content, file)
    assert loaded(folder).identity == expected


def test_shards_that_may_only_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(shards, "write_tensors", refuse)
    assert loaded(folder).sizes["train"] == 54
    assert not list(folder.glob(f"*{INDEX_SUFFIX}"))


def test_json_has_labels_where_there_is_no_cls(folder: Path) -> None:
    before = loaded(folder).identity
    for shard in folder.glob("*.tar"):
        with tarfile.open(shard) as tar:
            members = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
        other: Members = {}
        for name, content in members.items():
            if name.endswith(".cls"):
                other[name.replace(".cls", ".json")] = b'{"label": %s, "width": 8}' % content
            else:
                other[name] = content
        other["readme.txt"] = b"not an image"
        write(shard, other)
    assert loaded(folder).identity == before
    write(shard, {"a.jpg": jpeg(), "a.cls": b"1\n", "a.json": b"{}"})
    loaded(folder)


def test_an_image_that_does_not_decode_is_replaced_by_one_of_its_class(folder: Path) -> None:
    shard = folder / "train-000000.tar"
    index = shards._make_index(shard)
    label, offset, size = index.numbers[4].tolist()
    with shard.open("r+b") as file:
        file.seek(offset)
        file.write(b"x" * size)
    data = loaded(folder, val=0)
    with pytest.warns(
        UserWarning, match=r"1 of 60 images do not decode.*: .* in .*train-000000.tar"
    ):
        x, y = data.plain("train", [4])
    assert int(y) == label
    assert torch.isfinite(x).all()


def test_a_shard_that_changes_during_a_run(folder: Path) -> None:
    data = loaded(folder, val=0)
    os.truncate(folder / "train-000001.tar", 700)
    with pytest.raises(UserError, match=r"train-000001.tar: ValueError: the shard has changed"):
        data.plain("train", range(60))


# Bad input


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.jpg": b"x"}, r"data: a in .*train-000000.tar has no class; KEY.cls or KEY.json is"),
        ({"a.cls": b"1"}, r"data: a in .*train-000000.tar has no image; KEY.jpg is needed"),
        ({"a.txt": b"1"}, r"data: .*train-000000.tar' has no images; train-000000.tar, "),
        ({"a.jpg": b"x", "a.png": b"x"}, r"data: a in .*train-000000.tar has two images$"),
        ({"a.jpg": b"x", "a.cls": b"cat"}, r"a.cls in .*: 'cat' is not a whole number from 0 to"),
        ({"a.jpg": b"x", "a.cls": b"-1"}, r"a.cls in .*: '-1' is not a whole number from 0 to"),
        ({"a.jpg": b"x", "a.cls": b"9999999"}, r"a.cls in .*: 9999999 is not a whole number from"),
        ({"a.jpg": b"x", "a.cls": b"1" * 2_000_000}, r"a.cls in .* is larger than 1000000 bytes"),
        ({"a.jpg": b"x", "a.json": b"{}"}, r"a.json in .*train-000000.tar.label: missing"),
        ({"a.jpg": b"x", "a.json": b"{"}, r"a.json in .*train-000000.tar is broken JSON"),
        ({"a.jpg": b"x", "a.json": b'{"label": 1.5}'}, r"a.json in .*: 1.5 is not a whole number"),
        ({"\x1b[31m.jpg": b"x"}, r"data: \\x1b\[31m in .* has no class"),
    ],
)
def test_wrong_members(members: Members, message: str, folder: Path) -> None:
    write(folder / "train-000000.tar", members)
    refused(folder, message)


def refused(folder: Path, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        loaded(folder)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("damage", ["text", "empty", "gzip", "cut", "cut at a member", "folder"])
def test_what_is_not_a_tar(damage: str, folder: Path) -> None:
    shard = folder / "train-000000.tar"
    content = shard.read_bytes()
    shard.unlink()
    if damage == "folder":
        shard.mkdir()
        refused(folder, r"^data: .*train-000000.tar' is not a file")
        return
    if damage == "gzip":
        with tarfile.open(shard, "w:gz") as tar:
            tar.addfile(tarfile.TarInfo("a.cls"))
    else:
        end = content.index(b".cls") // 512 * 512
        parts = {"text": b"text" * 500, "empty": b"", "cut": content[: len(content) // 2 - 100]}
        shard.write_bytes(parts.get(damage, content[:end]))
    refused(folder, r"^data: cannot read .*train-000000.tar' as an uncompressed tar: \w+")


def test_classes_out_of_range(folder: Path) -> None:
    write(folder / "val-000000.tar", {"a.jpg": jpeg(), "a.cls": b"3"})
    refused(folder, r"^data: a.jpg in .*val-000000.tar has the class 3; allowed: 0 to 2, since the")
    (folder / "classes.txt").write_text("cat\ndog\n")
    refused(folder, r"has the class 2; allowed: 0 to 1, one for each line of classes.txt$")
    (folder / "classes.txt").write_text("cat\n")
    refused(folder, r"^data: .*shards has only one class; at least two are needed$")
    (folder / "classes.txt").write_text("cat\ndog\x1b\n")
    refused(folder, r"^data: the class 'dog\\x1b' in .*classes.txt has no printable name")


def test_shards_that_are_not_there(folder: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", r"^data: there is no folder .*nowhere'; type shards:PATH$")
    (folder / "val-000000.tar").rename(folder / "000000.tar")
    refused(folder, r"^data: .*000000.tar': its name has no split; one of train, val and test is")
    (folder / "000000.tar").rename(folder / "train-val.tar")
    refused(folder, r"^data: .*train-val.tar': its name has train and val; one of")
    (folder / "train-val.tar").unlink()
    refused(folder, r"^data: .*shards has the shards 2 of train; train-000000.tar, ")
    for shard in folder.glob("*.tar"):
        shard.unlink()
    refused(folder, r"^data: .*shards has the shards of no split; train-000000.tar, ")
    with pytest.raises(UserError, match=r"^data: shards: names no folder; type shards:PATH, where"):
        load_data("shards:")
    with pytest.raises(UserError, match=r"^task: segmentation does not go with data 'shards:"):
        load_data(f"shards:{folder}", task="segmentation")
    with pytest.raises(UserError, match=r"^split: it is for a folder of classes"):
        load_data(f"shards:{folder}", split="0.8/0.1/0.1")


def test_links_and_devices_in_a_shard_are_passed_over(folder: Path) -> None:
    """A name is a key and never a path."""
    with tarfile.open(folder / "train-000000.tar", "w") as tar:
        for name, kind in (("a.jpg", tarfile.SYMTYPE), ("b.jpg", tarfile.CHRTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
        for name, content in (("../../c.jpg", jpeg()), ("../../c.cls", b"1")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    data = loaded(folder, val=0)
    assert data.files["train"].names[0] == b"../../c.jpg"
    assert data.sizes["train"] == 31
    assert torch.isfinite(data.plain("train", [0])[0]).all()


# Training


def test_a_resumed_training_equals_an_uninterrupted_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("joslim.runs.driver.draw_run", lambda *arguments: None)
    options: dict[str, Any] = {
        **{"model": "resnet8", "data": f"shards:{folder}", "size": 8, "workers": 1},
        **{"batch": 8, "steps": 6, "every": 2, "front_images": 16, "threads": 1},
    }

    def stop_at_four(progress: Progress) -> None:
        if progress.phase == "train" and progress.done == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    whole = train(out=tmp_path / "whole", **options)
    with pytest.raises(Stopped):
        train(out=tmp_path / "cut", watch=stop_at_four, **options)
    resumed = train(out=tmp_path / "cut", resume=True, **options)
    assert_same_run(whole.path, resumed.path)
