"""The default search: how fast it is, whether it meets its targets, and what it finds.

speed     seconds of a round (two children) at 1000 visited children and 25 knobs (MobileNetV2 at
          64 px), averaged over rounds that span one interval between two fits of the surrogate's
          hyper-parameters; one round of the paper's search (mobo-ts2 of preset paper) beside it
growth    seconds of a round, fits included, at 100 to 3000 children, over what growth with the
          square would give
misses    of 100 random targets for each cost, on histories of short trainings of resnet8 on digits:
          the share that is met within 0.02 of the full cost or as nearly as any known child does
quality   20 children of the paper's search at 200 children of such a training, all scored with the
          final weights: how often the child that ours finds for the same cost is predicted to have
          no more loss (ours names only children that are new, so those of the paper's search that
          were visited before are left out, and counted). Predicted by our own process of log
          losses; by the one that BoTorch fits for the paper's search, and by the network itself, it
          is printed beside it

Losses of speed and growth are made up: 0.3 + 2 exp(-2 x) with x a weighted mean of the multipliers,
and noise of deviation 0.02.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from reporting import at_most, report

import joslim
from joslim.data import Sweep, load_data
from joslim.search import History, searcher
from joslim.search.cost_targeting import (
    bring_by_single_knobs,
    cost_range,
    from_unit,
    to_unit,
    uniform_target,
)
from joslim.search.gp import Surrogate, transform_losses
from joslim.search.mobo import fit_process
from joslim.search.targeted import Targeted
from joslim.training.evaluate import score
from joslim.training.methods import PRESETS

Rows = list[dict[str, object]]
Figures = dict[str, dict[str, object]]

SIZES = (100, 300, 1000, 3000)
TARGETS = 100
# Random children that show which costs can be had.
KNOWN = 200_000
CASES = 20
# Whose word counts; the other ones are printed.
JUDGE = "our process of log losses"
EPSILON = 0.02
# Steps between the choices of widths in the short trainings: two children each.
EVERY = 2


def main() -> None:
    parts = {"speed": speed, "growth": growth, "misses": misses, "quality": quality}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default=",".join(parts), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=50, help="of speed (%(default)s)")
    options = parser.parse_args()
    rows: Rows = []
    figures: Figures = {}
    for name in options.parts.split(","):
        start = time.perf_counter()
        part = Part(options.rounds)
        parts[name](part)
        rows += part.rows
        figures |= part.figures
        say(f"{name}: {time.perf_counter() - start:.0f} s")
    report("the default search", rows, figures)


class Part:
    """What a part of the benchmark has to say."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.rows: Rows = []
        self.figures: Figures = {}

    def row(self, what: str, value: object, note: str = "") -> None:
        self.rows.append({"what": what, "value": value, "note": note})
        say(f"  {what}: {value:.4g} {note}" if isinstance(value, float) else f"  {what}: {value}")


def say(line: str) -> None:
    print(line, flush=True)


# Speed and growth


@dataclass
class MadeUp:
    """Losses that fall with every knob, with some much more than with others."""

    rng: np.random.Generator

    def __call__(self, widths: joslim.Widths) -> float:
        matters = np.linspace(0.2, 2.0, len(widths.space))
        value = 0.3 + 2 * np.exp(-2 * np.average(widths.multipliers, weights=matters))
        return float(value + 0.02 * self.rng.normal())


def visit(history: History, children: list[joslim.Widths], loss: MadeUp) -> None:
    ids = [history.visit(child, len(history)) for child in children]
    history.record({i: loss(child) for i, child in zip(ids, children)}, len(history))


def random_history(size: int, rng: np.random.Generator) -> History:
    net = joslim.slim(joslim.models.mobilenet_v2(), torch.zeros(1, 3, 64, 64))
    assert len(net.space) == 25
    history = History(joslim.cost("macs", net))
    visit(history, [net.space.random(rng) for _ in range(size)], MadeUp(rng))
    return history


def seconds_per_round(history: History, rounds: int, rng: np.random.Generator) -> float:
    """Of `rounds` one after the other; the search has seen the history before."""
    search, loss = Targeted(), MadeUp(rng)
    search.propose(history, 2, rng)
    spent = 0.0
    for _ in range(rounds):
        start = time.perf_counter()
        children = search.propose(history, 2, rng)
        spent += time.perf_counter() - start
        visit(history, children, loss)
    return spent / rounds


def speed(part: Part) -> None:
    rng = np.random.default_rng(0)
    history = random_history(1000, rng)
    name, options = PRESETS["paper"].searchers["joslim"]
    start = time.perf_counter()
    searcher(name, **options).propose(history, 2, rng)
    theirs = time.perf_counter() - start
    part.row("seconds of a round, mobo-ts2", theirs, "once, 1000 children, 25 knobs")
    # Two children each: 50 rounds are the tenth by which a history grows between two fits.
    ours = seconds_per_round(history, part.rounds, rng)
    part.row("seconds of a round, targeted", ours, f"mean of {part.rounds}")
    part.row("mobo-ts2 / targeted", theirs / ours)
    part.figures["round_seconds"] = at_most(ours, 0.6)


def growth(part: Part) -> None:
    rng = np.random.default_rng(1)
    times = []
    random_history_of = {size: random_history(size, rng) for size in SIZES}
    seconds_per_round(random_history_of[SIZES[0]], 5, rng)  # loads what torch loads late
    for size in SIZES:
        # A tenth of the history, so that each has one fit; not more than is needed for a mean.
        rounds = max(5, min(part.rounds, size // 20))
        times.append(seconds_per_round(random_history(size, rng), rounds, rng))
        part.row(f"seconds of a round at {size} children", times[-1], f"mean of {rounds}")
    pairs = zip(zip(SIZES, times), zip(SIZES[1:], times[1:]))
    ratios = [(t2 / t1) / (n2 / n1) ** 2 for (n1, t1), (n2, t2) in pairs]
    part.row("largest growth / square", max(ratios))
    part.figures["growth_over_square"] = at_most(max(ratios), 1.0)


# Misses and quality: histories of real trainings


def trained_history(cost: str, rounds: int) -> tuple[History, joslim.SlimmableNet]:
    """The history of a short training, with its cost to ask, and its network."""
    with tempfile.TemporaryDirectory() as folder:
        run = joslim.train(
            "resnet8",
            "digits",
            cost=cost,
            steps=EVERY * rounds,
            every=EVERY,
            full_first=0,
            threads=1,
            out=Path(folder) / "run",
        )
        history = History(joslim.cost(cost, run.net))
        history.load_state_dict(run.history.state_dict())
    return history, run.net


def misses(part: Part) -> None:
    met = {}
    for cost in ("macs", "params", "memory", "latency"):
        history, _ = trained_history(cost, rounds=25)
        say(f"  {cost}: {len(history)} children visited")
        shares, as_near = shares_missed(history)
        met[cost] = float(np.mean((shares <= EPSILON) | as_near))
        part.row(f"largest miss, {cost}", float(shares.max()), f"{met[cost]:.0%} of targets met")
    worst = min(met.values())
    part.figures["targets_met"] = {"value": worst, "target": 1.0, "ok": worst >= 1.0}


def shares_missed(history: History) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """[targets]: misses as shares of the full cost; which are as small as any known child's."""
    rng, search = np.random.default_rng(2), Targeted()
    cost, full = history.cost, cost_range(history.cost)[1]
    known = costs_of_many(cost, rng)
    shares, as_near = [], []
    for _ in range(TARGETS):
        target = uniform_target(cost, rng)
        miss = abs(cost(search.at_target(history, target, rng)) - target)
        shares.append(miss / full)
        as_near.append(miss <= nearest_miss(cost, known, target, rng))
    return np.array(shares), np.array(as_near)


def costs_of_many(cost: joslim.Cost, rng: np.random.Generator) -> NDArray[np.float64]:
    """Of random children, along all of the costs: what lies in the box evenly is rarely small."""
    ceilings = rng.uniform(size=(KNOWN, 1))
    points = rng.uniform(size=(KNOWN, len(cost.space))) * ceilings
    points = np.where(rng.uniform(size=(KNOWN, 1)) < 0.5, points, 1.0 - points)
    return np.asarray(cost.of(from_unit(cost.space, points)), dtype=np.float64)


def nearest_miss(
    cost: joslim.Cost, known: NDArray[np.float64], target: float, rng: np.random.Generator
) -> float:
    points = rng.uniform(size=(64, len(cost.space)))
    repaired = bring_by_single_knobs(cost, points, target)
    costs = np.concatenate([known, cost.of(from_unit(cost.space, repaired))])
    return float(np.abs(costs - target).min())


def quality(part: Part) -> None:
    history, net = trained_history("macs", rounds=100)
    score = Scores(net)
    # All losses are of the final weights, so that there is one truth to be found.
    losses = score([visit.widths for visit in history.visits])
    history.record(dict(enumerate(losses)), history.scorings[-1].step + 1)
    say(f"  {len(history)} children visited")
    cost, rng, judges = history.cost, np.random.default_rng(3), judges_of(history, score)
    name, options = PRESETS["paper"].searchers["joslim"]
    paper = searcher(name, **options)
    # With its usual epsilon ours would use up what it may miss by, and win by its cost.
    ours = Targeted(epsilon=EPSILON / 10)
    wins = dict.fromkeys(judges, 0)
    dearer = []
    repeated = 0
    for case in range(CASES):
        (theirs,) = paper.propose(history, 1, rng)
        while theirs in history:  # nothing is found by naming what was visited
            repeated += 1
            (theirs,) = paper.propose(history, 1, rng)
        found = ours.at_target(history, float(cost(theirs)), rng)
        dearer.append((cost(found) - cost(theirs)) / cost(cost.space.full))
        for judge, predict in judges.items():
            mine, other = predict([found, theirs])
            wins[judge] += int(mine <= other)
        say(f"  case {case + 1}: {wins}")
    for judge, won in wins.items():
        part.row(f"of {CASES}, no worse than mobo-ts2 by {judge}", won)
    part.row("visited children that mobo-ts2 named again, left out", repeated)
    part.row("mean of our cost - theirs, as a share of the full", float(np.mean(dearer)))
    won = wins[JUDGE]
    part.figures["no_worse_of_20"] = {"value": won, "target": CASES - 1, "ok": won >= CASES - 1}


class Scores:
    """Losses on un-augmented training images."""

    def __init__(self, net: joslim.SlimmableNet, images: int = 512) -> None:
        data = load_data("digits", channels=3, val=0.1)
        order = np.random.default_rng(0).permutation(data.sizes["train"])[:images]
        self.net, self.batch = net, Sweep(data, "train", order, images)[0]

    def __call__(self, children: Sequence[joslim.Widths]) -> list[float]:
        return score(self.net, children, [self.batch], F.cross_entropy)


def judges_of(
    history: History, score: Scores
) -> dict[str, Callable[[Sequence[joslim.Widths]], Sequence[float]]]:
    """Who says what children are worth: the two searches' own processes, and the network."""
    scored = history.scored()
    points = to_unit(history.space, scored.matrix)
    botorchs = fit_process(points, scored.losses, ard=True, iterations=100)
    own = Surrogate.fit(points, transform_losses(scored.losses))

    def by(process: Surrogate) -> Callable[[Sequence[joslim.Widths]], list[float]]:
        def predict(children: Sequence[joslim.Widths]) -> list[float]:
            matrix = np.array([child.multipliers for child in children])
            return process.posterior(to_unit(history.space, matrix))[0].tolist()

        return predict

    return {JUDGE: by(own), "BoTorch's process of losses": by(botorchs), "measured loss": score}


if __name__ == "__main__":
    main()
