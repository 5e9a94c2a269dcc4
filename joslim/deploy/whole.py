"""The whole slimmable network with its front, as a run folder without what only training needs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from joslim.deploy.beside import beside
from joslim.errors import UserError
from joslim.runs import checkpoint
from joslim.runs.folder import CHECKPOINT, CONFIG, FRONT, SAMPLES
from joslim.runs.run import Run, load
from joslim.runs.whereabouts import read_front


def export_whole(run: Run, path: str | Path, overwrite: bool = False) -> None:
    """A folder that `joslim.load` opens, and that no training can go on with."""
    front = read_front(run.path)
    source = checkpoint.find(run.folder)
    if source is None:
        raise UserError(f"run: {str(run.path)!r} has no checkpoint yet")
    checkpoint.verify(source)
    if not run.folder.file(SAMPLES).is_file():
        raise UserError(f"run: {str(run.path)!r} has no {SAMPLES}, its training has not finished")
    with beside(path, folder=True, overwrite=overwrite) as new:
        (new / CHECKPOINT).mkdir(parents=True)
        for name in (CONFIG, FRONT, SAMPLES):
            shutil.copyfile(run.folder.file(name), new / name)
        copy_weights(source, new / CHECKPOINT)
        copied = load(new)
        checkpoint.verify(new / CHECKPOINT)
        assert copied.front == front


def copy_weights(source: Path, target: Path) -> None:
    """Weights and statistics as they are; the state is empty, and `joslim resume` says so."""
    summary = json.loads((source / checkpoint.SUMMARY).read_text())
    for name in (checkpoint.MODEL, checkpoint.STATISTICS):
        shutil.copyfile(source / name, target / name)
    torch.save(None, target / checkpoint.STATE)
    summary["sha256"][checkpoint.STATE] = checkpoint.checksum(target / checkpoint.STATE)
    (target / checkpoint.SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")
