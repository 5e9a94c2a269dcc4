"""`joslim.train`: repeatable, resumable, honest about the test set, and good in a failure."""

import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import joslim
from joslim.data import load_data
from joslim.data.in_memory import MemoryData
from joslim.errors import RunFailed, Stopped, UserError
from joslim.models import resnet8
from joslim.results.run_files import read_lines, status_of
from joslim.runs import checkpoint
from joslim.runs.config import Config
from joslim.runs.driver import Progress, _named_and_objects, default_folder, stopping, train
from joslim.runs.folder import RunFolder
from joslim.runs.recipes import rate_for
from joslim.runs.run import Run
from joslim.runs.setup import set_up
from joslim.runs.trainer import EVALUATION_BATCH
from joslim.space import Widths
from joslim.training.evaluate import mean_loss

Options = dict[str, Any]
SAME = ("config.json", "history.jsonl", "front.json", "samples.safetensors")


def weights_of(path: Path) -> dict[str, Tensor]:
    tensors = load_file(path / "checkpoint" / "model.safetensors")
    return tensors | load_file(path / "checkpoint" / "statistics.safetensors")


def metrics_of(path: Path) -> list[dict[str, Any]]:
    """Without the times."""
    lines = read_lines(path / "metrics.jsonl")
    return [{key: line[key] for key in line if key not in ("seconds", "parts")} for line in lines]


def assert_same_run(one: Path, other: Path) -> None:
    """To the bit."""
    for name in SAME:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert metrics_of(one) == metrics_of(other)
    ours, theirs = weights_of(one), weights_of(other)
    assert ours.keys() == theirs.keys()
    assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take as long as the rest of a tiny run; the shared one has been drawn."""
    monkeypatch.setattr("joslim.runs.driver.draw_run", lambda *arguments: None)


# The same again


def test_the_same_seed_gives_the_same_run(finished: Run, tiny: Options, tmp_path: Path) -> None:
    again = train(out=tmp_path / "a", **tiny)
    assert_same_run(finished.path, again.path)
    assert again.front == finished.front


def test_another_seed_gives_another_run(finished: Run, tiny: Options, tmp_path: Path) -> None:
    other = train(out=tmp_path / "a", seed=1, **tiny)
    ours, theirs = weights_of(finished.path), load_file(other.path / "checkpoint/model.safetensors")
    assert not torch.equal(ours["conv1.weight"], theirs["conv1.weight"])
    history = (other.path / "history.jsonl").read_text()
    assert history != finished.folder.file("history.jsonl").read_text()
    assert other.front != finished.front


def test_nobody_elses_settings_are_touched(
    tiny: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def state() -> list[Any]:
        numpy = np.random.get_state(legacy=False)
        assert isinstance(numpy, dict)
        return [torch.get_rng_state().tolist(), numpy["state"]["key"].tolist(), random.getstate()]

    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    before = state()
    train(out=tmp_path / "a", **{**tiny, "steps": 1, "threads": 3})
    assert state() == before
    assert threads == [3, torch.get_num_threads()]
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


# Folders


def test_a_run_is_not_lost_by_accident(finished: Run, tiny: Options, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished.path, run)
    with pytest.raises(UserError, match="holds a run"):
        train(out=run, **tiny)
    with pytest.raises(UserError, match="batch: 9999 is more"):
        train(out=run, overwrite=True, **{**tiny, "batch": 9999})
    assert_same_run(finished.path, run)


def test_overwriting(finished: Run, tiny: Options, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished.path, run)
    (run / "notes.txt").write_text("mine")
    train(out=run, overwrite=True, **{**tiny, "steps": 2})
    assert (run / "notes.txt").read_text() == "mine"
    assert [line["step"] for line in metrics_of(run)] == [1, 2, 2]


def test_the_configuration_is_written_first(tiny: Options, tmp_path: Path) -> None:
    found: list[list[str]] = []

    def watch(progress: Progress) -> None:
        found.append(sorted(os.listdir(tmp_path / "a")))

    train(out=tmp_path / "a", watch=watch, **tiny)
    assert found[0] == ["config.json", "history.jsonl"]
    stored = json.loads((tmp_path / "a" / "config.json").read_text())
    assert stored["joslim"] == joslim.__version__
    assert (stored["cost"], stored["fresh"]) == ("macs", [])
    assert stored["config"]["every"] == 2
    assert stored["data"]["identity"].startswith("digits 3x8x8 1293+144+360 ")


def test_the_folder_that_is_taken_by_default() -> None:
    config = Config
    assert default_folder(config()) == Path("runs/digits-resnet8-joslim")
    own = config(model="a.b:net", data="folder:/x/y", method="slim")
    assert default_folder(own) == Path("runs/folder-net-slim")
    objects = config(model="<ResNet>", data="<tuple>")
    assert default_folder(objects) == Path("runs/tuple-ResNet-joslim")


# Interrupted, and gone on with


class Crash(Exception):
    pass


def crash_at(phase: str, done: int) -> Callable[[Progress], None]:
    def watch(progress: Progress) -> None:
        if (progress.phase, progress.done) == (phase, done):
            raise Crash

    return watch


@pytest.mark.parametrize(
    ("phase", "done"), [("train", 1), ("train", 3), ("train", 6), ("front", 2)]
)
def test_a_crashed_run_ends_as_if_nothing_had_happened(
    phase: str, done: int, finished: Run, tiny: Options, tmp_path: Path
) -> None:
    with pytest.raises(Crash):
        train(out=tmp_path / "a", watch=crash_at(phase, done), **tiny)
    run = train(out=tmp_path / "a", resume=True, **tiny)
    assert_same_run(finished.path, run.path)
    assert run.front == finished.front


# Wide enough that there are few children: autoslim removes channels one group at a time.
@pytest.mark.parametrize(
    "options",
    [
        {"method": "slim", "low": 0.8},
        {"method": "autoslim", "low": 0.95},
        {"method": "bignas"},
        {"method": "single", "widths": "0.5"},
        {"preset": "paper", "low": 0.9},
        {"amp": "bf16"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_all_methods_go_on(options: Options, tiny: Options, tmp_path: Path) -> None:
    tiny = {**tiny, "steps": 4, "samples": 1, "front_images": 16, **options}
    whole = train(out=tmp_path / "whole", **tiny)
    with pytest.raises(Crash):
        train(out=tmp_path / "a", watch=crash_at("train", 3), **tiny)
    run = train(out=tmp_path / "a", resume=True, **tiny)
    assert_same_run(whole.path, run.path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("phase", ["train", "front"])
def test_a_signal_lets_the_step_end(
    number: int,
    phase: str,
    finished: Run,
    tiny: Options,
    tmp_path: Path,
) -> None:
    seen: list[Progress] = []

    def watch(progress: Progress) -> None:
        seen.append(progress)
        if (progress.phase, progress.done) == (phase, 3):
            os.kill(os.getpid(), number)

    with pytest.raises(Stopped, match="stopped at step") as caught:
        train(out=tmp_path / "a", watch=watch, **tiny)
    assert caught.value.signal == number
    assert (seen[-1].phase, seen[-1].done) == (phase, 3)
    path = checkpoint.find(RunFolder(tmp_path / "a"))
    assert path is not None
    step = json.loads((path / "checkpoint.json").read_text())["step"]
    assert step == (3 if phase == "train" else 6), "a checkpoint of this very step"
    # What is said now is what every command says later.
    status = status_of(tmp_path / "a")
    assert str(caught.value) == status.how_to_resume(tmp_path / "a")
    assert status.step == step
    assert not (tmp_path / "a" / "front.json").exists()
    train(out=tmp_path / "a", resume=True, **tiny)
    assert_same_run(finished.path, tmp_path / "a")


def test_a_second_signal_does_what_it_did_before() -> None:
    with stopping() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.asked == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_finished_run_stays_as_it_is(finished: Run, tiny: Options, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished.path, run)
    before = {f: f.stat().st_mtime_ns for f in run.rglob("*") if f.name != "metrics.jsonl"}
    seen: list[Progress] = []
    again = train(out=run, resume=True, watch=seen.append, **tiny)
    assert not seen
    assert again.front == finished.front
    assert_same_run(finished.path, run)
    files = [file for file in before if file.is_file()]
    assert {file: file.stat().st_mtime_ns for file in files} == {f: before[f] for f in files}


def test_the_page_of_a_finished_run_says_so(finished: Run) -> None:
    """It is written when the checkpoint before the last is gone."""
    assert '"state":"finished"' in (finished.path / "report.html").read_text()


def test_latency_is_measured_once_a_run(tiny: Options, tmp_path: Path) -> None:
    def stop_at_four(progress: Progress) -> None:
        if progress.done == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    once, twice = tmp_path / "once", tmp_path / "twice"
    first = train(out=once, cost="latency", **tiny)
    assert all(point.costs["latency_ms"] > 0 for point in first.front)
    # Another run, on prices that were measured in the first, stopped in between.
    options = {**tiny, "cost": "latency"}
    measured = str(once / "latency.json")
    with pytest.raises(Stopped):
        train(out=twice, watch=stop_at_four, device_file=measured, **options)
    train(out=twice, resume=True, **options)
    shutil.copy(once / "config.json", twice)  # it alone tells where the prices are from
    assert_same_run(once, twice)


def test_a_run_that_lost_its_prices_is_not_measured_again(tiny: Options, tmp_path: Path) -> None:
    train(out=tmp_path / "a", cost="latency", **tiny)
    (tmp_path / "a" / "latency.json").unlink()
    with pytest.raises(UserError, match=r"^cost: the run has lost its latency.json"):
        train(out=tmp_path / "a", cost="latency", resume=True, until=8, **tiny)


def test_an_extended_run_has_the_same_history_whether_it_is_interrupted(
    finished: Run, tiny: Options, tmp_path: Path
) -> None:
    """Step 6 has a judgement of the first front and a round of the extension."""

    def stop(progress: Progress) -> None:
        if progress.done == 8:
            os.kill(os.getpid(), signal.SIGTERM)

    whole, halved = tmp_path / "whole", tmp_path / "halved"
    for path in (whole, halved):
        shutil.copytree(finished.path, path)
    train(out=whole, resume=True, until=10, **tiny)
    with pytest.raises(Stopped):
        train(out=halved, resume=True, until=10, watch=stop, **tiny)
    train(out=halved, resume=True, until=10, **tiny)
    assert_same_run(whole, halved)


def test_a_finished_run_without_its_page_gets_one(
    finished: Run, tiny: Options, tmp_path: Path
) -> None:
    shutil.copytree(finished.path, tmp_path / "a")
    (tmp_path / "a" / "report.html").unlink()
    train(out=tmp_path / "a", resume=True, **tiny)
    assert (tmp_path / "a" / "report.html").exists()


def test_metrics_with_a_number_that_json_does_not_know(
    finished: Run, tiny: Options, tmp_path: Path
) -> None:
    shutil.copytree(finished.path, tmp_path / "a")
    metrics = tmp_path / "a" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"loss": ', '"loss": 1e999, "other": ', 1))
    assert len(train(out=tmp_path / "a", resume=True, until=8, **tiny).front)


def test_a_device_file_goes_with_latency(tiny: Options, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^device_file: it goes with cost latency; type --cost"):
        train(out=tmp_path / "a", device_file="x.json", **tiny)


def test_only_one_training_in_a_folder(tiny: Options, tmp_path: Path) -> None:
    complaints: list[str] = []

    def watch(progress: Progress) -> None:
        for how in ({"resume": True}, {"overwrite": True}) if not complaints else ():
            with pytest.raises(UserError) as caught:
                train(out=tmp_path / "a", **how, **tiny)  # type: ignore[arg-type]
            complaints.append(str(caught.value))

    train(out=tmp_path / "a", watch=watch, **{**tiny, "steps": 1})
    assert set(complaints) == {
        f"out: {str(tmp_path / 'a')!r} is in use by another training; "
        "wait for its end, or type another folder"
    }
    train(out=tmp_path / "a", overwrite=True, **{**tiny, "steps": 1})


def test_a_damaged_checkpoint_costs_one_interval(
    finished: Run, tiny: Options, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def stop_at_five(progress: Progress) -> None:
        if progress.done == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    run = tmp_path / "run"
    with pytest.raises(Stopped):
        train(out=run, watch=stop_at_five, **{**tiny, "save_every": 2})
    (run / "checkpoint" / "state.pt").write_bytes(b"damaged")
    seen: list[Progress] = []
    train(out=run, resume=True, watch=seen.append, **{**tiny, "save_every": 2})
    assert "state.pt' is damaged: its checksum differs; going on from" in caplog.text
    assert seen[0].done == 5, "the checkpoint before was that of step 4"
    assert_same_run(finished.path, run)


def test_a_crash_between_the_last_files(
    finished: Run, tiny: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint comes last: without it the front is judged again."""
    saves = 0
    real = checkpoint.save

    def save(*arguments: Any) -> None:
        nonlocal saves
        saves += 1
        if saves == 4:
            raise Crash
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", save)
        with pytest.raises(Crash):
            train(out=tmp_path / "a", **tiny)
    assert (tmp_path / "a" / "front.json").exists()
    train(out=tmp_path / "a", resume=True, **tiny)
    assert_same_run(finished.path, tmp_path / "a")


def test_a_network_that_is_trained_already_does_not_learn_alone_at_first(
    tiny: Options, tmp_path: Path
) -> None:
    trained = joslim.models.resnet8(10).state_dict()
    run = train(out=tmp_path / "a", init=trained, **tiny)
    assert (run.config.full_first, run.config.draw) == (0.0, 1)
    assert metrics_of(run.path)[-1]["passes"] == run.config.steps, "one child in each step"
    with pytest.raises(Crash):
        train(out=tmp_path / "b", init=trained, watch=crash_at("train", 3), **tiny)
    assert train(out=tmp_path / "b", init=trained, resume=True, **tiny).front == run.front


@pytest.mark.parametrize("teacher", ["fixed", "ema"])
def test_a_resume_with_a_teacher_is_exact(teacher: str, tiny: Options, tmp_path: Path) -> None:
    """Also without the file of the weights, of which the checkpoint has a copy."""
    file, options = tmp_path / "w.safetensors", {**tiny, "teacher": teacher}
    save_file(joslim.models.resnet8(10).state_dict(), file)
    run = train(out=tmp_path / "a", init=file, **options)
    assert run.config.lr == pytest.approx(0.3 * rate_for("digits", run.config.batch))
    with pytest.raises(Crash):
        train(out=tmp_path / "b", init=file, watch=crash_at("train", 3), **options)
    file.unlink()
    assert train(out=tmp_path / "b", init=file, resume=True, **options).front == run.front


def test_the_rate_of_a_fine_tuning(tiny: Options, tmp_path: Path) -> None:
    """It is lower with a recipe that is named, too, and not if a rate is given."""
    weights, file = joslim.models.resnet8(10).state_dict(), tmp_path / "w.safetensors"
    save_file(weights, file)
    usual = rate_for("digits", 8)

    def rate(**options: Any) -> float:
        given = {"data": "digits", "batch": 8, "steps": 1, **options}
        model, data, init = given.pop("model", None), given.pop("data"), given.pop("init", None)
        config, objects = _named_and_objects(given, model=model, data=data, cost="macs", init=init)
        return set_up(config, init=objects.get("init")).config.lr

    assert rate() == usual
    assert rate(init=str(file)) == rate(init=weights) == pytest.approx(0.3 * usual)
    assert rate(init=str(file), recipe="digits") == pytest.approx(0.3 * usual)
    assert rate(init=weights, recipe="digits") == pytest.approx(0.3 * usual)
    assert rate(init=weights, recipe="digits", lr=0.7) == 0.7


def test_a_fixed_teacher_has_to_be_trained(tiny: Options, tmp_path: Path) -> None:
    options = {**tiny, "teacher": "fixed", "out": tmp_path / "a"}
    with pytest.raises(UserError, match=r"^teacher: .* there is no --init; type --teacher ema"):
        train(**options)
    other = joslim.models.resnet8(7).state_dict()
    with pytest.raises(UserError, match=r"^teacher: .* fc.weight, fc.bias are made anew"):
        train(init=other, **options)
    with pytest.raises(UserError, match=r"^teacher: method single has no children"):
        train(method="single", **options)
    assert not (tmp_path / "a").exists()


def test_the_log_says_what_init_changes(tiny: Options, tmp_path: Path, caplog: Any) -> None:
    weights = {f"module.{n}": t for n, t in joslim.models.resnet20(7).state_dict().items()}
    few = {key: value for key, value in tiny.items() if key not in ("lr", "full_first")}
    with caplog.at_level("INFO", "joslim"):
        train(**{**few, "model": "resnet20"}, out=tmp_path / "a", init=weights, depth=True)
    (loaded,) = [line for line in caplog.messages if line.startswith("init: ")]
    assert f"{len(weights) - 2} of {len(weights)} tensors loaded, without _orig_mod and" in loaded
    assert "fc.weight, fc.bias made anew, for 10 classes instead of 7" in loaded
    assert "channels sorted by importance" in loaded
    assert "blocks stay in their order" in loaded
    (changed,) = [line for line in caplog.messages if line.startswith("fine-tuning: ")]
    assert "0.3 of the usual one, the full network does not train alone at first" in changed


# Failures


def test_a_loss_that_is_not_finite(tiny: Options, tmp_path: Path) -> None:
    with pytest.raises(RunFailed) as caught:
        train(out=tmp_path / "a", lr=1e20, full_first=0, **{**tiny, "save_every": 1})
    message = str(caught.value)
    assert "the loss is nan at step 1, at widths conv1=16 " in message
    assert str(tmp_path / "a" / "checkpoint") in message
    assert len(message.splitlines()) == 1
    run = joslim.load(tmp_path / "a")
    assert all(torch.isfinite(tensor).all() for tensor in run.net.state_dict().values())
    assert len(run.history)
    with pytest.raises(UserError, match="has no front yet: it stopped at step"):
        _ = run.front


def test_a_failure_before_the_first_checkpoint(tiny: Options, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="there is no checkpoint yet"):
        train(out=tmp_path / "a", lr=1e20, **{**tiny, "save_every": 5})
    with pytest.raises(UserError, match="has no checkpoint yet"):
        _ = joslim.load(tmp_path / "a").net


def test_weights_that_are_not_finite_are_a_failure(tiny: Options, tmp_path: Path) -> None:
    """Found when the checkpoint is written; the one before stays."""
    model = resnet8(num_classes=10)

    def watch(progress: Progress) -> None:
        if progress.done == 4:
            model.fc.weight.data[0, 0] = float("nan")

    with pytest.raises(RunFailed, match=r"fc.weight is not finite after step 4"):
        train(model, out=tmp_path / "a", watch=watch, **tiny)
    path = checkpoint.find(RunFolder(tmp_path / "a"))
    assert path is not None
    assert json.loads((path / "checkpoint.json").read_text())["step"] == 2


def test_a_full_disk(tiny: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(RunFailed, match="No space left on device; there is no checkpoint yet"):
        train(out=tmp_path / "a", **tiny)


# Which data are read when


def test_the_test_set_is_read_at_the_end(
    tiny: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = 0
    read: list[tuple[str, int]] = []
    real = MemoryData.images

    def images(self: MemoryData, split: str) -> Any:
        read.append((split, done))
        return real(self, split)

    def watch(progress: Progress) -> None:
        nonlocal done
        done += progress.phase == "train"

    monkeypatch.setattr(MemoryData, "images", images)
    train(out=tmp_path / "a", watch=watch, **tiny)
    assert {split for split, _ in read} == {"train", "val", "test"}
    assert {step for split, step in read if split == "test"} == {6}
    assert {step for split, step in read if split == "val"} == {6}


def test_a_failed_run_never_reads_the_test_set(
    tiny: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = MemoryData.images

    def images(self: MemoryData, split: str) -> Any:
        read.append(split)
        return original(self, split)

    monkeypatch.setattr(MemoryData, "images", images)
    with pytest.raises(RunFailed):
        train(out=tmp_path / "a", lr=1e20, **tiny)
    assert "train" in read
    assert "test" not in read


# Precision, logs


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_mixed_precision(amp: str, finished: Run, tiny: Options, tmp_path: Path) -> None:
    run = train(out=tmp_path / "a", amp=amp, **tiny)
    assert next(run.net.parameters()).dtype == torch.float32
    ours, theirs = weights_of(run.path)["conv1.weight"], weights_of(finished.path)["conv1.weight"]
    assert not torch.equal(ours, theirs)


def test_errors_of_mixed_precision_are_those_of_the_network_that_is_used(
    tiny: Options, tmp_path: Path
) -> None:
    assert_losses_on_record(train(out=tmp_path / "a", amp="bf16", **tiny))


def assert_losses_on_record(run: Run) -> None:
    """Measured again on the images that judged the front.

    The training has its channels innermost in memory, the network that it returns has not: the
    kernels may differ, and with them the last digits of a float32 sum.
    """
    data = load_data("digits")
    for point in run.front:
        images = data.sweep("train", EVALUATION_BATCH, limit=run.config.front_images)
        with run.net.at(point.widths):
            again = mean_loss(run.net, images, nn.CrossEntropyLoss())
        assert again == pytest.approx(point.train_loss, rel=1e-5)


def test_the_losses_of_the_front_can_be_measured_again(finished: Run) -> None:
    assert_losses_on_record(finished)


def test_tensorboard(tiny: Options, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(out=tmp_path / "a", tensorboard=True, **tiny)
    (events,) = (tmp_path / "a" / "tensorboard").iterdir()
    assert events.name.startswith("events.out.tfevents")
    assert b"smallest_loss" in events.read_bytes()
    train(out=tmp_path / "a", overwrite=True, **{**tiny, "steps": 1})
    assert not (tmp_path / "a" / "tensorboard").exists()


def test_no_tensorboard(tiny: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match="not installed; type pip install"):
        train(out=tmp_path / "a", tensorboard=True, **tiny)
    assert not (tmp_path / "a").exists()


def test_what_is_to_see(tiny: Options, tmp_path: Path) -> None:
    seen: list[Progress] = []
    run = train(out=tmp_path / "a", watch=seen.append, **tiny)
    steps = [progress for progress in seen if progress.phase == "train"]
    judged = [progress for progress in seen if progress.phase == "front"]
    assert [progress.done for progress in steps] == [1, 2, 3, 4, 5, 6]
    assert {progress.total for progress in steps} == {6}
    assert [progress.round for progress in steps] == [1, 1, 2, 2, 3, 3]
    alone = [progress.others_loss is None for progress in steps]
    assert alone[:2] == [True] * 2
    assert not all(alone[2:]), "a random child may be the full network itself"
    # Of the validation and the test images there is one batch each.
    assert steps[-1].children == len(run.history) == judged[-1].total - 2
    assert [progress.smallest_loss is None for progress in steps][:2] == [True] * 2
    assert steps[-1].alone_until == 2
    *lines, _ = metrics_of(run.path)
    assert [(p.loss, p.others_loss) for p in steps] == [
        (line["loss"], line["losses"][1] if len(line["losses"]) > 1 else None) for line in lines
    ]


def test_fewer_lines(tiny: Options, tmp_path: Path) -> None:
    run = train(out=tmp_path / "a", log_every=4, **tiny)
    assert [line["step"] for line in metrics_of(run.path)] == [4, 6, 6]


# From Python


class Pairs:
    """Digits as somebody's own data set."""

    def __init__(self, count: int, start: int) -> None:
        generator = np.random.default_rng(start)
        self.pixels = generator.integers(0, 256, (count, 8, 8, 3)).astype(np.uint8)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.pixels[index], index % 3


def area(widths: Widths) -> float:
    return float(sum(count * count for count in widths.counts))


def test_objects_in_place_of_names(tiny: Options, tmp_path: Path) -> None:
    model, weights = resnet8(num_classes=3), resnet8(num_classes=3).state_dict()
    options = {**tiny, "recipe": "digits", "momentum": 0.5}
    pair = (Pairs(60, 0), Pairs(20, 1))
    run = train(model, pair, cost=area, init=weights, out=tmp_path / "a", **options)
    assert run.net is model
    assert not run.net.training
    assert run.front.cost == "area"
    assert all(point.costs["area"] == area(point.widths) for point in run.front)
    stored = json.loads((tmp_path / "a" / "config.json").read_text())
    assert stored["config"]["model"].startswith("<")
    assert (stored["config"]["data"], stored["cost"]) == ("<tuple>", "area")
    assert run.front.pick(area=1e9) in [*run.front]
    with pytest.raises(UserError, match="give it again"):
        _ = joslim.load(tmp_path / "a").net
    loaded = joslim.load(tmp_path / "a", model=resnet8(num_classes=3))
    assert torch.equal(loaded.net.fc.weight, model.fc.weight)
    assert len(loaded.history) == len(run.history)
    assert [v.cost for v in loaded.history.visits] == [area(v.widths) for v in run.history.visits]


def test_objects_are_needed_to_go_on(tiny: Options, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        train(cost=area, out=tmp_path / "a", watch=crash_at("train", 1), **tiny)
    with pytest.raises(UserError, match="cost: 'macs' given, the run has 'area'"):
        train(out=tmp_path / "a", resume=True, **tiny)
    run = train(cost=area, out=tmp_path / "a", resume=True, **tiny)
    assert run.front.cost == "area"


def test_weights_of_a_run_to_start_from(finished: Run, tiny: Options, tmp_path: Path) -> None:
    file = finished.folder.file("checkpoint") / "model.safetensors"
    run = train(out=tmp_path / "a", init=file, **{**tiny, "lr": 1e-9})
    assert run.config.init == str(file)
    start = load_file(file)
    for name, parameter in run.net.named_parameters():
        # Channels are sorted by their importance at first: the values are the same.
        now, before = (weights.flatten().sort().values for weights in (parameter, start[name]))
        assert torch.allclose(now, before, atol=1e-6), "too slow to get away from there"


def test_a_new_head_is_on_record(tiny: Options, tmp_path: Path) -> None:
    save_file(resnet8(num_classes=7).state_dict(), tmp_path / "w.safetensors")
    run = train(out=tmp_path / "a", init=str(tmp_path / "w.safetensors"), **tiny)
    assert sorted(run.facts["fresh"]) == ["fc.bias", "fc.weight"]


def test_a_run_goes_on_without_the_weights_it_began_with(tiny: Options, tmp_path: Path) -> None:
    weights, run = tmp_path / "w.safetensors", tmp_path / "run"
    save_file(resnet8(num_classes=7).state_dict(), weights)
    begun = train(out=run, init=str(weights), **tiny)
    shutil.copytree(run, tmp_path / "other")
    expected = train(out=tmp_path / "other", resume=True, until=8, init=str(weights), **tiny)
    weights.unlink()
    longer = train(out=run, resume=True, until=8, init=str(weights), **tiny)
    assert longer.config.init == str(weights)
    assert longer.facts["fresh"] == begun.facts["fresh"]
    assert longer.front == expected.front


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": 3}, "model: int given"),
        ({"model": nn.ReLU}, "model: "),
        ({"data": 3}, "data: int is not a pair"),
        ({"cost": 3}, "cost: unknown name '3'"),
        ({"init": 3}, "init: int given"),
        ({"init": {"a": 3}}, "init: a is int"),
        ({"learning_rate": 3}, "unknown name 'learning_rate'"),
        ({"lr": "fast"}, "lr: 'fast' given"),
    ],
)
def test_wrong_objects(options: Options, words: str, tiny: Options, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        train(**{**tiny, "out": tmp_path / "a", **options})
    assert not (tmp_path / "a").exists()


# Depth and resolution


@pytest.mark.parametrize("method", ["joslim", "slim", "bignas", "single"])
def test_children_of_several_depths_and_sizes(method: str, tiny: Options, tmp_path: Path) -> None:
    """A resumed training is the same to the bit, and the run folder gives the network again."""
    options = {**tiny, "model": "resnet20", "resolutions": (4, 6, 8), "depth": True}
    options |= {"method": method, "full_first": 0.0, "steps": 4}
    if method == "single":
        options["widths"] = "0.5"
    run = train(out=tmp_path / "a", **options)
    assert {*run.front.space.kinds} == {"channels", "blocks", "pixels"}
    assert run.config.resolutions == "4,6,8"
    sizes = {point.widths.pixels for point in run.front}
    depths = {point.widths.channels["layer3"] for point in run.front}
    assert sizes <= {4, 6, 8}
    assert depths <= {1, 2, 3}
    again = joslim.load(tmp_path / "a")
    assert again.net.space == run.front.space
    assert again.front == run.front
    x = torch.randn(4, 3, 8, 8)
    for point in run.front:
        again.net.use(point)
        run.net.eval().use(point)
        with torch.no_grad():
            assert torch.equal(again.net(x), run.net(x))
    if method == "joslim":
        lines = map(json.loads, (run.path / "history.jsonl").read_text().splitlines())
        assert {line["widths"][-1] for line in lines if "id" in line} == {4, 6, 8}
        with pytest.raises(Crash):
            train(out=tmp_path / "b", watch=crash_at("train", 3), **options)
        assert_same_run(run.path, train(out=tmp_path / "b", resume=True, **options).path)
        for depth in (False, True):
            other = {**options, "depth": depth, "resolutions": "4,8" if depth else "4,6,8"}
            with pytest.raises(UserError, match=r"^(depth|resolutions): .* cannot change it"):
                train(out=tmp_path / "b", resume=True, **other)


def test_autoslim_removes_channels_only(tiny: Options, tmp_path: Path) -> None:
    options = {**tiny, "model": "resnet20", "depth": True, "method": "autoslim"}
    with pytest.raises(UserError, match=r"^method: autoslim removes channels only, this network"):
        train(out=tmp_path / "a", **options)
