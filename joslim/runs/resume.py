"""Resuming a run: set up as it was started, check that it is the same training, load its state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from os.path import abspath
from typing import Any

from joslim.data.folder import FolderData
from joslim.data.text import TextData
from joslim.distributed import alike, on_first
from joslim.errors import UserError, first_line
from joslim.files import json_value, shown
from joslim.results.run_files import CONFIG, facts_of_run
from joslim.runs import checkpoint
from joslim.runs.config import Config
from joslim.runs.folder import RunFolder
from joslim.runs.run import Run
from joslim.runs.setup import set_up
from joslim.runs.trainer import Trainer
from joslim.training.settings import WHERE_AND_HOW

# The settings that `until` may change.
HOW_LONG = frozenset(("steps", "epochs"))

# Errors that a state may lead to that is of another training, or made up.
BAD_STATE = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
)


def set_up_again(
    config: Config, objects: Mapping[str, Any], folder: RunFolder, until: int | None
) -> Trainer:
    """Set up a run with the K of its folder and the weights of its checkpoint."""
    facts = on_first(lambda: facts_of_run(folder.path))
    refuse_trained_elsewhere(facts, folder)
    stored = json_value(facts, "config", CONFIG)
    has_weights = on_first(lambda: checkpoint.find(folder) is not None)
    named = config.data
    if named == json_value(stored, "data", CONFIG):
        config = replace(config, data=on_first(lambda: Run(folder).data_name))
    if until is not None:
        config = replace(config, steps=until, epochs=None)
    # These defaults depend on the number of steps, and on the weights that the run began with.
    for name in ("every", "lr", "draw_full", "label_share", "full_weight"):
        if getattr(config, name) is None:
            config = replace(config, **{name: json_value(stored, name, CONFIG)})
    if config.amp == "auto":  # it was measured when the run began
        config = replace(config, amp=stored.get("amp"))
    trainer = set_up(replace(config, init=None) if has_weights else config, **objects)
    trainer.config = replace(trainer.config, init=config.init, data=named)
    return trainer


def refuse_trained_elsewhere(facts: Mapping[str, Any], folder: RunFolder) -> None:
    """Refuse runs that were trained elsewhere: by a loop of their owner, or in another folder."""
    if "weights_of" in facts:
        raise UserError(
            f"run: {str(folder.path)!r} was not trained, its weights are those of another run; "
            "resume that one, and type joslim rejudge again"
        )
    if "network" in facts:
        raise UserError(
            f"run: {str(folder.path)!r} was trained in a loop of its owner, which joslim cannot "
            "resume; go on in that loop"
        )


def restore(trainer: Trainer, folder: RunFolder, until: int | None = None) -> None:
    """Go back to the last checkpoint, after a check that it is of the same training."""
    state = on_first(lambda: _read_state(trainer, folder, until))
    if state is not None:
        try:  # the files may be whole and still be of something else
            trainer.load_state_dict(state)
        except BAD_STATE as error:
            why = first_line(error)
            raise UserError(f"checkpoint: its state is not one of this training: {why}") from error
        alike(trainer.net.state_dict().values())
        # An extended run goes on from its last weights.
        if trainer.best is not None and trainer.best.swapped and not trainer.slimming.finished:
            trainer.swap_best()
    done = trainer.slimming.steps
    if trainer.total_steps < done:
        field = "steps" if until is None else "until"
        raise UserError(
            f"{field}: {trainer.total_steps} is less than the {done} steps that are done"
        )
    if until is not None:
        trainer.fresh = on_first(lambda: folder.read(CONFIG).get("fresh", []))
        on_first(lambda: write_config(trainer, folder))


def write_config(trainer: Trainer, folder: RunFolder, **more: Any) -> None:
    """Write config.json: the configuration, the cost, the data of a run, and more facts."""
    data = trainer.data
    # The path as it was given may be relative: a run is resumed from elsewhere, too.
    path = {"path": abspath(data.folder)} if isinstance(data, (FolderData, TextData)) else {}
    folder.write_config(
        trainer.config.to_json(),
        cost=trainer.slimming.cost.name,
        fresh=trainer.fresh,
        metric=asdict(trainer.metric.name),
        data={
            "identity": data.identity,
            **path,
            "shape": list(data.shape),
            "dtype": str(data.dtype).removeprefix("torch."),
            "classes": list(data.classes),
            "mean": list(data.mean),
            "std": list(data.std),
            "sizes": dict(data.sizes),
        },
        **more,
    )


def _read_state(trainer: Trainer, folder: RunFolder, until: int | None) -> dict[str, Any] | None:
    """Load the weights of the last good checkpoint and return its state; None if there is none."""
    folder.refuse_links()
    _check_same_training(trainer, folder, until)
    if (path := checkpoint.last_good(folder)) is None:
        return None
    state = checkpoint.load_state(path)
    # A configuration that was edited since the checkpoint was written is refused.
    theirs = json_value(state, "settings", "checkpoint")
    for key, value, there in _other_settings(theirs, trainer.settings, "checkpoint"):
        if key not in WHERE_AND_HOW | HOW_LONG:
            raise UserError(
                f"checkpoint: it was trained with {key} {shown(there)}, the run in "
                f"{str(folder.path)!r} now has {shown(value)}; put it back into {CONFIG}"
            )
    checkpoint.load_weights(path, trainer.net)
    return state


def _check_same_training(trainer: Trainer, folder: RunFolder, until: int | None) -> None:
    facts = facts_of_run(folder.path)
    theirs = json_value(facts, "config", CONFIG)
    may_change = WHERE_AND_HOW if until is None else WHERE_AND_HOW | HOW_LONG
    ours = trainer.config.to_json()
    for key, value, there in _other_settings(theirs, ours, f"{CONFIG}.config"):
        if key in may_change:
            continue
        given = "none" if value is None else repr(value)
        has = "none" if there is None else shown(there)
        raise UserError(
            f"{key}: {given} given, the run in {str(folder.path)!r} has {has}; "
            "a resumed run cannot change it; type joslim resume RUN, which takes its settings"
        )
    if (there := json_value(facts, "cost", CONFIG)) != (mine := trainer.slimming.cost.name):
        raise UserError(f"cost: {mine!r} given, the run has {shown(there)}; give it again")
    identity = trainer.data.identity
    if json_value(json_value(facts, "data", CONFIG), "identity", CONFIG) != identity:
        raise UserError(f"data: {identity!r} is not what the run was trained on")


def _other_settings(
    theirs: Any, ours: Mapping[str, Any], where: str
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name of each setting that differs, our value and theirs.

    A folder of images may have been moved: its identity is compared, not its path.
    """
    for key, value in ours.items():
        there = json_value(theirs, key, where)
        kinds = {str(v).partition(":")[0] for v in (value, there)}
        folders = key == "data" and len(kinds) == 1 and kinds <= {"folder", "text"}
        if there != value and not folders:
            yield key, value, there
