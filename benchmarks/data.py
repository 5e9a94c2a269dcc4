"""What the data path costs: ratios in one interleaved run.

Targets: an augmented batch of 128 images takes at most 5% of one slimmable training step (full,
two random, smallest) of ResNet20; a core makes at least 0.9 times as many training images of a
folder as plain PIL decodes and resizes, though they are cropped, flipped and coloured as well; two
processes decode at least 1.8 times as fast as one. The files are JPEGs of 500x375 pixels for a
network with 224. They are composed of the photographs in JOSLIM_DATA, where that is set.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from reporting import at_least, at_most, report

import joslim
from joslim.data import Data, load_data
from joslim.data.augment import steps

BATCH = 128
CLASSES = 100
FOLDER_BATCH, SIZE = 64, 224
WORKER_BATCHES = 16
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
    with tempfile.TemporaryDirectory() as name:
        folder, source = Path(name), write_photos(Path(name))
        folder_rows, folder_figures = folder_speeds(folder, f"{source}, one core", options.rounds)
        worker_rows, worker_figures = worker_speeds(folder, options.rounds)
    rows += folder_rows + worker_rows
    figures |= folder_figures | worker_figures
    load = os.getloadavg()[1]
    title = (
        f"{options.rounds} interleaved rounds, {options.threads} threads for batch and step; "
        f"{load:.1f} processes were running on {os.cpu_count()} cores"
    )
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


def folder_speeds(
    folder: Path, label: str, rounds: int
) -> tuple[list[dict[str, object]], dict[str, dict[str, object]]]:
    """Images per second of processor time: ours, and what others do with the same files."""
    ours = load_data(f"folder:{folder}", size=SIZE)
    schedule = steps(0, ours.sizes["train"], FOLDER_BATCH)
    runs = {
        "ours, cropped, flipped and coloured": drawer(ours, FOLDER_BATCH),
        "ours, cropped": lambda: ours._decoder("train", 0).pixels(next(schedule)),
        "plain PIL": of_files(folder, plain_pil),
        "plain PIL with draft": of_files(folder, drafting_pil),
    }
    if decode := decode_jpeg_of_torchvision():
        runs["torchvision's decode_jpeg"] = of_files(folder, decode)
    times = interleaved(runs, rounds, time.process_time)
    speeds = {f"{k}, images/s": [FOLDER_BATCH / t for t in v] for k, v in times.items()}
    plain = times["plain PIL"]
    ratios = {k: [b / a for a, b in zip(v, plain)] for k, v in times.items()}
    rows = table(label, speeds) + table(label, {f"{k}, over plain": v for k, v in ratios.items()})
    whole = statistics.median(ratios["ours, cropped, flipped and coloured"])
    cropped = statistics.median(ratios["ours, cropped"])
    figures = {
        "folder_over_plain_pil": at_least(whole, 0.9),
        "folder_cropped_over_plain_pil": at_least(cropped, 0.9),
    }
    return rows, figures


def worker_speeds(
    folder: Path, rounds: int
) -> tuple[list[dict[str, object]], dict[str, dict[str, object]]]:
    """Images per second of wall time that one and two processes decode, their start included."""
    runs = {f"{workers}": partial(decode_some, folder, workers) for workers in (1, 2)}
    times = interleaved(runs, rounds)
    images = WORKER_BATCHES * FOLDER_BATCH
    speeds = {f"workers: {k}, images/s": [images / t for t in v] for k, v in times.items()}
    ratio = [a / b for a, b in zip(times["1"], times["2"])]
    rows = table("the same, wall time", {**speeds, "two workers over one": ratio})
    return rows, {"two_workers_over_one": at_least(statistics.median(ratio), 1.8)}


def decode_some(folder: Path, workers: int) -> None:
    data = load_data(f"folder:{folder}", size=SIZE, workers=workers)
    schedule = itertools.islice(steps(0, data.sizes["train"], FOLDER_BATCH), WORKER_BATCHES)
    for _ in data._decode_ahead(data._decoder("train", 0), schedule):
        pass


def write_photos(folder: Path) -> str:
    """Write JPEGs of 500x375 pixels and about 100 kB, as those of ImageNet; return what they show.

    Each is composed of 48 small photographs, or of some coarse structure and noise.
    """
    rng = np.random.default_rng(0)
    root = Path(os.environ.get("JOSLIM_DATA", "/nowhere")) / "tinyimagenet50"
    small = sorted(root.glob("train/*/*.jpg"))
    for number in range(4 * FOLDER_BATCH + 4):
        if small:
            image = Image.new("RGB", (8 * 64, 6 * 64))
            for place in range(48):
                with Image.open(small[rng.integers(len(small))]) as part:
                    image.paste(part.convert("RGB"), (place % 8 * 64, place // 8 * 64))
            image = image.resize(PHOTO, Image.Resampling.BICUBIC)
        else:
            coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
            smooth = np.asarray(coarse.resize(PHOTO, Image.Resampling.BICUBIC)).astype(int)
            noisy = smooth + rng.normal(0, 12, smooth.shape)
            image = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
        split = "train" if number >= 4 else "val"
        path = folder / split / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, quality=90)
    kind = "photographs" if small else "made-up photographs (JOSLIM_DATA has none)"
    return f"{kind} of {PHOTO[0]}x{PHOTO[1]} for {SIZE} px"


def of_files(folder: Path, read: Callable[[Path], np.ndarray]) -> Callable[[], object]:
    paths = sorted(path for path in (folder / "train").rglob("*.*") if path.is_file())
    random.Random(0).shuffle(paths)
    endless = itertools.cycle(paths)
    return lambda: np.stack([read(path) for path in itertools.islice(endless, FOLDER_BATCH)])


def plain_pil(path: Path) -> np.ndarray:
    """The least that anybody does: decode and resize."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def drafting_pil(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        image.draft("RGB", (SIZE, SIZE))
        return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def decode_jpeg_of_torchvision() -> Callable[[Path], np.ndarray] | None:
    """Return a reader that decodes and resizes with torchvision, if it can be used here."""
    try:
        from torchvision.io import decode_jpeg, read_file
        from torchvision.transforms.v2.functional import resize

        decode_jpeg(torch.zeros(0, dtype=torch.uint8))
    except Exception as error:  # an empty file is refused by the decoder itself
        if "jpeg" not in str(error).lower() or "extension" in str(error):
            print(f"torchvision's decode_jpeg is not measured: {str(error).splitlines()[0]}")
            return None

    def read(path: Path) -> np.ndarray:
        return resize(decode_jpeg(read_file(str(path))), [SIZE, SIZE]).numpy()

    return read


def interleaved(
    runs: dict[str, Callable[[], object]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each run in each round, in random order; the first two rounds warm up."""
    times: dict[str, list[float]] = {label: [] for label in runs}
    order = list(runs.items())
    shuffle = random.Random(0).shuffle
    for turn in range(rounds + 2):
        shuffle(order)
        for label, run in order:
            start = clock()
            run()
            if turn >= 2:
                times[label].append(clock() - start)
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
