"""Folders of images with masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from joslim import UserError, load_data

WIDTH, HEIGHT = 24, 16


def write(folder: Path, split: str, name: str, mask: np.ndarray) -> None:
    for part in ("images", "masks"):
        (folder / split / part).mkdir(parents=True, exist_ok=True)
    # Red shows the class: 100 for each.
    pixels = np.zeros((HEIGHT, WIDTH, 3), dtype=np.uint8)
    pixels[: mask.shape[0], : mask.shape[1], 0] = 100 * np.minimum(mask, 2)[:HEIGHT, :WIDTH]
    Image.fromarray(pixels).save(folder / split / "images" / f"{name}.png")
    Image.fromarray(mask.astype(np.uint8)).save(folder / split / "masks" / f"{name}.png")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split, count in (("train", 6), ("val", 2), ("test", 2)):
        for at in range(count):
            mask = np.zeros((HEIGHT, WIDTH), dtype=np.uint8)
            mask[:, : WIDTH // 2] = 1 + at % 2
            write(tmp_path, split, str(at), mask)
    return tmp_path


def test_images_and_masks_belong_together(folder: Path) -> None:
    data = load_data(f"folder:{folder}", task="segmentation")
    assert data.sizes == {"train": 6, "val": 2, "test": 2}
    assert (data.classes, data.shape) == (("0", "1", "2"), (3, HEIGHT, WIDTH))
    assert data.label_counts() == [1152, 576, 576]
    x, y = data.plain("train", [0, 1])
    assert (x.shape, y.shape, y.dtype) == ((2, 3, 16, 24), (2, 16, 24), torch.int64)
    assert y[1].unique().tolist() == [0, 2]
    # After crops, flips and resizing, red still shows the class; colours change it monotonously.
    data.scale = 0.9
    for x, y in [next(data.batches(0, 6, start)) for start in range(4)]:
        for image, mask in zip(x, y):
            low, *others = mask.unique().tolist()
            for other in others:
                assert image[0][mask == other].median() > image[0][mask == low].median()


def test_resume_sizes_and_names(folder: Path) -> None:
    (folder / "classes.txt").write_text("sky\nroad\ncar\ntree\n")
    data = load_data(f"folder:{folder}", task="segmentation", size=8)
    assert (data.classes, data.shape) == (("sky", "road", "car", "tree"), (3, 8, 12))
    stream = data.batches(seed=3, batch=4)
    third = [next(stream) for _ in range(3)][2]
    again = next(data.batches(seed=3, batch=4, start=2))
    assert all(torch.equal(a, b) for a, b in zip(third, again))


def test_refused_masks(folder: Path) -> None:
    def refused(words: str, **options: int) -> None:
        given: Any = {"task": "segmentation", **options}
        with pytest.raises(UserError, match=words):
            load_data(f"folder:{folder}", **given).plain("train", range(6))

    write(folder, "train", "5", np.full((HEIGHT, WIDTH), 255))
    assert len(load_data(f"folder:{folder}", task="segmentation").classes) == 3  # 255 is ignored
    (folder / "classes.txt").write_text("a\nb\nc\n")
    refused(
        r"^data: the mask of .*5.png has the label 255; allowed: 0 to 2, .*index 9", ignore_index=9
    )
    write(folder, "train", "5", np.zeros((HEIGHT, WIDTH + 3)))
    refused(
        r"^data: the mask of .*5.png is 27x16 pixels, the image 24x16; they must be of one size"
    )
    (folder / "train" / "masks" / "5.png").unlink()
    refused(r"^data: .*images/5.png has no mask; .*masks/5.png is needed \(1 of 6 images")
    (folder / "train" / "masks" / "5.png").write_bytes(b"no image")
    refused(r"^data: cannot read the mask .*5.png: ")
    with pytest.raises(UserError, match=r"^data: .* needed"):
        load_data(f"folder:{folder / 'train'}", task="segmentation")
    with pytest.raises(UserError, match=r"^data: .* masks/, type --task segmentation"):
        load_data(f"folder:{folder}")
