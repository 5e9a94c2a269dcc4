"""The UCI handwritten digits, shipped with the package: 1,797 grey images of 8x8 pixels.

They are the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998,
UCI Machine Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0). The split into 1,437
training and 360 test images is fixed: sorted by class, in their old order within a class, images
0, 5, 10, ... are test images.
"""

from __future__ import annotations

from importlib import resources

import numpy as np

from joslim.data.base import Data, Options
from joslim.data.memory import Facts, Images, MemoryData, from_arrays

TEST_COUNT = 360
BRIGHTEST = 16  # Pixels of the original run from 0 to this.

# No flips: a mirrored 2 is no 2.
FACTS = Facts("digits", tuple("0123456789"), TEST_COUNT, recipe="digits", shift=8, flip=False)


def load(options: Options) -> Data:
    return MemoryData(FACTS, read("train"), lambda: read("test"), options)


def read(split: str) -> Images:
    """Only this split: each array is a file of its own inside the .npz."""
    packed = resources.files("joslim.data").joinpath("digits.npz")
    with packed.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        pixels, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
    full_range = np.round(pixels[:, None] * (255 / BRIGHTEST)).astype(np.uint8)
    return from_arrays(full_range, labels)
