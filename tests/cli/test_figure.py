"""`joslim figure`: the list, drawing of finished runs, one figure from nothing, and bad input."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from joslim.paper.figures import FIGURES

if TYPE_CHECKING:
    from joslim.runs.run import Run

Twin = Callable[..., str]


@pytest.fixture
def twin(finished: "Run", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Twin:
    """`twin("b", method="slim")`: a copy of the finished run that says it is of another one."""
    monkeypatch.chdir(tmp_path)

    def copy(name: str, **changes: Any) -> str:
        shutil.copytree(finished.path, tmp_path / name)
        file = tmp_path / name / "config.json"
        facts = json.loads(file.read_text())
        facts["config"].update(changes)
        file.write_text(json.dumps(facts))
        return name

    return copy


def test_without_a_name_there_is_a_list(joslim: Any) -> None:
    lines = joslim("figure").stdout.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == list(FIGURES)
    assert all(FIGURES[line.split()[0]].place in line for line in lines[:-1])
    assert "cifar100-resnet20-5x" in lines[-1]


def test_the_list_as_json(joslim: Any) -> None:
    facts = json.loads(joslim("figure", "--json").stdout)
    assert facts["cifar"]["trainings"] == 108
    assert facts["memory"]["panels"] == ["imagenet-mobilenet-v2", "imagenet-resnet18"]


# Runs that are there


def test_finished_runs_are_drawn(joslim: Any, twin: Twin) -> None:
    runs = [twin("a"), twin("b", method="slim"), twin("c", seed=1)]
    printed = joslim("figure", "cifar", *runs, "-o", "x.png")
    assert printed.returncode == 0
    assert "ResNet8, digits, macs: slim, area" in printed.stdout
    assert "(2 seeds)" in printed.stdout
    assert printed.stdout.splitlines()[-1] == "written: x.png, x.json"
    assert Path("x.png").read_bytes().startswith(b"\x89PNG")
    assert not Path("x.svg").exists()


def test_the_table_is_printed_and_written(joslim: Any, twin: Twin) -> None:
    printed = joslim("figure", "table1", twin("a"), twin("b", method="slim"), "-o", "x.png")
    assert printed.stdout.splitlines()[-1] == "written: x.png, x.json, x.md"
    row = next(line for line in printed.stdout.splitlines() if "1814" in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == ["1814", "69.6", "69.7", "70.0"]
    assert "ResNet8, digits: top-1 accuracy, %" in printed.stdout
    text = Path("x.md").read_text()
    assert "| 1814 | 69.6 | 69.7 | 70.0 |\n" in text
    assert "**ResNet8, digits**: top-1 accuracy in percent\n\n| MFLOPs | Slim | Joslim |" in text


def test_numbers_as_json(joslim: Any, twin: Twin) -> None:
    result = joslim("figure", "cifar", twin("a"), "-o", "x.svg", "--json")
    record = json.loads(result.stdout)
    assert record["panels"] == json.loads(Path("x.json").read_text())["panels"]
    assert record["files"] == ["x.svg", "x.json"]


def test_names_with_markup_are_shown_as_they_are(joslim: Any, twin: Twin) -> None:
    result = joslim("figure", "cifar", twin("a", model="x:[red]$y$"), "-o", "x.svg")
    assert "[red]$y$, digits, macs: joslim" in result.stdout
    assert "[red]$y$, digits" in Path("x.svg").read_text()


def test_latency_is_measured_here(joslim: Any, twin: Twin) -> None:
    arguments = ["--timing-batch", "2", "--threads", "1", "--device", "cpu", "-o", "x.svg"]
    result = joslim("figure", "latency", twin("a"), *arguments)
    assert result.returncode == 0
    assert json.loads(Path("x.json").read_text())["conditions"][0]["batch"] == 2


# From nothing


def test_a_figure_from_nothing_and_again(joslim: Any, tmp_path: Path) -> None:
    """Real trainings in processes of their own; the second time all of them are there."""
    command = "figure widths --model resnet8 --data digits --recipe digits --steps 1 --batch 8 "
    command += f"--front-images 8 --threads 1 --seeds 0 --at 0.5 -o {tmp_path / 'out'}"
    first = joslim(*command.split())
    assert first.returncode == 0, first.stderr
    picture = tmp_path / "out" / "widths.png"
    logs = [*(tmp_path / "out" / "runs").rglob("metrics.jsonl")]
    times = {log: log.stat().st_mtime_ns for log in logs}
    content = picture.read_bytes()
    assert len(logs) == 2
    picture.unlink()
    assert joslim(*command.split()).returncode == 0
    assert {log: log.stat().st_mtime_ns for log in logs} == times
    assert picture.read_bytes() == content


# Bad input

TOY = ["--model", "resnet8", "--data", "digits", "--steps", "1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cifra", "-o", "x"], "figure: unknown name 'cifra'; allowed: cifar, imagenet, table1,"),
        (["cifar"], "out: nothing given; type -o FOLDER, or -o FILE.png after folders of runs"),
        (["cifar", "-o", "x", "--seeds", "0,0", *TOY], "seeds: 0 is there twice"),
        (["cifar", "-o", "x", "--seeds", "0,x"], "seeds: 'x' is not a whole number from 0 on"),
        (["k", "-o", "x", "--ks", "0"], "ks: '0' is not a whole number from 1 on"),
        (["k", "-o", "x", *TOY], "ks: the paper's 156,313,626,1252,3128 belong to its 400 epochs"),
        (["cifar", "-o", "x", "--ks", "1"], "ks: figure cifar has no values of K to choose"),
        (
            ["cifar", "-o", "x", "--only", "resnet"],
            "only: unknown name 'resnet'; allowed: cifar",
        ),
        (["widths", "-o", "x", "--at", "2"], "at: '2' is not a share of the full cost"),
        (["widths", "-o", "x", "--at", "half"], "at: 'half' is not a share of the full cost"),
        (["cifar", "-o", "x", "--at", "0.5"], "at: it is for figure widths, not cifar"),
        (["k", ".", "-o", "x.png", "--device-file", "x"], "device_file: it is for figure latency"),
        (["bisection", "-o", "x", "--searcher", "random"], "but this figure varies it"),
        (["latency", "-o", "x", "--timing-batch", "0"], "timing_batch: 0 is not a whole number"),
        (["imagenet", "-o", "x"], "fetch ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar"),
        (["cifar", "-o", "x", "--lr", "-1"], "lr: -1.0 given; allowed: a number, above 0"),
        (["cifar", "-o", "x", "--method", "slim"], "No such option: --method"),
        (["cifar", "nowhere", "-o", "x.png"], "run: 'nowhere' does not exist"),
        (["cifar", ".", "-o", "x.png"], "run: '.' has no config.json: not a run folder?"),
        (["cifar", ".", "-o", "no/x.png"], "its folder cannot be written to"),
        (["cifar", ".", "-o", "x.png", "--steps", "3"], "steps: folders of runs are given"),
        (["cifar", ".", "-o", "x.png", "--seeds", "3"], "seeds: folders of runs are given"),
    ],
)
def test_bad_input(
    arguments: list[str], words: str, refused: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in refused("figure", *arguments)


def test_a_file_of_settings_cannot_name_what_the_figure_has(refused: Any, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('method = "slim"\n')
    assert "method: figure cifar has its own" in refused(
        "figure", "cifar", "-o", str(tmp_path / "x"), "--config", str(file)
    )


def test_runs_that_do_not_go_together(refused: Any, twin: Twin) -> None:
    one, other = twin("a"), twin("b", steps=7)
    assert "'b' has only an earlier front: it stopped at step 6 of 7" in refused(
        "figure", "cifar", one, other, "-o", "x.png"
    )
    same = twin("c")
    said = refused("figure", "cifar", one, same, "-o", "x.png")
    assert "seed: 'a' and 'c' are both joslim with seed 0; leave one out" in said
    larger = twin("d", batch=33, seed=1)
    assert "batch: 'a' has 32, 'd' has 33; draw them apart" in refused(
        "figure", "cifar", one, larger, "-o", "x.png"
    )
    assert "cost: 'a' has macs, this figure is of memory" in refused(
        "figure", "memory", one, "-o", "x.png"
    )
    assert "none of method slim" in refused("figure", "k", one, "-o", "x.png")


def test_a_picture_of_an_unknown_kind(refused: Any, twin: Twin) -> None:
    assert "ends in none of .png, .svg" in refused("figure", "cifar", twin("a"), "-o", "x.pdf")


def test_a_run_of_somebodys_own_network_needs_it_again(refused: Any, twin: Twin) -> None:
    said = refused("figure", "latency", twin("a", model="nets:digits"), "-o", "x.png")
    assert "not imported because a file says so" in said
