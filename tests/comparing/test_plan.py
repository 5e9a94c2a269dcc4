"""The plan of a comparison: what it asks for, how it grows, what it refuses, and its runs."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joslim.comparing.plan import (
    FILE,
    Plan,
    Task,
    asked_plan,
    entries_of_plan,
    is_comparison,
    last_line,
    log_of,
    read,
    read_entries,
)
from joslim.errors import UserError
from joslim.front import Front
from joslim.runs.folder import RunFolder

Make = Callable[..., Path]


def asked(known: Plan | None = None, settings: dict[str, Any] | None = None, **lists: Any) -> Plan:
    every = {"models": None, "costs": None, "methods": None, "seeds": None}
    return asked_plan({**every, **lists}, settings or {}, known)


def names(plan: Plan) -> set[str]:
    return {task.name for task in plan.tasks}


def test_what_a_new_comparison_is_by_default() -> None:
    plan = asked()
    assert len(plan.tasks) == 9
    assert plan.values("method") == ["slim", "bignas", "joslim"]
    assert plan.values("seed") == [0, 1, 2]
    assert "resnet8-macs-slim-seed0" in names(plan)


def test_a_grid_goes_seed_by_seed() -> None:
    plan = asked(methods=["slim", "joslim"], seeds=[3, 1], costs=["memory"])
    assert [(task.seed, task.method) for task in plan.tasks] == [
        (3, "slim"),
        (3, "joslim"),
        (1, "slim"),
        (1, "joslim"),
    ]


def test_a_recipe_names_the_network() -> None:
    plan = asked(settings={"recipe": "paper/cifar100-resnet20"})
    assert plan.values("model") == ["resnet20"]
    assert asked(settings={"recipe": "cifar"}).values("model") == ["resnet8"]


@given(
    first=st.tuples(
        st.sets(st.sampled_from(["slim", "joslim", "bignas"]), min_size=1),
        st.sets(st.integers(0, 5), min_size=1),
    ),
    second=st.tuples(
        st.sets(st.sampled_from(["slim", "joslim", "autoslim"]), min_size=1),
        st.sets(st.integers(0, 5), min_size=1),
    ),
)
def test_a_plan_only_grows(first: Any, second: Any) -> None:
    settings = {"steps": 10}
    begun = asked(settings=settings, methods=[*first[0]], seeds=[*first[1]])
    more = asked(begun, methods=[*second[0]], seeds=[*second[1]])
    grown = begun.grown(more)
    assert names(grown) == names(begun) | names(more)
    assert grown.tasks[: len(begun.tasks)] == begun.tasks
    assert grown.settings == settings == more.settings
    expected = {f"resnet8-macs-{m}-seed{s}" for m in second[0] for s in second[1]}
    assert names(more) == expected


def test_what_is_left_out_is_that_of_the_folder() -> None:
    begun = asked(methods=["slim", "joslim"], seeds=[0], settings={"steps": 10})
    assert asked(begun).tasks == begun.tasks
    assert names(asked(begun, seeds=[7])) == {
        "resnet8-macs-slim-seed7",
        "resnet8-macs-joslim-seed7",
    }


def test_names_stay_when_a_value_is_added() -> None:
    alone = asked(methods=["slim"], seeds=[0])
    assert names(alone) <= names(asked(costs=["macs", "memory"], models=["resnet8", "resnet20"]))


@pytest.mark.parametrize("model", ["nets:digits", "a/../b", "a.b:c d", "$(x)", "é\n"])
def test_names_are_names_of_folders(model: str) -> None:
    name = Task(model, "macs", "slim", 0).name
    assert "/" not in name
    assert name.isprintable()
    assert not {*" $():"} & {*name}


def test_two_networks_with_one_name() -> None:
    with pytest.raises(UserError, match=r"models: 'a:b' and 'a.b' would share the folder"):
        asked(models=["a:b", "a.b"])


def test_settings_go_to_the_methods_that_take_them() -> None:
    settings = {"searcher": "random", "widths": "0.5", "steps": 10.0}
    plan = asked(methods=["slim", "joslim", "single"], seeds=[0], settings=settings)
    slim, joslim, single = (plan.options(task) for task in plan.tasks)
    assert slim == {"steps": 10, "model": "resnet8", "cost": "macs", "method": "slim", "seed": 0}
    assert joslim == {**slim, "method": "joslim", "searcher": "random"}
    assert single == {**slim, "method": "single", "widths": "0.5"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"seeds": [0, 1, 0]}, "seeds: 0 is there twice; type each only once"),
        ({"methods": ["slim", "slim"]}, "methods: slim is there twice"),
        ({"seeds": []}, "seeds: [] given; give a list of at least one"),
        ({"methods": "slim"}, "methods: 'slim' given; give a list"),
        ({"methods": ["joslin"]}, "methods: unknown name 'joslin'; allowed: joslim, slim"),
        ({"costs": ["flops"]}, "costs: unknown name 'flops'; allowed: macs"),
        ({"seeds": [-1]}, "seeds: -1 given; allowed: a whole number, at least 0"),
        ({"seeds": ["x"]}, "seeds: 'x' given"),
        ({"seeds": range(10**4)}, "seeds: 30000 runs asked for, at most 10000"),
        ({"settings": {"steps": 0}}, "steps: 0 given; allowed: a whole number, at least 1"),
        ({"settings": {"stebs": 1}}, "configuration: unknown name 'stebs'; nearest of"),
        ({"settings": {"method": "slim"}}, "method: a comparison has several; give methods"),
        ({"settings": {"seed": 1}}, "seed: a comparison has several; give seeds"),
        ({"settings": {"steps": 1, "epochs": 1}}, "steps: 1 and epochs: 1.0 given; type only one"),
        ({"settings": {"widths": "0.5"}}, "widths: none of the methods takes it; allowed with: si"),
        (
            {"settings": {"searcher": "random"}, "methods": ["slim"]},
            "searcher: none of the methods takes it; allowed with: joslim, bignas, ofa",
        ),
    ],
)
def test_what_cannot_be_asked_for(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        asked(**arguments)
    assert words in str(caught.value)


def test_a_comparison_grows_by_methods_that_do_not_take_all_of_its_settings() -> None:
    begun = asked(settings={"searcher": "random"}, methods=["slim", "joslim"])
    more = begun.grown(asked(begun, methods=["autoslim"], seeds=[0]))
    assert "resnet8-macs-autoslim-seed0" in names(more)
    assert more.settings == {"searcher": "random"}
    with pytest.raises(UserError, match="searcher: none of the methods takes it"):
        asked(begun, {"searcher": "random"}, methods=["autoslim"])


def test_settings_of_a_comparison_do_not_change() -> None:
    begun = asked(settings={"steps": 10, "data": "digits"})
    for settings, words in (
        ({"steps": 20}, "steps: 20 given, the comparison has 10; leave it out, or type another"),
        ({"epochs": 2}, "epochs: 2.0 given, the comparison has its default"),
        ({"samples": 3}, "samples: 3 given, the comparison has 2"),
    ):
        with pytest.raises(UserError) as caught:
            asked(begun, settings)
        assert words in str(caught.value)
    # What is the same, or only says where a run runs, is fine.
    again = begun.grown(asked(begun, {"steps": 10, "samples": 2, "threads": 4, "log_every": 7}))
    assert again.settings == {"steps": 10, "data": "digits", "threads": 4, "log_every": 7}


def test_code_that_a_file_names_is_not_imported() -> None:
    begun = asked(models=["nets:digits", "resnet8"])
    with pytest.raises(UserError, match=r"models: 'nets:digits' is not imported because a file"):
        asked(begun, seeds=[5])
    assert asked(begun, models=["nets:digits"], seeds=[5]).values("model") == ["nets:digits"]


def test_a_file_does_not_say_where_to_download_to(tmp_path: Path) -> None:
    begun = asked(settings={"data_root": str(tmp_path / "nowhere"), "steps": 5})
    assert asked(begun).settings == {"steps": 5}
    here = asked(settings={"data_root": str(tmp_path)})
    assert asked(here).settings == {"data_root": str(tmp_path)}


def test_how_many_ran_at_once_is_kept() -> None:
    plan = asked(methods=["slim", "joslim"], seeds=[0])
    slim, joslim = plan.tasks
    plan = plan.running([slim, joslim], 4).running([slim], 2)
    assert plan.at_once == {slim.name: 4, joslim.name: 4}


def test_a_file_and_back(tmp_path: Path) -> None:
    plan = asked(settings={"steps": 10, "lr": 0.1}).running(asked().tasks[:2], 3)
    assert not is_comparison(tmp_path)
    (tmp_path / FILE).write_text(json.dumps(plan.to_json()))
    assert is_comparison(tmp_path)
    assert Plan.read(tmp_path) == plan


ROW = {"model": "resnet8", "cost": "macs", "method": "slim", "seed": 0}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "compare.json is broken"),
        ("[" * 100_000, "broken"),
        ("[]", "is not a JSON object"),
        ({}, "compare.json.settings: missing"),
        ({"settings": 3, "tasks": [ROW]}, "compare.json.settings: 3 is not a JSON object"),
        ({"settings": {}, "tasks": []}, "compare.json.tasks: 0 entries"),
        ({"settings": {}, "tasks": [3]}, "compare.json.tasks[0]: 3 is not a JSON object"),
        ({"settings": {}, "tasks": [{**ROW, "seed": "0"}]}, "tasks[0].seed: '0' is not a whole"),
        ({"settings": {}, "tasks": [{**ROW, "model": "\x1b[31m"}]}, "tasks[0].model: "),
        ({"settings": {}, "tasks": [{**ROW, "method": "x"}]}, "method: unknown name 'x'"),
        ({"settings": {}, "tasks": [{**ROW, "cost": "../x"}]}, "cost: unknown name '../x'"),
        ({"settings": {"steps": "x"}, "tasks": [ROW]}, "steps: 'x' given"),
        ({"settings": {}, "tasks": [ROW], "at_once": 3}, "at_once: 3 is not a JSON object"),
        (
            {"settings": {}, "tasks": [ROW], "at_once": {"resnet8-macs-slim-seed0": "x"}},
            "at_once: 'x' is not a whole number",
        ),
    ],
)
def test_files_of_strangers(content: Any, words: str, tmp_path: Path) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / FILE).write_text(text)
    with pytest.raises(UserError) as caught:
        Plan.read(tmp_path)
    assert words in str(caught.value)
    assert str(tmp_path) in str(caught.value)


# Runs that are there


def unread(*paths: Path) -> str:
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
    assert "does not exist; joslim train --out makes one" in unread(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "has no config.json: not a run folder?" in unread(tmp_path / "empty")
    begun = make_run(tmp_path / "begun", [50, 30], done=40)
    # Trained on past its end: the front is that of the shorter training.
    assert "has only an earlier front: it stopped at step 40 of 100" in unread(begun)
    with RunFolder(begun).locked():
        assert "is still training (step 40 of 100); wait for its end" in unread(begun)
    (begun / "front.json").unlink()
    assert "has no front yet: it stopped at step 40 of 100; joslim resume" in unread(begun)
    with pytest.raises(UserError, match="runs: none given"):
        read_entries([])


def test_fronts_that_are_none(make_run: Make, tmp_path: Path) -> None:
    path = make_run(tmp_path / "a", [50, 30])
    front = json.loads((path / "front.json").read_text())
    (path / "front.json").write_text(json.dumps({**front, "children": []}))
    assert "it has no children; remove front.json, and joslim resume RUN" in unread(path)
    (path / "front.json").write_text("{")
    assert "broken JSON" in unread(path)


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
    assert words in unread(make_run(tmp_path / "a", [50, 30], **config))


def test_the_same_run_twice(make_run: Make, tmp_path: Path) -> None:
    first = make_run(tmp_path / "a", [50, 30], method="slim", seed=1)
    second = make_run(tmp_path / "b", [50, 30], method="slim", seed=1)
    with pytest.raises(UserError, match="are both slim with seed 1; leave one out"):
        read([first, second])
    other = make_run(tmp_path / "c", [50, 30], method="slim", seed=1, cost="memory")
    read([first, other])
    with pytest.raises(UserError, match="a' is given twice; leave one out"):
        read([first, tmp_path / "b" / ".." / "a"])


# A whole comparison


def written_plan(out: Path, *tasks: Task) -> Plan:
    plan = Plan(tasks, {}).running(tasks, 2)
    out.mkdir(exist_ok=True)
    (out / FILE).write_text(json.dumps(plan.to_json()))
    return plan


SLIM, JOSLIM = Task("resnet8", "macs", "slim", 0), Task("resnet8", "macs", "joslim", 0)


def test_runs_of_a_plan(make_run: Make, tmp_path: Path) -> None:
    out = tmp_path / "c"
    plan = written_plan(out, SLIM, JOSLIM)
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
    plan = written_plan(tmp_path, SLIM)
    make_run(tmp_path / SLIM.name, [50, 30], method="joslim")
    with pytest.raises(UserError, match=r"method: .* has 'joslim' where the plan has 'slim'"):
        entries_of_plan(tmp_path, plan)


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


def test_progress_is_no_reason(tmp_path: Path) -> None:
    """The log of a run that was killed ends with lines of its progress."""
    progress = "step 1 of 2,000, loss 2\njudging children: 1 of 20\n"
    (tmp_path / "a.log").write_text(f"joslim: out of memory\n{progress}")
    assert last_line(tmp_path / "a.log") == "out of memory"
    (tmp_path / "a.log").write_text(progress)
    assert last_line(tmp_path / "a.log") == ""
