"""The estimate of a dry run: a few steps on trial networks, timed and scaled."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import replace
from typing import Any

import torch

from joslim.runs.config import Config
from joslim.runs.setup import Trainer, set_up

TRIAL_STEPS = 3


def estimate(config: Config) -> dict[str, Any]:
    """Estimate time, memory and rounds of a training. Nothing is written."""
    trainer = set_up(config)
    slimming, config = trainer.slimming, trainer.config
    alone = slimming.alone_until
    others = trainer.total_steps - alone
    rounds = -(-others // slimming.every) if slimming.method.in_rounds else 0
    searches = slimming.name in slimming.preset.searchers
    facts = {
        "model": config.model,
        "data": trainer.data.identity,
        "method": slimming.name,
        "cost": slimming.cost.name,
        "knobs": len(slimming.space),
        "steps": trainer.total_steps,
        "epochs": round(trainer.total_steps * config.batch / trainer.data.sizes["train"], 2),
        "rounds": rounds,
        "every": slimming.every,
        "children": slimming.children if searches else 0,
    }
    seconds_alone = 0.0
    if alone:
        _, seconds_alone = _try_steps(set_up(replace(config, full_first=1.0), data=trainer.data))
    # One round: later ones have more children to learn from, and take a little longer.
    one_round = replace(config, full_first=0.0, every=sys.maxsize)
    trial = set_up(one_round, data=trainer.data)
    widths, seconds = _try_steps(trial)
    spent = trial.slimming.seconds
    seconds_a_round = spent["search"] + spent["scoring"] if rounds else 0.0
    return {
        **facts,
        "passes": alone + others * widths,
        "seconds_a_step": round(seconds, 4),
        "hours_of_steps": round((seconds_alone * alone + seconds * others) / 3600, 3),
        "seconds_a_round": round(seconds_a_round, 4),
        "hours_of_rounds": round(seconds_a_round * rounds / 3600, 3),
        "memory_bytes": peak_memory(trainer.device),
    }


def _try_steps(trial: Trainer) -> tuple[int, float]:
    """Make a few steps; returns the number of widths in a step, and the seconds of a step.

    The first step, which warms up and chooses widths, does not count. The fastest of the others
    does, or their mean if each of them draws other widths.
    """
    times = []
    trial.net.train()
    batches = trial.batches()
    for _ in range(TRIAL_STEPS + 1):
        x, y = next(batches)
        started = time.perf_counter()
        trial.step(x, y)
        if trial.device.type == "cuda":
            torch.cuda.synchronize(trial.device)
        times.append(time.perf_counter() - started)
    later = times[1:]
    draws_all = trial.slimming.sandwich.draw > trial.slimming.samples
    return len(trial.slimming.widths), min(later) if draws_all else sum(later) / len(later)


def peak_memory(device: torch.device) -> int:
    """Return the largest number of bytes in use: on the device, or of the program on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
