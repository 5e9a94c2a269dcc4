"""`joslim.rejudge`: the front of trained weights by another cost, without another training."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from os.path import abspath, isdir
from pathlib import Path
from typing import Any

import torch

from joslim.errors import Stopped, UserError
from joslim.results.run_files import METRICS, refuse_unfinished
from joslim.runs import checkpoint
from joslim.runs.config import config_of
from joslim.runs.driver import (
    RunWriter,
    Watcher,
    agree_on_latency,
    judge,
    restoring_torch,
    stopping,
)
from joslim.runs.folder import RunFolder
from joslim.runs.fronts import opened
from joslim.runs.logs import Log
from joslim.runs.resume import write_config
from joslim.runs.run import Run
from joslim.runs.setup import lay_out, set_up
from joslim.runs.trainer import Trainer
from joslim.space import Widths
from joslim.training.settings import COST_BLIND


@restoring_torch()
def rejudge(
    run: str | Path,
    cost: str | Callable[[Widths], float],
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    model: str | None = None,
    data: Any = None,
    watch: Watcher = lambda progress: None,
    **where: Any,
) -> Run:
    """Find the Pareto front of a finished run by another cost, with the weights that it has.

    Slim, BigNAS and single networks do not look at the cost while they train. Their children are
    chosen and judged anew, with the result that a training with the other cost would have. Joslim
    and AutoSlim have trained the widths that their cost had chosen: they are refused.

    Args:
        run: Folder of the finished run.
        cost: A name in `joslim.COSTS`, or a function from `Widths` to a number.
        out: Folder of the new run; by default that of the run with the name of the cost.
        overwrite: Replace a run that is in the folder already.
        model: The network of the run as "package.module:function", if it is your own.
        data: The data of the run, if they were moved, or if they were not given by name.
        watch: A function that is called with the progress of judging.
        where: Settings in place of those of the run that change no result, such as device, threads
            and data_root; device_file for the cost latency.

    Returns:
        The new run. Its config.json names the run that its weights come from.

    Raises:
        UserError: The run has not finished or was trained for its cost, or an argument is not
            valid.

    Examples:
        >>> settings = dict(method="slim", steps=4, threads=1)
        >>> run = joslim.train("resnet8", "digits", out="runs/by-macs", **settings)
        >>> joslim.rejudge("runs/by-macs", "memory").front.cost
        'memory'
    """
    source = RunFolder(run)
    trained = _trained_without_cost(source, model)
    name = cost if isinstance(cost, str) else getattr(cost, "__name__", "cost")
    target = RunFolder(out or f"{source.path}-{name}")
    if target.path.resolve() == source.path.resolve():
        raise UserError(f"out: {str(target.path)!r} is the run itself; type another folder")
    target.check(overwrite)
    trainer = _with_weights(trained, cost, data, where)
    with target.locked(), stopping() as stop:
        target.prepare()
        try:
            weights_of = {"run": abspath(source.path), "cost": trained.facts["cost"]}
            write_config(trainer, target, weights_of=weights_of)
            lines = source.lines_until(METRICS, trainer.total_steps)
            # Costs of the trained widths are those of the other cost.
            kept = [{k: v for k, v in line.items() if k != "costs"} for line in lines]
            Log(target.file(METRICS), kept)
            agree_on_latency(trainer, target)
            writer = RunWriter(trainer, target)
            front = judge(trainer, writer, watch, stop)
            writer.finish(front)
        except BaseException as error:
            target.prepare()  # Remove the unfinished run.
            if isinstance(error, Stopped):
                raise Stopped("stopped; the same command begins anew", error.signal) from None
            raise
    lay_out(trainer.net, torch.contiguous_format)
    return Run(target, trainer.net.eval(), front)


def _trained_without_cost(source: RunFolder, model: str | None) -> Run:
    """Open a finished run, and refuse those whose weights depend on the cost, or on a loop."""
    refuse_unfinished(source.path)
    run = opened(source.path, model)
    path = shlex.quote(str(source.path))
    if run.in_own_loop:
        raise UserError(
            f"run: {path} was trained in a loop of its owner; there, joslim.explore(net, scoring, "
            "criterion, cost=...) finds the front by another cost"
        )
    if run.config.method not in COST_BLIND:
        raise UserError(
            f"method: {run.config.method} has trained the widths that its cost had chosen; for "
            f"another cost, type joslim train --config {path}/config.json --cost NAME --out FOLDER"
        )
    return run


def _with_weights(run: Run, cost: Any, data: Any, where: Mapping[str, Any]) -> Trainer:
    """Set up the run with another cost, and with its weights after the last step."""
    config = run.config.to_json()
    both = {"cost": cost, **({} if data is None else {"data": data})}
    named = {key: value for key, value in both.items() if isinstance(value, str)}
    objects = {key: value for key, value in both.items() if key not in named}
    root = config["data_root"]
    own = {
        "data": run.data_name,
        "device_file": None,
        "init": None,
        "tensorboard": False,
        "log_to": None,
        "data_root": root if root is not None and isdir(root) else None,
    }
    given = {key: value for key, value in where.items() if value is not None}
    settings = config_of({**config, **own, **named, **given})
    trainer = set_up(settings, **objects)
    known = run.facts["data"]["identity"]
    if trainer.data.identity != known:
        raise UserError(f"data: {trainer.data.identity!r} is not what the run was trained on")
    trainer.config = replace(trainer.config, init=run.config.init, data=run.config.data)
    trainer.fresh = run.fresh
    path = checkpoint.last_good(run.folder)
    if path is None:
        raise UserError(f"run: {str(run.path)!r} has no checkpoint")
    checkpoint.load_weights(path, trainer.net)
    trainer.slimming.skip(trainer.total_steps)
    return trainer
