"""Run folders without a training: what a figure reads of them, with numbers that are known."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joslim.front import Front, Point
from joslim.results.record import Record, read_record
from joslim.results.run_files import FORMAT
from joslim.runs.config import config_of
from joslim.space import Dim, Knob, WidthSpace

Made = Callable[..., Record]
# Four knobs of twenty channels each.
SPACE = WidthSpace(
    tuple(Dim(f"layer{i}", 20) for i in range(4)),
    tuple(Knob(f"layer{i}", (i,), 0.2) for i in range(4)),
)
SPAN = {"macs": (20e6, 100e6), "memory": (2e5, 1e6)}
CHILDREN = 9


def front_of(cost: str, shift: float, children: int = CHILDREN, tilt: float = 0.0) -> Front:
    """Errors fall from 50 % to 10 %, and `shift` below that; `tilt` makes layers differ."""
    points = []
    for share in np.linspace(0.2, 1, children):
        lean = tilt * np.array([1, -1, 1, -1]) * (1 - share)
        widths = SPACE.at(np.clip(share + lean, 0.2, 1))
        costs = {"macs": 100e6 * share, "params": 1e3, "memory": 1e6 * share}
        points.append(Point(widths, costs, 3 - 2 * share, None, 60 - 50 * share - shift))
    return Front(points, cost, SPAN[cost])


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """`made(method="slim", seed=1, shift=2)`: a finished run, by default of resnet20 on CIFAR-100.

    Other keywords: visits (costs of the history), start (how many of them are the initial design),
    seconds, classes, done (the last step), front.
    """

    def make(name: str | None = None, **given: Any) -> Record:
        own = {"shift": 0.0, "tilt": 0.0, "visits": (), "start": 0, "seconds": 10.0, "classes": 100}
        own |= {"done": 10**9, "identity": None, "front": None}
        facts = {key: given.pop(key, default) for key, default in own.items()}
        config = config_of(
            {"model": "resnet20", "data": "cifar100", "steps": 8, "every": 2, "batch": 4, **given}
        )
        words = [str(value).replace("/", ".") for value in given.values()]
        folder = tmp_path / (name or "-".join(["run", *words]))
        folder.mkdir(parents=True)
        front = facts["front"] or front_of(config.cost, facts["shift"], tilt=facts["tilt"])
        data = {
            "identity": facts["identity"] or config.data,
            "classes": [str(number) for number in range(facts["classes"])],
            "shape": [3, 32, 32],
            "sizes": {"train": 100, "val": 0, "test": 10},
        }
        content = {
            "joslim": "0",
            "format": FORMAT,
            "config": config.to_json(),
            "cost": config.cost,
            "data": data,
        }
        (folder / "config.json").write_text(json.dumps(content))
        step = min(facts["done"], config.steps)
        (folder / "front.json").write_text(json.dumps({"step": step, **front.to_json()}))
        line = {"step": facts["done"], "seconds": facts["seconds"]}
        (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        lines = [{"cost": config.cost, "space": SPACE.to_json()}] + [
            # One child is proposed at the step of the initial design.
            {
                "id": at,
                "step": max(0, at - facts["start"]),
                "widths": [20, 20, 20, 4 + at],
                "cost": cost,
            }
            for at, cost in enumerate(facts["visits"])
        ]
        if facts["start"]:
            ids = [*range(facts["start"])]
            lines.append({"step": 0, "ids": ids, "losses": [1.0 for _ in ids]})
        (folder / "history.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
        return read_record(folder)

    return make
