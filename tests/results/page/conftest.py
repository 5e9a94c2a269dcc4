"""Runs made up for pages: files as a training writes them, without a training."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joslim.front import Front, Point
from joslim.results.run_files import FORMAT
from joslim.space import Dim, Knob, WidthSpace

MakeRun = Callable[..., Path]


def space_of(names: tuple[str, ...]) -> WidthSpace:
    dims = tuple(Dim(name, 64, layers=(name, f"{name}.again")) for name in names)
    knobs = tuple(Knob(name, (at,), 0.125) for at, name in enumerate(names))
    return WidthSpace(dims, knobs)


def points_of(space: WidthSpace, count: int, rng: np.random.Generator) -> list[Point]:
    """Costs that disagree, and training losses with ties among them."""
    points = []
    for share in np.linspace(0.125, 1, count):
        widths = space.at(np.clip(rng.normal(share, 0.1, len(space)), 0.125, 1))
        macs = int(4e5 * share**2 * rng.uniform(0.9, 1.1)) + 1000
        costs = {"macs": macs, "params": int(macs / 9), "memory": int(rng.uniform(4e3, 4e4))}
        costs["latency_ms"] = math.exp(rng.normal(math.log(8 * share), 0.3))
        error = round(60 - 50 * share + rng.normal(0, 2), 1)
        points.append(Point(widths, costs, round(2.2 - 2 * share, 1), error + 0.25, error))
    return points


def history_of(space: WidthSpace, visits: int, steps: int, rng: np.random.Generator) -> list[Any]:
    lines: list[Any] = [{"cost": "macs", "space": space.to_json()}]
    for child in range(visits):
        step = steps * child // visits
        counts = rng.integers(8, 65, len(space)).tolist()
        cost = int(rng.uniform(5e3, 4.4e5))
        lines.append({"id": child, "step": step, "widths": counts, "cost": cost})
        ids = sorted({0, child // 2, child})
        losses = [round(3 * (5e3 / (5e3 + i)) + rng.uniform(0, 1), 4) for i in ids]
        lines.append({"step": step, "ids": ids, "losses": losses})
    return lines


def metrics_of(steps: int, every: int) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "loss": 2.5 / step,
            "smallest_loss": 2.5 / math.sqrt(step),
            "losses": [2.5 / step, 2 / step, 3 / step, 2.5 / math.sqrt(step)],
            "passes": 4 * step,
            "scoring_passes": step,
            "seconds": step / 8,
        }
        for step in range(every, steps + 1, every)
    ]


@pytest.fixture(scope="session")
def make_run() -> MakeRun:
    """Makes a finished run in a new folder; what it does not know of is a setting."""

    def make(
        folder: Path,
        children: int = 40,
        visits: int = 60,
        seed: int = 0,
        dims: tuple[str, ...] = ("stem", "body", "head"),
        classes: tuple[str, ...] = ("ant", "bee"),
        identity: str = "digits 3x8x8",
        **config: Any,
    ) -> Path:
        rng = np.random.default_rng(seed)
        space = space_of(dims)
        settings = {"model": "resnet8", "data": "digits", "method": "joslim", "steps": 120}
        settings |= {"every": 4, "seed": seed, "threads": None, "val": 0.1, **config}
        data = {"identity": identity, "shape": [3, 8, 8], "classes": list(classes)}
        facts = {
            "joslim": "0.2.0",
            "format": FORMAT,
            "config": settings,
            "cost": "macs",
            "data": data,
        }
        front = Front(points_of(space, children, rng), "macs", (5e3, 4.5e5))
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(facts))
        (folder / "front.json").write_text(json.dumps(front.to_json()))
        lines = history_of(space, visits, 120, rng)
        (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        logged = metrics_of(120, 2)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in logged))
        return folder

    return make
