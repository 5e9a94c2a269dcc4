import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from joslim.data import fashion_mnist
from joslim.data.fashion_mnist import read_idx


def idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return head + array.tobytes()


@pytest.mark.parametrize("shape", [(5,), (3, 4, 6), (0, 28, 28)])
def test_idx_files(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(idx(array)))
    assert (read_idx(path) == array).all()
    assert read_idx(path).shape == shape


def test_pixels_and_labels(make_case: Callable[[str], Any], tmp_path: Path) -> None:
    data = make_case("fashion-mnist").load(val=0)
    assert (data.shape, data.recipe) == ((3, 28, 28), "cifar")
    assert (data.shift, data.flip) == (2, True)
    assert data.sizes == {"train": 60, "val": 0, "test": 20}
    pixels = read_idx(tmp_path / fashion_mnist.FILES["test"][0].path)
    x, y = data.plain("test", range(20))
    shown = x * torch.tensor(data.std)[:, None, None] + torch.tensor(data.mean)[:, None, None]
    torch.testing.assert_close(
        shown, torch.from_numpy(pixels / np.float32(255))[:, None].expand(-1, 3, -1, -1)
    )
    assert y.tolist() == [i % 10 for i in range(20)]


def test_the_table_names_the_official_files() -> None:
    names = [Path(file.path).name for files in fashion_mnist.FILES.values() for file in files]
    assert names == [
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    ]
    assert len(fashion_mnist.CLASSES) == 10
