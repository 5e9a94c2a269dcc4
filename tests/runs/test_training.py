"""`joslim.train`: repeatable, resumable, honest about the test set, and good in a failure."""

import hashlib
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
from joslim.data.memory import MemoryData
from joslim.errors import RunFailed, Stopped, UserError
from joslim.loop import default_every
from joslim.models import resnet8
from joslim.runs import checkpoint
from joslim.runs.config import Config
from joslim.runs.folder import RunFolder, read_lines
from joslim.runs.job import EVALUATION_BATCH
from joslim.runs.run import Run
from joslim.runs.training import Progress, default_folder, stopping, train
from joslim.training.evaluate import mean_loss
from joslim.widths import Widths

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
    monkeypatch.setattr("joslim.runs.training.draw_run", lambda *arguments: None)


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

    with pytest.raises(Stopped, match=r"type joslim resume .*a to go on") as caught:
        train(out=tmp_path / "a", watch=watch, **tiny)
    assert caught.value.signal == number
    assert (seen[-1].phase, seen[-1].done) == (phase, 3)
    path = checkpoint.find(RunFolder(tmp_path / "a"))
    assert path is not None
    step = json.loads((path / "checkpoint.json").read_text())["step"]
    assert step == (3 if phase == "train" else 6), "a checkpoint of this very step"
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


def test_a_finished_run_is_extended(finished: Run, tiny: Options, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished.path, run)
    seen: list[Progress] = []
    longer = train(out=run, resume=True, until=9, watch=seen.append, **tiny)
    assert [p.done for p in seen if p.phase == "train"] == [7, 8, 9]
    assert longer.config.steps == 9
    assert [line["step"] for line in metrics_of(run)] == [*range(1, 10), 9]
    assert len(longer.history) > len(finished.history)
    seen.clear()
    again = train(out=run, resume=True, watch=seen.append, **{**tiny, "steps": 9})
    assert not seen, "it is finished now"
    assert again.front == longer.front


def test_the_call_that_began_a_run_extends_it(tiny: Options, tmp_path: Path) -> None:
    """K is left to its default, which would be another for a longer training."""
    options = {key: value for key, value in tiny.items() if key != "every"}
    options |= {"steps": 6002, "method": "slim", "full_first": 0.0}
    file = tmp_path / "run" / "config.json"

    def stop_at_once(progress: Progress) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    for until in (None, 9004):
        with pytest.raises(Stopped):
            train(out=tmp_path / "run", resume=True, until=until, watch=stop_at_once, **options)
    config = json.loads(file.read_text())["config"]
    assert (config["steps"], config["every"]) == (9004, default_every(6002, 2))
    assert default_every(6002, 2) != default_every(9004, 2)


def test_the_page_of_a_finished_run_says_so(finished: Run) -> None:
    """It is written when the checkpoint before the last is gone."""
    assert '"state":"finished"' in (finished.path / "report.html").read_text()


def test_a_k_that_is_left_out_is_that_of_the_run(
    finished: Run, tiny: Options, tmp_path: Path
) -> None:
    """Its default was another in older versions."""
    shutil.copytree(finished.path, tmp_path / "run")
    options = {key: value for key, value in tiny.items() if key != "every"}
    again = train(out=tmp_path / "run", resume=True, **options)
    assert again.config.every == finished.config.every != default_every(6, 2)
    assert again.front == finished.front


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


def test_a_device_file_goes_with_latency(tiny: Options, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^device_file: it goes with cost latency; type --cost"):
        train(out=tmp_path / "a", device_file="x.json", **tiny)


def test_until_needs_a_run_and_goes_forward(finished: Run, tiny: Options, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^until: there is no run in .*new' to go on with"):
        train(out=tmp_path / "new", resume=True, until=9, **tiny)
    run = tmp_path / "run"
    shutil.copytree(finished.path, run)
    with pytest.raises(UserError, match=r"^until: 3 is less than the 6 steps that are done"):
        train(out=run, resume=True, until=3, **tiny)
    assert_same_run(finished.path, run)


def test_only_one_training_in_a_folder(tiny: Options, tmp_path: Path) -> None:
    complaints: list[str] = []

    def watch(progress: Progress) -> None:
        for how in ({"resume": True}, {"overwrite": True}):
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


def test_resume_begins_where_there_is_nothing(finished: Run, tiny: Options, tmp_path: Path) -> None:
    train(out=tmp_path / "a", resume=True, **tiny)
    assert_same_run(finished.path, tmp_path / "a")


def test_a_run_from_before_a_setting_goes_on_as_it_was(tiny: Options, tmp_path: Path) -> None:
    before = {"full_weight": 1.0, "full_first": 0.0, "draw": 3}
    whole = train(out=tmp_path / "whole", **before, **tiny)
    with pytest.raises(Crash):
        train(out=tmp_path / "a", **before, watch=crash_at("train", 5), **tiny)
    facts = json.loads((tmp_path / "a" / "config.json").read_text())
    for name in before:
        del facts["config"][name]
    (tmp_path / "a" / "config.json").write_text(json.dumps(facts))
    stored = Run(RunFolder(tmp_path / "a")).config
    assert {name: getattr(stored, name) for name in before} == before, "not today's defaults"
    again = train(out=tmp_path / "a", resume=True, **tiny)
    assert again.front == whole.front


def test_a_network_that_is_trained_already_does_not_learn_alone_at_first(
    tiny: Options, tmp_path: Path
) -> None:
    trained = joslim.models.resnet8(10).state_dict()
    run = train(out=tmp_path / "a", init=trained, **tiny)
    assert (run.config.full_first, run.config.draw) == (0.0, 1)
    assert metrics_of(run.path)[0]["passes"] == 2
    with pytest.raises(Crash):
        train(out=tmp_path / "b", init=trained, watch=crash_at("train", 3), **tiny)
    assert train(out=tmp_path / "b", init=trained, resume=True, **tiny).front == run.front


def test_resume_does_not_take_a_folder_of_somebody_else(tiny: Options, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match="holds no run"):
        train(out=tmp_path, resume=True, **tiny)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lr", 0.2),
        ("model", "resnet20"),
        ("seed", 1),
        ("steps", 7),
        ("every", 3),
        ("method", "slim"),
        ("cost", "params"),
        ("val", 0.2),
        ("low", 0.5),
    ],
)
def test_another_configuration_is_refused(
    field: str, value: Any, finished: Run, tiny: Options
) -> None:
    with pytest.raises(UserError, match=f"^{field}: .*a resumed run cannot change it"):
        train(out=finished.path, resume=True, **{**tiny, field: value})


def test_low_may_be_typed_or_left_to_the_network(
    finished: Run, tiny: Options, tmp_path: Path
) -> None:
    assert finished.config.low is None
    low = finished.net.space.knobs[0].low
    again = train(out=finished.path, resume=True, low=low, **tiny)
    assert again.front == finished.front
    words = rf"^low: {low / 2} given, the run in .* has its default; a resumed run cannot"
    with pytest.raises(UserError, match=words):
        train(out=finished.path, resume=True, low=low / 2, **tiny)


def test_other_data_are_refused(finished: Run, tiny: Options, tmp_path: Path) -> None:
    pixels = np.zeros((40, 8, 8), dtype=np.uint8)
    pair = [[(image, number % 10) for number, image in enumerate(pixels)]] * 2
    with pytest.raises(UserError, match=r"^data: "):
        train(data=pair, out=finished.path, resume=True, **tiny)
    run = tmp_path / "run"
    shutil.copytree(finished.path, run)
    stored = json.loads((run / "config.json").read_text())
    stored["data"]["identity"] = "digits 3x8x8 1293+144+360 00000000"
    (run / "config.json").write_text(json.dumps(stored))
    with pytest.raises(UserError, match="is not what the run was trained on"):
        train(out=run, resume=True, **tiny)


@pytest.mark.parametrize(
    "text", ['{"joslim": 1}', '{"joslim": 1, "config": []}', '{"joslim": 1, "config": {}}', "{"]
)
def test_a_broken_configuration_is_not_gone_on_with(
    text: str, tiny: Options, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError) as caught:
        train(out=tmp_path, resume=True, **tiny)
    assert len(str(caught.value).splitlines()) == 1


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
    def never(*arguments: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(MemoryData, "checked_test", never)
    with pytest.raises(RunFailed):
        train(out=tmp_path / "a", lr=1e20, **tiny)


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
    run = train(out=tmp_path / "a", amp="bf16", **tiny)
    assert [loss_of(run, point) for point in run.front] == [p.train_loss for p in run.front]


def loss_of(run: Run, point: joslim.Point) -> float:
    """On the images that judged the front."""
    images = load_data("digits").sweep("train", EVALUATION_BATCH, limit=run.config.front_images)
    with run.net.at(point.widths):
        return mean_loss(run.net, images, nn.CrossEntropyLoss())


def test_the_losses_of_the_front_can_be_measured_again(finished: Run) -> None:
    assert [loss_of(finished, p) for p in finished.front] == [p.train_loss for p in finished.front]


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
    assert [progress.others_loss is None for progress in steps] == [True] * 2 + [False] * 4
    assert steps[-1].children == len(run.history) == judged[-1].total
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
    assert run.front.pick(area=1e9) == run.front[-1]
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


# Runs of earlier versions


def test_a_run_that_did_not_know_all_settings_goes_on(tiny: Options, tmp_path: Path) -> None:
    """As one that was begun before there were label shares, replays and widths that are drawn."""
    as_it_was = {"draw": 3, "full_first": 0.0}
    whole = train(out=tmp_path / "whole", **as_it_was, **tiny)
    stopped = tmp_path / "stopped"

    def stop_at_three(progress: Progress) -> None:
        if progress.done == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        train(out=stopped, watch=stop_at_three, **as_it_was, **tiny)
    config = json.loads((stopped / "config.json").read_text())
    for name in ("label_share", "replay", *as_it_was):
        del config["config"][name]
    (stopped / "config.json").write_text(json.dumps(config))
    file = stopped / "checkpoint" / "state.pt"
    state = torch.load(file, weights_only=True)
    for name in ("chosen", "drawn_at"):
        del state["slimming"][name]
    for name in ("label_share", "replay", *as_it_was):
        del state["slimming"]["settings"][name]
    torch.save(state, file)
    summary = stopped / "checkpoint" / "checkpoint.json"
    facts = json.loads(summary.read_text())
    facts["sha256"]["state.pt"] = hashlib.sha256(file.read_bytes()).hexdigest()
    summary.write_text(json.dumps(facts))
    run = train(out=stopped, resume=True, **tiny)
    assert run.front == whole.front
    ours, theirs = weights_of(stopped), weights_of(whole.path)
    assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]
