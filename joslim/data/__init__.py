"""Data sets: one file each, and the table `DATASETS`.

A new data set is a function from `Options` to `Data` in a file of its own, and a row of `DATASETS`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from joslim.data import (
    cifar,
    digits,
    fashion_mnist,
    folder,
    from_datasets,
    segmentation,
    shards,
    text,
)
from joslim.data.base import Data, Options, Sweep
from joslim.errors import UserError, unknown

__all__ = ["DATASETS", "Data", "Options", "Sweep", "load_data"]

DATASETS: dict[str, Callable[[Options], Data]] = {
    "digits": digits.load,
    "fashion-mnist": fashion_mnist.load,
    "cifar10": cifar.load_cifar10,
    "cifar100": cifar.load_cifar100,
}
"""The table of data sets: name -> the function that loads it.

Examples:
    >>> "cifar100" in joslim.DATASETS
    True
"""

# Images in files, by place and task.
IN_FILES: dict[tuple[str, str], Callable[[str, Options], Data]] = {
    ("folder", "classification"): folder.load,
    ("folder", "segmentation"): segmentation.load,
    ("shards", "classification"): shards.load,
}
DATA_OF_TASKS = (
    "type --data folder:PATH with images and masks for segmentation, --data text:PATH for "
    "language, or give data sets from Python for the others"
)


def load_data(
    name: str | tuple[Any, Any] | Data,
    root: str | Path | None = None,
    size: int | None = None,
    channels: int = 3,
    val: float = 0.1,
    device: str | torch.device = "cpu",
    workers: int = 0,
    split: str | None = None,
    task: str | None = None,
    context: int = 128,
    ignore_index: int | None = None,
) -> Data:
    """Load a data set with its three splits.

    Args:
        name: A name in `joslim.DATASETS`, "folder:PATH", "shards:PATH", "text:PATH", a pair of data
            sets (train, test), or a `Data`, which is returned as it is.
        root: Folder of the official files, which are downloaded if they are missing; by default the
            environment variable JOSLIM_DATA, else a cache.
        size: Side of the images in pixels; by default their own; for a folder at most 224.
        channels: Number of channels: 1 (grey), 3 (colour), or as many as the images have.
        val: Share or number of the training images that are kept for validation, if the data have
            no validation images. They do not depend on the seed, so that seeds can be compared.
        device: Device of the batches.
        workers: Number of processes that decode the images of a folder.
        split: Shares of training, validation and test images of a folder that has classes and no
            train/, or of a text, such as "0.8/0.1/0.1". They do not depend on the seed.
        task: What is learned: a name in `joslim.TASKS`. By default "language" for a text, else
            "classification". A folder for "segmentation" has images and masks; the labels of a
            pair of data sets are masks, lists of yes or no for "multi-label", and numbers for
            "regression".
        context: Number of tokens that a network sees at once, of a text.
        ignore_index: Value of the pixels of a mask that have no class; by default 255.

    Returns:
        The data set.

    Raises:
        UserError: The name is unknown, an option is not valid, or the files are damaged.

    Examples:
        >>> data = joslim.load_data("digits")
        >>> data.sizes
        {'train': 1293, 'val': 144, 'test': 360}
    """
    if isinstance(name, Data):
        return name
    is_text = isinstance(name, str) and name.startswith("text:")
    task = task or ("language" if is_text else "classification")
    options = Options(
        root, size, channels, val, device, workers, split, task, context, ignore_index
    )
    if split is not None and not (isinstance(name, str) and name.startswith(("folder:", "text:"))):
        raise UserError("split: it is for a folder of classes; leave it out, or type folder:PATH")
    if is_text != (task == "language"):
        raise UserError(f"task: {task} does not go with data {name!r}; {DATA_OF_TASKS}")
    if not isinstance(name, str):
        return from_datasets.load(name, options)
    if is_text:
        return text.load(name.removeprefix("text:"), options)
    place, colon, path = name.partition(":")
    if colon and place in ("folder", "shards"):
        if (place, task) not in IN_FILES:
            raise UserError(f"task: {task} does not go with data {name!r}; {DATA_OF_TASKS}")
        return IN_FILES[place, task](path, options)
    if name not in DATASETS:
        others = "or your own as folder:PATH or shards:PATH (images) or text:PATH"
        raise UserError(f"{unknown('data', name, DATASETS)}; {others}")
    if task != "classification":
        raise UserError(f"task: {task} does not go with data {name!r}; {DATA_OF_TASKS}")
    return DATASETS[name](options)
