"""Runs as a comparison reads them: where they are, and what may stand in one table."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from joslim.comparing.entries import (
    Entry,
    differences,
    entries_of_plan,
    last_line,
    log_of,
    read_entries,
    refuse_same_run_twice,
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
    terms = {"data": "digits", "steps": 100, "batch": 64, "low": 0.3}
    assert terms.items() <= entry.terms.items()


def test_a_real_run(finished, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (entry,) = read_entries([finished.path])
    assert entry.front == finished.front
    assert (entry.model, entry.cost, entry.method, entry.seed) == ("resnet8", "macs", "joslim", 0)
    assert entry.terms["steps"] == finished.config.steps
    assert entry.seconds is not None
    assert 0 < entry.seconds < 600


def test_runs_that_are_not_there_or_not_done(make_run: Make, tmp_path: Path) -> None:
    assert "does not exist; joslim train --out makes one" in refusal(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "has no config.json: not a run folder?" in refusal(tmp_path / "empty")
    begun = make_run(tmp_path / "begun", [50, 30], done=40)
    # Trained on past its end: the front is that of the shorter training.
    assert "has only an earlier front: it stopped at step 40 of 100" in refusal(begun)
    with RunFolder(begun).locked():
        assert "is still training (step 40 of 100); wait for its end" in refusal(begun)
    (begun / "front.json").unlink()
    assert "has no front yet: it stopped at step 40 of 100; joslim resume" in refusal(begun)
    with pytest.raises(UserError, match="runs: none given"):
        read_entries([])


def test_fronts_that_are_none(make_run: Make, tmp_path: Path) -> None:
    path = make_run(tmp_path / "a", [50, 30])
    front = json.loads((path / "front.json").read_text())
    (path / "front.json").write_text(json.dumps({**front, "children": []}))
    assert "it has no children; remove front.json, and joslim resume RUN" in refusal(path)
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
    with pytest.raises(UserError, match="are both slim with seed 1; leave one out"):
        refuse_same_run_twice(read_entries([first, second]))
    other = make_run(tmp_path / "c", [50, 30], method="slim", seed=1, cost="memory")
    refuse_same_run_twice(read_entries([first, other]))
    with pytest.raises(UserError, match="a' is given twice; leave one out"):
        refuse_same_run_twice(read_entries([first, tmp_path / "b" / ".." / "a"]))


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
        going = entries_of_plan(out, plan)[1]
        assert (going.failure, going.training) == ("still training (step 0)", True)


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
    assert differences([*same, entry(steps=3, batch=2)]) == {"steps": ["1", "3"]}
    assert differences([*same, entry(steps=1, batch=None)]) == {"batch": ["2", "default"]}


# Ends of files


def test_files_that_would_never_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.log")
    (tmp_path / "b.log").symlink_to("/dev/zero")
    assert last_line(tmp_path / "a.log") == last_line(tmp_path / "b.log") == ""


def test_a_log_in_no_known_alphabet(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"fine\njoslim: \xff\xfe\n \x1b \n")
    assert last_line(tmp_path / "a.log") == "\ufffd\ufffd"
    (tmp_path / "a.log").write_bytes(b"joslim: red \x1b[31m\n")
    assert last_line(tmp_path / "a.log") == "red [31m"
