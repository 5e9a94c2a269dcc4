"""How fast do the losses of the history go stale between two rounds?

    python experiments/drift.py --data cifar100 --size 16

The paper shares the history over rounds, although the weights change by K steps in between. Its
appendix bounds the change of a loss by K * eta * L, with the learning rate eta. This trains joslim
under `--preset paper`, and then goes on from the same weights, history and optimizer at several
rates. After some numbers of steps K it scores the history again on the same batch, and compares:
the mean change of a loss, and the rank correlation of the losses before and after. Beside them
stands the rank correlation of the same weights on two batches: the noise of a score.

--out keeps the trained weights and the finished parts, which are not repeated.
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
from torch.nn.functional import cross_entropy

import joslim
from joslim.files import write_whole
from joslim.training.evaluate import score

RATES = (0.4, 0.1, 0.025, 0.00625)
STEPS = (1, 4, 16, 64, 128)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--size", type=int)
    parser.add_argument("--low", type=float, default=0.316)
    parser.add_argument("--steps", type=int, default=400, help="steps of the training before")
    parser.add_argument("--every", type=int, default=20, help="its K")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rates", default=",".join(map(str, RATES)))
    parser.add_argument("--after", default=",".join(map(str, STEPS)))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/drift"))
    parser.add_argument("--results", type=Path, default=Path("experiments/results/drift.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    data = joslim.load_data(options.data, size=options.size)
    parts = []
    for seed in range(options.seeds):
        for rate in map(float, options.rates.split(",")):
            file = options.out / f"{seed}-{rate:g}.json"
            if not file.exists():
                part = drift(options, data, seed, rate)
                write_whole(file, json.dumps(part))
            parts.append(json.loads(file.read_text()))
    settings = {n: value for n, value in vars(options).items() if n not in ("out", "results")}
    found = {"settings": settings, "parts": parts}
    write_whole(options.results, json.dumps(found, indent=1) + "\n")
    show(parts)


class Training:
    """Weights, optimizer and search of one training, at a rate that stays."""

    def __init__(self, options: argparse.Namespace, data: joslim.Data, seed: int) -> None:
        torch.manual_seed(seed)
        model = joslim.models.MODELS[options.model](len(data.classes), data.shape[0])
        self.net = joslim.slim(model, torch.zeros(1, *data.shape), low=options.low)
        self.scoring = [*data.sweep("train", options.batch, 64 * options.batch)]
        self.slimming = joslim.Slimming(
            self.net,
            total_steps=options.steps + max(map(int, options.after.split(","))),
            scoring=self.scoring,
            every=options.every,
            preset="paper",
            seed=seed,
        )
        self.optimizer = torch.optim.SGD(
            self.net.parameters(), lr=RATES[1], momentum=0.9, nesterov=True, weight_decay=5e-4
        )
        self.seed, self.data, self.batch = seed, data, options.batch

    def steps(self, count: int, rate: float) -> None:
        self.optimizer.param_groups[0]["lr"] = rate
        stream = self.data.batches(self.seed, self.batch, start=self.slimming.steps)
        for x, y in islice(stream, count):
            self.slimming.step(x, y, self.optimizer, cross_entropy)

    def state(self) -> dict[str, Any]:
        named = {"net": self.net, "slimming": self.slimming, "optimizer": self.optimizer}
        return {name: part.state_dict() for name, part in named.items()}

    def load(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.slimming.load_state_dict(state["slimming"])
        self.optimizer.load_state_dict(state["optimizer"])


def drift(options: argparse.Namespace, data: joslim.Data, seed: int, rate: float) -> dict[str, Any]:
    """Go on from the trained weights at this rate, and score their history now and then."""
    training = Training(options, data, seed)
    trained = options.out / f"{seed}.pt"
    if not trained.exists():
        training.steps(options.steps, RATES[1])
        torch.save(training.state(), trained)
    training.load(torch.load(trained, weights_only=True))
    children = [*dict.fromkeys(visit.widths for visit in training.slimming.history.visits)]

    def losses(batch: Any) -> np.ndarray:
        return np.array(score(training.net, children, batch, cross_entropy))

    first, other = training.scoring[:2]
    before = losses(first)
    part: dict[str, Any] = {"seed": seed, "rate": rate, "children": len(children), "rows": []}
    part["noise"] = rank_correlation(before, losses(other))
    done = 0
    for steps in map(int, options.after.split(",")):
        training.steps(steps - done, rate)
        done, now = steps, losses(first)
        part["rows"].append(
            {
                "steps": steps,
                "change": float(np.abs(now - before).mean()),
                "shift": float((now - before).mean()),
                "rank": rank_correlation(before, now),
            }
        )
    return part


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's; no two losses are equal."""
    ranks = [np.argsort(np.argsort(losses)) for losses in (one, other)]
    return float(np.corrcoef(*ranks)[0, 1])


def show(parts: list[dict[str, Any]]) -> None:
    noise = statistics.mean(part["noise"] for part in parts)
    print(f"rank correlation of the same weights on two batches: {noise:.3f}")
    print(f"{'rate':>8} {'K':>5} {'K eta':>8} {'change':>8} {'change/K eta':>13} {'rank':>7}")
    for rate in dict.fromkeys(part["rate"] for part in parts):
        same = [part["rows"] for part in parts if part["rate"] == rate]
        for rows in zip(*same):
            steps = rows[0]["steps"]
            change, rank = (statistics.mean(row[key] for row in rows) for key in ("change", "rank"))
            bound = steps * rate
            print(f"{rate:>8g} {steps:>5} {bound:>8.3g} {change:>8.3f} ", end="")
            print(f"{change / bound:>13.3f} {rank:>7.3f}")


if __name__ == "__main__":
    main()
