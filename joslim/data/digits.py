"""The UCI handwritten digits, included in the package: 1,797 grey images of 8x8 pixels.

They are the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998,
UCI Machine Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0). The split into 1,437
training and 360 test images is fixed: of the images sorted by class, in their original order within
a class, images 0, 5, 10, ... are test images.
"""

from __future__ import annotations

from importlib import resources

import numpy as np

from joslim.data.base import Data, Options
from joslim.data.in_memory import DatasetInfo, Images, MemoryData

# Digits are not flipped: a mirrored 2 is not a 2.
INFO = DatasetInfo("digits", tuple("0123456789"), 360, recipe="digits", shift=8, flip=False)
MAX_PIXEL = 16  # The original pixels run from 0 to 16.


def load(options: Options) -> Data:
    return MemoryData(INFO, read("train"), lambda: read("test"), options)


def read(split: str) -> Images:
    """Read one split; each array is a file of its own inside the .npz."""
    packed = resources.files("joslim.data").joinpath("digits.npz")
    with packed.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        pixels, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
    full_range = np.round(pixels[:, None] * (255 / MAX_PIXEL)).astype(np.uint8)
    return Images.from_arrays(full_range, labels)
