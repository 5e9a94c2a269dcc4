"""Texts as windows of bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from joslim import UserError, load_data

TEXT = bytes(range(256)) * 8  # 2,048 bytes


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_bytes(TEXT)
    return path


def test_labels_are_the_next_tokens(file: Path) -> None:
    data = load_data(f"text:{file}", context=16)
    assert (data.task, data.shape, len(data.classes)) == ("language", (16,), 256)
    x, y = data.plain("train", [0, 1])
    assert x[1].tolist() == [*range(16, 32)]
    assert y[1].tolist() == [*range(17, 33)]
    assert x.dtype == y.dtype == torch.int64
    test = data.plain("test", np.arange(data.sizes["test"]))[0]
    assert test[0, 0] == TEXT[round(0.9 * len(TEXT))]
    assert data.sizes == {"train": 103, "val": 11, "test": 12}
    assert data.label_counts()[0] == np.frombuffer(TEXT[: 1843 - 11 * 16], np.uint8).tolist().count(
        0
    )


def test_windows_depend_on_seed_epoch_and_index_alone(file: Path) -> None:
    data = load_data(f"text:{file}", context=16)
    stream = data.batches(seed=1, batch=8)
    third = [next(stream) for _ in range(3)][2]
    again = next(data.batches(seed=1, batch=8, start=2))
    halves = [next(data.batches(1, 8, 2, rank, 2)) for rank in (0, 1)]
    for place in (0, 1):
        assert torch.equal(third[place], again[place])
        assert torch.equal(third[place], torch.cat([half[place] for half in halves]))
    assert torch.equal((third[0] + 1) % 256, third[1])
    assert not torch.equal(third[0] % 16, third[0][:1] % 16)  # windows begin anywhere


def test_a_folder_and_shares(file: Path) -> None:
    for name in ("train", "test"):
        (file.parent / f"{name}.txt").write_bytes(TEXT)
    data = load_data(f"text:{file.parent}", context=16, val=0)
    assert data.sizes == {"train": 127, "val": 0, "test": 127}
    data = load_data(f"text:{file}", context=16, split="0.5/0.25/0.25")
    assert data.sizes == {"train": 63, "val": 31, "test": 31}


def test_refused_texts(file: Path) -> None:
    for name, options, words in (
        ("text:", {}, "data: there is no file ''"),
        (f"text:{file}", {"context": 1000}, "data: the test part .* 205 bytes, fewer than a"),
        (f"text:{file}", {"task": "classification"}, "task: classification does not go with"),
        (f"text:{file.parent}", {}, "data: .* has no train.txt and test.txt"),
        ("digits", {"task": "language"}, "task: language does not go with data 'digits'"),
    ):
        with pytest.raises(UserError, match=f"^{words}"):
            load_data(name, **options)  # type: ignore[arg-type]
