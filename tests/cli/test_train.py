"""`joslim train` and `joslim resume`: flags, files, exit codes, signals."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from joslim.cli.train import typed_settings
from joslim.models import resnet8
from joslim.results.run_files import read_lines
from joslim.runs.config import FIELDS, config_of
from joslim.runs.run import Run

Program = Callable[..., Any]

# Of the design: they may not change.
# fmt: off
FLAGS = [
    "--model", "--init", "--data", "--data-root", "--size", "--method", "--cost", "--low",
    "--widths", "--steps", "--epochs", "--batch", "--every", "--samples", "--preset", "--seed",
    "--out", "--overwrite", "--resume", "--config", "--recipe", "--device", "--amp",
    "--dry-run", "--json",
]
# fmt: on


def flags(**options: Any) -> list[str]:
    """steps=3, save_every=2 -> --steps 3 --save-every 2"""
    named = {f"--{name.replace('_', '-')}": str(value) for name, value in options.items()}
    return [word for pair in named.items() for word in pair]


@pytest.fixture
def small(tiny: dict[str, Any]) -> list[str]:
    return ["train", *flags(**tiny)]


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


# Help


def test_help_names_all_flags(joslim: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    words = joslim("train", "--help").stdout.replace(",", " ").split()
    assert not [flag for flag in FLAGS if flag not in words]
    assert not [name for name in FIELDS if f"--{name.replace('_', '-')}" not in words]


@pytest.mark.parametrize("command", [["train"], ["resume"]])
def test_help_is_fast(command: list[str], shell: Program) -> None:
    result = shell("-X", "importtime", "-m", "joslim", *command, "--help")
    assert result.returncode == 0
    imported = {
        line.rpartition("|")[2].strip().split(".")[0] for line in result.stderr.splitlines()
    }
    assert "joslim" in imported
    assert not imported & {"torch", "numpy", "botorch", "matplotlib", "safetensors"}


# A run


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take as long as the rest of a tiny run; the shared one has been drawn."""
    monkeypatch.setattr("joslim.runs.driver.draw_run", lambda *arguments: None)


def test_a_run_for_people(joslim: Program, small: list[str], finished: Run) -> None:
    result = joslim(*small, "--out", "a")
    assert result.returncode == 0
    assert result.stderr.splitlines()[:5] == [
        "network: resnet8, 6 knobs, macs 80.8K to 765.6K; method joslim, 6 steps with sgd",
        "data: 1,293 training, 144 validation, 360 test images of 10 classes, 3x8x8; "
        "task classification",
        "recipe: digits (for 1,293 training images of 8 pixels)",
        "training: 6 steps (0.148 epochs), batch 32, "
        "learning rate 0.05 (it follows the batch: 0.1 for 64), cosine, weight decay 0.0005, "
        "label smoothing 0",
        "children: 1 of 3 in every step, after the full network alone for 30% of the steps "
        "(the default for fewer than 50 epochs)",
    ]
    assert "train loss" in result.stdout
    assert "run folder: a (picture: a/front.png)" in result.stdout
    ours, theirs = Path("a/front.json"), finished.folder.file("front.json")
    assert ours.read_bytes() == theirs.read_bytes()


def test_json(joslim: Program, small: list[str], finished: Run) -> None:
    result = joslim(*small, "--out", "a", "--json")
    told = json.loads(result.stdout)
    assert told["run"] == "a"
    assert told["children"] == [point.to_json() for point in finished.front]
    again = json.loads(joslim("resume", "a", "--json").stdout)
    assert again == told
    assert json.loads(joslim("front", "a", "--json").stdout)["children"] == told["children"]


def test_where_a_run_goes_by_default(joslim: Program, small: list[str]) -> None:
    assert joslim(*small, "--steps", "1").returncode == 0
    assert Path("runs/digits-resnet8-joslim/front.json").exists()


def test_what_is_new_is_said(joslim: Program, small: list[str]) -> None:
    save_file(resnet8(num_classes=4).state_dict(), "w.safetensors")
    result = joslim(*small, "--out", "a", "--init", "w.safetensors", "--json")
    assert result.returncode == 0
    assert "not from --init, and so learned anew: fc." in result.stderr
    json.loads(result.stdout)


# Files of configuration


def test_flags_win_over_the_file(joslim: Program, tiny: dict[str, Any]) -> None:
    Path("c.json").write_text(json.dumps({**tiny, "lr": 0.5, "front-images": 16}))
    assert joslim("train", "--config", "c.json", "--lr", "0.01", "--out", "a").returncode == 0
    config = json.loads(Path("a/config.json").read_text())["config"]
    assert (config["lr"], config["front_images"], config["batch"]) == (0.01, 16, 32)


@pytest.mark.parametrize("method", ["slim", "single", "bignas"])
def test_the_record_of_a_run_with_another_method(
    method: str, joslim: Program, finished: Run
) -> None:
    record = str(finished.path / "config.json")
    joslim("train", "--config", record, "--method", method, "--out", "other")
    config = json.loads(Path("other/config.json").read_text())["config"]
    assert (config["method"], config["steps"]) == (method, finished.config.steps)
    assert config["searcher"] == ("targeted" if method == "bignas" else None)


@pytest.mark.parametrize(
    ("filed", "method", "left"),
    [
        ({"method": "slim", "channels_only": True, "steps": 3}, "joslim", {"steps": 3}),
        ({"method": "joslim", "random_share": 0.3, "searcher": "nsga2", "beta": 2}, "slim", {}),
        ({"method": "joslim", "random_share": 0.3}, "joslim", {"random_share": 0.3}),
        ({"method": "single", "widths": "0.5"}, "bignas", {}),
        ({"channels_only": True}, "slim", {"channels_only": True}),
        ({"widths": "0.5"}, "single", {"widths": "0.5"}),
    ],
)
def test_settings_of_the_file_that_the_typed_method_does_not_take(
    filed: dict[str, Any], method: str, left: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "c.json").write_text(json.dumps(filed))
    found = typed_settings(tmp_path / "c.json", {"method": method, "channels_only": None})
    assert found == {**left, "method": method}
    assert config_of(found).method == method


def test_steps_win_over_epochs_of_the_file(joslim: Program) -> None:
    Path("c.toml").write_text("epochs = 3\nbatch = 8\n")
    result = joslim("train", "--config", "c.toml", "--steps", "5", "--dry-run", "--json")
    assert json.loads(result.stdout)["steps"] == 5


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"out": "x"}, "configuration: unknown name 'out'"),
        ({"resume": True}, "configuration: unknown name 'resume'"),
        ({"watch": 1}, "configuration: unknown name 'watch'"),
        ({"stepps": 1}, "steps"),
        ({"model": 3}, "model: 3 given; allowed: text"),
        ({"model": None}, "model: nothing given"),
        ({"data": ["digits", "digits"]}, "data: ['digits', 'digits'] given; allowed: text"),
        ({"init": {}}, "init: {} given; allowed: text"),
        ({"cost": 3}, "cost: 3 given; allowed: text"),
        ({"steps": 10**400}, "steps: 1000"),
        ({"epochs": 1e308}, "epochs: 1e+308 given"),
        ({"lr": "0.1"}, "lr: '0.1' given; allowed: a number"),
        ({"steps": 1, "epochs": 1}, "type only one"),
    ],
)
def test_files_with_mistakes(values: dict[str, Any], words: str, refused: Program) -> None:
    Path("c.json").write_text(json.dumps(values))
    for more in ([], ["--dry-run"]):
        assert words in refused("train", "--config", "c.json", "--out", "a", *more)
    assert os.listdir(".") == ["c.json"]


def test_no_file(refused: Program) -> None:
    assert "config: cannot read 'c.toml'" in refused("train", "--config", "c.toml")
    assert "not a .toml or .json file" in refused("train", "--config", "c.yaml")


# Bad input


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--batch", "5000"], "batch: 5000 is more than the 1293 training images"),
        (["--every", "0"], "every: 0 given; allowed: a whole number, at least 1"),
        (["--samples", "0"], "samples: 0 given"),
        (["--steps", "0"], "steps: 0 given"),
        (["--steps", "1.5"], "steps: '1.5' given; allowed: a whole number, at least 1"),
        (["--steps", "many"], "steps: 'many' given; allowed: a whole number"),
        (["--lr", "abc"], "lr: 'abc' given; allowed: a number, above 0"),
        (["--out", ""], "'--out': it is empty; type the name of a folder (joslim train --help"),
        (["--bisections", "3"], "bisections: searcher targeted has none; leave it out, or type"),
        (
            ["--rho", "1"],
            "rho: searcher targeted has none; leave it out, or type --searcher mobo-t",
        ),
        (
            ["--no-ard"],
            "ard: searcher targeted has none; leave it out, or type --searcher mobo-ts2 ",
        ),
        (["--optimistic"], "optimistic: searcher targeted has none; leave it out, or type"),
        (["--start", "1"], "start: 1 given; allowed: a whole number, at least 2"),
        (
            ["--searcher", "random", "--start", "9"],
            "or type --searcher targeted or mobo-ts2 or mobo",
        ),
        (["--preset", "paper", "--rho", "-1"], "rho: -1.0 given; allowed: a number, at least 0"),
        (["--method", "slim", "--beta", "1"], "beta: it is for method joslim or bignas"),
        (["--lr", "nan"], "lr: nan given"),
        (["--lr", "1e308"], "lr: 1e+308 given"),
        (["--epochs", "1"], "type only one"),
        (["--method", "magic"], "method: unknown name 'magic'; allowed: joslim, slim,"),
        (["--model", "alexnet"], "model: unknown name 'alexnet'; allowed: resnet8,"),
        (["--data", "mnist"], "data: unknown name 'mnist'; allowed: digits,"),
        (["--cost", "money"], "cost: unknown name 'money'; allowed: macs,"),
        (["--preset", "x"], "preset: unknown name 'x'; allowed: default, paper"),
        (["--searcher", "x"], "searcher: unknown name 'x'; allowed: targeted,"),
        (
            ["--random-share", "0.3", "--method", "slim"],
            "random_share: it is for method joslim, not 'slim'; leave it out",
        ),
        (
            ["--channels-only"],
            "channels_only: it is for method slim, not 'joslim'; leave it out",
        ),
        (["--recipe", "x"], "recipe: unknown name 'x'; allowed: digits,"),
        (["--amp", "fp8"], "amp: unknown name 'fp8'; allowed: auto, bf16, fp16"),
        (["--device", "toaster"], "device: 'toaster' cannot be used"),
        (["--device", "meta"], "device: 'meta' cannot be used"),
        (["--threads", "100000000000"], "threads: 100000000000 given"),
        (["--size", "1000000"], "size: 1000000 given"),
        (["--widths", "0.5"], "widths: it is for method single, not 'joslim'; leave it out"),
        (["--method", "single", "--widths", "half"], "widths: 'half' are not multipliers"),
        (["--method", "single", "--widths", "1,1"], "widths: 2 multipliers given"),
        (["--init", "w.safetensors"], "init: cannot read 'w.safetensors'"),
        (["--init", "w.bin"], "init: cannot read 'w.bin'"),
        (["--split", "0.8/0.1/0.1"], "split: it is for a folder of classes"),
        (["--data", "folder:nowhere"], "data: there is no folder 'nowhere'"),
        (["--overwrite", "--resume"], "exclude each other"),
        (["--tensorboard=yes"], "--tensorboard"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line(
    options: list[str], words: str, small: list[str], refused: Program
) -> None:
    assert words in refused(*small, "--out", "a", *options)
    assert os.listdir(".") == []


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there is one")
def test_no_cuda(small: list[str], refused: Program) -> None:
    assert "device: 'cuda' cannot be used" in refused(*small, "--out", "a", "--device", "cuda")


def test_weights_that_do_not_fit(small: list[str], refused: Program) -> None:
    Path("w.safetensors").write_bytes(b"x" * 64)
    assert "init: cannot read" in refused(*small, "--init", "w.safetensors")
    save_file({"fc.weight": torch.zeros(3, 3)}, "w.safetensors")
    assert "init: the weights lack conv1.weight" in refused(*small, "--init", "w.safetensors")


def images(folder: str, *classes: str, count: int = 4) -> None:
    for name in classes:
        place = Path(folder) / name
        place.mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (9, 9), (40 * number, 99, 200)).save(place / f"{number}.png")


@pytest.mark.parametrize(
    ("train", "val", "words"),
    [
        ([], [], "has no folder train/"),
        (["cat"], ["cat"], "only the class 'cat'; at least two"),
        (["cat", "dog"], [], "has no folder val/"),
        (["cat", "dog"], ["cat", "cow"], "dog"),
        (["cat", "dog"], ["cat", "dog"], "batch: 32 is more than the"),
    ],
)
def test_folders_of_images(
    train: list[str], val: list[str], words: str, small: list[str], refused: Program
) -> None:
    Path("images").mkdir()
    images("images/train", *train)
    images("images/val", *val)
    data = ["--data", "folder:images", "--size", "8"]
    assert words in refused(*small, *data, "--out", "a")


def test_folders_without_images(small: list[str], joslim: Program, refused: Program) -> None:
    images("images/train", "cat", "dog", count=0)
    images("images/val", "cat", "dog", count=0)
    assert "has no images" in refused(*small, "--data", "folder:images", "--out", "a")
    Path("images/train/cat/0.png").write_text("no picture")
    for place in ("train/cat", "train/dog", "val/cat", "val/dog"):
        for number in range(3):
            Path("images", place, f"{number}.png").write_text("no picture")
    data = ["--data", "folder:images", "--size", "8", "--batch", "2"]
    result = joslim(*small, *data, "--out", "a")
    assert result.returncode == 2
    last = result.stderr.splitlines()[-1]  # after the summary
    assert last.startswith("joslim: data: cannot read")
    assert ".png" in last


def test_a_folder_of_images_is_trained_on(joslim: Program, small: list[str]) -> None:
    images("images/train", "cat", "dog")
    images("images/val", "cat", "dog")
    data = ["--data", "folder:images", "--size", "8", "--batch", "4", "--val", "2"]
    result = joslim(*small, *data, "--steps", "2", "--out", "a", "--json")
    assert result.returncode == 0, result.stderr
    stored = json.loads(Path("a/config.json").read_text())
    assert stored["data"]["sizes"] == {"train": 6, "val": 2, "test": 8}


# Folders


def test_a_run_is_not_lost_by_accident(small: list[str], refused: Program, joslim: Program) -> None:
    assert joslim(*small, "--out", "a").returncode == 0
    before = {file: file.read_bytes() for file in Path("a").rglob("*") if file.is_file()}
    message = refused(*small, "--out", "a")
    assert "holds a run" in message
    assert "--overwrite" in message
    assert "--resume" in message
    assert {f: f.read_bytes() for f in Path("a").rglob("*") if f.is_file()} == before
    assert joslim(*small, "--out", "a", "--overwrite", "--steps", "1").returncode == 0


def test_what_is_no_run_is_left_alone(small: list[str], refused: Program) -> None:
    Path("a").mkdir()
    Path("a/thesis.tex").write_text("years")
    Path("b").write_text("a file")
    for more in ([], ["--overwrite"], ["--resume"]):
        assert "is not empty and holds no run" in refused(*small, "--out", "a", *more)
        assert "is a file" in refused(*small, "--out", "b", *more)
    assert Path("a/thesis.tex").read_text() == "years"
    assert Path("b").read_text() == "a file"


def test_a_failed_run_is_exit_code_one(small: list[str], joslim: Program) -> None:
    result = joslim(*small, "--out", "a", "--lr", "1e20", "--save-every", "1", "--json")
    assert (result.returncode, result.stdout) == (1, "")
    last = result.stderr.splitlines()[-1]
    assert last.startswith("joslim: the loss is nan at step 1, at widths conv1=16")
    assert "the last checkpoint is 'a/checkpoint'" in last


# Dry runs


def test_a_dry_run_writes_nothing(joslim: Program) -> None:
    options = ["train", *flags(steps=100, every=10, batch=8, threads=1), "--dry-run", "--out", "a"]
    result = joslim(*options)
    assert (result.returncode, result.stderr) == (0, "")
    assert "rounds           7" in result.stdout
    assert "hours" not in result.stdout
    assert "bytes" not in result.stdout
    assert re.search(r"several devices  2 take \d+ s, 8 take \d+ s \(docs", result.stdout)
    last = r"about \d+ s \(steps \d+ s, rounds of the search \d+ s; judging follows\), [\d.]+ [MG]B"
    assert re.fullmatch(last, result.stdout.splitlines()[-1])
    facts = json.loads(joslim(*options, "--json").stdout)
    assert (facts["rounds"], facts["children"]) == (7, 14)
    assert os.listdir(".") == []


# Models of one's own


def test_a_model_of_ones_own(
    own: Path, small: list[str], joslim: Program, refused: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert joslim(*small, "--model", "nets:digits", "--out", "a").returncode == 0
    monkeypatch.delitem(sys.modules, "nets")
    message = refused("resume", "a")
    assert "'nets:digits' is not imported because a file says so" in message
    assert "type --model nets:digits" in message
    assert "nets" not in sys.modules
    assert "the run has 'nets:digits'" in refused("resume", "a", "--model", "nets:other")
    assert joslim("resume", "a", "--model", "nets:digits").returncode == 0
    assert joslim("front", "a").returncode == 0


def test_models_that_do_not_work(own: Path, small: list[str], refused: Program) -> None:
    for name, words in (
        ("nets:three_outputs", "its output is (1, 3), the data need (n, 10)"),
        ("own:tiny", "the data need (n, 10)"),
        ("own:raising", "own:raising() failed"),
        ("own:weightless", "model: "),
        ("nowhere:net", "cannot import 'nowhere'"),
    ):
        assert words in refused(*small, "--model", name, "--out", "a")
    assert not Path("a").exists()


# Resume


def test_what_cannot_be_gone_on_with(refused: Program, tmp_path: Path) -> None:
    assert "does not exist" in refused("resume", "nowhere")
    assert "not a run folder" in refused("resume", str(tmp_path))
    Path("config.json").write_text('{"model_type": "bert"}')
    assert "config.json is not joslim's" in refused("resume", str(tmp_path))


def test_another_configuration_is_refused(
    small: list[str], joslim: Program, refused: Program
) -> None:
    assert joslim(*small, "--out", "a", "--resume").returncode == 0
    again = [*small, "--out", "a", "--resume"]
    for name, value in (("lr", "0.2"), ("model", "resnet20"), ("val", "0.2")):
        assert f"joslim: {name}: " in refused(*again, f"--{name}", value)
    assert "the run has 'resnet8'" in refused("resume", "a", "--model", "resnet20")
    assert joslim(*again).returncode == 0


def test_a_run_begun_in_python(refused: Program, tiny: dict[str, Any]) -> None:
    from joslim.runs.driver import train

    train(resnet8(num_classes=10), out="a", **{**tiny, "steps": 1})
    assert "go on there: joslim.train(" in refused("resume", "a")


# Signals

LONG = flags(steps=24, batch=32, every=8, save_every=10, log_every=1, front_images=64, threads=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, thorough_searches: Program) -> Path:
    """What comes out if nobody interrupts."""
    from joslim.cli import main

    path = tmp_path_factory.mktemp("whole") / "run"
    with thorough_searches(), pytest.raises(SystemExit) as stopped:
        main(["train", *LONG, "--out", str(path)])
    assert stopped.value.code == 0
    return path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`joslim ...` in a process of its own, which goes on meanwhile."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    processes = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "joslim", *arguments]
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def wait_for_step(file: Path, step: int) -> None:
    until = time.monotonic() + 120
    while not file.exists() or file.read_text().count("\n") < step:
        assert time.monotonic() < until
        time.sleep(0.005)


def test_a_finished_run_is_extended(joslim: Program, finished: Run, tmp_path: Path) -> None:
    shutil.copytree(finished.path, tmp_path / "run")
    result = joslim("resume", str(tmp_path / "run"), "--until", "8", "--json")
    assert result.returncode == 0, result.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert (config["steps"], config["epochs"]) == (8, None)


@pytest.mark.parametrize(
    ("number", "step", "code"),
    [(signal.SIGINT, 3, 130), (signal.SIGTERM, 6, 143), (signal.SIGKILL, 12, -signal.SIGKILL)],
)
def test_a_stopped_run_goes_on_to_the_same_end(
    number: int,
    step: int,
    code: int,
    whole: Path,
    started: Callable[..., subprocess.Popen[str]],
    joslim: Program,
    thorough_searches: Program,
) -> None:
    process = started("train", *LONG, "--out", "a")
    wait_for_step(Path("a/metrics.jsonl"), step)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (code, "")
    assert err.count("joslim: ") == (0 if number == signal.SIGKILL else 1)
    assert ("joslim resume a" in err) == (number != signal.SIGKILL)
    assert not Path("a/front.json").exists()
    stored = json.loads(Path("a/checkpoint/checkpoint.json").read_text())["step"]
    assert stored == 10 if number == signal.SIGKILL else stored >= step
    again = ["resume", "a"] if number != signal.SIGTERM else ["train", *LONG, "--out", "a"]
    with thorough_searches():
        assert joslim(*again, *["--resume"][: len(again) - 2]).returncode == 0
    same = ("history.jsonl", "front.json", "config.json", "checkpoint/model.safetensors")
    for name in (*same, "checkpoint/statistics.safetensors"):
        assert Path("a", name).read_bytes() == (whole / name).read_bytes(), name
    assert [line["step"] for line in read_lines(Path("a/metrics.jsonl"))] == [*range(1, 25), 24]
