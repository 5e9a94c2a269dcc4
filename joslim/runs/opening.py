"""The facts of a run folder, or of an exported child; and what was given in place of one.

People mix up what joslim writes: each thing is refused by what it is, with what opens it.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from joslim.errors import UserError
from joslim.runs.folder import CONFIG, RunFolder

# What opens a child that was exported as one file.
OPENERS = {".onnx": "onnxruntime.InferenceSession", ".pt2": "torch.export.load"}


def facts_of_run(path: Path) -> dict[str, Any]:
    """What config.json of a run holds."""
    name = repr(str(path))
    if is_file(path):
        raise UserError(
            f"run: {name} {is_no_folder(path)}; a run is a folder that joslim train makes"
        )
    facts = RunFolder(path).read(CONFIG)
    if is_child(facts):
        raise UserError(f"run: {name} is an exported child; joslim.load_child({name}) opens it")
    if not is_run(facts):
        raise UserError(f"run: {name} is not a run folder: its {CONFIG} is not joslim's")
    return facts


def facts_of_child(path: Path) -> dict[str, Any]:
    """What config.json of an exported folder holds."""
    name, how = repr(str(path)), "joslim export RUN -o NAME makes one"
    if is_file(path):
        raise UserError(f"child: {name} {is_no_folder(path)}; a folder is needed: {how}")
    if not path.exists():
        raise UserError(f"child: {name} does not exist; {how}")
    if not (path / CONFIG).exists():
        raise UserError(f"child: {name} is no exported child: it has no {CONFIG}; {how}")
    facts = RunFolder(path).read(CONFIG)
    if is_run(facts):
        export = f"joslim export {shlex.quote(str(path))} -o NAME"
        raise UserError(
            f"child: {name} is a run; joslim.load({name}) opens it, {export} cuts one out"
        )
    if not is_child(facts):
        raise UserError(f"child: {name} is no exported child: its {CONFIG} is not joslim's; {how}")
    return facts


def is_run(facts: dict[str, Any]) -> bool:
    """Other programs have a config.json too: ours says so."""
    return "joslim" in facts


def is_child(facts: dict[str, Any]) -> bool:
    return str(facts.get("made_by")).startswith("joslim")


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        raise UserError(f"path: {str(path)!r} cannot be read: {error.strerror}") from error


def is_no_folder(path: Path) -> str:
    if path.suffix in OPENERS:
        return f"is an exported child, which {OPENERS[path.suffix]} opens"
    return "is a file"
