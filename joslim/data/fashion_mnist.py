"""Fashion-MNIST: 60,000 + 10,000 grey images of clothes, 28x28 pixels.

H. Xiao, K. Rasul, R. Vollgraf, 2017, https://github.com/zalandoresearch/fashion-mnist (MIT). The
four official files lie in fashion-mnist/ under the data root, or are fetched.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from joslim.data.base import Data, Options
from joslim.data.files import BROKEN, OfficialFile, data_root, official_file, one_line
from joslim.data.memory import Facts, Images, MemoryData, from_arrays
from joslim.errors import UserError

SITE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FOLDER = "fashion-mnist/"
SIZE = 28
TEST_COUNT = 10_000

# The format is that of MNIST: two zeros, the type of the numbers, how many axes there are.
UNSIGNED_BYTES = b"\x00\x00\x08"

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


def official(name: str, md5: str) -> OfficialFile:
    return OfficialFile(FOLDER + name, SITE + name, md5)


FILES = {
    "train": (
        official("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        official("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
    ),
    "test": (
        official("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        official("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
}


def load(options: Options) -> Data:
    """The crop has a padding of 2 pixels (1/14 of the side at other sizes), and flips."""
    root = data_root(options.root)
    facts = Facts("fashion-mnist", CLASSES, TEST_COUNT, shift=14, flip=True)
    return MemoryData(facts, read("train", root), lambda: read("test", root), options)


def read(split: str, root: Path) -> Images:
    image_file, label_file = FILES[split]
    path = official_file(image_file, root)
    pixels, labels = read_idx(path), read_idx(official_file(label_file, root))
    if pixels.shape[1:] != (SIZE, SIZE) or labels.shape != pixels.shape[:1]:
        raise UserError(
            f"data: {path} has pixels of shape {pixels.shape}, its labels {labels.shape}; "
            f"(n, {SIZE}, {SIZE}) and (n,) are needed"
        )
    return from_arrays(pixels[:, None], labels)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An array in the format of MNIST: type, number of axes, their lengths, then the bytes."""
    try:
        with gzip.open(path) as file:
            content = file.read()
        if content[:3] != UNSIGNED_BYTES:
            raise ValueError("not an idx file of bytes")
        axes = content[3]
        shape = np.frombuffer(content, ">u4", count=axes, offset=4).astype(int)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape).copy()
    except (*BROKEN, IndexError) as error:
        raise UserError(f"data: {path} cannot be read: {one_line(error)}") from error
