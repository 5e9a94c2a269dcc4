"""Fashion-MNIST: 60,000 + 10,000 grey images of clothes, 28x28 pixels.

H. Xiao, K. Rasul, R. Vollgraf, 2017, https://github.com/zalandoresearch/fashion-mnist (MIT). The
four official files are read from fashion-mnist/ under the data root, or downloaded to it.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from joslim.data.base import Data, Options
from joslim.data.download import OfficialFile, data_root, official_file
from joslim.data.in_memory import DatasetInfo, Images, MemoryData

SITE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
TEST_COUNT = 10_000
CLASSES = (
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


def _official(name: str, md5: str) -> OfficialFile:
    return OfficialFile(f"fashion-mnist/{name}", SITE + name, md5)


FILES = {
    "train": (
        _official("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        _official("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
    ),
    "test": (
        _official("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        _official("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
}


def load(options: Options) -> Data:
    """Load Fashion-MNIST, cropped with a padding of 2 pixels (1/14 of the side) and flipped."""
    root = data_root(options.root)
    info = DatasetInfo("fashion-mnist", CLASSES, TEST_COUNT, shift=14, flip=True)
    return MemoryData(info, _read("train", root), lambda: _read("test", root), options)


def _read(split: str, root: Path) -> Images:
    pixels, labels = (read_idx(official_file(file, root)) for file in FILES[split])
    return Images.from_arrays(pixels[:, None], labels)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an array of bytes in the idx format of MNIST.

    The file has two zero bytes, the type of the numbers (8 for unsigned bytes), the number of axes,
    the length of each axis, and the numbers.
    """
    with gzip.open(path) as file:
        content = file.read()
    axes = content[3]
    shape = np.frombuffer(content, ">u4", count=axes, offset=4).astype(int)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape).copy()
