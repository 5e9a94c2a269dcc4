"""Files of a run folder: how far the run is, and each wrong folder refused in one line."""

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import joslim
from joslim.deploy.exporting import export
from joslim.errors import UserError
from joslim.front import Front
from joslim.results.record import read_record
from joslim.results.run_files import (
    FINISHED,
    STOPPED,
    TAIL,
    TRAINING,
    RunStatus,
    facts_of_child,
    facts_of_run,
    finite_number,
    is_finished,
    is_in_use,
    last_metrics,
    read_front,
    refuse_unfinished,
    status_of,
    total_steps,
)
from joslim.runs.driver import Progress, train
from joslim.runs.folder import RunFolder
from joslim.runs.run import Run


@pytest.fixture
def copied(finished: Run, tmp_path: Path) -> Path:
    shutil.copytree(finished.path, tmp_path / "copy")
    return tmp_path / "copy"


def asked_for(folder: Path, steps: int) -> Path:
    """As if it had been begun with so many steps; six are done."""
    facts = json.loads((folder / "config.json").read_text())
    facts["config"]["steps"] = steps
    (folder / "config.json").write_text(json.dumps(facts))
    return folder


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        refuse_unfinished(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_finished_run(finished: Run) -> None:
    assert status_of(finished.path) == RunStatus(FINISHED, 6, 6)
    refuse_unfinished(finished.path)
    with RunFolder(finished.path).locked():  # its last checkpoint may be under way
        assert is_finished(finished.path)


def test_a_run_that_trains_and_then_stops(copied: Path) -> None:
    asked_for(copied, 9)
    with RunFolder(copied).locked():
        assert status_of(copied) == RunStatus(TRAINING, 6, 9)
        assert refusal(copied) == (
            f"run: {str(copied)!r} is still training (step 6 of 9); wait for its end"
        )
    assert status_of(copied) == RunStatus(STOPPED, 6, 9)
    go_on = f"it stopped at step 6 of 9; joslim resume {copied} goes on"
    assert refusal(copied) == f"run: {str(copied)!r} has only an earlier front: {go_on}"
    with pytest.raises(UserError, match="has only an earlier front"):
        read_front(copied)
    (copied / "front.json").unlink()
    assert refusal(copied) == f"run: {str(copied)!r} has no front yet: {go_on}"


def rewrite(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_an_extended_run_that_stopped_while_it_was_judged(copied: Path) -> None:
    """All steps are done, and the front that is there is an earlier one."""
    rewrite(copied / "front.json", step=4)
    assert status_of(copied) == RunStatus(STOPPED, 6, 6)
    assert "has only an earlier front: it stopped at step 6 of 6" in refusal(copied)
    rewrite(copied / "front.json", step=6)
    assert is_finished(copied)
    # Judged, and killed before the last checkpoint was in.
    rewrite(copied / "checkpoint" / "checkpoint.json", finished=False)
    assert status_of(copied).state == STOPPED


@pytest.fixture(scope="module")
def extended(finished: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished after 6 steps, resumed until step 10, and killed with a checkpoint of step 8."""
    path = tmp_path_factory.mktemp("runs") / "extended"
    shutil.copytree(finished.path, path)
    (path / "report.html").unlink()

    def kill(progress: Progress) -> None:
        if progress.done == 9:
            raise KeyboardInterrupt

    options = {**finished.config.to_json(), "steps": None, "epochs": None}
    with pytest.raises(KeyboardInterrupt):
        train(out=path, resume=True, until=10, watch=kill, **options)
    return path


def test_an_earlier_front_is_never_shown_beside_later_weights(
    extended: Path, refused: Callable[..., str], tmp_path: Path
) -> None:
    go_on = f"has only an earlier front: it stopped at step 8 of 10; joslim resume {extended}"
    for command in commands_that_need_a_front(extended, tmp_path):
        assert go_on in refused(*command), command
    assert not [*tmp_path.iterdir()], "nothing was exported"
    run = joslim.load(extended)
    for reader in (lambda: run.front, lambda: joslim.export(run, run.net.space.full, "x.onnx")):
        with pytest.raises(UserError, match="has only an earlier front"):
            reader()
    with pytest.raises(UserError, match="it is of step 6, the weights are of step 8; type joslim"):
        Front.read(extended)


def test_a_page_of_an_extended_run_shows_what_is_known_so_far(extended: Path) -> None:
    record = read_record(extended)
    assert record.status == RunStatus("stopped", 8, 10)
    assert record.front is None


def commands_that_need_a_front(run: Path, out: Path) -> list[tuple[str, ...]]:
    return [
        ("front", str(run)),
        ("pick", str(run), "--macs", "1M"),
        ("allocate", str(run), "--macs", "1M"),
        ("export", str(run), "--macs", "1M", "-o", str(out / "x.onnx")),
        ("export", str(run), "--whole", "-o", str(out / "whole")),
        ("report", str(run), "-o", str(out / "x.png")),
        ("compare", str(run)),
        ("figure", "cifar", str(run), "-o", str(out / "x.png")),
    ]


def test_a_front_that_is_not_there_yet(copied: Path) -> None:
    (copied / "front.json").unlink()
    with pytest.raises(UserError, match="stopped at step 6 of 6; joslim resume"):
        read_front(copied)
    with (
        RunFolder(copied).locked(),
        pytest.raises(UserError, match=r"is still training \(step 6 of 6\)"),
    ):
        read_front(copied)


def test_the_commands_that_need_a_front_say_what_to_do(
    copied: Path, refused: Callable[..., str], tmp_path: Path
) -> None:
    (copied / "front.json").unlink()
    asked_for(copied, 60)
    commands = commands_that_need_a_front(copied, tmp_path)
    with RunFolder(copied).locked():
        for command in commands:
            said = refused(*command)
            assert "is still training (step 6 of 60); wait for its end" in said, command
    for command in commands:
        assert f"stopped at step 6 of 60; joslim resume {copied} goes on" in refused(*command)


def test_folders_that_are_no_runs(tmp_path: Path) -> None:
    assert "does not exist; joslim train" in refusal(tmp_path / "nowhere")
    assert "has no config.json: not a run folder?" in refusal(tmp_path)
    for path in (tmp_path / "nowhere", tmp_path / ("x" * 5000)):
        with pytest.raises(UserError):
            read_front(path)
        assert not is_in_use(path)


def test_a_run_without_metrics_is_finished_if_it_has_a_front(copied: Path) -> None:
    (copied / "metrics.jsonl").unlink()
    assert status_of(copied) == RunStatus(FINISHED, 6, 6)
    (copied / "front.json").unlink()
    assert status_of(copied) == RunStatus(STOPPED, 6, 6)
    (copied / "config.json").write_text("{")
    assert status_of(copied).place == "step 6"


def test_the_step_of_a_run_that_stopped_between_two_lines_of_its_log(copied: Path) -> None:
    """A signal ends the step, and saves it: this is where the run goes on from."""
    lines = (copied / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copied / "metrics.jsonl").write_text("".join(lines[:4]))
    (copied / "front.json").unlink()
    assert status_of(copied) == RunStatus(STOPPED, 6, 6)


def test_looking_is_not_training(copied: Path) -> None:
    """Who looks holds the lock for a moment; a training that begins just then waits for it."""
    assert not is_in_use(copied)
    handle = os.open(copied, os.O_RDONLY)
    from joslim.results.run_files import lock
    from joslim.runs import folder

    assert lock(handle)
    naps = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        os.close(handle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder.time, "sleep", nap)
        with RunFolder(copied).locked():
            assert is_in_use(copied)
    assert naps == [folder.LOOK_SECONDS]


# Steps and seconds


@pytest.mark.parametrize(
    ("epochs", "images", "batch", "steps"),
    [(1, 1000, 64, 16), (2.5, 1293, 64, 51), (40, 45000, 128, 14063), (0.01, 10, 5, 1)],
)
def test_steps_of_epochs_are_rounded_up(epochs: float, images: int, batch: int, steps: int) -> None:
    config = {"steps": None, "epochs": epochs, "batch": batch}
    assert total_steps({"config": config, "data": {"sizes": {"train": images}}}, "x") == steps


@pytest.mark.parametrize(
    "config", [None, [], {}, {"epochs": 2}, {"epochs": 2, "batch": 0}, {"steps": "x"}]
)
def test_steps_that_nobody_can_count(config: Any) -> None:
    with pytest.raises(UserError, match=r"config\.json"):
        total_steps({"config": config, "data": {"sizes": {"train": 10}}}, "config.json")


def test_the_last_line_that_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    assert last_metrics(tmp_path) == {}
    file.write_text('{"step": 1}\n{"step": 2}\n{"ste')
    assert last_metrics(tmp_path) == {"step": 2}
    file.write_text('{"step": 0, "filler": "' + "x" * TAIL + '"}\n{"step": 9, "seconds": 4}\n')
    assert last_metrics(tmp_path)["step"] == 9
    assert finite_number(last_metrics(tmp_path), "seconds") == 4.0
    for broken in ("[1]\n", '{"seconds": "x"}\n', '{"seconds": NaN}\n', '{"seconds": true}\n'):
        file.write_text(broken)
        assert finite_number(last_metrics(tmp_path), "seconds") is None
        assert status_of(tmp_path).step == 0


@pytest.mark.parametrize("value", [None, "3", True, math.nan, math.inf, 10**400, [1], {}])
def test_what_is_no_number_is_none(value: Any) -> None:
    assert finite_number({"a": value}, "a") is None
    assert finite_number({}, "a") is None
    assert finite_number({"a": 3}, "a") == 3


# Everything that joslim writes, given in place of something else


@pytest.fixture(scope="module")
def child(finished: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("children") / "child"
    export(joslim.load(finished.path), finished.front[0], path)
    return path


def misuse(opening: Callable[[Path], object], path: Path) -> str:
    with pytest.raises(UserError) as refused:
        opening(path)
    line = str(refused.value)
    assert "\n" not in line
    assert str(path) in line
    return line.replace(str(path), "PATH")


def test_what_is_right_is_opened(finished: Run, child: Path) -> None:
    assert facts_of_run(finished.path) == json.loads((finished.path / "config.json").read_text())
    assert facts_of_child(child) == json.loads((child / "config.json").read_text())


def test_a_child_is_not_a_run(finished: Run, child: Path) -> None:
    line = "run: 'PATH' is an exported child; joslim.load_child('PATH') opens it"
    assert misuse(joslim.load, child) == line
    assert misuse(lambda path: joslim.export(path, finished.front[0], "x"), child) == line


def test_a_run_is_not_a_child(finished: Run) -> None:
    line = "child: 'PATH' is a run; joslim.load('PATH') opens it, "
    assert misuse(joslim.load_child, finished.path) == (
        f"{line}joslim export PATH -o NAME cuts one out"
    )


@pytest.mark.parametrize(
    ("name", "opener"),
    [("child.onnx", "onnxruntime.InferenceSession"), ("child.pt2", "torch.export.load")],
)
def test_a_child_in_one_file(name: str, opener: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"anything")
    what = f"'PATH' is an exported child, which {opener} opens"
    assert misuse(joslim.load, tmp_path / name).startswith(f"run: {what}; a run is a folder")
    assert misuse(joslim.load_child, tmp_path / name).startswith(f"child: {what}; a folder is")


def test_a_file_of_a_run(finished: Run) -> None:
    file = finished.path / "front.json"
    assert misuse(joslim.load, file).startswith("run: 'PATH' is a file; a run is a folder")
    assert misuse(joslim.load_child, file).startswith("child: 'PATH' is a file; a folder is needed")


def test_nothing_there(tmp_path: Path) -> None:
    assert "run: 'PATH' does not exist; joslim train" in misuse(joslim.load, tmp_path / "no")
    line = misuse(joslim.load_child, tmp_path / "no")
    assert line == "child: 'PATH' does not exist; joslim export RUN -o NAME makes one"


def test_an_empty_folder(tmp_path: Path) -> None:
    assert "run: 'PATH' has no config.json" in misuse(joslim.load, tmp_path)
    line = "child: 'PATH' is no exported child: it has no config.json; joslim export RUN"
    assert misuse(joslim.load_child, tmp_path).startswith(line)


@pytest.mark.parametrize("facts", [{}, {"made_by": "others"}, {"made_by": 3}, {"format": 1}])
def test_a_folder_of_another_program(facts: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(facts))
    assert misuse(joslim.load, tmp_path).endswith("its config.json is not joslim's")
    line = "child: 'PATH' is no exported child: its config.json is not joslim's"
    assert misuse(joslim.load_child, tmp_path).startswith(line)


@pytest.mark.parametrize("opening", [joslim.load, joslim.load_child])
def test_a_name_that_no_file_can_have(opening: Callable[[Path], object]) -> None:
    assert misuse(opening, Path("x" * 5000)).startswith("path: 'PATH' cannot be read: ")
