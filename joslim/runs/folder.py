"""The run folder: everything about one training, as JSON, JSON lines and safetensors.

Nothing in it is executed when it is read, and single files are written whole or not at all.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from joslim import __version__
from joslim.errors import UserError
from joslim.files import left_over, remove, write_whole, writing
from joslim.front import Front
from joslim.results.run_files import (
    CONFIG,
    FORMAT,
    FRONT,
    HISTORY,
    LATENCY,
    METRICS,
    VALIDATION,
    lock,
    read_lines,
    read_object,
)

SAMPLES = "samples.safetensors"
PICTURE = "front.png"
CHECKPOINT = "checkpoint"
NEW, OLD = f"{CHECKPOINT}.new", f"{CHECKPOINT}.old"
# All files that a run makes. --overwrite removes them, the first of them last; anything else in the
# folder is somebody's own.
MADE = (CONFIG, METRICS, HISTORY, FRONT, SAMPLES, PICTURE, LATENCY, "report.html", "tensorboard")
CHECKPOINTS = (CHECKPOINT, NEW, OLD)
NUMBERS = re.compile(r"\[\n[\s\d,.eE+-]*\]")
# How often a lock is tried again, and how long it is waited for each time.
LOOKS, LOOK_SECONDS = 4, 0.05


class RunFolder:
    """The files of one run, by name."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def check(self, overwrite: bool = False) -> None:
        """Refuse a folder that is not empty, unless it holds a run that may be overwritten."""
        try:
            found = {*self.path.iterdir()} - {*self.left_over()}
        except FileNotFoundError:
            found = set()
        except NotADirectoryError as error:
            raise UserError(f"out: {str(self.path)!r} is a file, a folder is needed") from error
        except OSError as error:
            raise UserError(f"out: cannot read {str(self.path)!r}: {error.strerror}") from error
        if found and not self.exists():
            raise UserError(f"out: {str(self.path)!r} is not empty and holds no run; type another")
        if found and not overwrite:
            raise UserError(
                f"out: {str(self.path)!r} holds a run; type another, "
                "or --overwrite to begin anew, or --resume to go on"
            )

    def prepare(self) -> None:
        """Make the folder, and remove the files of an earlier run.

        The configuration goes last: without it the folder could not be overwritten any more.
        """
        with writing(self.path):
            self.tidy()
            for name in (*CHECKPOINTS, *reversed(MADE)):
                if os.path.lexists(self.path / name):  # a link that leads nowhere, too
                    remove(self.path / name)
            self.path.mkdir(parents=True, exist_ok=True)

    def left_over(self) -> list[Path]:
        """Return the temporary files of a run that was killed while it wrote."""
        return [side for name in MADE for side in left_over(self.path / name)]

    def tidy(self) -> None:
        for side in self.left_over():
            with suppress(OSError):  # a disk that cannot be written can still be read
                side.unlink()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against other trainings. The lock ends with the process."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDONLY)
        try:
            if not lock_soon(handle):
                where = f"{str(self.path)!r} is in use by another training"
                raise UserError(f"out: {where}; wait for its end, or type another folder")
            yield
        finally:
            os.close(handle)

    def exists(self) -> bool:
        """Whether the folder holds a run; other programs have a config.json too."""
        return (self.path / CONFIG).is_file() and "joslim" in self.read(CONFIG)

    def file(self, name: str) -> Path:
        return self.path / name

    def refuse_links(self) -> None:
        """Refuse links in a folder of somebody else: the run would write to their targets."""
        for name in (*MADE, *CHECKPOINTS):
            if (self.path / name).is_symlink():
                raise UserError(
                    f"run: {name} in {str(self.path)!r} is a link; a run holds its own files"
                )

    # One JSON object in a file

    def write(self, name: str, content: dict[str, Any]) -> None:
        write_whole(self.path / name, json.dumps(content, indent=2, allow_nan=False) + "\n")

    def read(self, name: str) -> dict[str, Any]:
        return read_object(self.path, name)

    def write_config(self, config: dict[str, Any], **facts: Any) -> None:
        self.write(CONFIG, {"joslim": __version__, "format": FORMAT, "config": config, **facts})

    def write_front(self, front: Front, step: int) -> None:
        """Write the front with the step of the weights that it belongs to."""
        text = json.dumps({"step": step, **front.to_json()}, indent=2, allow_nan=False)
        # A list of numbers is one line. No text in JSON has a line break, so that none is changed.
        text = NUMBERS.sub(lambda found: json.dumps(json.loads(found[0])), text)
        write_whole(self.path / FRONT, text + "\n")

    # JSON lines

    def lines_until(self, name: str, step: int) -> list[dict[str, Any]]:
        """Read the lines up to this step; a resumed run logs the others again.

        It also logs the last line of a finished run again, that of the phase "front".
        """
        file = self.path / name
        lines = read_lines(file) if file.exists() else []
        return [
            line
            for line in lines
            if type(at := line.get("step")) is int
            and at <= step
            and line.get("phase") in (None, VALIDATION)
        ]


def sample_names(inputs: int) -> list[str]:
    """Names of the tensors in samples.safetensors, for a network with so many inputs."""
    return ["inputs"] if inputs == 1 else [f"inputs.{at}" for at in range(inputs)]


def lock_soon(handle: int) -> bool:
    """Try to lock for a while: a look whether a run is in use holds the lock for a moment."""
    for _ in range(LOOKS):
        if lock(handle):
            return True
        time.sleep(LOOK_SECONDS)
    return lock(handle)
