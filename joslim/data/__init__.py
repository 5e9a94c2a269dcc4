"""Data sets: one file each, and the table of them.

A new one is a function from `Options` to `Data` in a file of its own, and a line in `DATASETS`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from joslim.data import cifar, digits, fashion_mnist, folder, pairs
from joslim.data.base import Data, Options, Sweep
from joslim.errors import UserError, unknown

__all__ = ["DATASETS", "Data", "Options", "Sweep", "load_data"]

DATASETS: dict[str, Callable[[Options], Data]] = {
    "digits": digits.load,
    "fashion-mnist": fashion_mnist.load,
    "cifar10": cifar.load_cifar10,
    "cifar100": cifar.load_cifar100,
}

FOLDER = "folder:"


def load_data(
    name: str | tuple[Any, Any] | Data,
    root: str | Path | None = None,
    size: int | None = None,
    channels: int = 3,
    val: float = 0.1,
    device: str | torch.device = "cpu",
    workers: int = 0,
) -> Data:
    """A data set by its name, as folder:PATH, as a pair (train, test), or as it is.

    root       where official files lie, or are put: else JOSLIM_DATA, else a cache
    size       the side of the images in pixels: else their own, 224 for a folder
    channels   1 or 3
    val        the part of the training images, or how many of them, kept for validation: the same
               images whatever the seed, so that seeds can be compared
    workers    processes that decode the images of a folder
    """
    if isinstance(name, Data):
        return name
    options = Options(root, size, channels, val, device, workers)
    if not isinstance(name, str):
        return pairs.load(name, options)
    if name.startswith(FOLDER):
        return folder.load(name.removeprefix(FOLDER), options)
    if name not in DATASETS:
        raise UserError(f"{unknown('data', name, DATASETS)}; or your own images as folder:PATH")
    return DATASETS[name](options)
