"""The terms of a run: the same, whichever way they were typed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from joslim.errors import UserError
from joslim.runs.config import Config
from joslim.runs.run import Run
from joslim.runs.terms import in_words, low_of, settings_of, steps_of, terms_of
from joslim.widths import Dim, Knob, WidthSpace

SPACE = WidthSpace((Dim("a", 16), Dim("b", 16)), (Knob("a", (0,), 0.25), Knob("b", (1,), 0.25)))

NOWHERE = Path("there is no such run")


def facts_of(**config: Any) -> dict[str, Any]:
    values = Config(**{"batch": 64, "steps": 100, **config}).to_json()
    return {"config": values, "data": {"identity": "digits", "sizes": {"train": 1280}}}


def terms(**config: Any) -> dict[str, Any]:
    return terms_of(NOWHERE, facts_of(**config), SPACE, "config.json")


def test_the_lowest_width_that_was_left_out_is_that_of_the_network() -> None:
    assert terms() == terms(low=0.25)
    assert terms()["low"] == 0.25
    mixed = replace(SPACE, knobs=(SPACE.knobs[0], Knob("b", (1,), 0.5)))
    assert low_of(mixed) == "0.25 to 0.5"
    assert low_of(WidthSpace((), ())) is None


def test_a_real_run_knows_it(finished: Run) -> None:
    assert finished.config.low is None
    found = terms_of(finished.path, finished.facts, finished.front.space, "x")
    assert found["low"] == finished.net.space.knobs[0].low
    assert (found["data"], found["steps"]) == (finished.facts["data"]["identity"], 6)


@pytest.mark.parametrize(
    "same",
    [
        {"steps": None, "epochs": 5},
        {"threads": 2, "device": "cpu", "data_root": "x", "log_every": 3},
        {"method": "slim", "seed": 3, "cost": "memory", "model": "resnet20"},
        {"every": 9, "searcher": "mobo-rs", "preset": "paper", "replay": 0.5},
        {"data": "folder:elsewhere", "recipe": "digits"},
    ],
)
def test_what_does_not_matter(same: dict[str, Any]) -> None:
    assert terms(**same) == terms()


@pytest.mark.parametrize(
    "other", [{"steps": 99}, {"batch": 5}, {"size": 16}, {"lr": 0.5}, {"distill": "kl"}]
)
def test_what_matters(other: dict[str, Any]) -> None:
    (key,) = other
    one, two = terms(), terms(**other)
    assert [name for name in one if one[name] != two[name]] == [key]


def test_latencies_of_two_devices_are_two_costs(tmp_path: Path) -> None:
    def on(device: str, **others: Any) -> dict[str, Any]:
        how = {"threads": 1, "batch": 1, "precision": "fp32", "backend": "eager", **others}
        record = {"conditions": {"device": device, **how, "inputs": [[1, 3, 8, 8]]}}
        (tmp_path / "latency.json").write_text(json.dumps(record))
        return terms_of(tmp_path, facts_of(cost="latency"), SPACE, "x")

    assert on("phone") == on("phone")
    for other in (on("server"), on("phone", threads=2)):
        assert [key for key, value in on("phone").items() if other[key] != value] == ["device_file"]
    (tmp_path / "latency.json").write_text('{"conditions": [1]}')
    with pytest.raises(UserError, match=r"latency.json: .* is not a JSON object"):
        terms_of(tmp_path, facts_of(), SPACE, "x")


def test_settings_have_the_method_too() -> None:
    found = settings_of(facts_of(method="slim"), 0.25)
    assert (found["method"], found["low"], found["steps"]) == ("slim", 0.25, 100)
    assert not {"epochs", "recipe", "data", "threads"} & found.keys()


def test_files_of_strangers() -> None:
    facts = facts_of()
    facts["config"]["lr"] = [1, {"x": 2}]
    assert hash(tuple(terms_of(NOWHERE, facts, SPACE, "x").values()))
    facts["config"]["steps"] = "many"
    assert steps_of(facts) is None
    with pytest.raises(UserError, match="x: steps: 'many' is not a whole number"):
        terms_of(NOWHERE, facts, SPACE, "x")
    with pytest.raises(UserError, match="is not a name"):
        terms_of(NOWHERE, {**facts_of(), "data": {"identity": "\x1b"}}, SPACE, "x")


def test_words() -> None:
    assert [in_words(value) for value in (None, 0.25, "x")] == ["default", "0.25", "x"]
    assert "None" not in json.dumps([in_words(value) for value in terms().values()])
