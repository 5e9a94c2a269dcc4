"""The study: does joint optimization pay, and what makes it pay more?

    JOSLIM_DATA=folder python experiments/study.py methods --seeds 0,1,2
    python experiments/study.py --list

Every row is a comparison (docs/compare.md) under --out: what is finished is read and not trained
again, and a study that was stopped goes on. Afterwards experiments/results/ROW.json holds what
docs/results.md is made of: areas, errors at shares of the full cost, seconds, the children found.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import joslim
from joslim.comparing.comparison import Comparison
from joslim.errors import UserError

RESULTS = Path(__file__).parent / "results"
SHARES = (0.1, 0.15, 0.25, 0.5, 0.75, 1.0)

# CIFAR-100 at 16 px, ResNet8, batch 128: about 7 minutes a run on one core.
SMALL: dict[str, Any] = {
    "models": ["resnet8"],
    "data": "cifar100",
    "size": 16,
    "steps": 2400,
    "every": 15,
    "val": 0.1,
    "threads": 1,
}
THREE = ["slim", "bignas", "joslim"]


def row(*methods: str, costs: tuple[str, ...] = ("macs",), **settings: Any) -> dict[str, Any]:
    return {"methods": list(methods), "costs": list(costs), **SMALL, **settings}


ROWS: dict[str, dict[str, Any]] = {
    # What the paper claims, with its learning rate.
    "methods": row(*THREE, "autoslim"),
    "methods-memory": row(*THREE, "autoslim", costs=("memory",)),
    # The recipe moves more than the search does: the same methods with others.
    "lr-0.25": row(*THREE, lr=0.25),
    "labels-0.5": row(*THREE, lr=0.25, label_share=0.5),
    "labels-1": row(*THREE, lr=0.25, label_share=1.0),
    "alpha": row("slim", "joslim", lr=0.25, distill="alpha"),
    # What Joslim could do otherwise.
    "replay-0.5": row("joslim", lr=0.25, replay=0.5),
    "replay-0.8": row("joslim", lr=0.25, replay=0.8),
    "every-60": row("joslim", lr=0.25, every=60),
    "samples-4": row("joslim", lr=0.25, samples=4),
    "scored-on-1024": row("joslim", lr=0.25, score_images=1024),
    "smoothing": row("slim", "joslim", lr=0.25, label_smoothing=0.1),
}


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
            print(f"{name:<16} {json.dumps(ROWS[name])}")
            continue
        seeds = [int(seed) for seed in options.seeds.split(",")]
        try:
            comparison = joslim.compare(
                seeds=seeds, out=options.out / name, at_once=options.at_once, **ROWS[name]
            )
        except UserError as error:
            raise SystemExit(f"{name}: {error}") from error
        keep(name, comparison)


def keep(name: str, comparison: Comparison) -> None:
    """The small part of a comparison that belongs into the repository."""
    RESULTS.mkdir(exist_ok=True)
    runs = [
        {
            "method": entry.method,
            "cost": entry.cost,
            "model": entry.model,
            "seed": entry.seed,
            "seconds": entry.seconds,
            "area": entry.front.area(),
            "children": [
                [point.costs[entry.front.key], point.train_loss, point.test_error]
                for point in entry.front
            ],
        }
        for entry in comparison.entries
        if entry.front is not None
    ]
    content = {"settings": ROWS[name], "table": comparison.table(shares=SHARES), "runs": runs}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    for line in comparison.table(shares=SHARES):
        print(name, line["method"], line["area"])


if __name__ == "__main__":
    main()
