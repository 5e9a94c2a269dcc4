"""Optimizers: each row makes what torch makes, and goes on from a state as if never stopped."""

from pathlib import Path

import pytest
import torch

import joslim
from joslim.files import stored_tensors
from joslim.runs.config import config_of
from joslim.runs.driver import Progress
from joslim.runs.setup import set_up
from joslim.training.optimizers import OPTIMIZERS

OPTIONS = {"steps": 6, "every": 2, "batch": 8, "front_images": 16, "samples": 1, "threads": 1}


def test_the_rows() -> None:
    one = [torch.nn.Parameter(torch.ones(2))]
    made = {name: kind.make(one, 0.1, 0.8, 0.2) for name, kind in OPTIMIZERS.items()}
    theirs = {
        "sgd": torch.optim.SGD(one, lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.2),
        "adamw": torch.optim.AdamW(one, lr=0.1, betas=(0.8, 0.999), weight_decay=0.2),
    }
    assert made.keys() == theirs.keys()
    for name, optimizer in theirs.items():
        assert type(made[name]) is type(optimizer)
        assert made[name].defaults == optimizer.defaults


def test_rate_and_decay_follow_the_optimizer_unless_they_are_given() -> None:
    found = {}
    for name, given in (("sgd", {}), ("adamw", {}), ("adamw", {"lr": 0.5, "recipe": "cifar"})):
        config = set_up(config_of({**OPTIONS, "optimizer": name, **given})).config
        found[name, len(given)] = (config.lr, config.weight_decay, config.momentum)
    assert found == {
        ("sgd", 0): (0.1 * OPTIONS["batch"] / 64, 5e-4, 0.9),
        ("adamw", 0): (0.002, 0.05, 0.9),
        ("adamw", 2): (0.5, 0.05, 0.9),
    }


def test_an_unknown_optimizer() -> None:
    with pytest.raises(joslim.UserError, match=r"^optimizer: unknown name 'adam'; .*adamw"):
        config_of({"optimizer": "adam"})


class Killed(Exception):
    pass


def test_adamw_goes_on_as_if_it_had_not_been_stopped(tmp_path: Path) -> None:
    def kill(progress: Progress) -> None:
        if progress.done == 4:
            raise Killed

    options = {**OPTIONS, "optimizer": "adamw", "save_every": 1}
    whole = joslim.train(out=tmp_path / "whole", **options)
    with pytest.raises(Killed):
        joslim.train(out=tmp_path / "parts", watch=kill, **options)
    parts = joslim.train(out=tmp_path / "parts", resume=True, **options)
    assert parts.front == whole.front
    ours, theirs = (
        stored_tensors(run.path / "checkpoint/model.safetensors") for run in (parts, whole)
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    plain = joslim.train(out=tmp_path / "sgd", **{**options, "optimizer": "sgd"})
    assert plain.front != whole.front
