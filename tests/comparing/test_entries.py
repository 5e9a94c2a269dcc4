"""Runs as a comparison reads them: where they are, and what may stand in one table."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from joslim.comparing.entries import (
    TAIL,
    Entry,
    differences,
    entries_of_plan,
    is_finished,
    last_line,
    last_record,
    log_of,
    progress_of,
    read_entries,
    seconds_of,
    steps_of,
)
from joslim.comparing.plan import FILE, Plan, Task
from joslim.errors import UserError
from joslim.front import Front
from joslim.runs.folder import RunFolder

Make = Callable[..., Path]


def refusal(*paths: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_entries(paths)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_finished_run(make_run: Make, tmp_path: Path) -> None:
    path = make_run(tmp_path / "a", [50, 30], method="slim", seed=3, seconds=12.5, low=0.3)
    (entry,) = read_entries([path])
    assert (entry.model, entry.cost, entry.method, entry.seed) == ("resnet8", "macs", "slim", 3)
    assert entry.front == Front.read(path)
    assert (entry.seconds, entry.failure, entry.at_once) == (12.5, None, None)
    assert entry.terms == {"data": "digits", "steps": 100, "batch": 64, "low": 0.3}


def test_a_real_run(finished, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (entry,) = read_entries([finished.path])
    assert entry.front == finished.front
    assert (entry.model, entry.cost, entry.method, entry.seed) == ("resnet8", "macs", "joslim", 0)
    assert entry.terms["steps"] == finished.config.steps == progress_of(finished.path)[0]
    assert entry.seconds is not None
    assert 0 < entry.seconds < 600


@pytest.mark.parametrize(
    ("epochs", "images", "batch"), [(1, 1000, 64), (2.5, 1293, 64), (40, 45000, 128), (0.01, 10, 5)]
)
def test_epochs_are_counted_as_a_training_counts_them(
    epochs: float, images: int, batch: int
) -> None:
    from types import SimpleNamespace

    from joslim.runs.config import Config
    from joslim.runs.job import total_steps

    config = {"steps": None, "epochs": epochs, "batch": batch}
    data = SimpleNamespace(sizes={"train": images})
    expected = total_steps(Config(epochs=epochs, batch=batch), data)  # type: ignore[arg-type]
    assert steps_of({"config": config, "data": {"sizes": {"train": images}}}, "x") == expected


def test_runs_that_are_not_there_or_not_done(make_run: Make, tmp_path: Path) -> None:
    assert "does not exist; joslim train makes one" in refusal(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "is not a run folder: it has no config.json" in refusal(tmp_path / "empty")
    begun = make_run(tmp_path / "begun", [50, 30], done=40)
    # Trained on past its end: the front is that of the shorter training.
    assert "stopped at step 40 of 100, its front is an earlier one" in refusal(begun)
    with RunFolder(begun).locked():
        assert "is still training; wait for its end" in refusal(begun)
    (begun / "front.json").unlink()
    assert "has no front yet, its training has not finished; joslim resume" in refusal(begun)
    with pytest.raises(UserError, match="runs: none given"):
        read_entries([])


def test_fronts_that_are_none(make_run: Make, tmp_path: Path) -> None:
    path = make_run(tmp_path / "a", [50, 30])
    front = json.loads((path / "front.json").read_text())
    (path / "front.json").write_text(json.dumps({**front, "children": []}))
    assert "front.children: 0 entries, 1 to" in refusal(path)
    (path / "front.json").write_text("{")
    assert "broken JSON" in refusal(path)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"method": "\x1b[2J"}, "method: '\\x1b[2J' is not a name"),
        ({"seed": -1}, "seed: -1 is not a whole number"),
        ({"steps": "many"}, "steps: 'many' is not a whole number"),
        ({"model": 3}, "model: 3 is not a name"),
    ],
)
def test_configurations_of_strangers(
    config: dict, words: str, make_run: Make, tmp_path: Path
) -> None:
    assert words in refusal(make_run(tmp_path / "a", [50, 30], **config))


def test_the_same_run_twice(make_run: Make, tmp_path: Path) -> None:
    first = make_run(tmp_path / "a", [50, 30], method="slim", seed=1)
    second = make_run(tmp_path / "b", [50, 30], method="slim", seed=1)
    assert "are both slim with seed 1; leave one out" in refusal(first, second)
    other = make_run(tmp_path / "c", [50, 30], method="slim", seed=1, cost="memory")
    assert len(read_entries([first, other])) == 2


# A whole comparison


def planned(out: Path, *tasks: Task) -> Plan:
    plan = Plan(tasks, {}).running(tasks, 2)
    out.mkdir(exist_ok=True)
    (out / FILE).write_text(json.dumps(plan.to_json()))
    return plan


SLIM, JOSLIM = Task("resnet8", "macs", "slim", 0), Task("resnet8", "macs", "joslim", 0)


def test_runs_of_a_plan(make_run: Make, tmp_path: Path) -> None:
    out = tmp_path / "c"
    plan = planned(out, SLIM, JOSLIM)
    make_run(out / SLIM.name, [50, 30], method="slim")
    done, missing = entries_of_plan(out, plan)
    assert (done.method, done.at_once, done.failure) == ("slim", 2, None)
    assert (missing.method, missing.front) == ("joslim", None)
    assert missing.failure == "not trained yet"
    log_of(out / JOSLIM.name).write_text("loading\njoslim: out of memory (x)\n\n")
    assert entries_of_plan(out, plan)[1].failure == "out of memory (x)"
    assert read_entries([out]) == entries_of_plan(out, plan)
    with RunFolder(out / JOSLIM.name).locked():
        assert entries_of_plan(out, plan)[1].failure == "still training"


def test_a_run_that_is_not_of_the_plan(make_run: Make, tmp_path: Path) -> None:
    plan = planned(tmp_path, SLIM)
    make_run(tmp_path / SLIM.name, [50, 30], method="joslim")
    with pytest.raises(UserError, match=r"method: .* has 'joslim' where the plan has 'slim'"):
        entries_of_plan(tmp_path, plan)


def test_terms_that_differ() -> None:
    def entry(**terms: object) -> Entry:
        return Entry("m", "macs", "slim", 0, Path("x"), terms=terms)

    same = [entry(steps=1, batch=2), entry(steps=1, batch=2), entry()]
    assert differences(same) == {}
    assert differences([*same, entry(steps=3, batch=2)]) == {"steps": [1, 3]}


# Ends of files


def test_the_last_line_that_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    assert last_record(tmp_path) == {}
    file.write_text('{"step": 1}\n{"step": 2}\n{"ste')
    assert last_record(tmp_path) == {"step": 2}
    file.write_text('{"step": 0, "filler": "' + "x" * TAIL + '"}\n{"step": 9, "seconds": 4}\n')
    assert last_record(tmp_path)["step"] == 9
    assert seconds_of(tmp_path) == 4.0
    for broken in ("[1]\n", '{"seconds": "x"}\n', '{"seconds": NaN}\n', '{"seconds": true}\n'):
        file.write_text(broken)
        assert seconds_of(tmp_path) is None


def test_files_that_would_never_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.log")
    (tmp_path / "b.log").symlink_to("/dev/zero")
    assert last_line(tmp_path / "a.log") == last_line(tmp_path / "b.log") == ""


def test_a_log_in_no_known_alphabet(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"fine\njoslim: \xff\xfe\n \x1b \n")
    assert last_line(tmp_path / "a.log") == "\ufffd\ufffd"
    (tmp_path / "a.log").write_bytes(b"joslim: red \x1b[31m\n")
    assert last_line(tmp_path / "a.log") == "red [31m"


def test_a_run_without_metrics_is_finished_if_it_has_a_front(
    make_run: Make, tmp_path: Path
) -> None:
    path = make_run(tmp_path / "a", [50, 30])
    (path / "metrics.jsonl").unlink()
    assert is_finished(path)
    assert not is_finished(tmp_path)
