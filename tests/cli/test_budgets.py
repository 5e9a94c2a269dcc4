"""The budgets of a command."""

import pytest

from joslim.cli.budgets import budgets_of
from joslim.errors import UserError


def test_those_that_are_given() -> None:
    assert budgets_of(macs="20M", memory=None, latency_ms="3") == {"macs": 20e6, "latency_ms": 3.0}
    assert budgets_of(macs=None) == {}


@pytest.mark.parametrize("text", ["-3", "0", "20 apples", "nan", ""])
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(UserError, match=r"^params: "):
        budgets_of(macs="1", params=text)
