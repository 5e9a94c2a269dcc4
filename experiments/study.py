"""The study: does joint optimization pay, and what makes it pay more?

    JOSLIM_DATA=folder python experiments/study.py slim joslim --seeds 0,1,2
    python experiments/study.py --list

A row is one method with its settings, for some seeds. It is a comparison (docs/compare.md) under
--out: what is finished is not trained again, and a study that was stopped goes on. Afterwards
experiments/results/ROW.json holds its figures, and `python experiments/results.py` makes
docs/results.md of all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import joslim
from joslim.comparing import Entry
from joslim.data.download import ROOT_VARIABLE
from joslim.errors import UserError
from joslim.front import Front, Point
from joslim.results.run_files import METRICS, last_metrics
from joslim.runs.config import SEARCHING
from joslim.runs.setup import set_up
from joslim.space import WidthSpace

HOUSE = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"

Row = dict[str, Any]

# All learn in every step, as in the paper: the full network, the smallest and M = 2 others.
ALL: Row = {"draw": 3, "full_first": 0.0}
# The default: the full network alone at first, then one other beside it.
DRAWN: Row = {"draw": 1, "full_first": 0.3}

# Where the methods meet. On one core of a small machine a run takes 5 to 8 minutes.
RESNET8: Row = {
    "model": "resnet8",
    "data": "cifar100",
    "size": 16,
    "steps": 2000,
    "every": 15,
    "val": 1000,
    "lr": 0.25,
    "full_weight": 3.0,
    **ALL,
    "log_share": 0.0,
    "threads": 1,
}
# Steps take half as long, so there are more; and with fewer passes in each, fewer rounds.
RESNET8_DRAWN: Row = {
    **RESNET8,
    **DRAWN,
    "steps": 3000,
    "every": 30,
    "log_share": 0.5,
}
# Fewer steps, for each takes more than twice as long. A deeper network does not begin to learn with
# the rate of ResNet8.
RESNET20: Row = {
    **RESNET8,
    "model": "resnet20",
    "steps": 1000,
    "lr": 0.1,
    "warmup": 0.1,
    "log_share": 0.5,
}
RESNET20_DRAWN: Row = {**RESNET20, **DRAWN, "steps": 1500, "every": 30}
# A network made for large images, on small ones: it wants a low rate, and learns slowly.
MOBILENET_PHOTOS: Row = {
    "model": "mobilenet_v2",
    "data": "folder:tinyimagenet50",
    "size": 32,
    "batch": 64,
    "steps": 1200,
    "every": 30,
    "val": 1000,
    "crop_scale": 0.6,
    "lr": 0.002,
    "warmup": 0.1,
    "full_weight": 3.0,
    **DRAWN,
    "log_share": 0.5,
    "threads": 1,
}
MOBILENET: Row = {
    "model": "mobilenet_v2",
    "data": "digits",
    "size": 32,
    "batch": 64,
    "steps": 400,
    "every": 10,
    "lr": 0.02,
    "warmup": 0.1,
    "full_weight": 3.0,
    **ALL,
    "log_share": 0.5,
    "threads": 1,
}
# Small enough for the paper's search, which is slow, and for rounds as often as one likes.
DIGITS: Row = {
    "model": "resnet8",
    "data": "digits",
    "steps": 600,
    "every": 20,
    "full_weight": 3.0,
    **ALL,
    "log_share": 0.5,
    "threads": 1,
}
DIGITS_DRAWN: Row = {**DIGITS, **DRAWN}
# The sizes of networks that are trained one by one: multipliers of all widths.
SIZES = (1.0, 0.85, 0.7, 0.5, 0.316)


def row(method: str, base: Row = RESNET8, /, **settings: Any) -> Row:
    found = {"method": method, "cost": "macs", **base, **settings}
    if method not in SEARCHING or "searcher" in settings:  # only the default search takes it
        found.pop("log_share", None)
    if method in SEARCHING:  # as the default was when the first of these were trained, and is now
        often = 2 * found["every"] if found["draw"] == ALL["draw"] else found["every"] // 2
        found["rescore"] = min(64, max(8, often))
    return found


def by_cost(cost: str, base: Row = RESNET8, end: str = "", **settings: Any) -> dict[str, Row]:
    """The methods with another cost: slim and bignas train as ever, and are judged again."""
    rows = {f"{name}{end}-{cost}": row(name, base, cost=cost, **settings) for name in METHODS}
    for name in ("slim", "bignas"):
        rows[f"{name}{end}-{cost}"]["weights_of"] = f"{name}{end}"
    return rows


METHODS = ("slim", "bignas", "autoslim", "joslim")
TIMED = "latency-resnet8.json"

ROWS: dict[str, Row] = {
    # 1. What the paper claims.
    **{name: row(name) for name in METHODS},
    **by_cost("memory"),
    **by_cost("latency", device_file=TIMED),
    **{f"{name}-drawn": row(name, RESNET8_DRAWN) for name in METHODS},
    **by_cost("memory", RESNET8_DRAWN, "-drawn"),
    **by_cost("latency", RESNET8_DRAWN, "-drawn", device_file=TIMED),
    # 2. What a user would do instead.
    **{f"single-{size:g}": row("single", widths=f"{size:g}") for size in SIZES},
    **{
        f"single-{size:g}-longer": row("single", widths=f"{size:g}", steps=3000)
        for size in (1.0, 0.5)
    },
    # Joint, as well as alone: fewer passes a step, and more steps in the same time.
    "joslim-fewer-passes": row("joslim", samples=1, full_first=0.3),
    "joslim-longer": row("joslim", samples=1, full_first=0.3, steps=3000),
    "joslim-longer-log": row("joslim", samples=1, full_first=0.3, steps=3000, log_share=0.5),
    # The same with four times fewer rounds, which take a sixth of that time.
    "joslim-longer-seldom": row(
        "joslim", samples=1, full_first=0.3, steps=3000, log_share=0.5, every=60
    ),
    # One other width in a step, with as many steps as all.
    "joslim-drawn-2000": row("joslim", RESNET8_DRAWN, steps=2000),
    # Networks alone at the rate that the full one prefers, by the same validation.
    **{f"single-{size:g}-lr-0.8": row("single", widths=f"{size:g}", lr=0.8) for size in SIZES},
    # 3. What moves the area: the recipe first, which all methods share.
    "slim-full-weight-1": row("slim", full_weight=1.0),
    "joslim-full-weight-1": row("joslim", full_weight=1.0),
    "slim-full-first": row("slim", full_first=0.3),
    # Is it the weight, or that the votes add up to six instead of four? A step as long, with 1.
    "slim-lr-0.375-full-weight-1": row("slim", lr=0.375, full_weight=1.0),
    "slim-labels": row("slim", label_share=1.0),
    # What joslim could do otherwise.
    "joslim-full-first": row("joslim", full_first=0.3),
    "joslim-one-width": row("joslim", samples=1),
    "joslim-labels": row("joslim", label_share=1.0),
    "joslim-half-labels": row("joslim", label_share=0.5),
    "joslim-alpha": row("joslim", distill="alpha"),
    "joslim-replay-0.5": row("joslim", replay=0.5),
    "joslim-replay-0.8": row("joslim", replay=0.8),
    "joslim-every-4": row("joslim", every=4),
    "joslim-every-60": row("joslim", every=60),
    "joslim-smoothing": row("joslim", label_smoothing=0.1),
    "joslim-scored-on-1024": row("joslim", score_images=1024),
    # K; and the paper's search, with its ablation without bisection.
    **{f"joslim-digits-every-{k}": row("joslim", DIGITS, every=k) for k in (5, 80)},
    **{
        f"joslim-digits-{name}": row("joslim", DIGITS, searcher=name)
        for name in ("mobo-ts2", "mobo-rs")
    },
    "joslim-digits": row("joslim", DIGITS),
    "joslim-digits-drawn": row("joslim", DIGITS_DRAWN),
    "joslim-digits-drawn-longer": row("joslim", DIGITS_DRAWN, steps=1000),
    # 4. More knobs.
    **{f"{name}-resnet20": row(name, RESNET20) for name in METHODS},
    **{f"{name}-resnet20-drawn": row(name, RESNET20_DRAWN) for name in METHODS},
    **{f"{name}-mobilenet": row(name, MOBILENET, cost="memory") for name in METHODS},
    **{f"{name}-photos": row(name, MOBILENET_PHOTOS, cost="memory") for name in METHODS},
}

# The learning rate, tried with as much effort for each: with seed 0, by validation.
TUNED = ("slim", "bignas", "joslim", "single-1", "single-0.5")
RATES = (0.15, 0.4)
ROWS |= {f"{name}-lr-{lr:g}": {**ROWS[name], "lr": lr} for name in TUNED for lr in RATES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="by name; all of them if none")
    parser.add_argument("--list", action="store_true", help="print the rows and their settings")
    parser.add_argument("--seeds", default="0,1,2", help="%(default)s")
    parser.add_argument("--out", type=Path, default=Path("runs/study"), help="%(default)s")
    parser.add_argument("--at-once", type=int, help="trainings at the same time")
    options = parser.parse_args()
    if unknown := set(options.rows) - set(ROWS):
        parser.error(f"{min(unknown)!r} is no row; choose from {', '.join(ROWS)}")
    for name in options.rows or ROWS:
        if options.list:
            print(f"{name:<24} {json.dumps(ROWS[name])}")
            continue
        seeds = [int(seed) for seed in options.seeds.split(",")]
        try:
            keep(name, found(name, seeds, options.out, options.at_once))
        except UserError as error:
            raise SystemExit(f"{name}: {error}") from error


def found(name: str, seeds: list[int], out: Path, at_once: int | None) -> list[Entry]:
    if "weights_of" in ROWS[name]:
        return [judged_again(name, seed, out) for seed in seeds]
    return trained(name, seeds, out, at_once)


def trained(name: str, seeds: list[int], out: Path, at_once: int | None) -> list[Entry]:
    comparison = joslim.compare(seeds=seeds, out=out / name, at_once=at_once, **asked(name))
    return [entry for entry in comparison.entries if entry.seed in seeds]


def asked(name: str) -> Row:
    """The comparison that is this row."""
    settings = dict(ROWS[name])
    if "device_file" in settings:
        settings["device_file"] = str(RESULTS / settings["device_file"])
    kind, _, name = settings["data"].partition(":")
    if name:  # where the other data lie too
        settings["data"] = f"{kind}:{Path(os.environ.get(ROOT_VARIABLE, '.')) / name}"
    one = {f"{key}s": [settings.pop(key)] for key in ("method", "cost", "model")}
    return {**one, **settings}


def judged_again(name: str, seed: int, out: Path) -> Entry:
    """Widths of another cost for weights that were trained without a look at any."""
    settings = ROWS[name]
    method, model, cost = (settings[key] for key in ("method", "model", "cost"))
    source = out / settings["weights_of"] / f"{model}-macs-{method}-seed{seed}"
    run = joslim.load(source)
    file = settings.get("device_file")
    config = replace(
        run.config,
        cost=cost,
        device_file=str(RESULTS / file) if file else None,
        log_share=settings.get("log_share"),
    )
    torch.manual_seed(seed)
    start = time.perf_counter()
    job = set_up(config)
    job.net.load_state_dict(run.net.state_dict())
    job.slimming.steps = job.total_steps
    front = job.front()
    # As if it had been trained with this cost: the training once, the choosing and judging anew.
    training = end_of_training(source)
    seconds = training["seconds"] + time.perf_counter() - start
    parts = {"data": training["parts"]["data"], **job.slimming.seconds}
    folder = out / name / f"{model}-{cost}-{method}-seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    record = {"step": job.total_steps, "phase": "front", "seconds": seconds, "parts": parts}
    (folder / METRICS).write_text(json.dumps(record) + "\n")
    return Entry(model, cost, method, seed, folder, front=front, seconds=seconds)


def end_of_training(run: Path) -> dict[str, Any]:
    """What metrics.jsonl says of the last step, before children were chosen and judged."""
    records = map(json.loads, (run / METRICS).read_text().splitlines())
    *_, last = (record for record in records if "phase" not in record)
    return last


def keep(name: str, entries: list[Entry]) -> None:
    """The small part of the runs that belongs into the repository: a line for each of them."""
    RESULTS.mkdir(exist_ok=True)
    for entry in entries:
        print(name, entry.seed, entry.failure or f"area {entry.front and entry.front.area():.2f}")
    fronts = [(entry, entry.front) for entry in entries if entry.front is not None]
    if not fronts:
        return
    first = fronts[0][1]
    head = {
        "settings": ROWS[name],
        "commit": commit(),
        "costs": list(first.costs),
        "space": first.space.to_json(),
    }
    runs = {run["seed"]: run for run in kept_runs(name)}
    runs |= {entry.seed: run_of(entry, front) for entry, front in fronts}
    lines = [json.dumps(runs[seed]) for seed in sorted(runs)]
    text = json.dumps(head)[:-1] + ', "runs": [\n' + ",\n".join(lines) + "\n]}\n"
    (RESULTS / f"{name}.json").write_text(text)


def kept_runs(name: str) -> list[dict[str, Any]]:
    """Of other seeds, from before: those of the same settings."""
    file = RESULTS / f"{name}.json"
    row = json.loads(file.read_text()) if file.is_file() else {}
    return row["runs"] if row.get("settings") == ROWS[name] else []


def run_of(entry: Entry, front: Front) -> dict[str, Any]:
    """Of each child its channels, its costs, its training loss and its errors."""
    children = [
        [
            list(point.widths.counts),
            [point.costs[name] for name in front.costs],
            *(point.train_loss, point.val_error, point.test_error),
        ]
        for point in front
    ]
    return {
        "seed": entry.seed,
        "seconds": entry.seconds,
        "parts": last_metrics(entry.path).get("parts", {}),
        "span": list(front.span),
        "children": children,
    }


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
