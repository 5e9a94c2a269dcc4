"""What a training would take: a few steps on a throw-away copy, timed and scaled."""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

import torch

from joslim.runs.job import Job

TRIAL_STEPS = 3


def estimate(job: Job) -> dict[str, Any]:
    """Time, memory and rounds. The job has made steps afterwards: throw it away."""
    config, slimming = job.config, job.slimming
    alone = slimming.alone_until
    others = job.total_steps - alone
    slimming.alone_until = job.total_steps if alone else 0
    seconds_alone = seconds_a_step(job) if alone else 0.0
    slimming.alone_until = 0
    seconds = seconds_a_step(job)
    rounds = -(-others // slimming.every) if slimming.method.in_rounds else 0
    # The first one: later ones have more children to learn from, and take a little longer.
    seconds_a_round = slimming.seconds["search"] + slimming.seconds["scoring"] if rounds else 0.0
    return {
        "model": config.model,
        "data": job.data.identity,
        "method": slimming.name,
        "cost": slimming.cost.name,
        "knobs": len(slimming.space),
        "steps": job.total_steps,
        "epochs": round(job.total_steps * (config.batch or 0) / job.data.sizes["train"], 2),
        "rounds": rounds,
        "every": slimming.every,
        "children": slimming.children if slimming.name in slimming.preset.searchers else 0,
        "passes": alone + others * len(slimming.widths),
        "seconds_a_step": round(seconds, 4),
        "hours_of_steps": round((seconds_alone * alone + seconds * others) / 3600, 3),
        "seconds_a_round": round(seconds_a_round, 4),
        "hours_of_rounds": round(seconds_a_round * rounds / 3600, 3),
        "memory_bytes": peak_memory(job),
    }


def seconds_a_step(job: Job) -> float:
    """The fastest of some steps after one to warm up; those that choose widths are left out.

    Their mean, where each of them draws other widths.
    """
    times = []
    job.net.train()
    batches = job.batches()
    every = job.slimming.every
    job.slimming.every = sys.maxsize  # one round: it is not the search that is timed
    for _ in range(TRIAL_STEPS + 1):
        x, y = next(batches)
        started = time.perf_counter()
        job.step(x, y)
        if job.device.type == "cuda":
            torch.cuda.synchronize(job.device)
        times.append(time.perf_counter() - started)
    job.slimming.every = every
    later = times[1:]
    slimming = job.slimming
    return min(later) if slimming.draw > slimming.samples else sum(later) / len(later)


def peak_memory(job: Job) -> int:
    """Bytes: of the device, or of the whole program on a CPU."""
    if job.device.type == "cuda":
        return torch.cuda.max_memory_allocated(job.device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
