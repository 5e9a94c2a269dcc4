import itertools
import math
import multiprocessing
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from joslim.data import load_data
from joslim.data.augment import FLIP_AND_COLOUR_UNIFORMS, normalise, uniforms
from joslim.data.folder import (
    CROP_UNIFORMS,
    BrokenImage,
    FolderData,
    ImageFiles,
    as_array,
    centre_box,
    convert_mode,
    middle_box,
    random_box,
    read_box,
    recipe_for,
)
from joslim.errors import RunFailed, UserError


@pytest.fixture
def folder(make_case: Callable[[str], Any], tmp_path: Path) -> Path:
    make_case("folder")
    return tmp_path / "images"


def loaded(folder: Path, **options: Any) -> FolderData:
    data = load_data(f"folder:{folder}", **{"size": 16, **options})
    assert isinstance(data, FolderData)
    return data


def test_what_it_finds(folder: Path) -> None:
    data = loaded(folder)
    assert data.classes == ("cat", "dog", "owl")
    assert data.sizes == {"train": 54, "val": 6, "test": 20}
    assert data.recipe == "small-data"
    assert data.mean == (0.485, 0.456, 0.406)
    assert np.bincount(data.labels("test")).tolist() == [7, 7, 6]


@pytest.mark.parametrize(("side", "size"), [(24, 24), (300, 224)])
def test_images_have_their_own_size_up_to_224_pixels(tmp_path: Path, side: int, size: int) -> None:
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(3):
                image = Image.new("RGB", (side + 10 * number, side))
                image.save(tmp_path / split / name / f"{number}.png")
    (tmp_path / "train" / "cat" / "0.png").write_bytes(b"broken")
    assert load_data(f"folder:{tmp_path}").shape == (3, size, size)


def test_other_files_are_passed_over(folder: Path) -> None:
    before = loaded(folder).identity
    (folder / "train" / ".cache").mkdir()
    (folder / "train" / "cat" / ".hidden.png").write_text("not an image")
    (folder / "train" / "cat" / "notes.txt").write_text("not an image")
    (folder / "train" / "readme.md").write_text("not an image")
    assert loaded(folder).identity == before


def test_a_folder_may_move_but_not_change(folder: Path) -> None:
    before = loaded(folder).identity
    moved = folder.with_name("moved")
    shutil.move(folder, moved)
    assert loaded(moved).identity == before
    image = next((moved / "train" / "cat").iterdir())
    image.rename(image.with_name(f"other{image.suffix}"))
    assert loaded(moved, val=6).identity != before


@pytest.mark.parametrize("place", ["first", "last"])
def test_an_image_may_not_be_replaced(folder: Path, place: str) -> None:
    """Even by one of the same size."""
    before = loaded(folder).identity
    images = sorted((folder / "train" / "dog").iterdir())
    image = images[0 if place == "first" else -1]
    content = bytearray(image.read_bytes())
    content[-1] ^= 1
    image.write_bytes(content)
    assert loaded(folder).identity != before


def test_of_many_images_some_are_looked_at_and_the_sizes_of_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("joslim.data.folder.FINGERPRINT_FILES", 2)
    read: list[str] = []
    monkeypatch.setattr("joslim.data.folder._first_bytes", lambda path: read.append(path) or b"")
    before = loaded(folder).identity
    assert len(read) == 4, "two to train with, two to validate"
    image = sorted((folder / "train" / "dog").iterdir())[3]
    assert str(image) not in read
    image.write_bytes(image.read_bytes() + b"more")
    assert loaded(folder).identity != before


def test_the_test_images_are_not_looked_at(folder: Path) -> None:
    before = loaded(folder).identity
    for image in (folder / "val").rglob("*.*"):
        image.write_bytes(b"changed")
    assert loaded(folder).identity == before


def test_plain_images_are_those_of_pil(folder: Path) -> None:
    data = loaded(folder)
    x, y = data.plain("test", [0, 8, 19])
    mean, std = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    for one, label, index in zip(x, y, [0, 8, 19]):
        path = Path(data.files["test"].path(index))
        assert data.classes[int(label)] in path.parts
        image = Image.open(path).convert("RGB")
        expected = image.resize((16, 16), Image.Resampling.BILINEAR, centre_box(*image.size))
        torch.testing.assert_close(
            one * std + mean, torch.from_numpy(as_array(expected) / 255).float()
        )


def test_colours_are_clipped_if_asked_for(folder: Path) -> None:
    """Whole bytes: what is not clipped is not."""
    data = loaded(folder)
    std = torch.tensor(data.std)[:, None, None]
    mean = torch.tensor(data.mean)[:, None, None]
    whole = []
    for data.clip_colours in (False, True):
        x, _ = next(iter(data.batches(0, 4)))
        pixels = (x * std + mean) * 255
        whole.append(bool((pixels - pixels.round()).abs().max() < 0.01))
        if data.clip_colours:
            assert 0 <= pixels.round().min() <= pixels.round().max() <= 255
    assert whole == [False, True]


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(folder: Path, workers: int) -> None:
    def drawn(data: FolderData) -> list[torch.Tensor]:
        batches = itertools.islice(data.batches(seed=1, batch=20, start=2), 4)
        return [x for x, _ in (*batches, *data.sweep("val", 4))]

    alone, together = drawn(loaded(folder)), drawn(loaded(folder, workers=workers))
    assert all(torch.equal(a, b) for a, b in zip(alone, together))


# Splits


def test_a_test_folder_is_the_test_split(folder: Path) -> None:
    """And val/ the validation split, so that all of train/ is trained on."""
    (folder / "val").rename(folder / "test")
    data = loaded(folder)
    assert data.sizes == {"train": 54, "val": 6, "test": 20}
    assert data.sources["val"] == "taken from train/"
    for name in data.classes:
        image(folder / "val" / name / "a.png")
    data = loaded(folder, val=0.5)
    assert data.sizes == {"train": 60, "val": 3, "test": 20}
    assert data.sources == {"train": "train/", "val": "val/", "test": "test/"}
    assert data.files["test"].path(0).startswith(str(folder / "test"))
    shutil.rmtree(folder / "val" / "owl")
    refused(folder, r"train/ and val/ need the same classes; only in train/: owl")


def test_without_labelled_test_images_val_is_the_test_split(folder: Path) -> None:
    assert loaded(folder).sources["test"] == "val/, since there is no test/"
    image(folder / "test" / "a.png")  # as those of ImageNet
    data = loaded(folder)
    assert data.sizes == {"train": 54, "val": 6, "test": 20}
    assert data.sources["test"] == "val/, since test/ has no folders of classes"


def test_a_folder_of_classes_is_split(folder: Path) -> None:
    classes = folder / "train"
    refused(
        classes, r"has no folder train/; .* or --split 0.8/0.1/0.1 to divide folders of classes"
    )
    data = loaded(classes, split="0.6/0.1/0.3")
    assert data.sizes == {"train": 36, "val": 6, "test": 18}
    for split, count in data.sizes.items():
        assert np.bincount(data.labels(split)).tolist() == [count // 3] * 3, "stratified"
    paths = [data.files[s].path(i) for s, count in data.sizes.items() for i in range(count)]
    assert len({*paths}) == 60
    assert loaded(classes, split="0.6/0.1/0.3").identity == data.identity
    assert loaded(classes, split="0.6/0.2/0.2").identity != data.identity


@pytest.mark.parametrize(
    "split", ["", "0.8", "0.8/0.2", "0.8/0.1/0.2", "1/0/0", "0/0.5/0.5", "a/b/c", "nan/0/1"]
)
def test_a_split_is_three_shares(folder: Path, split: str) -> None:
    with pytest.raises(UserError, match=r"^split: .* add up to 1: 0.8/0.1/0.1$"):
        loaded(folder / "train", split=split)


def test_what_cannot_be_split(folder: Path) -> None:
    with pytest.raises(
        UserError, match=r"^split: .* has a folder train/ already; leave out --split"
    ):
        loaded(folder, split="0.8/0.1/0.1")
    with pytest.raises(UserError, match=r"^split: '0.999/0/0.001' leaves no .* of 60"):
        loaded(folder / "train", split="0.999/0/0.001")
    with pytest.raises(UserError, match=r"^split: it is for a folder of classes"):
        load_data("digits", split="0.8/0.1/0.1")


@pytest.mark.parametrize(
    ("images", "size", "name"),
    [
        (999, 224, "small-data"),
        (1_602, 32, "medium-data"),
        (20_000, 224, "large-data"),
        (10**6, 64, "large-data"),
        (1_281_167, 224, "imagenet"),
    ],
)
def test_the_recipe_follows_the_size_of_data_and_images(images: int, size: int, name: str) -> None:
    assert recipe_for(images, size) == name


# Files that do not decode


def ruin(*paths: Path) -> None:
    for path in paths:
        path.write_bytes(b"broken")


def images_of(data: FolderData, split: str, name: str) -> list[Path]:
    """The files of a class, in the order of the data."""
    files = data.files[split]
    own = np.flatnonzero(files.labels == data.classes.index(name))
    return [Path(files.path(index)) for index in own]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_next_of_its_class_stands_in_for_a_broken_image(folder: Path, workers: int) -> None:
    whole = loaded(folder, workers=workers)
    first, *_, last = dogs = images_of(whole, "train", "dog")
    x, y = next(iter(whole.sweep("train", 54)))
    start = int(np.flatnonzero(whole.labels("train") == 1)[0])
    ruin(first, last)
    data = loaded(folder, workers=workers)
    with pytest.warns(UserWarning, match=f"data: 2 of 54 images do not decode.*: {first}, {last}$"):
        now, labels = next(iter(data.sweep("train", 54)))
    assert torch.equal(labels, y)
    expected = x.clone()
    expected[start] = x[start + 1]
    expected[start + len(dogs) - 1] = x[start + 1]  # The one after the last is the first again.
    assert torch.equal(now, expected)
    assert data.identity == whole.identity


@pytest.mark.filterwarnings("ignore:data. ")
def test_broken_images_do_not_break_a_resume(folder: Path) -> None:
    ruin(*images_of(loaded(folder), "train", "cat")[3:5])
    straight = [*itertools.islice(loaded(folder).batches(seed=1, batch=20), 5)]
    resumed = loaded(folder, workers=2).batches(seed=1, batch=20, start=3)
    for (x, y), (x2, y2) in zip(straight[3:], resumed):
        assert torch.equal(x, x2)
        assert torch.equal(y, y2)


def test_there_are_few_warnings(folder: Path) -> None:
    """One whenever there are twice as many, however often the files are read."""
    data = loaded(folder)
    ruin(*images_of(data, "train", "owl")[::6])
    with pytest.warns(UserWarning, match="data: ") as caught:
        list(itertools.chain(*[data.sweep("train", 1)] * 3))
    assert [str(one.message).split()[1] for one in caught] == ["1", "2"]
    assert len(data.files["train"].broken) == 3


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.filterwarnings("ignore:data. ")
def test_too_many_broken_images_are_an_error(folder: Path, workers: int) -> None:
    data = loaded(folder, workers=workers)
    broken = [path for name in ("cat", "dog") for path in images_of(data, "train", name)[:2]]
    ruin(*broken)
    words = r"^data: cannot read the image .*; 4 of 54 images do not decode, at most 3 may; remove"
    with pytest.raises(UserError, match=words) as caught:
        list(itertools.islice(data.batches(seed=0, batch=54), 2))
    assert "\n" not in str(caught.value)
    assert any(str(path) in str(caught.value) for path in broken)


def test_the_limit_grows_with_the_data() -> None:
    def most(count: int) -> int:
        return ImageFiles("", np.array([b"a"] * count), np.zeros(count, dtype=np.int64)).max_broken

    assert [most(count) for count in (1, 300, 1000, 22_500)] == [3, 3, 10, 225]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_class_without_one_image_that_decodes(folder: Path, workers: int) -> None:
    data = loaded(folder, workers=workers)
    ruin(*images_of(data, "val", "dog"))
    with pytest.raises(UserError, match=r"^data: cannot read the image .*dog.*no image of its cla"):
        list(data.sweep("val", 4))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_went_away_is_named_at_once(folder: Path, workers: int) -> None:
    """It may come back, and a run that has gone on without it could not be repeated."""
    data = loaded(folder, workers=workers)
    gone = images_of(data, "train", "dog")[0]
    gone.unlink()
    with pytest.raises(UserError, match=f"^data: cannot read the image {gone}: FileNotFound"):
        list(itertools.islice(data.batches(seed=0, batch=54), 2))


DEATHS = [
    RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.\nmore"),
    OSError(104),
]


@pytest.mark.parametrize("death", [*DEATHS, EOFError()], ids=lambda error: type(error).__name__)
def test_a_worker_that_dies_is_one_line(
    death: Exception, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(*arguments: Any, **options: Any) -> Iterator[Any]:
        raise death
        yield

    monkeypatch.setattr("joslim.data.folder.DataLoader", dying)
    with pytest.raises(RunFailed, match=r"^data: a process that decodes images died: ") as caught:
        next(loaded(folder).batches(seed=0, batch=54))
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_worker_that_is_killed_is_noticed(folder: Path) -> None:
    """Wherever the main process is just then: torch's handler of the signal raises."""
    batches = loaded(folder, workers=1).batches(seed=0, batch=54)
    next(batches)

    def kill_and_draw() -> None:
        for worker in multiprocessing.active_children():
            worker.kill()
        list(itertools.islice(batches, 20))

    with pytest.raises(RuntimeError, match=r"worker|images died"):
        kill_and_draw()
    batches.close()  # type: ignore[attr-defined]


def test_augmentation_is_what_the_paper_has(folder: Path) -> None:
    """Halves are mirrored, parts are cut out, colours change, and `scale` is heeded."""
    data = loaded(folder, val=0)
    plain, _ = data.plain("train", range(60))
    x, _ = next(data.batches(seed=0, batch=60))
    assert x.shape == plain.shape
    assert abs(float(x.mean() - plain.mean())) < 0.5
    assert torch.unique(x.flatten(1), dim=0).shape[0] == 60
    before = next(data.batches(seed=0, batch=8))[0]
    data.scale = 0.9
    assert not torch.equal(next(data.batches(seed=0, batch=8))[0], before)


def test_flips() -> None:
    drawn = uniforms(
        0, "colour", np.zeros(4000, dtype=int), np.arange(4000), FLIP_AND_COLOUR_UNIFORMS
    )
    assert abs((drawn[:, 0] < 0.5).mean() - 0.5) < 0.03


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(path)


def refused(folder: Path, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_data(f"folder:{folder}")
    assert "\n" not in str(caught.value)


def test_no_train_or_no_val(folder: Path) -> None:
    shutil.rmtree(folder / "val")
    refused(folder, r"^data: .*images has no folder val/; train/CLASS/\*.jpg and val/CLASS")
    shutil.rmtree(folder / "train")
    refused(folder, r"^data: .*images has no folder train/; train/CLASS/\*.jpg and val/CLASS")


def test_a_class_without_images(folder: Path) -> None:
    for path in (folder / "val" / "dog").iterdir():
        path.rename(path.with_suffix(".gif"))
    refused(folder, r"^data: .*val/dog has no images; allowed: .jpg .jpeg .png .webp .bmp")


@pytest.mark.parametrize("name", [b"caf\xe9", b"line\nbreak", b"\x1b[31mred"])
def test_a_class_whose_name_cannot_be_printed(name: bytes, folder: Path) -> None:
    for split in ("train", "val"):
        image(folder / split / os.fsdecode(name) / "a.png")
    refused(folder, r"^data: the class '.*' in .*train has no printable name; rename it$")


def test_one_class_or_none(tmp_path: Path) -> None:
    image(tmp_path / "train" / "a.jpg")
    refused(tmp_path, r"^data: .*train has no folder of a class; at least two are needed")
    image(tmp_path / "train" / "cat" / "a.jpg")
    refused(tmp_path, r"^data: .*train has only the class 'cat'; at least two are needed")


def test_classes_that_differ(folder: Path) -> None:
    (folder / "val" / "owl").rename(folder / "val" / "eagle")
    refused(folder, r"need the same classes; only in train/: owl \(1 in all\)")
    shutil.copytree(folder / "train" / "cat", folder / "train" / "eagle")
    shutil.rmtree(folder / "train" / "owl")
    for name in "abcde":
        image(folder / "val" / name / "a.png")
    refused(folder, r"need the same classes; only in val/: a, b, c, \.\.\. \(5 in all\)")


@pytest.mark.skipif("JOSLIM_DATA" not in os.environ, reason="JOSLIM_DATA is not set")
def test_a_real_folder() -> None:
    root = Path(os.environ["JOSLIM_DATA"]) / "tinyimagenet50"
    if not root.exists():
        pytest.skip("tinyimagenet50 is not in JOSLIM_DATA")
    data = loaded(root, size=64)
    assert data.sizes == {"train": 22_500, "val": 2_500, "test": 2_500}
    x = torch.cat([x for x, _ in data.sweep("train", 100, limit=500)])
    assert x.mean((0, 2, 3)).abs().max() < 0.3
    assert next(data.batches(0, 32))[0].shape == (32, 3, 64, 64)


# Decoding


def picture(width: int = 40, height: int = 30) -> Image.Image:
    """Smooth, so that files that lose something lose little."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def whole(width: int, height: int) -> tuple[float, float, float, float]:
    return (0, 0, width, height)


def difference(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a.astype(float) - b.astype(float)).mean())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("mode", "suffix"),
    [
        ("RGB", "jpg"),
        ("CMYK", "jpg"),
        ("L", "jpg"),
        ("RGB", "png"),
        ("RGBA", "png"),
        ("LA", "png"),
        ("L", "png"),
        ("P", "png"),
        ("1", "png"),
        ("I;16", "png"),
        ("RGB", "webp"),
        ("RGBA", "webp"),
        ("RGB", "bmp"),
        ("P", "bmp"),
        ("RGB", "tiff"),
        ("L", "tif"),
        ("CMYK", "tiff"),
        ("I;16", "tiff"),
    ],
)
def test_files_of_all_kinds(tmp_path: Path, mode: str, suffix: str, channels: int) -> None:
    original = picture()
    if mode == "I;16":
        stored = Image.fromarray(np.asarray(original.convert("L")).astype(np.uint16) * 257)
    else:
        stored = original.convert(mode)
    if mode == "RGBA":
        stored.putalpha(200)
    path = tmp_path / f"image.{suffix}"
    stored.save(path, **({"lossless": True} if suffix == "webp" else {}))
    with Image.open(path) as image:
        assert image.mode in {"I;16": ("I;16", "I")}.get(mode, (mode,))
    pixels = read_box(path, whole, 30, channels)
    assert pixels.shape == (channels, 30, 30)
    assert pixels.dtype == np.uint8
    if mode == "1":
        original = stored  # Dots of black and white.
    is_grey = mode in ("L", "LA", "1", "I;16")
    expected = original.convert("L" if is_grey else "RGB").convert("RGB" if channels == 3 else "L")
    expected = expected.resize((30, 30), Image.Resampling.BILINEAR, whole(40, 30))
    loss = {"P": 20}.get(mode, 4)
    assert difference(pixels, as_array(expected)) < loss


def test_a_palette_with_transparency(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    indexed = picture().convert("P", palette=Image.Palette.ADAPTIVE)
    indexed.save(path, transparency=bytes(range(0, 250)))
    assert difference(read_box(path, whole, 30, 3), read_box(path, whole, 30, 3)) == 0
    with Image.open(path) as image:
        assert "transparency" in image.info
        assert convert_mode(image, 3).mode == "RGB"


@pytest.mark.parametrize("factor", [2, 3.3, 4, 9])
def test_shrinking_while_decoding_shows_the_same_picture(tmp_path: Path, factor: float) -> None:
    path = tmp_path / "large.jpg"
    picture(round(64 * factor) + 3, round(48 * factor) + 1).save(path, quality=95)

    def part(width: int, height: int) -> tuple[float, float, float, float]:
        return (width * 0.1, height * 0.2, width * 0.9, height * 0.9)

    with Image.open(path) as image:
        box = part(*image.size)
        expected = image.resize((32, 32), Image.Resampling.BILINEAR, box)
        shrunk = read_box(path, part, 32, 3, draft=True)
    assert difference(shrunk, as_array(expected)) < 2
    assert difference(read_box(path, part, 32, 3), as_array(expected)) == 0


def test_evaluation_decodes_every_pixel(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for name in "ab":
            (tmp_path / split / name).mkdir(parents=True)
            picture(200, 150).save(tmp_path / split / name / "one.jpg")
    data = loaded(tmp_path, size=30, val=0)
    x, _ = data.plain("test", [0])
    with Image.open(data.files["test"].path(0)) as image:
        cut = image.resize((30, 30), Image.Resampling.BILINEAR, centre_box(200, 150))
    pixels = torch.from_numpy(as_array(cut).copy())[None]
    assert torch.equal(x, normalise(pixels, data.mean, data.std))


@pytest.mark.parametrize(("width", "height"), [(500, 375), (64, 64), (100, 333)])
def test_the_centre_is_that_of_evaluation(width: int, height: int, tmp_path: Path) -> None:
    """Short side to 256 * size / 224, then size x size from the middle."""
    path = tmp_path / "a.png"
    image = picture(width, height)
    image.save(path)
    size = 56
    short = 64 / min(width, height)
    resized = image.resize((round(width * short), round(height * short)), Image.Resampling.BILINEAR)
    left, upper = (resized.width - size) / 2, (resized.height - size) / 2
    cropped = resized.crop((round(left), round(upper), round(left) + size, round(upper) + size))
    assert (
        difference(read_box(path, centre_box, size, 3), as_array(cropped)) < 3
    )  # Rounding is half a pixel.


SIDES = st.integers(1, 600)


@given(SIDES, SIDES, st.integers(0, 10_000), st.sampled_from([0.08, 0.25, 1.0]))
def test_random_boxes(width: int, height: int, seed: int, scale: float) -> None:
    uniforms = np.random.default_rng(seed).random(CROP_UNIFORMS)
    left, upper, right, lower = random_box(width, height, uniforms, scale)
    assert 0 <= left < right <= width
    assert 0 <= upper < lower <= height
    if min(width, height) > 50 and 3 / 4 <= width / height <= 4 / 3:
        area = (right - left) * (lower - upper) / (width * height)
        ratio = (right - left) / (lower - upper)
        assert scale * 0.95 < area <= 1.0
        assert 0.72 < ratio < 1.39


def test_boxes_of_a_square_fill_the_range() -> None:
    rng = np.random.default_rng(0)
    boxes = np.array([random_box(200, 200, rng.random(CROP_UNIFORMS), 0.25) for _ in range(3000)])
    left, upper, right, lower = boxes.T
    areas = (right - left) * (lower - upper) / 200**2
    assert 0.24 < areas.min() < 0.26
    assert areas.max() > 0.98
    assert abs(np.log((right - left) / (lower - upper)).mean()) < 0.02
    assert abs((left + right).mean() / 2 - 100) < 2
    assert abs((upper + lower).mean() / 2 - 100) < 2


@given(SIDES, SIDES)
def test_the_middle(width: int, height: int) -> None:
    left, upper, right, lower = middle_box(width, height)
    ratio = (right - left) / (lower - upper)
    assert min(3 / 4, ratio) == pytest.approx(3 / 4)
    assert max(4 / 3, ratio) == pytest.approx(4 / 3)
    assert math.isclose(left + right, width)
    assert math.isclose(upper + lower, height)
    assert right - left == width or lower - upper == height


def test_narrow_images_give_their_middle() -> None:
    uniforms = np.random.default_rng(0).random(CROP_UNIFORMS)
    assert random_box(1000, 10, uniforms, 0.25) == middle_box(1000, 10)


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "missing"])
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "bmp"])
def test_images_that_cannot_be_read(tmp_path: Path, suffix: str, damage: str) -> None:
    path = tmp_path / f"broken.{suffix}"
    picture().save(path)
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        damaged = {"empty": b"", "text": b"text", "cut": content[: len(content) // 2]}
        path.write_bytes(damaged[damage])
    with pytest.raises(
        UserError, match=rf"^data: cannot read the image .*broken.{suffix}: \w+"
    ) as e:
        read_box(path, whole, 8, 3)
    assert "\n" not in str(e.value)
    # What is not there may come back; what is there and broken stays so.
    assert isinstance(e.value, BrokenImage) == (damage != "missing")


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder"])
def test_what_is_no_regular_file_is_broken(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "image.jpg"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(str(path))
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(BrokenImage, match=r"image.jpg: ValueError: not a regular file"):
        read_box(path, whole, 8, 3)


# 16 bits, and other numbers of channels


def deep_folder(root: Path, largest: int = 4095) -> Path:
    rng = np.random.default_rng(0)
    for number in range(20):
        path = root / ("train", "val")[number % 5 == 0] / "ab"[number % 2] / f"{number}.tiff"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, largest + 1, (8, 8), dtype=np.uint16)).save(path)
    return root


@pytest.mark.parametrize("channels", [1, 3])
def test_16_bits_keep_their_precision(tmp_path: Path, channels: int) -> None:
    """Images of 12 bits would have 16 levels as bytes."""
    data = loaded(deep_folder(tmp_path), size=7, channels=channels)
    assert data.deep
    x, _ = data.plain("train", range(data.sizes["train"]))
    assert x.shape[1] == channels
    assert len(x[:, 0].unique()) > 500
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(channels), atol=1e-4, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3)), torch.ones(channels), atol=2e-3, rtol=0)
    with Image.open(data.files["train"].path(0)) as file:
        floats = Image.fromarray(np.asarray(file).astype(np.float32))
    cut = floats.resize((7, 7), Image.Resampling.BILINEAR, centre_box(8, 8))
    expected = (torch.from_numpy(np.asarray(cut) / 65535) - data.mean[0]) / data.std[0]
    torch.testing.assert_close(x[0, 0], expected, atol=1e-2, rtol=0)
    batch, _ = next(data.batches(seed=0, batch=4))
    assert batch.dtype == torch.float32
    assert batch.isfinite().all()


def test_bytes_in_a_folder_of_16_bits(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    picture().save(path)
    expected = read_box(path, whole, 20, 3).astype(int) * 257
    assert np.abs(read_box(path, whole, 20, 3, deep=True) - expected).max() <= 257


def test_four_channels(tmp_path: Path) -> None:
    """The last one is a channel like the others, such as depth, and not transparency."""
    rng = np.random.default_rng(0)
    for number in range(20):
        path = tmp_path / ("train", "val")[number % 5 == 0] / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 4), dtype=np.uint8), "RGBA").save(path)
    data = loaded(tmp_path, size=7, channels=4)
    assert data.shape == (4, 7, 7)
    assert len(data.mean) == len(data.std) == 4
    x, _ = data.plain("train", [0])
    with Image.open(data.files["train"].path(0)) as file:
        for band, channel, mean, std in zip(file.split(), x[0], data.mean, data.std):
            cut = band.resize((7, 7), Image.Resampling.BILINEAR, centre_box(8, 8))
            expected = (torch.from_numpy(np.asarray(cut) / 255).float() - mean) / std
            torch.testing.assert_close(channel, expected)
    assert next(data.batches(seed=0, batch=4))[0].shape == (4, 4, 7, 7)
    picture().save(path := Path(data.files["train"].path(0)))
    with pytest.raises(BrokenImage, match="its channels are R, G, B; 4 are needed"):
        read_box(path, whole, 7, 4)
    with pytest.raises(UserError, match=r"^channels: 5; files have 1 to 4; give data sets"):
        loaded(tmp_path, channels=5)


def test_files_of_floats_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tiff"
    Image.fromarray(np.zeros((4, 4), dtype=np.float32)).save(path)
    with pytest.raises(BrokenImage, match="its pixels are floats; save it with 8 or 16 bits"):
        read_box(path, whole, 4, 1)
