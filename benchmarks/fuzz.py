"""Files from strangers: thousands of damaged and hostile ones, opened in every public way.

A run is made, one file of it is changed (bits, bytes, keys, values, links, files that are none),
and it is opened as people do: `joslim.load` and all that it gives, `joslim front`, `joslim pick`,
`joslim resume`, `joslim report`; `joslim.load_child` opens an exported child, `joslim train
--config` a configuration, `joslim train --data folder:` images. Checksums are made to fit most of
the time, as somebody would who means harm. Runs also get names that are very long or no UTF-8.

Allowed is success, or one line that says what is wrong (UserError and exit code 2, RunFailed and
exit code 1). Not allowed is any other exception, more than ten seconds of processor time or a
minute of waiting, a file that is written or removed outside of the run folder, a control character
on the terminal, memory without bounds.
A setting that somebody edited in config.json must be refused by `joslim resume`, or change neither
weights nor front; `joslim export --overwrite` must leave the files of others alone.

`--case N` does one of them again and shows where it fails.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import faulthandler
import hashlib
import io
import json
import math
import os
import pickle
import random
import resource
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from PIL import Image
from reporting import at_most, report
from safetensors.torch import load_file, save_file

import joslim
from joslim.cli import main as joslim_main
from joslim.costs.device_file import Conditions, DeviceFile
from joslim.costs.timing import Setting
from joslim.errors import RunFailed, UserError
from joslim.front import Front
from joslim.runs import driver
from joslim.runs.config import FIELDS
from joslim.runs.trainer import Trainer
from joslim.training.settings import kind_of

TINY = {
    "steps": 6,
    "batch": 16,
    "every": 2,
    "save_every": 2,
    "front_images": 32,
    "samples": 1,
    "low": 0.5,
    "threads": 1,
}
SECONDS = 10
SECONDS_WAITING = 60
# More than this is not needed by any of them; a real limit, so that the machine survives.
ADDRESS_SPACE = 6 * 2**30
MEGABYTES = 500

TEXTS = [
    "",
    "os:system",
    "os:_exit",
    "folder:/etc",
    "../../../../outside/victim.txt",
    "/etc/passwd",
    "\x1b[31mred\x1b[2J",
    "line\nbreak\rreturn",
    "\u202egnp.exe",
    "<script>alert(1)</script>",
    "[bold red]markup[/]",
    "\ud800",
    "\0",
    "nan",
    "x" * 100_000,
]
NUMBERS = [0, -1, 1, 2**31, 2**63, 10**30, 10**400, -0.0, 1e-320, 1e308, math.nan, math.inf]
HOSTILE: list[Any] = [None, True, [], {}, [[]], {"a": {}}, *TEXTS, *NUMBERS]


class Hang(BaseException):
    """It took too long. No Exception, so that nobody catches it by accident."""


class Enough(BaseException):
    """A training that goes on is as good as one that has ended."""


# Changes of a value: JSON, or what a checkpoint's state holds


def containers(tree: Any) -> list[Any]:
    """All dictionaries and lists in it that are not empty, the outermost first."""
    found, queue = [], [tree]
    while queue:
        node = queue.pop(0)
        if isinstance(node, (dict, list)) and node:
            found.append(node)
            queue += node.values() if isinstance(node, dict) else node
    return found


def change_value(tree: Any, rng: random.Random) -> str:
    """One change of some key or value, in place; returns what it was."""
    found = containers(tree)
    if not found:
        return "nothing to change"
    # The outer ones are few and matter most.
    node = found[min(int(len(found) * rng.random() ** 3), len(found) - 1)]
    key = rng.choice([*node] if isinstance(node, dict) else range(len(node)))
    how = rng.choice(["value", "value", "delete", "rename", "repeat", "nest", "scale", "many"])
    if how == "delete":
        del node[key]
    elif how == "rename" and isinstance(node, dict):
        node[rng.choice([*TEXTS, f"{key}x", 7])] = node.pop(key)
    elif how == "repeat" and isinstance(node, list):
        node.insert(key, copy.deepcopy(node[key]))
    elif how == "nest":
        node[key] = [[node[key]]]
    elif how == "many" and isinstance(node, list):
        node.extend([copy.deepcopy(node[key])] * 10_000)
    elif how == "scale" and isinstance(node[key], (int, float)):
        node[key] = node[key] * rng.choice([-1, 0.5, 3, 1e18]) + rng.choice([0, 1, 0.1])
    else:
        how, node[key] = "value", copy.deepcopy(rng.choice(HOSTILE))
    return f"{how} at {str(key)[:40]!r}"


def as_json(value: Any) -> str:
    return json.dumps(value, skipkeys=True)


def unlimited_digits() -> None:
    """Python refuses to print the longest of our numbers; strangers do not."""
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)


# Changes of bytes


def change_bytes(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    at = rng.randrange(len(content) + 1)
    length = rng.choice([1, 2, 8, 64, 1000])
    noise = rng.choice([rng.randbytes(length), b"\0" * length, b"[" * 50_000, b"\x1b[2J", b"\n{"])
    changed = bytearray(content)
    how = rng.choice(["flip", "flip", "cut", "drop", "insert", "repeat", "replace", "empty"])
    if how == "flip" and content:
        for _ in range(rng.choice([1, 1, 5, 50])):
            changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif how == "cut":
        del changed[at:]
    elif how == "drop":
        del changed[at : at + length]
    elif how == "insert":
        changed[at:at] = noise
    elif how == "repeat":
        changed[at:at] = changed[at : at + length]
    elif how == "replace":
        changed[at : at + len(noise)] = noise
    else:
        changed.clear()
    return bytes(changed), f"bytes {how}"


# Changes of the files of a run. Each takes the run folder and returns what it did.


def spoil_bytes(file: Path, rng: random.Random) -> str:
    content, how = change_bytes(file.read_bytes(), rng)
    file.write_bytes(content)
    return how


def spoil_json(file: Path, rng: random.Random) -> str:
    lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    at = min(int(len(lines) * rng.random() ** 2), len(lines) - 1)
    value = json.loads(lines[at])
    how = change_value(value, rng) if rng.random() < 0.95 else "whole"
    lines[at] = as_json(rng.choice(HOSTILE) if how == "whole" else value)
    if rng.random() < 0.1:
        lines[at] = lines[at].replace("{", '{"joslim": 1, "joslim": 2, ', 1)
    file.write_text("\n".join(lines) + "\n")
    return f"json {how}"


def spoil_place(file: Path, rng: random.Random) -> str:
    """Something else is where the file should be."""
    outside = file.parents[1 if file.parent.name == "run" else 2] / "outside"
    if file.exists():
        file.unlink()
    how = rng.choice(["gone", "folder", *SPECIAL])
    if how == "folder":
        (file / "inside").mkdir(parents=True)
    elif how != "gone":
        make_special(how, file, outside)
    return f"place {how} {file.name}"


SPECIAL = ("link", "dangling", "loop", "pipe", "zero", "socket", "sparse", "unreadable")


def make_special(how: str, file: Path, outside: Path) -> None:
    """Something that is no file with content of its own, or a file of a terabyte."""
    if how == "pipe":
        os.mkfifo(file)
    elif how == "socket":
        # A socket's path is short: it is bound by its name in the folder.
        here = os.getcwd()
        os.chdir(file.parent)
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(file.name)
        os.chdir(here)
    elif how in ("sparse", "unreadable"):
        file.touch()
        os.truncate(file, 2**40 if how == "sparse" else 10)
        file.chmod(0o644 if how == "sparse" else 0)
    else:
        targets = {"link": outside / "victim.txt", "dangling": outside / "new", "loop": file}
        file.symlink_to(targets.get(how, Path("/dev/zero")))


SHAPES = [
    [3, 4700, 4700],
    [3, 10_000, 10_000],
    [0, 8, 8],
    [3, 8],
    [10**6] * 3,
    [1, 1, 1],
    [3, 1, 7],
]
COUNTS = [0, -1, 2, 10**6, 10**9, 2**63, 1e300, 8.5, True, "8"]
NAMES = ["\udce9", "x" * 255, "x" * 100_000, "line\nbreak", "\x1b[2J"]


def spoil_counts(file: Path, rng: random.Random) -> str:
    """Shapes, counts and names that a program would believe and take its time for."""
    content = json.loads(file.read_text())
    found = [
        (node, key)
        for node in containers(content)
        for key in (node if isinstance(node, dict) else range(len(node)))
        if key in ("shape", "classes")
        or (isinstance(node[key], int) and not isinstance(node[key], bool))
    ]
    named = [place for place in found if place[1] in ("shape", "classes")]
    node, key = rng.choice(named if named and rng.random() < 0.5 else found)
    if key == "shape":
        node[key] = rng.choice(SHAPES)
    elif key == "classes":
        many = [str(n) for n in range(rng.choice([0, 1, 11, 300_000]))]
        node[key] = rng.choice([many, [*node[key][1:], rng.choice(NAMES)]])
    else:
        node[key] = rng.choice(COUNTS)
    file.write_text(as_json(content))
    return f"counts at {key!r}"


# They may change the rounding, and nobody says that they do not.
ROUNDING = {"threads", "channels_last", "device"}
# More of these extend a run, as `resume --until` does, which writes them into config.json too.
LENGTH = {"steps", "epochs"}


def spoil_setting(file: Path, rng: random.Random) -> str:
    """Another value of a setting that is allowed, and that the run was not begun with."""
    content = json.loads(file.read_text())
    settings = content["config"]
    name = rng.choice([name for name in FIELDS if name not in ROUNDING | LENGTH])
    before, (kind, _) = settings.get(name), kind_of(FIELDS[name])
    if kind is bool:
        after: Any = not before
    elif kind is str:
        names = FIELDS[name].metadata["names"]
        known = [*names()] if names else ["another", "uniform", "resnet20", "0.5"]
        after = rng.choice([value for value in known if value != before])
    elif kind is int:
        after = rng.choice([1, 2, 3, 8, 32, (before or 0) + 1])
    else:
        after = rng.choice([0.1, 0.25, 0.75, 2.0, (before or 0.0) + 0.125])
    settings[name] = after
    file.write_text(as_json(content))
    return f"setting {name} from {before!r} to {after!r}"


def spoil_name(file: Path, rng: random.Random) -> str:
    """The run gets a name that the system may refuse, or that is no text."""
    name = rng.choice(
        [os.fsdecode(b"caf\xe9"), "x" * 255, "x" * 400, "a b", "a\nb", "\x1b[31m", "..."]
    )
    place = file.parent / "names"
    place.mkdir()
    (place / "NAME").write_bytes(os.fsencode(name))
    with contextlib.suppress(OSError):
        shutil.copytree(file.parent, place / name, ignore=lambda *_: ["names", "images", "child"])
    return f"name {name[:20]!r}"


def spoil_image(file: Path, rng: random.Random) -> str:
    """One image, or a class, is something else."""
    how = rng.choice([*SPECIAL, *SPECIAL, "folder", "bytes", "bytes", "class", "class file"])
    if how in ("class", "class file"):
        name = rng.choice([os.fsdecode(b"caf\xe9"), "x" * 255, "a\nb", "\x1b[31m", "\u202e"])
        for split in ("train", "val"):
            place = file.parents[2] / split / name
            if how == "class":
                shutil.copytree(file.parent, place)
            else:
                place.touch()
    elif how == "bytes":
        how = spoil_bytes(file, rng)
    else:
        file.unlink()
        if how == "folder":
            file.mkdir()
        else:
            make_special(how, file, file.parents[4] / "outside")
    return f"image {how}"


def spoil_export(file: Path, rng: random.Random) -> str:
    """Somebody's own files are in an exported folder, or a folder only has the name of one."""
    folder = file.parent
    how = rng.choice(["file", "deep", "edit", "bare", *SPECIAL])
    if how == "deep":
        (folder / "checkpoint").mkdir()
        (folder / "checkpoint" / "own.txt").write_text("own")
    elif how == "edit":
        file.write_text(file.read_text() + " ")
    elif how == "bare":
        shutil.rmtree(folder)
        (folder / "child-01").mkdir(parents=True)
        (folder / "child-01" / "own.txt").write_text("own")
    elif how == "file":
        (folder / "child-01.onnx").write_text("own")
    else:
        make_special(how, folder / "child-01", file.parents[2] / "outside")
    return f"export {how}"


def spoil_folder(file: Path, rng: random.Random) -> str:
    """The folder of the checkpoint is something else."""
    folder, outside = file.parent, file.parents[2] / "outside"
    name = rng.choice(["checkpoint", "checkpoint.new", "checkpoint.old", "tensorboard"])
    place = folder.with_name(name)
    if name == "checkpoint":
        shutil.rmtree(folder)
    how = rng.choice(["gone", "file", "link", "dangling", "empty"])
    if how == "file":
        place.write_text("file")
    elif how == "empty":
        place.mkdir()
    elif how != "gone":
        place.symlink_to(outside if how == "link" else outside / "new")
    return f"folder {how} {name}"


def spoil_tensors(file: Path, rng: random.Random) -> str:
    """A file that safetensors can read, with other names, shapes, kinds or numbers."""
    tensors = load_file(file)
    name = rng.choice([*tensors])
    tensor = tensors[name]
    how = rng.choice(["delete", "rename", "kind", "shape", "more", "number", "swap", "none"])
    if how == "delete":
        del tensors[name]
    elif how == "rename":
        tensors[rng.choice([*TEXTS[1:11], "1-2/x/mean", "a/b/c/d", name + "x"])] = tensors.pop(name)
    elif how == "kind":
        kinds = [torch.int64, torch.float16, torch.bool, torch.complex64, torch.uint8]
        tensors[name] = tensor.to(rng.choice(kinds))
    elif how == "shape":
        tensors[name] = torch.zeros(rng.choice([(), (0,), (3,), (1, 2, 3), (4000, 1000)]))
    elif how == "number":
        tensors[name] = torch.full_like(tensor, rng.choice([0, 100]) if tensor.dtype == torch.long
                                        else rng.choice(NUMBERS[:2] + NUMBERS[-2:]))  # fmt: skip
    elif how == "swap":
        other = rng.choice([*tensors])
        tensors[name], tensors[other] = tensors[other].clone(), tensor.clone()
    else:
        tensors = {} if how == "none" else tensors | {"more": torch.zeros(3)}
    file.unlink()
    save_file(tensors, file)
    return f"tensors {how}"


class Malicious:
    """What a pickle would run if anybody let it."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.place),)


def spoil_state(file: Path, rng: random.Random) -> str:
    """A state that torch can read, with something else in it; or that asks to be executed."""
    how = rng.choice(["value"] * 8 + ["code", "pickle", "kind", "tensor"])
    state = torch.load(file, weights_only=True)
    evil = Malicious(file.parents[2] / "outside" / "executed")
    if how == "pickle":
        file.write_bytes(pickle.dumps(evil))
        return "state pickle"
    if how == "code":
        state["slimming"][rng.choice([*state["slimming"]])] = evil
    elif how == "kind":
        state = copy.deepcopy(rng.choice(HOSTILE[:-14]))
    elif how == "tensor":
        some = rng.choice([torch.zeros(3), torch.zeros(1).expand(10**6, 10**6), torch.tensor(1)])
        entries = state["optimizer"]["state"]
        entries[rng.choice([*entries])]["momentum_buffer"] = some
    else:
        how = change_value(state, rng)
    try:
        torch.save(state, file)
    except Exception:  # not everything can be written
        return "state unchanged"
    return f"state {how}"


def fit_checksums(run: Path) -> None:
    """As somebody would who means harm."""
    summary = run / "checkpoint" / "checkpoint.json"
    if not summary.is_file() or summary.stat().st_size > 10**6:
        return
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        content = json.loads(summary.read_text())
        for name in content["sha256"]:
            file = run / "checkpoint" / name
            if file.is_file() and not file.is_symlink() and file.stat().st_size < 10**8:
                content["sha256"][name] = hashlib.sha256(file.read_bytes()).hexdigest()
                content["bytes"][name] = file.stat().st_size
        summary.write_text(json.dumps(content))


# What is changed, how, and who opens it then

Spoil = Callable[[Path, random.Random], str]
CHECKPOINT = "checkpoint/"
PLAN: dict[str, tuple[int, list[Spoil], list[str]]] = {
    "config.json": (
        6, [spoil_json] * 4 + [spoil_counts] * 2 + [spoil_bytes, spoil_place],
        ["load", "resume", "report"],
    ),
    "config.json#settings": (3, [spoil_setting], ["edited"]),
    "config.json#names": (1, [spoil_name], ["names"]),
    "history.jsonl": (
        4, [spoil_json] * 3 + [spoil_bytes, spoil_place], ["load", "resume", "report"],
    ),
    "metrics.jsonl": (2, [spoil_json, spoil_bytes, spoil_place], ["resume", "report"]),
    "front.json": (
        5, [spoil_json] * 3 + [spoil_counts, spoil_bytes, spoil_place],
        ["front", "pick", "finished", "report"],
    ),
    "front.png": (1, [spoil_place], ["resume"]),
    "samples.safetensors": (1, [spoil_bytes, spoil_place], ["resume"]),
    "checkpoint/checkpoint.json": (
        2, [spoil_json, spoil_json, spoil_bytes, spoil_place, spoil_folder], ["load", "resume"],
    ),
    "checkpoint/model.safetensors": (
        3, [spoil_tensors, spoil_tensors, spoil_bytes, spoil_place], ["load", "resume"],
    ),
    "checkpoint/statistics.safetensors": (
        3, [spoil_tensors, spoil_tensors, spoil_bytes, spoil_place], ["load"],
    ),
    "checkpoint/state.pt": (6, [spoil_state] * 3 + [spoil_bytes, spoil_place], ["resume"]),
    "latency.json": (2, [spoil_json] * 3 + [spoil_bytes, spoil_place], ["device"]),
    "child/config.json": (
        5, [spoil_json] * 4 + [spoil_counts] * 2 + [spoil_bytes, spoil_place], ["child"],
    ),
    "child/config.json#own": (1, [spoil_export], ["overwrite"]),
    "images/train/a/03.png": (2, [spoil_image], ["images"]),
    "child/model.safetensors": (2, [spoil_tensors] * 2 + [spoil_bytes, spoil_place], ["child"]),
    "settings.json": (3, [spoil_json] * 3 + [spoil_bytes, spoil_place], ["train"]),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    number: int
    file: str
    way: str
    spoil: Spoil
    rng: random.Random


def case_of(seed: int, number: int) -> Case:
    rng = random.Random(f"{seed}-{number}")
    file = rng.choices([*PLAN], [weight for weight, *_ in PLAN.values()])[0]
    _, spoils, ways = PLAN[file]
    return Case(number, file, rng.choice(ways), rng.choice(spoils), rng)


# Ways to open it. Each raises what it raises.


def load_everything(run: Path) -> None:
    opened = joslim.load(run)
    parts: list[Callable[[], Any]] = [
        lambda: opened.config,
        lambda: opened.front,
        lambda: opened.history.scored(),
        lambda: used(opened.net, opened.front),
    ]
    for part in parts:
        with refusals():
            part()


def used(net: Any, front: Front) -> None:
    for point in front[:2]:
        net.use(point)
        forward(net)


def forward(net: torch.nn.Module) -> None:
    with torch.no_grad():
        net(torch.zeros(1, 3, 8, 8))


def priced(run: Path) -> None:
    """A child, by times that were measured on somebody's device."""
    net = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 8, 8), low=TINY["low"])
    joslim.cost("latency", net, device_file=run / "latency.json")(net.space.uniform(0.7))


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Lets pass what is allowed: an error on purpose, of one line."""
    try:
        yield
    except (UserError, RunFailed) as error:
        if len(str(error).splitlines()) > 1 and "\n" in str(error):
            raise AssertionError(f"more than one line: {str(error)[:200]!r}") from error


def command(*arguments: str) -> int | None:
    """Its exit code; None if it was still training when it was stopped."""
    # A terminal takes no text that cannot be encoded.
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    code: Any = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            joslim_main([*arguments])
    except SystemExit as end:
        code = end.code
    except Enough:
        return None
    said = err.getvalue()
    last = [*said.splitlines(), ""][-2 if said else 0]  # there may be warnings before it
    if code not in (0, 1, 2) or (code and not last.startswith("joslim: ")) or "Traceback" in said:
        raise AssertionError(f"exit code {code}, {said[-300:]!r}")
    out.flush()
    printed = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
    bad = {c for c in printed + said if not c.isprintable() and c != "\n"}
    if bad:
        raise AssertionError(f"control characters {bad} on the terminal")
    assert isinstance(code, int)
    return code


def open_it(way: str, run: Path) -> None:
    if way == "load":
        with refusals():
            load_everything(run)
    elif way in ("front", "pick"):
        with refusals():
            Front.read(run)
        command("front", str(run))
        command("front", str(run), "--json")
        command("pick", str(run), "--macs", "300K")
    elif way == "device":
        with refusals():
            priced(run)
    elif way == "child":
        with refusals():
            forward(joslim.load_child(run / "child"))
    elif way == "report":
        command("report", str(run), "-o", str(run / "page.html"))
    elif way == "images":
        train_on_images(run)
    elif way == "names":
        open_by_name(run)
    elif way == "overwrite":
        overwrite_export(run)
    elif way == "train":
        command("train", "--config", str(run / "settings.json"), "--out", str(run / "new"))
    else:
        command("resume", str(run))


def train_on_images(run: Path) -> None:
    flags = {**TINY, "steps": 2, "size": 8, "out": run / "new", "data": f"folder:{run / 'images'}"}
    words = [(f"--{name.replace('_', '-')}", str(value)) for name, value in flags.items()]
    command("train", "--model", "resnet8", *(word for pair in words for word in pair))


def open_by_name(run: Path) -> None:
    path = str(run / "names") + "/" + os.fsdecode((run / "names" / "NAME").read_bytes())
    command("front", path)
    command("report", path)
    command("latency", path, "--json", "-o", path)
    command("train", "--data", f"folder:{path}", "--out", path)
    command("train", "--config", f"{path}.json", "--init", f"{path}.safetensors")
    with contextlib.suppress(UserError):  # the line break of its name may be in it
        joslim.load_child(path)


def overwrite_export(run: Path) -> None:
    before = tree(run / "child")
    code = command("export", str(run), "-o", str(run / "child"), "--overwrite")
    if code != 2 or tree(run / "child") != before:
        raise AssertionError(f"files of others were overwritten, exit code {code}")


def tree(folder: Path) -> dict[str, tuple[int, float]]:
    """What lies there, and whether it was touched."""
    found = {str(path): path.lstat() for path in folder.rglob("*")}
    return {name: (known.st_size, known.st_mtime) for name, known in found.items()}


# What must not happen meanwhile


class Guard:
    """Notices what is written or removed outside of the run folder."""

    EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink", "os.link",
              "os.truncate", "os.chmod", "shutil.rmtree", "os.exec", "os.system",
              "subprocess.Popen")  # fmt: skip

    def __init__(self, outside: Path) -> None:
        self.outside, self.run = outside, Path("/nowhere")
        self.before = self.snapshot()
        self.found: list[str] = []
        self.active = False
        sys.addaudithook(self.hook)

    def snapshot(self) -> dict[str, bytes]:
        return {p.name: p.read_bytes() if p.is_file() else b"" for p in self.outside.iterdir()}

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active or event not in self.EVENTS:
            return
        if event == "open" and not writes(arguments):
            return
        path = arguments[1 if event == "os.rename" else 0]
        if event in ("os.system", "subprocess.Popen", "os.exec"):
            self.found.append(f"{event} {arguments[0]!r}")
        elif isinstance(path, (str, bytes, os.PathLike)):
            opened = os.path.realpath(path) if event == "open" else path
            if self.is_outside(opened):
                self.found.append(f"{event} {opened!r}")

    def is_outside(self, path: Any) -> bool:
        name = os.fsdecode(path)
        if not os.path.isabs(name):  # of a folder that is being removed: its own name was checked
            return False
        # Not through the last name: a link is replaced, and not what it leads to, unless opened.
        real = os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name))
        return not f"{real}/".startswith(f"{self.run}/") and real != os.devnull

    @contextlib.contextmanager
    def watching(self, run: Path) -> Iterator[None]:
        self.run, self.active, self.found = Path(os.path.realpath(run)), True, []
        try:
            yield
        finally:
            self.active = False
        now = self.snapshot()
        names = [name for name in now if now[name] != self.before.get(name)]
        if names or len(now) < len(self.before):
            shutil.rmtree(self.outside)
            make_outside(self.outside)
        if self.found or names or len(now) < len(self.before):
            raise AssertionError(f"outside of the run folder: {self.found[:3]} {names[:3]}")


def writes(arguments: tuple[Any, ...]) -> bool:
    flags = arguments[2]
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def make_outside(folder: Path) -> None:
    folder.mkdir()
    (folder / "victim.txt").write_text('{"step": 1}\n')


@contextlib.contextmanager
def within_seconds() -> Iterator[None]:
    """Raise Hang after too much computing, or too much waiting.

    Computing is limited in processor time, which does not grow when other programs are running.
    """

    def ring(*_: Any) -> None:
        raise Hang(f"more than {SECONDS} s of processor time, or {SECONDS_WAITING} s of waiting")

    limits = {signal.ITIMER_PROF: SECONDS, signal.ITIMER_REAL: SECONDS_WAITING}
    signal.signal(signal.SIGPROF, ring)
    signal.signal(signal.SIGALRM, ring)
    for timer, seconds in limits.items():
        signal.setitimer(timer, seconds)
    # A library that waits without Python is deaf to signals: the benchmark ends, and says where.
    faulthandler.dump_traceback_later(2 * SECONDS_WAITING, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        for timer in limits:
            signal.setitimer(timer, 0)


# All of it


class Fuzz:
    """A finished run and one that was stopped half-way, from which every case gets a copy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        driver.draw_run = lambda *_: None  # a second each time, and it reads nothing
        joslim.train(out=folder / "finished", **TINY)
        finished = joslim.load(folder / "finished")
        joslim.export(finished, finished.front[0], folder / "finished" / "child")
        limit_steps(3)
        with contextlib.suppress(Enough):
            joslim.train(out=folder / "stopped", **TINY)
        for run in (folder / "finished", folder / "stopped"):
            (run / "settings.json").write_text(json.dumps({**TINY, "model": "resnet8"}))
            made_up_times(folder / "finished").write(run / "latency.json")
        for name in ("front.png", "front.json", "samples.safetensors"):
            (folder / "stopped" / name).touch()
        make_images(folder / "finished" / "images")
        self.resumed = self.outcome_of_resuming(folder / "stopped")
        limit_steps(8)
        make_outside(folder / "outside")
        os.chdir(folder / "outside")
        self.guard = Guard(folder / "outside")

    def outcome(self, case: Case, debug: bool = False) -> tuple[str, str]:
        """ok, or what went wrong; and what was done to the file."""
        run = self.folder / "run"
        source = "stopped" if case.way in ("resume", "edited") else "finished"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(self.folder / source, run)
        how = case.spoil(run / case.file.partition("#")[0], case.rng)
        if case.file.startswith(CHECKPOINT) and case.rng.random() < 0.85:
            fit_checksums(run)
        torch.manual_seed(0)
        try:
            with within_seconds(), self.guard.watching(run):
                self.resume_edited(run) if case.way == "edited" else open_it(case.way, run)
        except (Exception, Hang) as error:
            if debug:
                traceback.print_exc()
            return described(error), how
        return "ok", how

    def outcome_of_resuming(self, stopped: Path) -> dict[str, bytes]:
        """Weights and front of the run that was stopped, when nobody changes anything."""
        shutil.copytree(stopped, self.folder / "resumed")
        limit_steps(20)
        assert command("resume", str(self.folder / "resumed")) == 0
        return result_of(self.folder / "resumed")

    def resume_edited(self, run: Path) -> None:
        """A setting that was changed in the file is refused, or changes nothing."""
        limit_steps(20)
        code = command("resume", str(run))
        limit_steps(8)
        if code is None or (code == 0 and result_of(run) != self.resumed):
            raise AssertionError("an edited setting was obeyed without a word")


def result_of(run: Path) -> dict[str, bytes]:
    names = ("front.json", "checkpoint/model.safetensors")
    return {name: (run / name).read_bytes() for name in names}


def make_images(folder: Path) -> None:
    rng = random.Random(0)
    for split, count in (("train", 20), ("val", 4)):
        for name in "ab":
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                image = Image.frombytes("RGB", (10, 10), rng.randbytes(300))
                image.save(folder / split / name / f"{number:02}.png")


def made_up_times(run: Path) -> DeviceFile:
    opened = joslim.load(run)
    rng = random.Random(0)
    space = opened.net.space
    children = tuple(space.at([rng.uniform(0.5, 1) for _ in space.knobs]) for _ in range(30))
    conditions = Conditions.here(opened.net, Setting(threads=1))
    return DeviceFile(conditions, children, tuple(rng.uniform(1, 2) for _ in children), (0.1,) * 30)


def described(error: BaseException) -> str:
    """Its kind, the place in our code that it comes from, and what it says."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/joslim/" in frame.filename]
    where = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}{where}: {lines[0][:160]}"


def limit_steps(most: int) -> None:
    """A training raises Enough after so many steps."""
    real = getattr(Trainer, "real_step", Trainer.step)
    made = 0

    def step(self: Trainer, *batch: Any) -> None:
        nonlocal made
        if self.slimming.steps == 0:
            made = 0
        made += 1
        if made > most:
            made = 0
            raise Enough
        real(self, *batch)

    Trainer.real_step, Trainer.step = real, step  # type: ignore[attr-defined, method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2400, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="only this one, with its traceback")
    options = parser.parse_args()
    unlimited_digits()
    numbers = range(options.cases) if options.case is None else [options.case]
    with tempfile.TemporaryDirectory() as name:
        fuzz = Fuzz(Path(os.path.realpath(name)))
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        for number in range(20):  # what is loaded late is loaded now
            fuzz.outcome(case_of(-1, number))
        before = megabytes()
        tried, bad = Counter[str](), Counter[str]()
        faults: list[str] = []
        for number in numbers:
            case = case_of(options.seed, number)
            outcome, how = fuzz.outcome(case, debug=options.case is not None)
            tried[case.file] += 1
            if outcome != "ok":
                bad[case.file] += 1
                faults.append(outcome)
                print(f"case {number}: {case.file}, {how}, {case.way}: {outcome}", flush=True)
        grown = megabytes() - before
        os.chdir("/")
    rows: list[dict[str, object]] = [
        {"file": file, "cases": tried[file], "bad": bad[file]} for file in PLAN if tried[file]
    ]
    hangs = sum(fault.startswith("Hang") for fault in faults)
    outside = sum("outside of the run folder" in fault for fault in faults)
    others = sum("were overwritten" in fault for fault in faults)
    obeyed = sum("was obeyed" in fault for fault in faults)
    figures = {
        "cases": {"value": sum(tried.values()), "target": 2000, "ok": sum(tried.values()) >= 2000},
        "tracebacks": at_most(len(faults) - hangs - outside - others - obeyed, 0),
        "hangs": at_most(hangs, 0),
        "written_outside": at_most(outside, 0),
        "overwritten": at_most(others, 0),
        "edits_obeyed": at_most(obeyed, 0),
        "megabytes_more": at_most(grown, MEGABYTES),
    }
    report(f"{sum(tried.values())} changed files", rows, figures)


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
