"""Optimizers: each row makes what torch makes, and goes on from a state as if never stopped."""

from pathlib import Path

import pytest
import torch
from torch import nn

import joslim
from joslim.files import stored_tensors
from joslim.runs.config import config_of
from joslim.runs.driver import Progress
from joslim.runs.recipes import RECIPES
from joslim.runs.setup import set_up
from joslim.training.optimizers import OPTIMIZERS

OPTIONS = {"steps": 6, "every": 2, "batch": 8, "front_images": 16, "samples": 1, "threads": 1}


def test_the_rows() -> None:
    one = [torch.nn.Parameter(torch.ones(2))]
    options = {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.2}
    made = {name: kind.make(one, **options) for name, kind in OPTIMIZERS.items()}
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


def mixed_network() -> nn.Module:
    """A grey stem, whose weight has one input channel too, and a depthwise and a grouped conv."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.Flatten(),
        nn.LayerNorm([32]),
        nn.Linear(32, 10),
    )


SPARED = {"0.bias", "1.weight", "1.bias", "2.weight", "2.bias", "3.bias", "5.weight", "5.bias"}
SPARED |= {"6.bias"}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("decay_on", "spared"), [("all", set()), ("weights", SPARED)])
def test_weight_decay_with_a_gradient_of_zero(name: str, decay_on: str, spared: set[str]) -> None:
    """The update is the decay alone: lr * decay, and by the factor 1 + momentum for Nesterov's."""
    given = {"channels": 1, "optimizer": name, "lr": 0.5, "momentum": 0.8, "weight_decay": 0.1}
    trainer = set_up(config_of({**OPTIONS, **given, "decay_on": decay_on}), model=mixed_network())
    before = {n: p.detach().clone().fill_(3) for n, p in trainer.net.named_parameters()}
    trainer.net.load_state_dict(before, strict=False)
    for parameter in trainer.net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    trainer.optimizer.step()
    shrunk = 1 - 0.5 * 0.1 * (1.8 if name == "sgd" else 1)
    after = {n: p.flatten()[0].item() for n, p in trainer.net.named_parameters()}
    assert after == pytest.approx({n: 3 if n in spared else 3 * shrunk for n in after})


def test_the_groups_of_an_own_loop() -> None:
    net = mixed_network()
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    decayed, rest = joslim.parameter_groups(net, 0.1)
    assert {names[id(p)] for p in rest["params"]} == SPARED
    assert {names[id(p)] for p in decayed["params"]} == {*names.values()} - SPARED
    assert (decayed["weight_decay"], rest["weight_decay"]) == (0.1, 0)


def test_the_recipes_of_the_paper_decay_weights_alone() -> None:
    on = {name: config_of({"recipe": name}).decay_on for name in RECIPES}
    assert {n for n, where in on.items() if where == "weights"} == {
        n for n in RECIPES if n.startswith("paper/")
    }


def test_a_resume_keeps_the_decay(tmp_path: Path) -> None:
    """Bit-identical to a whole run, and with another one it is refused."""

    def kill(progress: Progress) -> None:
        if progress.done == 4:
            raise Killed

    options = {**OPTIONS, "decay_on": "weights", "save_every": 1}
    whole = joslim.train(out=tmp_path / "whole", **options)
    with pytest.raises(Killed):
        joslim.train(out=tmp_path / "parts", watch=kill, **options)
    with pytest.raises(joslim.UserError, match=r"^decay_on: 'all' given, the run in"):
        joslim.train(out=tmp_path / "parts", resume=True, **{**options, "decay_on": "all"})
    parts = joslim.train(out=tmp_path / "parts", resume=True, **options)
    for name, value in whole.net.state_dict().items():
        assert torch.equal(value, parts.net.state_dict()[name]), name
