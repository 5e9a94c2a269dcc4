"""The plan of a comparison: what it asks for, how it grows, what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joslim.comparing.plan import FILE, Plan, Task, asked_plan, is_comparison
from joslim.errors import UserError


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
