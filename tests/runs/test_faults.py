"""What can go wrong around a training: each fault is one line, and what was there stays.

Wherever it can be, the run is resumed afterwards and compared with one that had no fault.
"""

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import joslim
from joslim.errors import RunFailed, UserError
from joslim.runs.driver import Progress, train
from joslim.runs.folder import RunFolder
from joslim.runs.run import Run
from joslim.training.distillation import DISTILLATIONS

Options = dict[str, Any]
SAME = ("config.json", "history.jsonl", "front.json", "samples.safetensors")
WEIGHTS = ("checkpoint/model.safetensors", "checkpoint/statistics.safetensors")


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take as long as the rest of a tiny run."""
    monkeypatch.setattr("joslim.runs.driver.draw_run", lambda *arguments: None)


class Crash(Exception):
    pass


def crash(progress: Progress) -> None:
    if progress.done == 5:
        raise Crash


@pytest.fixture(scope="module")
def interrupted(finished: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run `finished` after 5 of its 6 steps, with checkpoints of steps 2 and 4."""
    path = tmp_path_factory.mktemp("runs") / "interrupted"
    with pytest.raises(Crash):
        train(out=path, watch=crash, **finished.config.to_json())
    return path


@pytest.fixture
def stopped(interrupted: Path, tmp_path: Path) -> Path:
    """A copy of it that may be changed."""
    shutil.copytree(interrupted, tmp_path / "stopped")
    return tmp_path / "stopped"


def assert_goes_on(path: Path, finished: Run, **options: Any) -> None:
    """Resumed, it ends as if nothing had happened."""
    train(out=path, resume=True, **options)
    for name in (*SAME, *WEIGHTS):
        assert (path / name).read_bytes() == (finished.path / name).read_bytes(), name


@contextmanager
def one_line(kind: type[Exception], *words: str) -> Iterator[None]:
    with pytest.raises(kind) as caught:
        yield
    message = str(caught.value)
    assert len(message.splitlines()) == 1, message
    for word in words:
        assert word in message, message


# Disks


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A real limit of the system: whoever writes more, in whatever language, gets an error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# history.jsonl, then metrics.jsonl are the first to be too large; then the state; then the weights.
@pytest.mark.parametrize("size", [1_500, 20_000, 250_000])
def test_files_that_cannot_be_written(
    size: int, finished: Run, stopped: Path, tiny: Options
) -> None:
    with files_of_at_most(size), one_line(RunFailed, "the last checkpoint is", str(stopped)):
        train(out=stopped, resume=True, **tiny)
    if size == 250_000:
        assert_goes_on(stopped, finished, **tiny)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, of 1.5 MB: too small for three checkpoints."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a disk is not permitted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def remount(disk: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(disk)], check=True)


def test_a_full_disk(finished: Run, tiny: Options, disk: Path) -> None:
    with one_line(RunFailed, "No space left on device", "the last checkpoint is"):
        train(out=disk / "run", **tiny)
    remount(disk, "size=50m")
    assert_goes_on(disk / "run", finished, **tiny)


def test_a_disk_that_is_full_from_the_start(tiny: Options, disk: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        (disk / "filler").write_bytes(bytes(2_000_000))
    with one_line((UserError, RunFailed), "No space left on device"):  # type: ignore[arg-type]
        train(out=disk / "run", **tiny)


def test_a_folder_that_cannot_be_written(
    finished: Run, stopped: Path, tiny: Options, disk: Path
) -> None:
    run = shutil.copytree(stopped, disk / "run", symlinks=True)
    remount(disk, "ro")
    with one_line((UserError, RunFailed), "Read-only file system"):  # type: ignore[arg-type]
        train(out=run, resume=True, **tiny)
    with one_line(UserError, "out: cannot write", "Read-only file system"):
        train(out=disk / "other", **tiny)
    assert len(joslim.load(run).history), "it can still be read"
    remount(disk, "rw,size=50m")
    assert_goes_on(run, finished, **tiny)


def test_a_finished_run_can_be_read_where_nothing_can_be_written(
    finished: Run, tiny: Options, disk: Path, joslim: Callable[..., Any]
) -> None:
    run = shutil.copytree(finished.path, disk / "run")
    remount(disk, "ro")
    for command in ("front", "resume"):
        assert joslim(command, str(run)).returncode == 0


def refused_write(real: Callable[..., Any], code: int) -> Callable[..., Any]:
    """`Path.open`, of a disk that takes nothing."""

    def call(self: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if set(mode) & set("wa+x"):
            raise OSError(code, os.strerror(code), str(self))
        return real(self, mode, *arguments, **options)

    return call


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_every_refusal_of_the_system_is_one_line(
    code: int, finished: Run, stopped: Path, tiny: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refused_write(Path.open, code))
        with one_line((UserError, RunFailed), os.strerror(code)):  # type: ignore[arg-type]
            train(out=stopped, resume=True, **tiny)
    if code == errno.ENOSPC:
        assert_goes_on(stopped, finished, **tiny)


@pytest.mark.parametrize("done", [3, 4])
def test_a_run_folder_that_is_removed(done: int, tiny: Options, tmp_path: Path) -> None:
    """After step 4 a checkpoint is written, after step 3 only lines."""

    def watch(progress: Progress) -> None:
        if progress.done == done:
            shutil.rmtree(tmp_path / "a")

    with one_line(RunFailed, str(tmp_path / "a"), "there is no checkpoint"):
        train(out=tmp_path / "a", watch=watch, **tiny)
    assert not (tmp_path / "a").exists(), "nobody makes it again"


def test_a_training_that_was_killed_before_it_began(
    finished: Run, tiny: Options, tmp_path: Path, refused: Callable[..., str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in (".config.0123456789abcdef.new.json", ".latency.0123456789abcdef.new.json"):
        (run / name).write_text("{")
    assert f"joslim train --out {run} begins it" in refused("resume", str(run))
    train(out=run, **tiny)
    assert sorted(os.listdir(run)) == sorted({*os.listdir(finished.path)} - {"front.png"})


def test_a_resume_that_is_killed_before_its_first_step_loses_no_line(
    stopped: Path, tiny: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*arguments: Any) -> None:
        raise KeyboardInterrupt

    names = ("history.jsonl", "metrics.jsonl")
    before = [(stopped / name).read_bytes() for name in names]
    (stopped / ".history.0123456789abcdef.new.jsonl").write_text("{")
    monkeypatch.setattr("joslim.runs.trainer.Trainer.step", kill)
    with pytest.raises(KeyboardInterrupt):
        train(out=stopped, resume=True, **tiny)
    assert before == [(stopped / name).read_bytes() for name in names]
    assert not [name for name in os.listdir(stopped) if name.startswith(".")]


# Two trainings, one folder


def test_a_folder_in_use_is_refused(finished: Run, tiny: Options, tmp_path: Path) -> None:
    run = tmp_path / "a"

    def watch(progress: Progress) -> None:
        for how in ("resume", "overwrite"):
            with one_line(UserError, f"out: {str(run)!r} is in use by"):
                train(out=run, **{**tiny, how: True})
        raise Crash

    with pytest.raises(Crash):
        train(out=run, watch=watch, **tiny)
    assert_goes_on(run, finished, **tiny)


def test_the_lock_dies_with_its_process(finished: Run, stopped: Path, tiny: Options) -> None:
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        with RunFolder(stopped).locked():
            os.write(writing, b"locked")
            time.sleep(60)
        os._exit(0)
    os.read(reading, 6)
    with one_line(UserError, "is in use by"):
        train(out=stopped, resume=True, **tiny)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert_goes_on(stopped, finished, **tiny)


# Damaged files

FILES = ("config.json", "history.jsonl", "metrics.jsonl")
PARTS = ("model.safetensors", "statistics.safetensors", "state.pt", "checkpoint.json")


def damage(file: Path, how: str) -> None:
    content = bytearray(file.read_bytes())
    if how == "flipped":
        content[len(content) // 2] ^= 0b10000
        content[10] ^= 0b100
    elif how == "cut":
        del content[len(content) // 2 :]
    elif how == "empty":
        content.clear()
    file.unlink()
    if how != "gone":
        file.write_bytes(content)


@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
@pytest.mark.parametrize("name", FILES)
def test_damage_to_a_file_of_a_run(
    name: str, how: str, stopped: Path, joslim: Callable[..., Any]
) -> None:
    """The history is in the checkpoint too, and metrics are only read to go on with them."""
    before = {part: (stopped / "checkpoint" / part).read_bytes() for part in PARTS}
    damage(stopped / name, how)
    result = joslim("resume", str(stopped))
    if name == "history.jsonl" or (name == "metrics.jsonl" and how == "gone"):
        assert result.returncode == 0
        return
    assert result.returncode in (0, 2)
    if result.returncode == 2:
        assert result.stderr.startswith("joslim: ")
        assert result.stderr.count("\n") == 1
        assert {p: (stopped / "checkpoint" / p).read_bytes() for p in PARTS} == before


@pytest.mark.parametrize(("name", "how"), [*zip(PARTS, ["flipped", "cut", "gone", "empty"])])
def test_damage_to_the_newest_checkpoint(
    name: str, how: str, finished: Run, stopped: Path, tiny: Options
) -> None:
    """The one before serves: some steps are made again, and all ends the same."""
    damage(stopped / "checkpoint" / name, how)
    assert_goes_on(stopped, finished, **tiny)


@pytest.mark.parametrize("name", PARTS)
def test_damage_to_both_checkpoints(name: str, stopped: Path, tiny: Options) -> None:
    for folder in ("checkpoint", "checkpoint.old"):
        damage(stopped / folder / name, "flipped")
    before = sorted(path.name for path in stopped.iterdir())
    with one_line(UserError, "checkpoint: "):
        train(out=stopped, resume=True, **tiny)
    assert sorted(path.name for path in stopped.iterdir()) == before


@pytest.mark.parametrize("how", ["flipped", "cut", "empty"])
def test_damage_to_a_front(
    how: str, finished: Run, tmp_path: Path, joslim: Callable[..., Any], refused: Callable[..., str]
) -> None:
    run = shutil.copytree(finished.path, tmp_path / "run")
    damage(run / "front.json", how)
    assert "front.json" in refused("front", str(run))


# Checkpoints of something else


def test_a_checkpoint_of_an_older_version(stopped: Path, tiny: Options) -> None:
    for folder in ("checkpoint", "checkpoint.old"):
        (stopped / folder / "checkpoint.json").write_text('{"format": 1, "step": 4, "sha256": {}}')
    with one_line(UserError, "was written by an older joslim, which this one cannot read"):
        train(out=stopped, resume=True, **tiny)


def test_a_checkpoint_of_a_newer_version(stopped: Path, tiny: Options) -> None:
    for folder in ("checkpoint", "checkpoint.old"):
        file = stopped / folder / "checkpoint.json"
        summary = json.loads(file.read_text())
        file.write_text(json.dumps({**summary, "format": summary["format"] + 1}))
    with one_line(UserError, "was written by a newer joslim", "pip install -U joslim"):
        train(out=stopped, resume=True, **tiny)
    with one_line(UserError, "was written by a newer joslim"):
        _ = joslim.load(stopped).net


class Pairs:
    """Images of so many classes."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.pixels = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3)).astype(np.uint8)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.pixels[index], index % self.classes


OTHERS: dict[str, Options] = {
    "another network": {"model": "resnet20"},
    "another number of classes": {"data": (Pairs(3), Pairs(3)), "recipe": "digits"},
    "another space": {"low": 0.9},
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_checkpoint_of_something_else(
    other: str, stopped: Path, tiny: Options, tmp_path: Path
) -> None:
    """Copied into the folder of another run."""
    options = {**tiny, **OTHERS[other]}
    with pytest.raises(Crash):
        train(out=tmp_path / "a", watch=lambda progress: crash_now(), **options)
    for name in ("checkpoint", "checkpoint.old"):
        shutil.copytree(stopped / name, tmp_path / "a" / name)
    with one_line(UserError, "checkpoint: "):
        train(out=tmp_path / "a", resume=True, **options)


def crash_now() -> None:
    raise Crash


def test_a_run_of_other_data(stopped: Path, finished: Run, tiny: Options) -> None:
    with one_line(UserError, "data: "):
        train(data=(Pairs(10), Pairs(10)), out=stopped, resume=True, recipe="digits", **tiny)
    assert_goes_on(stopped, finished, **tiny)


def edit_config(run: Path, **values: Any) -> None:
    facts = json.loads((run / "config.json").read_text())
    facts["config"].update(values)
    (run / "config.json").write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("key", "value"), [("lr", 0.5), ("batch", 16), ("seed", 3), ("every", 3), ("momentum", 0.1)]
)
def test_a_configuration_that_was_edited(
    key: str, value: float, finished: Run, stopped: Path, refused: Callable[..., str]
) -> None:
    before = getattr(finished.config, key)
    edit_config(stopped, **{key: value})
    said = refused("resume", str(stopped))
    assert f"checkpoint: it was trained with {key} {before}, the run in" in said
    assert f"now has {value}; put it back into config.json" in said


def test_edits_that_make_no_other_training(finished: Run, stopped: Path, tiny: Options) -> None:
    edit_config(stopped, log_every=2, workers=0, threads=2)
    train(out=stopped, resume=True, **tiny)
    assert joslim.load(stopped).front == finished.front


def test_fewer_steps_than_are_done(stopped: Path, refused: Callable[..., str]) -> None:
    edit_config(stopped, steps=3)
    assert "steps: 3 is less than the 4 steps that are done" in refused("resume", str(stopped))


def test_images_that_were_replaced(
    tiny: Options, tmp_path: Path, refused: Callable[..., str]
) -> None:
    """Their names, labels and sizes are the same."""
    images, run = tmp_path / "images", tmp_path / "run"
    for split in ("train", "val"):
        for index in range(40):
            file = images / split / f"class{index % 2}" / f"{index}.bmp"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (index, 10, 10)).save(file)
    with pytest.raises(Crash):
        train(
            data=f"folder:{images}", size=8, out=run, watch=crash, recipe="digits",
            **{**tiny, "batch": 8},
        )  # fmt: skip
    for file in (images / "train").rglob("*.bmp"):
        Image.new("RGB", (8, 8), (200, 10, 10)).save(file)
    assert "is not what the run was trained on" in refused("resume", str(run))


# Numbers that are none, in one width only


def spoiled(how: str) -> Callable[[Tensor], Tensor]:
    return {
        "nan": lambda loss: loss * torch.nan,
        "overflow": lambda loss: loss * 1e38 * 1e38,
        "gradient": lambda loss: loss + (loss * 0).sqrt(),  # finite, but not its slope
    }[how]


@pytest.mark.parametrize("how", ["nan", "overflow", "gradient"])
def test_one_width_that_fails(
    how: str, finished: Run, tiny: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, steps, calls = DISTILLATIONS["soft"], [0], [0]

    def distill(*arguments: Any) -> Tensor:
        loss = real(*arguments)
        calls[0] += 1
        return spoiled(how)(loss) if (steps[0], calls[0] % 3) == (3, 2) else loss

    def watch(progress: Progress) -> None:
        steps[0] = progress.done

    words = "the gradient is not finite" if how == "gradient" else "the loss is "
    with monkeypatch.context() as patch:
        patch.setitem(DISTILLATIONS, "soft", distill)
        with one_line(RunFailed, f"{words}", "at step 3", "a lower learning rate", "checkpoint"):
            train(out=tmp_path / "a", watch=watch, **tiny)
    if how == "nan":
        assert_goes_on(tmp_path / "a", finished, **tiny)


# Memory


NO_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nGPU 0 has ..."),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory"
    ),
    MemoryError(),
    MemoryError(),
]


@pytest.mark.parametrize(("phase", "error"), [*zip(["train"] * 3 + ["front"], NO_MEMORY)])
def test_out_of_memory_at_the_largest_width(
    phase: str,
    error: Exception,
    finished: Run,
    tiny: Options,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The labels are looked at by the full network; the others have it as their teacher."""
    real, now = nn.CrossEntropyLoss.forward, [False]

    def forward(self: nn.CrossEntropyLoss, x: Tensor, y: Tensor) -> Tensor:
        if now[0]:
            raise error
        return real(self, x, y)

    def watch(progress: Progress) -> None:
        now[0] = (progress.phase, progress.done) == (phase, 3)

    with monkeypatch.context() as patch:
        patch.setattr(nn.CrossEntropyLoss, "forward", forward)
        with one_line(RunFailed, "out of memory", "--batch", "the last checkpoint is"):
            train(out=tmp_path / "a", watch=watch, **tiny)
    if phase == "front":
        assert_goes_on(tmp_path / "a", finished, **tiny)


# Workers


DEADLY = """
import multiprocessing, os, signal, sys
from joslim.errors import RunFailed
from joslim.models import resnet8
from joslim.runs.driver import train

def watch(progress):
    if progress.done == 3:
        for worker in multiprocessing.active_children():
            os.kill(worker.pid, signal.SIGKILL)

if __name__ == "__main__":
    images, out = sys.argv[1:]
    options = dict(batch=8, steps=20, every=2, save_every=2, front_images=64, threads=1, size=8)
    try:
        train(resnet8(num_classes=2), f"folder:{images}", out=out, watch=watch, workers=1,
              recipe="digits", **options)
    except RunFailed as error:
        print(error)
"""


def test_a_worker_that_dies(tmp_path: Path) -> None:
    """In a process of its own: torch raises at any moment, and may do so again."""
    for split in ("train", "val"):
        for index in range(20):
            path = tmp_path / "images" / split / f"class{index % 2}" / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (index, 10, 10)).save(path)
    script = tmp_path / "deadly.py"
    script.write_text(DEADLY)
    command = [sys.executable, str(script), str(tmp_path / "images"), str(tmp_path / "run")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    (line,) = result.stdout.splitlines()
    assert "a process that decodes images died" in line
    assert "the last checkpoint is" in line
