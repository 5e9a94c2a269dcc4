"""`joslim.save`: a run folder of a network that was trained in somebody's own loop."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from joslim.errors import UserError
from joslim.files import disk_errors, shown, write_tensors, writing
from joslim.front import Front
from joslim.models import MODELS
from joslim.results.record import Record, showable
from joslim.results.run_files import FINISHED, HISTORY, METRICS, TRAINING, RunStatus
from joslim.runs import checkpoint
from joslim.runs.folder import SAMPLES, RunFolder, sample_names
from joslim.runs.logs import HistoryLog, header_of, lines_since
from joslim.runs.networks import are_inputs, name_of_own, network_facts, positional_inputs
from joslim.runs.run import Run
from joslim.slimmable import SlimmableNet
from joslim.slimmable.batchnorm import inputs_of
from joslim.training.exploring import slimmable_inside
from joslim.training.slimming import Slimming

# Name of the data of such a run, which only the loop knows.
OWN_LOOP = "<own loop>"
# Samples that are kept, for the checks of exports.
SAMPLE_COUNT = 32


def save(
    net: SlimmableNet | Slimming,
    front: Front,
    folder: str | Path,
    *,
    samples: Any = None,
    model: str | None = None,
    overwrite: bool = False,
) -> Run:
    """Write a run folder of a network that was trained in your own loop.

    The folder has the weights, the Pareto front, the BatchNorm statistics of its children (which
    `net.state_dict()` does not hold), and the options of `joslim.slim`. `joslim.load` and all
    commands take it as they take a run of `joslim.train`; only `joslim resume` cannot go on with
    it.

    Args:
        net: The slimmable network. Give the `Slimming` that trained it instead to save the history
            of its search too.
        front: The front, as `Slimming.front` or `joslim.explore` has returned it.
        folder: The run folder.
        samples: A batch of inputs with which exports are checked, or a tuple of them if the network
            takes several. By default some of the scoring batches of a `Slimming`, else random
            numbers.
        model: How the network is made: a name in `joslim.models.MODELS`, or
            "package.module:function", which `joslim.load` has to be given again. By default the
            folder holds no name.
        overwrite: Replace a run that is in the folder already.

    Returns:
        The run.

    Raises:
        UserError: The front is of another network or of earlier weights, the folder is taken, or an
            argument is not valid.
        RunFailed: A weight is not finite.

    Examples:
        >>> net = joslim.slim(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)), torch.zeros(1, 4))
        >>> batches = [(torch.randn(16, 4), torch.randn(16, 1))]
        >>> front = joslim.explore(net, batches, nn.functional.mse_loss, children=4)
        >>> run = joslim.save(net, front, "runs/regression", model="nets:regressor")
        >>> joslim.load("runs/regression").front == front
        True
    """
    slimming = net if isinstance(net, Slimming) else None
    network = slimmable_inside(net.net if isinstance(net, Slimming) else net)
    check_front(network, front)
    if model is not None and model not in MODELS and ":" not in model:
        raise UserError(
            f"model: {shown(model)} is no built-in model; type package.module:function, which "
            "makes the network"
        )
    inputs = checked_samples(network, samples)
    if samples is None and slimming is not None:
        with suppress(UserError):  # the batches may have inputs of another size than the example
            inputs = checked_samples(network, inputs_of(slimming.scoring[0]))
    facts = network_facts(network)
    target = RunFolder(folder)
    target.check(overwrite)
    steps = slimming.steps if slimming else 0
    with writing(folder), target.locked():
        target.prepare()
        target.write_config(
            known_settings(network, slimming, model),
            cost=front.cost,
            fresh=[],
            data={"identity": identity_of(facts)},
            network=facts,
        )
        names = sample_names(len(inputs))
        with disk_errors(target.file(SAMPLES)):
            write_tensors(dict(zip(names, inputs)), target.file(SAMPLES))
        if slimming:
            HistoryLog(target, slimming.history).update()
        target.write_front(front, steps)
        checkpoint.save(target, network, None, steps, finished=True)
    return Run(target, network, front)


def known_settings(
    net: SlimmableNet, slimming: Slimming | None, model: str | None = None
) -> dict[str, Any]:
    """What is known of the configuration; the loop has decided the rest."""
    settings: dict[str, Any] = {"model": model or name_of_own(net), "data": OWN_LOOP}
    if slimming is not None:
        sandwich = {k: v for k, v in asdict(slimming.sandwich).items() if k != "distill"}
        settings |= {"method": slimming.name, "every": slimming.every, **sandwich}
        if slimming.steps:
            settings["steps"] = slimming.steps
    return settings


def identity_of(network: dict[str, Any]) -> str:
    """Return what is known of the data; runs with other inputs or outputs are not compared."""
    shapes = ([row["shape"] for row in network["inputs"]], network["outputs"])
    ends = [" and ".join("x".join(map(str, shape)) for shape in side) for side in shapes]
    return f"own loop, from {ends[0]} to {ends[1]}"


def check_front(net: SlimmableNet, front: Any) -> None:
    """Refuse a front of another network or of earlier weights."""
    if not isinstance(front, Front):
        kind = type(front).__name__
        raise UserError(f"front: {kind} given; give what slimming.front() has returned")
    if front.space != net.space:
        raise UserError("front: its children are of another network; call slimming.front() again")
    without = [p for p in front if p.widths not in net.statistics and p.widths != net.space.full]
    if net._slim_net.norms and without:
        raise UserError(
            f"front: {len(without)} of its {len(front)} children have no BatchNorm statistics, the "
            "weights have changed since; call slimming.front() again"
        )


def is_batched(net: SlimmableNet) -> bool:
    """Whether the first axis of all inputs is the batch, for which the example has size 1."""
    return all(value.shape[:1] == (1,) for value in positional_inputs(net))


def checked_samples(net: SlimmableNet, samples: Any) -> tuple[Tensor, ...]:
    """Return samples on the CPU, one tensor for each input; random numbers if none are given.

    Inputs that are not real numbers may be names of classes or lengths: the example is repeated.
    """
    batched = is_batched(net)
    if samples is None:
        generator = torch.Generator().manual_seed(0)
        repeated = (
            torch.cat([x.cpu()] * SAMPLE_COUNT) if batched else x.cpu()
            for x in positional_inputs(net)
        )
        return tuple(
            torch.randn(x.shape, generator=generator).to(x.dtype) if x.is_floating_point() else x
            for x in repeated
        )
    given = samples if isinstance(samples, (tuple, list)) else (samples,)
    wanted = [(tuple(x.shape), str(x.dtype).removeprefix("torch.")) for x in positional_inputs(net)]
    if not are_inputs(given, wanted, batched):
        shapes = ", ".join(
            f"({', '.join(map(str, ('n', *shape[1:]) if batched else shape))}) {kind}"
            for shape, kind in wanted
        )
        found = ", ".join(
            f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}"
            if isinstance(x, Tensor)
            else type(x).__name__
            for x in given
        )
        raise UserError(f"samples: {found} given, the network takes {shapes}")
    kept = slice(SAMPLE_COUNT if batched else None)
    return tuple(x[kept].detach().cpu().contiguous() for x in given)


def record_of(slimming: Slimming) -> Record:
    """Return the record of a training in somebody's own loop, which has no folder yet."""
    front = slimming.last_front if slimming.judged else None
    network = network_facts(slimming.net)
    data = {"identity": identity_of(network)}
    facts = {"cost": slimming.cost.name, "data": data, "network": network}
    config = known_settings(slimming.net, slimming)
    status = RunStatus(FINISHED if front else TRAINING, slimming.steps, slimming.total_steps)
    logs = {
        HISTORY: [header_of(slimming.history), *lines_since(slimming.history)],
        METRICS: [{"step": slimming.steps, "phase": "search", **slimming.searcher.counts()}],
    }
    name = name_of_own(slimming.net).strip("<>")
    return showable(Record(Path("RUN"), name, facts, config, status, front, logs=logs))
