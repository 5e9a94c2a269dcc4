"""The study: does joint optimization pay, and what makes it pay more?

    JOSLIM_DATA=folder python experiments/study.py joslim-30 bignas-30 --seeds 0,1,2
    python experiments/study.py --list
    python experiments/study.py --latency    # times of the children of the rows "knobs"

A row is one method with its settings. It is trained once for each seed, under --out: what is
finished is not trained again, and what was stopped goes on. Afterwards experiments/results/ROW.json
holds its figures, and `python experiments/results.py` makes docs/results.md of all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import joslim
from joslim.comparing import Entry
from joslim.costs.latency import held_out_error
from joslim.data.download import ROOT_VARIABLE
from joslim.front import Front, Point
from joslim.results.run_files import last_metrics
from joslim.space import WidthSpace

HOUSE = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"

Row = dict[str, Any]

# Where the methods meet: a hundred epochs take a quarter of an hour on one core.
TWENTY = "twenty classes of cifar100"
RESNET8: Row = {"model": "resnet8", "data": TWENTY, "size": 16, "recipe": "cifar", "threads": 1}
# The full network, the smallest and M = 2 others learn in every step, as in the paper.
ALL: Row = {"draw": 3, "full_first": 0.0}
# The full network alone at first, then one other beside it.
CHEAP: Row = {"draw": 1, "full_first": 0.3}
# The warm-up of the recipe `cifar`.
WARMUP = 0.05
# How many children a step trains besides the full network, by the name in the rows.
IN_A_STEP: dict[str, Row] = {
    "all": ALL,
    "two": {"draw": 2, "full_first": 0.0},
    "one": CHEAP,
    "one-alone-0.1": {"draw": 1, "full_first": 0.1},
    "one-never-alone": {"draw": 1, "full_first": 0.0},
    "all-after-alone": {"draw": 3, "full_first": 0.3},
    "all-weight-1": {**ALL, "full_weight": 1.0},
}
# Networks with blocks to leave out, and images that have something to lose. The first is the row
# with widths alone.
PHOTOS, FIFTY = "ten classes of photographs", "fifty classes of photographs"
TWENTY_PHOTOS = "twenty classes of photographs"
OFTEN: Row = {"every": 8, "warmup": 0.1}
DEEPER: Row = {"model": "resnet20", "size": 24, "amp": "bf16", "front_images": 1024, **OFTEN}
MOBILE: Row = {"model": "mobilenet_v2", "data": PHOTOS, "size": 48, "batch": 64, "divisor": 8}
MOBILE |= {"lr": 0.02, "front_images": 512, **OFTEN}
# What children may differ in, and the epochs of both networks that take as long as with widths
# alone.
KNOBS: dict[str, tuple[tuple[str, ...], tuple[int, int]]] = {
    "widths": ((), (20, 8)),
    "resolution": (("resolutions",), (24, 10)),
    "depth": (("depth",), (23, 9)),
    "both": (("resolutions", "depth"), (26, 11)),
}
# The networks of these rows with all knobs: model, classes, pixels, sizes of the input.
TIMED = {
    "": ("resnet20", 20, 24, (12, 16, 20, 24)),
    "-mobilenet": ("mobilenet_v2", 10, 48, (24, 32, 40, 48)),
}
TIMED_CHILDREN, TIMED_REPEATS = 48, 15
LENGTHS = (8, 30, 100)
# Epochs of a training with one child in a step that has as many passes as one with all of them.
AS_LONG = {8: 19, 30: 71, 100: 235}
SIZES = (1.0, 0.7, 0.5, 0.316)


def sizes_of(network: str) -> str:
    return ",".join(map(str, TIMED[network][3]))


# Of the methods that search.
MIXED: Row = {"random_share": 0.6}


def row(method: str, epochs: float, **settings: Any) -> Row:
    mixed = MIXED if method == "joslim" else {}
    found = {"method": method, "cost": "macs", **RESNET8, "epochs": epochs, **ALL, **mixed}
    return {**found, **settings}


METHODS = ("slim", "bignas", "joslim")
# A ResNet20 whose inner layers have a width each: 12 knobs.
UNTIED: Row = {"model": "study:untied_resnet20", "warmup": WARMUP, **CHEAP}
SHORT_RESNET20: Row = {"model": "resnet20", "amp": "bf16"}
# The paper's search and weights, and ours without random children.
OF_THE_PAPER: Row = {"preset": "paper", "random_share": 0.0, "full_weight": 1.0}
OURS_WITHOUT: Row = {"random_share": 0.0, "full_weight": 1.0}
ROWS: dict[str, Row] = {
    # 1. Joint or not: all methods, all widths in every step.
    **{f"{name}-{epochs}": row(name, epochs) for epochs in LENGTHS for name in METHODS},
    **{f"{name}-30-memory": row(name, 30, cost="memory") for name in METHODS},
    # 2. How many children a step trains, by the length of the training, with the recipe's warm-up.
    **{
        f"joslim-{epochs}-{name}": row("joslim", epochs, **settings, warmup=WARMUP)
        for epochs in LENGTHS
        for name, settings in IN_A_STEP.items()
    },
    # The length of the warm-up, and a deeper network that cannot begin without one.
    **{
        f"joslim-30-{name}-warmup-{warmup:g}": row("joslim", 30, **settings, warmup=warmup)
        for warmup in (0.02, 0.1)
        for name, settings in (("all", ALL), ("one", CHEAP))
    },
    **{
        f"resnet20-10-{name}-warmup-{warmup:g}": row("joslim", 10, **SHORT_RESNET20, **settings)
        | {"warmup": warmup}
        for warmup in (0.0, 0.02, 0.05, 0.1)
        for name, settings in (("all", ALL), ("one", CHEAP))
    },
    # The same on other images.
    **{
        f"photos-100-{name}": row("joslim", 100, **IN_A_STEP[name], data=TWENTY_PHOTOS)
        | {"warmup": WARMUP}
        for name in ("all", "one")
    },
    # As many passes as the training with all children has.
    **{
        f"joslim-{as_long}-one": row("joslim", as_long, **CHEAP, warmup=WARMUP)
        for as_long in AS_LONG.values()
    },
    # 3. What else could be otherwise.
    **{
        f"joslim-30-random-{share:g}": row("joslim", 30, random_share=share)
        for share in (0.0, 0.3, 1.0)
    },
    "joslim-30-alpha": row("joslim", 30, distill="alpha"),
    "joslim-30-ema": row("joslim", 30, teacher="ema"),
    "joslim-30-next": row("joslim", 30, teacher="next"),
    # 4. From the paper to the default, one change after the other; the last three are joslim-30,
    # joslim-30-all and joslim-30-one. K of the first three is large enough for the paper's search.
    "paper-30": row("joslim", 30, **OF_THE_PAPER, every=25),
    "paper-30-targeted": row("joslim", 30, **OURS_WITHOUT, log_share=0.0, every=25),
    "paper-30-log": row("joslim", 30, **OURS_WITHOUT, every=25),
    "paper-30-often": row("joslim", 30, **OURS_WITHOUT),
    # K and bisection, as the paper has them.
    **{f"paper-30-k-{k}": row("joslim", 30, **OF_THE_PAPER, every=k) for k in (12, 50, 100, 200)},
    "paper-30-rs": row("joslim", 30, **OF_THE_PAPER, searcher="mobo-rs", every=25),
    # 5. What a user would do instead.
    **{
        f"single-{size:g}-{epochs}": row("single", epochs, widths=f"{size:g}")
        for epochs in LENGTHS
        for size in SIZES
    },
    # 6. A deeper network with more knobs, and two costs.
    **{
        f"{name}-resnet20-30{end}": row(name, 30, **UNTIED, cost=cost)
        for name in METHODS
        for end, cost in (("", "macs"), ("-memory", "memory"))
    },
    # 7. Children that differ in more than their widths.
    **{
        f"knobs-{network}{name}": row("joslim", epochs[place], **CHEAP, **settings)
        | {knob: value for knob, value in values.items() if knob in knobs}
        for place, (network, settings, values) in enumerate(
            (
                ("", DEEPER, {"resolutions": sizes_of(""), "depth": True}),
                ("mobilenet-", MOBILE, {"resolutions": sizes_of("-mobilenet"), "depth": True}),
            )
        )
        for name, (knobs, epochs) in KNOBS.items()
    },
}
# Slim and bignas train without a look at the cost: the same weights are judged again.
for _name in ("slim-30", "bignas-30", "slim-resnet20-30", "bignas-resnet20-30"):
    ROWS[f"{_name}-memory"]["weights_of"] = _name
# The first round, of trainings of about eight epochs: rows as they were kept.
ROWS |= {
    file.stem: stored["settings"]
    for file in sorted(RESULTS.glob("*.json"))
    if file.stem not in ROWS and "settings" in (stored := json.loads(file.read_text()))
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="by name; all of them if none")
    parser.add_argument("--latency", action="store_true", help="measure the children of knobs")
    parser.add_argument("--list", action="store_true", help="print the rows and their settings")
    parser.add_argument("--seeds", default="0,1,2", help="%(default)s")
    parser.add_argument("--out", type=Path, default=Path("runs/study"), help="%(default)s")
    parser.add_argument("--at-once", type=int, default=2, help="trainings at once; %(default)s")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.rows) - set(ROWS):
        parser.error(f"{min(unknown)!r} is no row; choose from {', '.join(ROWS)}")
    rows = options.rows or [*ROWS]
    seeds = [int(seed) for seed in options.seeds.split(",")]
    if options.list:
        for name in rows:
            print(f"{name:<24} {json.dumps(ROWS[name])}")
    elif options.latency:
        for network in TIMED:
            measure(network)
    elif options.here:
        train(rows[0], seeds[0], options.out)
    else:
        # One seed after the other, so that all rows have as many if the study is stopped.
        tasks = [(row, seed) for seed in seeds for row in rows if seed not in kept_runs(row)]
        with ThreadPoolExecutor(options.at_once) as pool:
            codes = pool.map(lambda task: train_in_process(*task, options.out), tasks)
            for (name, seed), code in zip(tasks, codes):
                if code == 0:
                    keep(name, seed, options.out)
                else:
                    print(f"{name}, seed {seed}: failed with exit code {code}", file=sys.stderr)


def train_in_process(name: str, seed: int, out: Path) -> int:
    command = [sys.executable, __file__, name, "--seeds", str(seed), "--out", str(out), "--here"]
    return subprocess.run(command).returncode


def folder_of(name: str, seed: int, out: Path) -> Path:
    return out / name / f"seed{seed}"


def train(name: str, seed: int, out: Path) -> None:
    """Train a row, or continue its training; there is no warm-up in the rows that name none."""
    settings, folder = {"warmup": 0.0, **ROWS[name]}, folder_of(name, seed, out)
    if "device_file" in settings:
        settings["device_file"] = str(RESULTS / settings["device_file"])
    if settings["data"] in CLASSES:
        settings["data"] = CLASSES[settings["data"]](settings.pop("size"))
    elif settings["data"].startswith("folder:"):  # where the other data lie too
        place = Path(os.environ.get(ROOT_VARIABLE, ".")) / settings["data"].removeprefix("folder:")
        settings["data"] = f"folder:{place}"
    if source := settings.get("weights_of"):  # judge the same weights again
        train(source, seed, out)
        weights = folder_of(source, seed, out)
        given = {name: settings.get(name) for name in ("data", "device_file")}
        given["model"] = model if ":" in (model := settings["model"]) else None
        joslim.rejudge(weights, settings["cost"], folder, **given, overwrite=True)
    else:
        joslim.train(**settings, seed=seed, out=folder, resume=True)


def untied_resnet20(num_classes: int = 20) -> torch.nn.Module:
    """Make a ResNet20 whose inner layers do not share a width within their stage."""
    model = joslim.models.MODELS["resnet20"](num_classes)
    model.slim_defaults = {"low": model.slim_defaults["low"]}
    return model


def twenty_classes(size: int) -> joslim.Data:
    """The first twenty classes of CIFAR-100: 8,000 images to train, 2,000 to validate, 2,000 to
    test.
    """
    whole = joslim.load_data("cifar100", val=0)

    def part(split: str) -> list[tuple[NDArray[Any], int]]:
        images = whole.images(split)
        pairs = zip(images.pixels.numpy(), images.labels.tolist())
        return [(pixels, label) for pixels, label in pairs if label < 20]

    return joslim.load_data((part("train"), part("test")), size=size, val=2000)


def photographs(classes: int, size: int) -> joslim.Data:
    """The first classes of tinyimagenet50, with a tenth of the training images to validate. Of ten
    classes 4,500 images to train, 500 to validate, 500 to test.
    """
    folder = Path(os.environ.get(ROOT_VARIABLE, ".")) / "tinyimagenet50"

    def part(split: str) -> list[tuple[NDArray[Any], int]]:
        return [
            (np.asarray(Image.open(file).convert("RGB")), label)
            for label, images in enumerate(sorted((folder / split).iterdir())[:classes])
            for file in sorted(images.rglob("*.jpg"))
        ]

    return joslim.load_data((part("train"), part("val")), size=size, val=0.1)


def latency_of(network: str, **options: Any) -> joslim.Cost:
    """The latency of a network with all knobs; an untrained one takes as long as a trained one."""
    model, classes, pixels, sizes = TIMED[network]
    untrained = joslim.models.MODELS[model](num_classes=classes)
    example = torch.zeros(1, 3, pixels, pixels)
    net = joslim.slim(untrained, example, resolutions=sizes, depth=True)
    return joslim.cost("latency", net, **options)


def measure(network: str) -> None:
    """Measure children as ONNX files, with one thread, and keep the times."""
    how = {"threads": 1, "backend": "onnxruntime", "repeats": TIMED_REPEATS}
    latency = latency_of(network, children=TIMED_CHILDREN, **how)
    measured, blueprint = latency.device_file, latency.net.blueprint
    measured.write(latency_file(network))
    off = held_out_error(blueprint, measured.counts, np.array(measured.ms))
    print(f"{latency_file(network).name}: off by {100 * off:.1f} % on children not seen")


def latency_file(network: str) -> Path:
    return RESULTS / f"latency-knobs{network}.json"


CLASSES: dict[str, Callable[[int], joslim.Data]] = {
    TWENTY: twenty_classes,
    PHOTOS: partial(photographs, 10),
    TWENTY_PHOTOS: partial(photographs, 20),
    FIFTY: partial(photographs, 50),
}


def keep(name: str, seed: int, out: Path) -> None:
    """Keep the small part of a run that belongs into the repository: one line of ROW.json."""
    folder = folder_of(name, seed, out)
    trained, last = joslim.load(folder), last_metrics(folder)
    front = trained.front
    # Of each child its channels, its costs, its training loss and its errors.
    children = [
        [
            list(point.widths.counts),
            [point.costs[name] for name in front.costs],
            *(point.train_loss, point.val_error, point.test_error),
        ]
        for point in front
    ]
    run = {
        "seed": seed,
        "seconds": last["seconds"],
        "parts": last.get("parts", {}),
        "span": list(front.span),
        "children": children,
    }
    head = {
        "settings": ROWS[name],
        "commit": commit(),
        "costs": list(front.costs),
        "space": front.space.to_json(),
    }
    runs = {**kept_runs(name), seed: run}
    lines = [json.dumps(runs[seed]) for seed in sorted(runs)]
    text = json.dumps(head)[:-1] + ', "runs": [\n' + ",\n".join(lines) + "\n]}\n"
    (RESULTS / f"{name}.json").write_text(text)
    print(f"{name}, seed {seed}: validation area {front.area('val_error') or 0:.2f}")


def kept_runs(name: str) -> dict[int, dict[str, Any]]:
    """Return what was kept of a row, by seed, if it was trained with the same settings."""
    file = RESULTS / f"{name}.json"
    stored = json.loads(file.read_text()) if file.is_file() else {}
    runs = stored["runs"] if stored.get("settings") == ROWS[name] else []
    return {run["seed"]: run for run in runs}


def kept(name: str, label: str | None = None) -> list[Entry]:
    """The runs of a row as they were kept; `label` stands for its method."""
    row = json.loads((RESULTS / f"{name}.json").read_text())
    settings, space = row["settings"], WidthSpace.of_json(row["space"])
    return [
        Entry(
            settings["model"],
            settings["cost"],
            label or settings["method"],
            run["seed"],
            RESULTS / f"{name}.json",
            front=Front(
                [
                    Point(space.of_counts(counts), dict(zip(row["costs"], costs)), *figures)
                    for counts, costs, *figures in run["children"]
                ],
                settings["cost"],
                (run["span"][0], run["span"][1]),
            ),
            seconds=run["seconds"],
        )
        for run in row["runs"]
    ]


def commit() -> str:
    """Where the code is from. Results that are not committed yet do not count as changes of it."""

    def git(*words: str) -> str:
        found = subprocess.run(["git", *words], capture_output=True, text=True, cwd=HOUSE)
        return found.stdout.strip()

    changed = git("status", "--porcelain", "--", "joslim", "experiments/*.py")
    return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")


if __name__ == "__main__":
    main()
