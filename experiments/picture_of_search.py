"""The picture in docs/how-it-works.md: one target of the search, on the history of a real run.

After `make demo`: python experiments/picture_of_search.py runs/demo docs/search.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import joslim
from joslim.search.cost_targeting import bring_to_cost, from_unit, to_unit
from joslim.search.gp import Surrogate, transform_losses
from joslim.search.history import History
from joslim.search.targeted import Targeted
from joslim.units import short_size

BLUE, ORANGE, DARK, LIGHT = "#0072B2", "#D55E00", "#24292f", "#c9d1d9"
TARGET = 0.35  # of the full cost
POOL = 400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    run = joslim.load(options.run)
    history = History(joslim.cost("macs", run.net))
    state = run.history.state_dict()
    # As it was in the last round: what was judged after the training is of other images.
    last = max(step for step, _, _ in state["scorings"])
    state["scorings"] = [scoring for scoring in state["scorings"] if scoring[0] < last]
    history.load_state_dict(state)
    draw(history, options.picture)


def draw(history: History, picture: Path) -> None:
    rng = np.random.default_rng(0)
    space, cost, scored = history.space, history.cost, history.scored()
    values = transform_losses(scored.estimates)
    surrogate = Surrogate.fit(to_unit(space, scored.matrix), values)
    target = TARGET * cost(space.full)
    drawn = rng.uniform(size=(POOL, len(space)))
    brought = bring_to_cost(cost, drawn, np.full(POOL, target), 0.005 * cost(space.full))
    chosen = Targeted().at_target(history, target, rng)
    figure = Figure(figsize=(8, 4.5), dpi=150, facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    axes.scatter(scored.costs, values, s=14, color=LIGHT, label="visited children")
    for points, colour, alpha, label in (
        (drawn, BLUE, 0.25, "candidates as drawn, with their predicted loss"),
        (brought, BLUE, 0.9, "the same, brought to the target cost"),
        (to_unit(space, chosen.multipliers[None]), ORANGE, 1.0, "the child that is chosen"),
    ):
        prices = np.asarray(cost.of(from_unit(space, points)), dtype=float)
        size = 60 if colour == ORANGE else 9
        predicted = surrogate.posterior(points)[0]
        axes.scatter(prices, predicted, s=size, color=colour, alpha=alpha, lw=0, label=label)
    axes.axvline(target, color=DARK, lw=0.8, ls=":")
    axes.set_xlabel("multiply-adds for one input", color=DARK)
    axes.set_ylabel("logarithm of the training loss", color=DARK)
    axes.xaxis.set_major_formatter(lambda value, _: short_size("macs", value))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(picture)


if __name__ == "__main__":
    main()
