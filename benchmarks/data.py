"""What the data path costs: ratios in one interleaved run.

Targets: an augmented batch of 128 images takes at most 5% of one slimmable training step (full,
two random, smallest) of ResNet20; a training image of a folder takes at most 1.5 times what plain
PIL takes to decode and resize the same file on one core, though it is cropped, flipped and
coloured as well. Real data are taken from JOSLIM_DATA, where that is set.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from reporting import at_most, report

import joslim
from joslim.data import Data, load_data

BATCH = 128
CLASSES = 100
FOLDER_BATCH = 64
PHOTO = (500, 375)  # The usual size of an image of ImageNet.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2, help="for the step; the folder has one")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    figures = {}
    torch.set_num_threads(options.threads)
    for size in (32, 16):
        data, source = cifar_or_noise(size)
        label = f"{source}, {size} px, batch {BATCH}"
        runs = {"batch": drawer(data, BATCH), "step": training_step(data)}
        times = interleaved(runs, options.rounds)
        ratio = [a / b for a, b in zip(times["batch"], times["step"])]
        rows += table(label, {"data, s": times["batch"], "step, s": times["step"], "ratio": ratio})
        figures[f"data_over_step_{size}px"] = at_most(statistics.median(ratio), 0.05)
    torch.set_num_threads(1)
    with folder_of_images() as (folder, size, source):
        ours = load_data(f"folder:{folder}", size=size)
        label = f"{source}, {size} px, one core"
        runs = {"ours": drawer(ours, FOLDER_BATCH), "pil": plain_pil(folder, size)}
        times = interleaved(runs, options.rounds)
        speeds = {f"{k}, images/s": [FOLDER_BATCH / t for t in v] for k, v in times.items()}
        ratio = [a / b for a, b in zip(times["ours"], times["pil"])]
        rows += table(label, {**speeds, "ratio of times": ratio})
        figures["folder_over_pil"] = at_most(statistics.median(ratio), 1.5)
    title = f"{options.rounds} interleaved rounds, {options.threads} threads for batch and step"
    report(title, rows, figures)


def cifar_or_noise(size: int) -> tuple[Data, str]:
    root = os.environ.get("JOSLIM_DATA")
    if root and (Path(root) / "cifar-100-python").is_dir():
        return load_data("cifar100", size=size), "CIFAR-100"
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (50_000, 3, size, size), dtype=np.uint8)
    items = [(image, i % CLASSES) for i, image in enumerate(images)]
    return load_data((items, items[:1])), "noise in the shape of CIFAR-100 (JOSLIM_DATA is not set)"


def drawer(data: Data, batch: int) -> Callable[[], object]:
    batches = data.batches(seed=0, batch=batch)
    return lambda: next(batches)


def training_step(data: Data) -> Callable[[], object]:
    """Labels for the full network, its soft labels for the others; one optimizer step."""
    x, y = next(data.batches(seed=0, batch=BATCH))
    net = joslim.slim(joslim.models.resnet20(num_classes=CLASSES), x[:1])
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    rng = np.random.default_rng(0)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        logits = net(x)
        F.cross_entropy(logits, y).backward()
        soft = logits.detach().softmax(1)
        for widths in (net.space.random(rng), net.space.random(rng), net.space.smallest):
            with net.at(widths):
                F.cross_entropy(net(x), soft).backward()
        optimizer.step()

    return step


@contextmanager
def folder_of_images() -> Iterator[tuple[Path, int, str]]:
    """A folder, the size to load it at, and what it is."""
    root = Path(os.environ.get("JOSLIM_DATA", "/nowhere"))
    for train in sorted(root.glob("*/train")):
        if train.is_dir() and (train.parent / "val").is_dir():
            first = next(path for path in train.rglob("*.*") if path.is_file())
            with Image.open(first) as image:
                size = min(*image.size, 224)
            yield train.parent, size, train.parent.name
            return
    with tempfile.TemporaryDirectory() as name:
        write_photos(Path(name))
        yield Path(name), 224, "made-up photos of 500x375 (JOSLIM_DATA has no folder)"


def write_photos(folder: Path) -> None:
    """Some coarse structure and some noise, so that JPEG has something to decode."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 2 * FOLDER_BATCH), ("val", 2)):
        for i in range(count):
            coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
            smooth = np.asarray(coarse.resize(PHOTO, Image.Resampling.BICUBIC)).astype(int)
            noisy = smooth + rng.normal(0, 12, smooth.shape)
            path = folder / split / f"class{i % 2}" / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=90)


def plain_pil(folder: Path, size: int) -> Callable[[], object]:
    """The least that anybody does: decode, resize, stack."""
    paths = sorted(path for path in (folder / "train").rglob("*.*") if path.is_file())
    random.Random(0).shuffle(paths)
    endless = itertools.cycle(paths)

    def one(path: Path) -> np.ndarray:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))

    return lambda: np.stack([one(path) for path in itertools.islice(endless, FOLDER_BATCH)])


def interleaved(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each run in each round, in random order; the first two rounds warm up."""
    times: dict[str, list[float]] = {label: [] for label in runs}
    order = list(runs.items())
    shuffle = random.Random(0).shuffle
    for turn in range(rounds + 2):
        shuffle(order)
        for label, run in order:
            start = time.perf_counter()
            run()
            if turn >= 2:
                times[label].append(time.perf_counter() - start)
    return times


def table(data: str, columns: dict[str, list[float]]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for label, values in columns.items():
        low, median, high = statistics.quantiles(values, n=4)
        quartiles = f"{low:.4g} to {high:.4g}"
        rows.append({"data": data, "what": label, "median": median, "quartiles": quartiles})
    return rows


if __name__ == "__main__":
    main()
