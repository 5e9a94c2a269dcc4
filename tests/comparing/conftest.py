"""Run folders that nobody trained: what a comparison reads of a run, and nothing else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from joslim.front import Front, Point
from joslim.results.run_files import FORMAT
from joslim.space import Dim, Knob, WidthSpace

LOW = 0.25
FULL = 40e6


def front_of(errors: list[float], cost: str = "macs", low: float = LOW) -> Front:
    """Children at even shares of the full cost, with these errors; the last one is the full one."""
    space = WidthSpace((Dim("stem", 16),), (Knob("stem", (0,), low),))
    shares = [(at + 1) / len(errors) for at in range(len(errors))]
    points = [
        Point(
            space.uniform(max(low, share)),
            {"macs": FULL * share, "params": 1000 * share, "memory": FULL * share},
            train_loss=2 - share,
            val_error=error,
            test_error=error,
        )
        for share, error in zip(shares, errors)
    ]
    return Front(points, cost, (FULL / len(errors), FULL))


@pytest.fixture
def make_run() -> Callable[..., Path]:
    """`make_run(folder, errors, method="slim", seed=0, ...)` writes a finished run."""

    def make(
        folder: Path,
        errors: list[float],
        cost: str = "macs",
        seconds: float = 60.0,
        done: int = 100,
        identity: str = "digits",
        low: float | None = None,
        **config: Any,
    ) -> Path:
        folder.mkdir(parents=True)
        values = {"model": "resnet8", "method": "joslim", "seed": 0, "steps": 100, "batch": 64}
        facts = {
            "joslim": "0",
            "format": FORMAT,
            "config": {**values, "low": low, "cost": cost, **config},
            "data": {"identity": identity, "sizes": {"train": 1000}},
        }
        (folder / "config.json").write_text(json.dumps(facts))
        front = {"step": done, **front_of(errors, cost, low or LOW).to_json()}
        (folder / "front.json").write_text(json.dumps(front))
        lines = [{"step": step, "seconds": seconds * step / done} for step in (done // 2, done)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    return make
