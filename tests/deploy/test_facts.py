"""What travels with a child."""

import json

import pytest

from joslim.deploy.facts import facts_of, widths_of
from joslim.errors import UserError
from joslim.runs.run import Run


def test_facts_of_a_child_of_the_front(finished: Run) -> None:
    point = finished.front[0]
    facts = facts_of(finished, point.widths)
    data = finished.facts["data"]
    assert {name: facts[name] for name in ("shape", "mean", "std", "classes")} == {
        name: data[name] for name in ("shape", "mean", "std", "classes")
    }
    assert facts["costs"] == point.costs
    assert facts["test_error"] == point.test_error
    assert facts["channels"] == point.widths.channels
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts


def test_the_full_network_need_not_be_on_the_front(tiny_run: Run) -> None:
    full = widths_of(tiny_run, tiny_run.net.space.full)
    facts = facts_of(tiny_run, full)
    assert facts["costs"] == {}
    assert facts["test_error"] is None


@pytest.mark.parametrize(
    ("key", "value"), [("mean", ["0.5"]), ("std", None), ("classes", [["a"]]), ("classes", "ab")]
)
def test_facts_of_a_run_that_are_none(key: str, value: object, tiny_run: Run) -> None:
    broken = Run(tiny_run.folder, tiny_run.net, tiny_run.front)
    broken.facts = {**tiny_run.facts, "data": {**tiny_run.facts["data"], key: value}}
    with pytest.raises(UserError, match=rf"^config\.json\.data\.{key}"):
        facts_of(broken, tiny_run.net.space.full)
