"""Does a joint search lock itself in? Children that were trained often score well for that alone.

    JOSLIM_DATA=folder python experiments/lock_in.py joslim-30-random-0 joslim-30 bignas-30

Takes finished runs of experiments/study.py (--runs is their folder). Of each it draws children of
similar cost, half of them from those that the search visited, half at random, and compares

- their losses in the run, with its shared weights, and
- their losses after each of them was cut out and trained alone for as many steps as all others.

If a search knows which children are good, both agree: the rank correlation is high, and the visited
children are ahead of the random ones by as much afterwards as before. If it is locked in, the
visited ones are ahead only before. Losses are those of training images, less what a straight line
in the logarithm of the cost explains. "at lowest" is the share of knobs of the visited children in
this band of costs that have their lowest value.
"""

from __future__ import annotations

import argparse
import json
import statistics
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from drift import rank_correlation
from study import CLASSES, ROWS, folder_of
from torch.nn.functional import cross_entropy

import joslim
from joslim.files import write_whole
from joslim.search.cost_targeting import bring_to_cost, from_unit
from joslim.training.evaluate import score

# Children of these shares of the full cost: where the fronts of joslim were found to be flat.
BAND = (0.2, 0.45)
IMAGES = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("rows", nargs="+", choices=ROWS, metavar="ROW")
    parser.add_argument("--seeds", default="0,1,2", help="%(default)s")
    parser.add_argument("--runs", type=Path, default=Path("runs/study"), help="%(default)s")
    parser.add_argument("--children", type=int, default=40, help="%(default)s")
    parser.add_argument("--steps", type=int, default=126, help="two epochs (%(default)s)")
    parser.add_argument("--rate", type=float, default=0.01, help="%(default)s")
    parser.add_argument("--results", type=Path, default=Path("experiments/results/lock-in.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = {n: getattr(options, n) for n in ("children", "steps", "rate")}
    stored = json.loads(options.results.read_text()) if options.results.is_file() else {}
    parts = stored["parts"] if stored.get("settings") == settings else {}
    for row in options.rows:
        for seed in map(int, options.seeds.split(",")):
            if (name := f"{row} {seed}") not in parts:
                parts[name] = compared(options, row, seed)
                text = json.dumps({"settings": settings, "parts": parts}, indent=1)
                write_whole(options.results, text + "\n")
    show(parts, options.rows)


def compared(options: argparse.Namespace, row: str, seed: int) -> dict[str, Any]:
    run = joslim.load(folder_of(row, seed, options.runs))
    data = CLASSES[ROWS[row]["data"]](ROWS[row]["size"])
    net, batch = run.net, ROWS[row].get("batch", 128)
    scoring = [*data.sweep("train", batch, IMAGES)]
    visited, at_lowest = visited_in_band(run)
    rng = np.random.default_rng(seed)
    half = min(options.children // 2, len(visited))
    chosen = [visited[place] for place in rng.choice(len(visited), half, replace=False)]
    chosen += random_in_band(net, options.children - half, rng)
    macs = joslim.cost("macs", net)
    before = np.array(score(net, chosen, scoring, cross_entropy))
    after = [trained_alone(net, child, data, batch, scoring, options) for child in chosen]
    costs = np.log([macs(child) for child in chosen])
    apart_before, apart_after = without_cost(before, costs), without_cost(np.array(after), costs)
    return {
        "visited": len(visited),
        "at lowest": at_lowest,
        "rank": rank_correlation(apart_before, apart_after),
        "ahead before": float(apart_before[half:].mean() - apart_before[:half].mean()),
        "ahead after": float(apart_after[half:].mean() - apart_after[:half].mean()),
    }


def visited_in_band(run: joslim.Run) -> tuple[list[joslim.Widths], float]:
    """Return the visited children of the band, and the share of their knobs at their lowest."""
    history, full = run.history, run.front.span[1]
    found = [v.widths for v in history.visits if BAND[0] <= v.cost / full <= BAND[1]]
    space = history.space
    counts = np.array([child.counts for child in found])
    return found, float((counts == np.array(space.smallest.counts)).mean())


def random_in_band(
    net: joslim.SlimmableNet, count: int, rng: np.random.Generator
) -> list[joslim.Widths]:
    cost = joslim.cost("macs", net)
    targets = rng.uniform(*BAND, size=count) * cost(net.space.full)
    points = bring_to_cost(cost, rng.random((count, len(net.space))), targets)
    return [net.space.at(multipliers) for multipliers in from_unit(net.space, points)]


def trained_alone(
    net: joslim.SlimmableNet,
    child: joslim.Widths,
    data: joslim.Data,
    batch: int,
    scoring: list[Any],
    options: argparse.Namespace,
) -> float:
    """Train the child alone, from its part of the shared weights, and return its loss."""
    alone = net.child(child)
    alone.train()
    optimizer = torch.optim.SGD(
        alone.parameters(), lr=options.rate, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    for x, y in islice(data.batches(0, batch), options.steps):
        optimizer.zero_grad()
        cross_entropy(alone(x), y).backward()
        optimizer.step()
    with torch.no_grad():  # in train mode: with the statistics of each batch, as before
        return statistics.fmean(cross_entropy(alone(x), y).item() for x, y in scoring)


def without_cost(losses: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Return what a straight line in the logarithm of the cost leaves of the losses."""
    return losses - np.polyval(np.polyfit(costs, losses, 1), costs)


def show(parts: dict[str, dict[str, Any]], rows: list[str]) -> None:
    columns = ("visited", "at lowest", "rank", "ahead before", "ahead after")
    print(f"{'':<24}" + "".join(f"{column:>16}" for column in columns))
    for row in rows:
        of_row = [part for name, part in parts.items() if name.rpartition(" ")[0] == row]
        cells = [[part[column] for part in of_row] for column in columns]
        texts = [f"{statistics.fmean(c):.3g} ± {np.std(c):.2g}" for c in cells]
        print(f"{row:<24}" + "".join(f"{text:>16}" for text in texts), f"({len(of_row)} seeds)")


if __name__ == "__main__":
    main()
