"""The run folder: everything about one training, as JSON, JSON lines and safetensors.

Nothing in it is executed when it is read, and single files are written whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joslim import __version__
from joslim.errors import UserError
from joslim.front import Front
from joslim.whole import write_whole

if TYPE_CHECKING:
    from joslim.search.history import History

CONFIG = "config.json"
METRICS = "metrics.jsonl"
HISTORY = "history.jsonl"
FRONT = "front.json"
SAMPLES = "samples.safetensors"
PICTURE = "front.png"
LATENCY = "latency.json"
CHECKPOINT = "checkpoint"
NEW, OLD = f"{CHECKPOINT}.new", f"{CHECKPOINT}.old"
# All that a run makes: what --overwrite removes. Anything else in the folder is somebody's own.
MADE = (CONFIG, METRICS, HISTORY, FRONT, SAMPLES, PICTURE, LATENCY, "report.html", "tensorboard")
CHECKPOINTS = (CHECKPOINT, NEW, OLD)
MOST_BYTES = 10**9
# How often a lock is tried again, and how long it is waited for each time.
LOOKS, LOOK_SECONDS = 4, 0.05


class RunFolder:
    """The files of one run, by name."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def check(self, overwrite: bool = False) -> None:
        """It is empty or not there; or it holds a run that may be overwritten."""
        try:
            found = sorted(entry.name for entry in self.path.iterdir())
        except FileNotFoundError:
            found = []
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
        """Make it, and remove what an earlier run left in it."""
        try:
            for name in (*MADE, *CHECKPOINTS):
                if os.path.lexists(self.path / name):  # a link that leads nowhere, too
                    remove(self.path / name)
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"out: cannot make {str(self.path)!r}: {error.strerror}") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Inside, no other process can train into this folder. The lock dies with its process."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise UserError(f"out: cannot make {str(self.path)!r}: {error.strerror}") from error
        try:
            if not lock_soon(handle):
                where = f"{str(self.path)!r} is in use by another training"
                raise UserError(f"out: {where}; wait for its end, or type another folder")
            yield
        finally:
            os.close(handle)

    def exists(self) -> bool:
        """Other programs have a config.json too: ours says so."""
        return (self.path / CONFIG).is_file() and "joslim" in self.read(CONFIG)

    def file(self, name: str) -> Path:
        return self.path / name

    def refuse_links(self) -> None:
        """A link in a stranger's folder would let a run write to where it points."""
        for name in (*MADE, *CHECKPOINTS):
            if (self.path / name).is_symlink():
                raise UserError(
                    f"run: {name} in {str(self.path)!r} is a link; a run holds its own files"
                )

    # One JSON object in a file

    def write(self, name: str, content: dict[str, Any]) -> None:
        write_whole(self.path / name, json.dumps(content, indent=2, allow_nan=False) + "\n")

    def read(self, name: str) -> dict[str, Any]:
        file = self.path / name
        text = read_text(self.path, file)
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"run: {str(file)!r} is broken: {error}") from error
        if not isinstance(content, dict):
            raise UserError(f"run: {str(file)!r} holds no JSON object")
        return content

    def write_config(self, config: dict[str, Any], **facts: Any) -> None:
        self.write(CONFIG, {"joslim": __version__, "config": config, **facts})

    def write_front(self, front: Front) -> None:
        self.write(FRONT, front.to_json())

    # JSON lines

    def append(self, name: str, lines: list[dict[str, Any]]) -> None:
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line, allow_nan=False) + "\n" for line in lines)

    def cut_metrics(self, step: int, finished: bool = False) -> None:
        """Forget what was logged after this step: it will be logged again.

        So will the last line of a run, which has a phase, unless the run is finished.
        """
        file = self.path / METRICS
        if not file.exists():
            return
        kept = [
            line
            for line in read_lines(file)
            if is_count(line.get("step"), step) and (finished or "phase" not in line)
        ]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        if text != read_text(self.path, file):
            write_whole(file, text)


class HistoryLog:
    """Appends to history.jsonl what is new in the history since the last call."""

    def __init__(self, folder: RunFolder, history: History) -> None:
        self.folder, self.history = folder, history
        self.visits = self.scorings = 0
        header = {"cost": history.cost.name, "space": history.space.to_json()}
        write_whole(folder.file(HISTORY), json.dumps(header) + "\n")

    def update(self) -> None:
        visits = self.history.visits[self.visits :]
        scorings = self.history.scorings[self.scorings :]
        lines: list[dict[str, Any]] = [
            {
                "id": self.visits + i,
                "step": v.step,
                "widths": v.widths.counts,
                "cost": finite(v.cost),
            }
            for i, v in enumerate(visits)
        ]
        lines += [
            {
                "step": s.step,
                "ids": list(s.losses),
                "losses": [finite(x) for x in s.losses.values()],
            }
            for s in scorings
        ]
        if lines:
            # A resumed run has many steps to write at once: in the order of one that was not.
            lines.sort(key=lambda line: (line["step"], "ids" in line))
            self.folder.append(HISTORY, lines)
        self.visits, self.scorings = len(self.history.visits), len(self.history.scorings)


def is_count(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value <= most


def finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if abs(value) < float("inf") else None


def read_text(folder: Path, file: Path) -> str:
    if not os.path.isdir(folder):
        raise UserError(f"run: {str(folder)!r} does not exist; joslim train --out makes one")
    try:
        if file.exists() and not file.is_file():  # a pipe or a device would never end
            raise UserError(f"run: {str(file)!r} is not a file")
        if file.stat().st_size > MOST_BYTES:
            raise UserError(f"run: {str(file)!r} is larger than {MOST_BYTES} bytes")
        return file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(f"run: {str(folder)!r} has no {file.name}: not a run folder?") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"run: cannot read {str(file)!r}: {error}") from error


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file. A last line that was cut off by a crash is left out."""
    lines = read_text(file.parent, file).splitlines()
    objects = []
    for number, line in enumerate(lines, start=1):
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise UserError(f"run: {str(file)!r}, line {number} is broken: {error}") from error
        if not isinstance(content, dict):
            raise UserError(f"run: {str(file)!r}, line {number} holds no JSON object")
        objects.append(content)
    return objects


def lock(handle: int) -> bool:
    """Whether the folder is ours. A system that knows no such locks gives everybody one."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def lock_soon(handle: int) -> bool:
    """As `lock`; somebody who only looks whether a run is in use holds it for a moment."""
    for _ in range(LOOKS):
        if lock(handle):
            return True
        time.sleep(LOOK_SECONDS)
    return lock(handle)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
