"""A run's objects: steps that depend on nothing but their state, and the state itself."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import joslim
from joslim.runs.config import Config, config_of
from joslim.runs.setup import set_up
from joslim.runs.trainer import Trainer, seed_step


def job_of(**options: Any) -> Trainer:
    return set_up(config_of({"steps": 4, "batch": 8, "front_images": 16, **options}))


def test_samples_are_training_images() -> None:
    job = job_of()
    assert torch.equal(job.samples(5), job.data.plain("train", np.arange(5))[0])
    assert job.samples().shape == (32, 3, 8, 8)


def test_a_step_depends_on_nothing_but_state_and_number() -> None:
    """Not on the generator: dropout would else differ after a resume."""
    results = []
    for noise in (0, 1):
        torch.manual_seed(99)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout(0.5), nn.Flatten())
        model.append(nn.Linear(8 * 36, 10))
        job = set_up(Config(steps=3, batch=8, every=1, seed=3), model=model)
        for batch in [next(job.batches()), next(job.batches())]:
            torch.manual_seed(noise)
            job.step(*batch)
        results.append([p.detach().clone() for p in job.net.parameters()])
    assert all(map(torch.equal, *results))


def test_seeds_of_steps_are_different() -> None:
    drawn = []
    with torch.random.fork_rng(devices=[]):
        for seed, step in ((0, 0), (0, 1), (1, 0), (2**31 - 1, 10**9)):
            seed_step(seed, step)
            drawn.append(float(torch.rand(())))
    assert len(set(drawn)) == 4


def test_clipping() -> None:
    job = job_of(clip=1e-9, weight_decay=0, momentum=0)
    before = [p.detach().clone() for p in job.net.parameters()]
    job.step(*next(job.batches()))
    assert all(
        torch.allclose(p, q, rtol=0, atol=1e-8) for p, q in zip(job.net.parameters(), before)
    )


def test_the_state_goes_on_where_it_was() -> None:
    job = job_of(every=1)
    batches = job.batches()
    for _ in range(2):
        job.step(*next(batches))
    other = job_of(every=1)
    other.load_state_dict(deepcopy(job.state_dict()))
    other.net.load_state_dict(job.net.state_dict())
    (x, y), (x2, y2) = next(batches), next(other.batches())
    assert torch.equal(x, x2)
    assert torch.equal(y, y2)
    job.step(x, y)
    other.step(x2, y2)
    weights, others = job.net.state_dict(), other.net.state_dict()
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def test_the_average_of_the_weights_and_its_resume(tmp_path: Path) -> None:
    """The front is that of the average; stopped or extended, the run goes on as if it had not."""

    class Stop(Exception):
        pass

    def stop(progress: Any) -> None:
        if progress.done == 3:
            raise Stop

    def train(name: str, total: int = 5, **more: Any) -> joslim.Run:
        options: dict[str, Any] = {"every": 2, "batch": 8, "threads": 1, "save_every": 1}
        options |= {"ema": 0.5, "front_images": 16, "score_images": 8}
        return joslim.train(
            "resnet8", "digits", out=tmp_path / name, steps=total, **options, **more
        )

    whole = train("whole")
    with pytest.raises(Stop):
        train("parts", watch=stop)
    again = train("parts", resume=True)
    plain = joslim.train(
        "resnet8",
        "digits",
        out=tmp_path / "plain",
        steps=5,
        every=2,
        batch=8,
        threads=1,
        front_images=16,
        score_images=8,
    )
    for name, value in whole.net.state_dict().items():
        assert torch.equal(value, again.net.state_dict()[name])
    assert whole.front == again.front
    one, other = (run.net.state_dict()["conv1.weight"] for run in (whole, plain))
    assert not torch.equal(one, other)
    assert torch.allclose(one, other, atol=0.5)
