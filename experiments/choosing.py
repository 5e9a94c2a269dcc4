"""Which child should a budget buy? Rules of choice, compared on the fronts of the study.

    python experiments/choosing.py

For every stored run of experiments/results/, each rule chooses a child for 50 budgets, looking at
training losses and validation errors. The table has the mean test error of the chosen children, as
a difference from the choice by training loss alone, with its standard error over the runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from joslim.front import standard_error

RESULTS = Path(__file__).parent / "results"
# A tenth of the training images of digits; the rows of other data keep this many of them.
DIGITS_IMAGES = 143


class Child(NamedTuple):
    """A child of a front: its cost, training loss, validation error and test error in percent."""

    cost: float
    loss: float
    val: float
    test: float


Rule = Callable[[list[Child], int], Child]


def near_the_least(children: list[Child], images: int, errors: float = 1.0) -> list[Child]:
    """The children within so many standard errors of the least validation error."""
    least = min(child.val for child in children)
    noise = float(standard_error(np.array(least), images))
    return [child for child in children if child.val <= least + errors * noise]


RULES: dict[str, Rule] = {
    "least training loss": lambda fit, n: min(fit, key=lambda c: c.loss),
    "least validation error": lambda fit, n: min(fit, key=lambda c: (c.val, c.loss)),
    "within one standard error of it, least training loss": lambda fit, n: min(
        near_the_least(fit, n), key=lambda c: c.loss
    ),
    "within two, least training loss": lambda fit, n: min(
        near_the_least(fit, n, 2.0), key=lambda c: c.loss
    ),
    "within one, the cheapest": lambda fit, n: min(near_the_least(fit, n), key=lambda c: c.cost),
}


def area(children: list[Child], span: tuple[float, float], images: int, rule: Rule) -> float:
    errors = []
    for budget in np.linspace(*span, 50):
        fitting = [child for child in children if child.cost <= budget * (1 + 1e-12)]
        errors.append(rule(fitting, images).test if fitting else 100.0)
    return float(np.mean(errors))


def main() -> None:
    areas: dict[int, list[list[float]]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        row = json.loads(path.read_text())
        if "runs" not in row or row["settings"]["method"] == "single":
            continue
        cost = row["settings"]["cost"]
        place = row["costs"].index("latency_ms" if cost == "latency" else cost)
        images = row["settings"].get("val", DIGITS_IMAGES)
        for run in row["runs"]:
            children = [Child(child[1][place], *child[2:5]) for child in run["children"]]
            found = [area(children, run["span"], images, rule) for rule in RULES.values()]
            areas.setdefault(images, []).append(found)
    for images, found in areas.items():
        differences = np.array(found) - np.array(found)[:, :1]
        mean, deviation = differences.mean(axis=0), differences.std(axis=0, ddof=1)
        print(
            f"{len(found)} runs with {images} validation images, area of the first rule "
            f"{np.mean(found, axis=0)[0]:.2f} %"
        )
        for name, gain, spread in zip(RULES, mean, deviation / np.sqrt(len(found))):
            print(f"  {gain:+.3f} ± {spread:.3f}  {name}")


if __name__ == "__main__":
    main()
